"""One run for a person or a job: signals, progress, the report, and a last line that says which items are safe."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

import click

from voxbatch import display, runner, standard_streams
from voxbatch.config import RETRY_CHOICES, Config
from voxbatch.errors import EmptySourceError, RunError, StorageError, TakenOverError, UsageError, VoxbatchError
from voxbatch.log import Log
from voxbatch.output.failure_reasons import read_reasons
from voxbatch.output.layout import FAILURES, existing_outputs
from voxbatch.output.lines import first_texts
from voxbatch.output.summary import Summary
from voxbatch.platforms.tasks import sagemaker
from voxbatch.runner import Progress, RunResult, Stop, StopRequested
from voxbatch.runner.stop import FINAL_COMMIT_TIMEOUT_S
from voxbatch.safe_text import counted, escape_controls, redact_secrets
from voxbatch.storage import StoreOptions, is_remote, open_store, redacted, set_retry_deadline

EXIT_SOME_FAILED = 3
"""Exit code of a run that finished with failed items."""

STOPPING = (signal.SIGINT, signal.SIGTERM)
ECHO_S = 1.0
"""Seconds in which a repeated signal counts as the first one.

Some launchers signal all processes and also pass the signal on, so that a process receives the signal twice.
"""
LEAVE_S = FINAL_COMMIT_TIMEOUT_S + 1.0
"""Seconds after which a process that was told to stop exits.

It exits even if a call still blocks, for example a request to a silent store.
"""
WRITE_TIMEOUT_S = 1.0
"""Seconds that a process which was told to stop waits for the reader of its standard output and error."""


def transcribe(config: Config, log: Log, show_progress: bool, quiet: bool, exit_zero: bool = False) -> int:
    """Run a config and return the exit code; after a run that does not end well, log what is safe and how to continue.

    Args:
        show_progress: show a live progress line instead of progress events.
        quiet: print no transcripts and no outcome.
        exit_zero: return 0 even if items failed.

    Raises:
        UsageError: the config or the manifest is invalid, nothing was started, and the log is text for people.
    """
    stop, latest = Stop(), _Latest()
    signals: list[int] = []

    def interrupted(reason: str = "") -> int:
        """Log the interruption, and return its exit code."""
        log.warning("interrupted", text=f"interrupted; {f'{reason}; ' if reason else ''}{_safe(config, latest)}")
        return 128 + signals[-1]

    try:
        on_signals(stop, signals, lambda: leave(interrupted(f"the last commit took over {LEAVE_S:.0f} s")))
        shown = display.live_progress if show_progress else display.progress_events
        with shown(log, config.usd_per_hour) as observe:
            finished = runner.run(config, log, latest.then(observe), stop, estimate_durations=show_progress)
        return report(config, finished, log, quiet, exit_zero)
    except StopRequested as e:
        signal.setitimer(signal.ITIMER_REAL, 0)
        return interrupted(str(e))
    except VoxbatchError as e:
        if config.update and isinstance(e, EmptySourceError):
            log.info("nothing_to_do", text=f"{e}; nothing to do")
            return 0
        sagemaker.write_exit_message(str(e), sagemaker.root_folder(os.environ))
        if isinstance(e, UsageError) and latest.progress is None:  # nothing was started
            return refuse(e, log)
        is_safe = not isinstance(e, TakenOverError)  # otherwise, the committed items are deleted or about to be
        log.error("run_failed", text=f"{e}\n{_safe(config, latest)}" if is_safe else str(e))
        return RunError.exit_code
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in STOPPING:
            signal.signal(number, signal.SIG_DFL)


def refuse(error: UsageError, log: Log) -> int:
    """Log one event if the log is JSON, and return the exit code.

    Raises:
        UsageError: the error itself if the log is text: the console script prints it, as for every other command.
    """
    if not log.as_json:
        raise error
    log.error("refused", text=str(error))
    return error.exit_code


class _Latest:
    """The latest progress of the run."""

    def __init__(self) -> None:
        self.progress: Progress | None = None

    def then(self, observe: Callable[[Progress], None]) -> Callable[[Progress], None]:
        """Return an observer that stores the progress and then calls `observe`."""

        def both(progress: Progress) -> None:
            self.progress = progress
            observe(progress)

        return both


def _safe(config: Config, latest: _Latest) -> str:
    """Return the sentence that says how many items are safe and how to continue."""
    p = latest.progress
    if p is None:
        return "no item was started, and all committed items are safe; run the same command again to continue"
    safe = f"{p.committed:,} of {p.items:,} items are safe in {config.out}"
    again = " without --overwrite" if config.overwrite else ""
    return f"{safe}; run the same command again{again} to continue"


def on_signals(stop: Stop, received: list[int], give_up: Callable[[], NoReturn]) -> None:
    """Stop the run softly on the first SIGINT or SIGTERM, and append its number to `received`.

    From then on, no write to standard output or error waits long for its reader.

    A second signal has its default effect, unless it arrives within ECHO_S of the first. A process that still runs
    LEAVE_S after the first signal calls `give_up`.
    """
    asked_at = 0.0

    def insist(number: int, _: FrameType | None) -> None:
        """Handle a second signal: its default effect, unless it repeats the first one."""
        if time.monotonic() - asked_at > ECHO_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def handle(number: int, _: FrameType | None) -> None:
        """Handle the first signal: stop softly, and start the timer of `give_up`."""
        nonlocal asked_at
        asked_at = time.monotonic()
        received.append(number)
        for each in STOPPING:
            signal.signal(each, insist)
        set_retry_deadline(FINAL_COMMIT_TIMEOUT_S)
        standard_streams.set_write_deadline(WRITE_TIMEOUT_S)
        signal.setitimer(signal.ITIMER_REAL, LEAVE_S)
        stop.request()

    standard_streams.install()
    signal.signal(signal.SIGALRM, lambda *_: give_up())
    for number in STOPPING:
        signal.signal(number, handle)


def report(config: Config, result: RunResult, log: Log, quiet: bool, exit_zero: bool) -> int:
    """Log and print the outcome of a finished run, and return the exit code."""
    display.log_result(config, result, log)
    if result.summary is None:
        failed = result.progress.resumed_failed + result.progress.failed
    else:
        failed = result.summary.failed
        if not quiet:
            # Several tasks cannot retry: each would have to know what the others have done.
            command = retry_command(sys.argv) if config.shards == 1 else ""
            print_outcome(result.summary, config.out, config.store_options, command)
    if not failed or exit_zero:
        return 0
    # SageMaker treats exit code 3 as a failed job, too, so the job gets a reason.
    reason = f"finished, but {counted(failed, 'item')} failed: see {FAILURES}; --exit-zero makes that exit code 0"
    sagemaker.write_exit_message(reason, sagemaker.root_folder(os.environ))
    return EXIT_SOME_FAILED


def retry_command(argv: Sequence[str]) -> str:
    """Return the command of a run without the options that --retry-failed excludes, or "" for another program.

    The arguments are left out if one of them holds a secret.
    """
    if len(argv) < 2 or argv[1] != "run":
        return ""
    words = [word for word in argv[2:] if word != "--overwrite" and not word.startswith("--retry-failed")]
    if "--retry-failed" in argv:  # its value, if it stands there, is the word after it
        at = argv.index("--retry-failed") + 1
        if at < len(argv) and argv[at] in RETRY_CHOICES:
            words.remove(argv[at])
    if any(redact_secrets(word) != word or (is_remote(word) and redacted(word) != word) for word in words):
        return "voxbatch run …"
    return shlex.join(["voxbatch", "run", *words])


def print_outcome(summary: Summary, out: str, store_options: StoreOptions, command: str = "") -> None:
    """Print the outcome of a merged run. Outputs that cannot be read are left out: the run itself is finished.

    Args:
        summary: the summary of the run.
        out: OUT.
        store_options: access to OUT.
        command: the command of the run, to which --retry-failed can be added. Empty if there is none.
    """
    store = open_store(out, store_options)
    texts, places = list[tuple[str, str]](), list[tuple[str, str]]()
    with contextlib.suppress(StorageError):
        texts = first_texts(store, display.SHOWN_TRANSCRIPTS)
    with contextlib.suppress(StorageError):
        places = [(label, os.path.join(out, name)) for label, name in existing_outputs(store)]
    reasons = None
    with contextlib.suppress(StorageError):
        reasons = read_reasons(store) if summary.failed else None
    for line in display.outcome_lines(summary, texts, places, reasons, command, out):
        click.echo(escape_controls(line))


def leave(code: int) -> NoReturn:
    """Exit without waiting for the engine's threads.

    A stopped run may leave such a thread in native code, which nothing can interrupt. A normal exit would tear down
    the interpreter under it: with CTranslate2, that is a segmentation fault.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
