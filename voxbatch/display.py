"""Output for people: events of the progress, and the figures at the end. `cli/live_progress` animates a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from voxbatch.config import Config
from voxbatch.errors import StorageError
from voxbatch.failure_kinds import FailureKind
from voxbatch.log import Log
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.output.layout import FAILURES
from voxbatch.runner import Progress, RunResult, Usage
from voxbatch.safe_text import counted
from voxbatch.storage import Store

EVENT_S = 10.0
"""Seconds between two progress events, without a terminal."""
SHOWN_FAILURES = 10
"""Failed items that the end of a run shows."""
Observer = Callable[[Progress], None]


def format_duration(seconds: float) -> str:
    """Return seconds for people: 7.84 → "7.8 s"; 75.4 → "1:15"; 3675 → "1:01:15"."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


def progress_line(p: Progress, usd_per_hour: float | None = None) -> str:
    """Return the progress as one line: audio, items, speed, time left, cost, failures, and what the run waits for."""
    parts = [*amounts(p), *remainder(p, usd_per_hour), f"waiting: {p.waiting}" if p.waiting else ""]
    return " · ".join(part for part in parts if part)


def amounts(p: Progress) -> list[str]:
    """Return what was done: audio, items, failures and speed."""
    total_s = p.total_audio_s
    about = "about " if p.measured < p.unknown else ""
    total = f" / {about}{format_duration(total_s)}" if total_s else ""
    failed = f" ({p.resumed_failed + p.failed:,} failed)" if p.resumed_failed + p.failed else ""
    items = f"{p.resumed + p.done + p.failed:,} / {p.items:,} items{failed}"
    return [f"{format_duration(p.audio_s)}{total} audio", items, f"RTFx {p.rtfx:.1f}"]


def remainder(p: Progress, usd_per_hour: float | None) -> list[str]:
    """Return what is expected: the time left, and the cost so far and in total if the price is known."""
    left_s = p.remaining_s
    rest = [] if left_s is None else [f"{format_duration(left_s)} left"]
    if usd_per_hour is not None:
        total = "" if left_s is None else f" of about ${(p.wall_s + left_s) / 3600 * usd_per_hour:,.2f}"
        rest.append(f"${p.wall_s / 3600 * usd_per_hour:,.2f}{total}")
    return rest


def can_animate() -> bool:
    """Return whether standard error is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


@contextlib.contextmanager
def progress_events(log: Log, usd_per_hour: float | None = None) -> Iterator[Observer]:
    """Log a `progress` event every EVENT_S seconds."""
    last = time.monotonic()

    def observe(p: Progress) -> None:
        """Log an event if it is due."""
        nonlocal last
        if time.monotonic() - last < EVENT_S:
            return
        last = time.monotonic()
        log.info(
            "progress", text=progress_line(p, usd_per_hour), items=p.items, done=p.resumed + p.done, failed=p.failed,
            audio_s=round(p.audio_s, 1), wall_s=round(p.wall_s, 1), rtfx=round(p.rtfx, 2), parts=p.parts,
            total_audio_s=_rounded(p.total_audio_s), remaining_s=_rounded(p.remaining_s), waiting=p.waiting,
        )  # fmt: skip

    yield observe


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def log_result(config: Config, result: RunResult, log: Log) -> None:
    """Log the figures of a finished run, and whether other shards are still to come.

    Among the figures, `items` is done + failed + resumed. A figure is None if it is unknown. The figures are for
    programs: in a log of text there are none, because the outcome follows. If items failed, they are a warning. The log
    of a job goes to others than its outputs, so it has neither texts nor names of recordings.
    """
    p, summary, usage = result.progress, result.summary, result.usage or Usage(0.0, 0.0, 0.0, 0.0)
    price, shard, wall_s = config.usd_per_hour, f"{config.shard}/{config.shards}", p.wall_s
    failed = summary.failed if summary else p.resumed_failed + p.failed
    if log.as_json:
        log_figures = log.warning if (summary.failed_in_work if summary else failed) else log.info
        log_figures(
            "run_finished", out=config.out, shard=shard, items=p.items, done=p.done, failed=p.failed, resumed=p.resumed,
            audio_s=round(p.audio_s, 1), audio_hours=round(p.audio_s / 3600, 4), wall_s=round(wall_s, 2),
            rtfx=round(p.audio_s / wall_s, 2) if result.usage else None,
            usd=None if price is None else round(wall_s / 3600 * price, 6),
            wer=summary.score.wer if summary and summary.score else None,
            decode_cpu_s=round(usage.decode_cpu_s, 2), engine_s=round(usage.engine_s, 2),
            starved_s=round(usage.starved_s, 2), short_s=round(usage.short_s, 2),
            failures_by_kind=dict(summary.failures_by_kind) if summary else None,
        )  # fmt: skip
    if summary is None:
        counts = f"{p.items - failed:,} done + {failed:,} failed = {counted(p.items, 'item')}"
        log.info("shard_done", text=f"shard {shard} is done: {counts}; the last shard to finish merges")


@dataclass(frozen=True, slots=True)
class FailedItem:
    """A line of failures.jsonl, for people."""

    id: str
    path: str
    kind: FailureKind
    reason: str
    """The message without the path."""


def first_failures(store: Store) -> list[FailedItem]:
    """Return the first items of failures.jsonl without forgotten ones; [] if they cannot be read."""
    with contextlib.suppress(StorageError, ValueError, KeyError, TypeError):
        rows = map(json.loads, store.lines(FAILURES))
        items = (
            FailedItem(
                row["id"], row[AUDIO_KEY], FailureKind.of_line(row), row["message"].rpartition(f"{row[AUDIO_KEY]}: ")[2]
            )
            for row in rows
        )
        return [*islice((item for item in items if item.kind is not FailureKind.FORGOTTEN), SHOWN_FAILURES)]
    return []
