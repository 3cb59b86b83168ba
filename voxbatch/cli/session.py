"""One run as a person or a job sees it: signals, progress, the report, and a last line that says what is safe."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from itertools import islice
from types import FrameType
from typing import Any, NoReturn

import click

from voxbatch import display, fleet
from voxbatch.config import FORMATS, Config
from voxbatch.errors import RunError, StorageError, UsageError, VoxbatchError
from voxbatch.finalize import TRANSCRIPTS
from voxbatch.log import Log
from voxbatch.pipeline import LAST_COMMIT_S, Interrupted, Progress, Stop, Usage
from voxbatch.run import Finished
from voxbatch.storage import Access, hurry, open_store
from voxbatch.tasks import sagemaker

EXIT_SOME_FAILED = 3

STOPPING = (signal.SIGINT, signal.SIGTERM)
ECHO_S = 1.0
"""Launchers that signal all processes and pass the signal on besides send it twice at once."""
LEAVE_S = LAST_COMMIT_S + 1.0
"""After so long, a process that was told to stop leaves whatever it is at: a store that is silent, say."""


def transcribe(config: Config, log: Log, show_progress: bool, quiet: bool, exit_zero: bool = False) -> int:
    """Run, and say on the last line what is safe and how to go on when it does not end well.

    Args:
        exit_zero: items that failed do not show in the exit code.
    """
    stop, latest = Stop(), _Latest()
    signals: list[int] = []

    def interrupted(reason: str = "") -> int:
        log.warning("interrupted", text=f"interrupted; {f'{reason}; ' if reason else ''}{_safe(config, latest)}")
        return 128 + signals[-1]

    try:
        on_signals(stop, signals, lambda: leave(interrupted(f"what was in hand took over {LEAVE_S:.0f} s to commit")))
        with (display.live if show_progress else display.events)(log) as observe:
            finished = fleet.run(config, log, latest.then(observe), stop)
        return report(config, finished, log, quiet, exit_zero)
    except Interrupted as e:
        signal.setitimer(signal.ITIMER_REAL, 0)
        return interrupted(str(e))
    except VoxbatchError as e:
        sagemaker.leave_message(str(e), sagemaker.root_of(os.environ))
        if isinstance(e, UsageError) and latest.progress is None:  # nothing was begun
            return refuse(e, log)
        log.error("run_failed", text=f"{e}\n{_safe(config, latest)}")
        return RunError.exit_code
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in STOPPING:
            signal.signal(number, signal.SIG_DFL)


def refuse(error: UsageError, log: Log) -> int:
    """One event a bad line on a job; for people, as every other command does."""
    if not log.as_json:
        raise error
    for line in str(error).splitlines():
        log.error("refused", text=line)
    return error.exit_code


class _Latest:
    """Remembers the progress that was last seen."""

    def __init__(self) -> None:
        self.progress: Progress | None = None

    def then(self, observe: Callable[[Progress], None]) -> Callable[[Progress], None]:
        def both(progress: Progress) -> None:
            self.progress = progress
            observe(progress)

        return both


def _safe(config: Config, latest: _Latest) -> str:
    p = latest.progress
    if p is None:
        return "nothing was begun, and what earlier runs committed is safe; run the same command again to go on"
    safe = f"{p.committed:,} of {p.items:,} items are safe in {config.out}"
    again = " without --overwrite" if config.overwrite else ""
    return f"{safe}; run the same command again{again} to go on from there"


def on_signals(stop: Stop, received: list[int], give_up: Callable[[], NoReturn]) -> None:
    """Ask softly on the first SIGINT or SIGTERM, and note it; a second one, if it is none of the first's echoes, has
    its usual effect. Whoever is still here after LEAVE_S gives up."""
    asked_at = 0.0

    def insist(number: int, _: FrameType | None) -> None:
        if time.monotonic() - asked_at > ECHO_S:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal asked_at
        asked_at = time.monotonic()
        received.append(number)
        for each in STOPPING:
            signal.signal(each, insist)
        hurry(LAST_COMMIT_S)
        signal.setitimer(signal.ITIMER_REAL, LEAVE_S)
        stop.ask()

    signal.signal(signal.SIGALRM, lambda *_: give_up())
    for number in STOPPING:
        signal.signal(number, handle)


def report(config: Config, finished: Finished, log: Log, quiet: bool, exit_zero: bool) -> int:
    progress, summary = finished.progress, finished.summary
    shard = f"{config.shard}/{config.shards}"
    log.info("run_finished", shard=shard, **_figures(config, finished))
    if summary is None:
        failed = progress.resumed_failed + progress.failed
        counts = f"{progress.items - failed:,} done + {failed:,} failed = {progress.items:,} items"
        log.info("shard_done", text=f"shard {shard} is done: {counts}; the last shard to finish merges")
        return _exit_code(failed, exit_zero)
    if not quiet:
        for line in display.outcome(summary, heads(config.out, config.access), places(config.out, config.access)):
            click.echo(line)
    return _exit_code(summary["failed"], exit_zero)


def _figures(config: Config, finished: Finished) -> dict[str, Any]:
    """Of this process; `items` = done + failed + resumed. None where nothing is known."""
    p, summary = finished.progress, finished.summary
    usage, wall_s = finished.usage or Usage(0.0, 0.0, 0.0, 0.0), p.wall_s
    score = (summary or {}).get("score") or {}
    price = config.usd_per_hour
    return {
        "items": p.items, "done": p.done, "failed": p.failed, "resumed": p.resumed,
        "audio_s": round(p.audio_s, 1), "audio_hours": round(p.audio_s / 3600, 4), "wall_s": round(wall_s, 2),
        "rtfx": round(p.audio_s / wall_s, 2) if finished.usage else None,
        "usd": None if price is None else round(wall_s / 3600 * price, 6), "wer": score.get("wer"),
        "decode_cpu_s": round(usage.decode_cpu_s, 2), "engine_s": round(usage.engine_s, 2),
        "starved_s": round(usage.starved_s, 2), "short_s": round(usage.short_s, 2),
    }  # fmt: skip


def _exit_code(failed: int, exit_zero: bool) -> int:
    if not failed or exit_zero:
        return 0
    # to SageMaker this, too, is a job that failed
    reason = f"finished, but {failed:,} items failed: see failures.jsonl; --exit-zero makes that exit code 0"
    sagemaker.leave_message(reason, sagemaker.root_of(os.environ))
    return EXIT_SOME_FAILED


def heads(out: str, access: Access) -> list[tuple[str, str]]:
    try:
        lines = [json.loads(line) for line in islice(open_store(out, access).lines(TRANSCRIPTS), display.SHOWN)]
        return [(line["id"], line["pred_text"]) for line in lines]
    except (
        ValueError,
        KeyError,
        TypeError,
        StorageError,
    ):  # changed since; the run is finished all the same
        return []


def places(out: str, access: Access) -> list[tuple[str, str]]:
    """What stands in OUT, in the order one wants to see it."""
    shown = [("transcripts", "transcripts.jsonl"), ("failures", "failures.jsonl"), ("summary", "summary.json")]
    shown += [(extension, extension + "/") for extension in FORMATS]
    store = open_store(out, access)
    with contextlib.suppress(StorageError):  # likewise
        return [(what, os.path.join(out, name)) for what, name in shown if store.exists(name)]
    return []


def leave(code: int) -> NoReturn:
    """Exit without waiting for an engine's threads, which may be deep in native code."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
