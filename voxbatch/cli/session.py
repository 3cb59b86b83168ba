"""One run for a person or a job: signals, progress, the report, and a last line that says which items are safe."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

import click

from voxbatch import display, runner
from voxbatch.cli.options import BURN
from voxbatch.config import Config
from voxbatch.errors import (
    CheckpointError,
    EmptySourceError,
    InUseError,
    RunError,
    StorageError,
    TakenOverError,
    UsageError,
    VoxbatchError,
)
from voxbatch.failure_kinds import FailureKind
from voxbatch.log import Log
from voxbatch.output.layout import FAILURES
from voxbatch.output.lease import work_on
from voxbatch.platforms.tasks import write_exit_message
from voxbatch.process import streams
from voxbatch.process.limits import raise_open_files
from voxbatch.runner import Progress, RunResult, Stop, StopRequested
from voxbatch.runner.progress import FINAL_COMMIT_TIMEOUT_S
from voxbatch.safe_text import counted
from voxbatch.storage import Stores
from voxbatch.storage.waits import set_retry_deadline

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


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a run: what it prints, and its exit code."""

    quiet: bool = False
    """Print no outcome. Transcripts are printed to standard output only if they were asked for."""
    verbose: bool = False
    """Print also the figures that summary.json has for programs."""
    stdout: str = ""
    """Format in which the whole transcripts go to standard output, one of FORMATS, and the outcome to standard error.
    Empty prints the outcome with the begin of the transcripts to standard output."""
    exit_zero: bool = False
    """Return 0 even if items failed."""
    videos: str = ""
    """See cli.options.video_options."""
    shows_items: bool = True
    """Show the first transcripts and failed items in the outcome."""


def transcribe(config: Config, log: Log, show_progress: bool, ending: Ending, shares_out: bool = False) -> int:
    """Run a config and return the exit code; after a run that does not end well, log what is safe and how to continue.

    Args:
        show_progress: show a live progress line instead of progress events.
        shares_out: see runner.run.

    Raises:
        UsageError: the config or the manifest is invalid, nothing was started, and the log is text for people.
    """
    raise_open_files()
    stop = Stop()
    signals: list[int] = []
    latest: Progress | None = None

    def interrupted(reason: str = "") -> int:
        """Log the interruption, and return its exit code."""
        log.warning("interrupted", text=f"interrupted; {f'{reason}; ' if reason else ''}{_safe(config, latest)}")
        return 128 + signals[-1]

    try:
        on_signals(stop, signals, lambda: leave(interrupted(f"the last commit took over {LEAVE_S:.0f} s")))
        with shown_progress(config, log, show_progress) as show:

            def observe(progress: Progress) -> None:
                nonlocal latest
                latest = progress
                show(progress)

            wants_estimates = not ending.quiet
            finished = runner.run(config, log, observe, stop, None, wants_estimates, shares_out)
        if ending.videos and finished.summary is not None:
            with work_on(config.stores.out(config.out), config.shard, config.shards, is_alone=False, log=log):
                write_copies(config.out, config.stores, ending.videos, log)
        return report(config, finished, log, ending)
    except StopRequested as e:
        signal.setitimer(signal.ITIMER_REAL, 0)
        return interrupted(str(e))
    except VoxbatchError as e:
        if config.update and isinstance(e, EmptySourceError):
            log.info("nothing_to_do", text=f"{e}; nothing to do")
            return 0
        from voxbatch.cli.advice import folder_line, refused_address, with_commands

        if config.shards == 1:
            e = with_commands(e, sys.argv, config.out)
        write_exit_message(str(e))
        e = refused_address(e, config.source) if latest is None and config.shards == 1 else e
        if isinstance(e, UsageError) and latest is None:  # nothing was started
            return refuse(e, log)
        hints = [folder_line(config.source)] if isinstance(e, StorageError) and latest is None else []
        log.error("run_failed", text="\n".join(filter(None, [str(e), *hints, _safe(config, latest, e)])))
        return RunError.exit_code
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in STOPPING:
            signal.signal(number, signal.SIG_DFL)


def shown_progress(config: Config, log: Log, is_live: bool) -> AbstractContextManager[display.Observer]:
    """Show the progress in a context: by a live line, or else by progress events."""
    if not is_live:
        return display.progress_events(log, config.usd_per_hour)
    from voxbatch.cli.live_progress import live_progress

    return live_progress(log, config.usd_per_hour)


def refuse(error: UsageError, log: Log) -> int:
    """Log one event if the log is JSON, and return the exit code.

    Raises:
        UsageError: the error itself if the log is text: the console script prints it, as for every other command.
    """
    if not log.as_json:
        raise error
    log.error("refused", text=str(error))
    return error.exit_code


def _safe(config: Config, p: Progress | None, error: VoxbatchError | None = None) -> str:
    """Return the sentence that says how many items are safe by the latest progress, and how to continue; "" if that is
    not known. After an error that names a missing place, or one that cannot keep OUT, the same command would fail
    again."""
    safe, again = "no item was started, and all committed items are safe", ""
    if p is not None:
        safe = f"{p.committed:,} of {p.items:,} items are safe in {config.out}"
        again = " without --overwrite" if config.overwrite else ""
    if isinstance(error, InUseError):  # it says how to continue
        return ""
    if isinstance(error, TakenOverError):  # the committed items are deleted or about to be
        return ""
    if isinstance(error, CheckpointError):  # a part is damaged or gone, and the error says how to continue
        return error.present and f"{error.present} are safe in {config.out}"
    if isinstance(error, StorageError) and error.kind in (FailureKind.NOT_FOUND, FailureKind.NOT_ALLOWED):
        return safe
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
        for stopping in STOPPING:
            signal.signal(stopping, insist)
        set_retry_deadline(FINAL_COMMIT_TIMEOUT_S)
        streams.set_write_deadline(WRITE_TIMEOUT_S)
        signal.setitimer(signal.ITIMER_REAL, LEAVE_S)
        stop.request()

    streams.install()
    signal.signal(signal.SIGALRM, lambda *_: give_up())
    for number in STOPPING:
        signal.signal(number, handle)


def report(config: Config, result: RunResult, log: Log, ending: Ending) -> int:
    """Log and print the outcome of a finished run, and return the exit code."""
    display.log_result(config, result, log)
    if result.summary is None:
        failed = result.progress.resumed_failed + result.progress.failed
    else:
        failed = result.summary.failed_in_work
        from voxbatch.cli.outcome import print_outcome, print_texts

        if ending.stdout:
            print_texts(result.summary, config, ending.stdout)
        if not ending.quiet and not (ending.stdout and log.as_json):  # standard error is then JSON lines
            # Several tasks cannot retry: each would have to know what the others have done.
            argv = sys.argv if config.shards == 1 else []
            print_outcome(
                result.summary, config.out, config.stores, argv, ending.verbose, to_stderr=bool(ending.stdout),
                shows_items=ending.shows_items, is_unchanged=result.is_unchanged and not ending.verbose,
                first_done=result.first_done,
            )  # fmt: skip
    if not failed or ending.exit_zero:
        return 0
    if ending.quiet and not log.as_json:
        total, failures = (result.summary or result.progress).items, os.path.join(config.out, FAILURES)
        place = f"see {failures}" if result.summary else f"{failures} will list them when all shards are done"
        click.echo(f"{failed:,} of {counted(total, 'item')} failed: {place}", err=True)
    # SageMaker treats exit code 3 as a failed job, too, so the job gets a reason.
    reason = f"finished, but {counted(failed, 'item')} failed: see {FAILURES}; --exit-zero makes that exit code 0"
    write_exit_message(reason)
    return EXIT_SOME_FAILED


def write_copies(out: str, stores: Stores, videos: str, log: Log) -> None:
    """Write the copies of the videos of a finished run; see cli.options.video_options for `videos`. Without them, the
    copies that are there follow their subtitles."""
    from voxbatch.analysis.videos import write_videos

    write_videos(stores.out(out), videos == BURN if videos else None, log)


def leave(code: int) -> NoReturn:
    """Exit without waiting for the engine's threads.

    A stopped run may leave such a thread in native code, which nothing can interrupt. A normal exit would tear down
    the interpreter under it: with CTranslate2, that is a segmentation fault.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
