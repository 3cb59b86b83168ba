"""Output for people: live progress on a terminal, progress events elsewhere, the figures at the end, and tables."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence

from rich.cells import cell_len, set_cell_size

from voxbatch.config import Config
from voxbatch.log import Log
from voxbatch.runner import Progress, RunResult, Usage
from voxbatch.safe_text import counted
from voxbatch.storage.waits import longest_wait

REFRESH_S = 0.1
"""Seconds between two updates of the progress line."""
BAR_WIDTH = 30
SHOWN_START_S = 2.0
"""Seconds after which the progress says that the manifest is being read."""
EVENT_S = 10.0
"""Seconds between two progress events, without a terminal."""
NO_BREAK = "\N{NO-BREAK SPACE}"
MIN_COLUMN = 40
"""Least width of a column of text that is wrapped."""
MIN_NAME = 12
"""Least width of the names of a table."""

Observer = Callable[[Progress], None]


def aligned(label: str, text: str) -> str:
    """Return a label and a text. On a terminal the text is a column beside the label; in a file it is one line. A
    command at the end of the text stays in one line, so that it can be copied."""
    if not sys.stdout.isatty():
        return label + text
    width = max(MIN_COLUMN, shutil.get_terminal_size().columns - len(label))
    text = re.sub("(?<=: )(pip|hf|export) .*", lambda command: command[0].replace(" ", NO_BREAK), text)
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return (label + f"\n{' ' * len(label)}".join(lines)).replace(NO_BREAK, " ")


def table(rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Yield the lines of a table: its first column at the left, the others at the right. Of a name that has no room
    the end is shown, which tells paths apart.

    Args:
        width: columns of a line.
    """
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    widths[0] = min(widths[0], max(MIN_NAME, width - sum(widths[1:]) - 2 * len(widths[1:])))
    for name, *cells in rows:
        numbers = "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        yield set_cell_size(end_of(name, widths[0]), widths[0]) + numbers


def end_of(text: str, width: int) -> str:
    """Return the end of a text, which tells paths apart: "calls/2026/a.wav", 8 → "…6/a.wav"."""
    return text if len(text) <= width else f"…{text[1 - width :]}"


def format_duration(seconds: float) -> str:
    """Return seconds for people: 7.84 → "7.8 s"; 75.4 → "1:15"; 3675 → "1:01:15"."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


def progress_line(p: Progress, usd_per_hour: float | None = None) -> str:
    """Return the progress as one line: audio, items, speed, time left, cost, failures, and what the run waits for."""
    parts = [*_amounts(p), *_rest(p, usd_per_hour), f"waiting: {p.waiting}" if p.waiting else ""]
    return " · ".join(part for part in parts if part)


def _amounts(p: Progress) -> list[str]:
    """Return what was done: audio, items, failures and speed."""
    total_s = p.total_audio_s
    about = "about " if p.measured < p.unknown else ""
    total = f" / {about}{format_duration(total_s)}" if total_s else ""
    failed = f" ({p.resumed_failed + p.failed:,} failed)" if p.resumed_failed + p.failed else ""
    items = f"{p.resumed + p.done + p.failed:,} / {p.items:,} items{failed}"
    return [f"{format_duration(p.audio_s)}{total} audio", items, f"RTFx {p.rtfx:.1f}"]


def _rest(p: Progress, usd_per_hour: float | None) -> list[str]:
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
def live_progress(log: Log, usd_per_hour: float | None = None) -> Iterator[Observer]:
    """Show a bar and two or three lines below it on a terminal. Log lines appear above it.

    The second line has what was done, and a third one what the run waits for. Lines that are wider than the terminal
    are cut off.
    """
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    console = Console(stderr=True)
    latest: list[Progress] = []
    started_at = time.monotonic()

    def render() -> Group:
        """Return the lines. The thread of Live calls this several times a second."""
        lines: list[Table | Text] = []
        waiting = ""
        if latest:
            p, grid = latest[0], Table.grid(padding=(0, 1))
            rest = " · ".join([f"{p.fraction:.0%}", *_rest(p, usd_per_hour)])
            grid.add_row(
                ProgressBar(1.0, p.fraction, BAR_WIDTH, complete_style="green", finished_style="green"),
                Text(rest, no_wrap=True),
            )
            lines = [grid, Text(" · ".join(_amounts(p)), no_wrap=True, overflow="ellipsis")]
            waiting = p.waiting
        elif time.monotonic() - started_at >= SHOWN_START_S:
            waiting = "the manifest is being read"
        if wait := longest_wait():  # a request of this process: the manifest, OUT, a model
            waiting = str(wait)
        if waiting:
            lines.append(Text(f"waiting: {waiting}", no_wrap=True, overflow="ellipsis"))
        return Group(*lines)

    with Live(get_renderable=render, console=console, refresh_per_second=1 / REFRESH_S, transient=True):
        write, log.write = log.write, lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)
        try:
            yield lambda p: latest.__setitem__(slice(None), [p])
        finally:
            log.write = write


@contextlib.contextmanager
def counter(total: int, done: str) -> Iterator[Callable[[int], None]]:
    """Show on a terminal how many of `total` things are done: yield a function of their number."""
    if not sys.stderr.isatty():
        yield lambda number: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        last = 0.0

        def show(number: int) -> None:
            """Update the line, at most every REFRESH_S."""
            nonlocal last
            if (now := time.monotonic()) - last >= REFRESH_S:
                last = now
                status.update(f"{number:,} of {total:,} {done}")

        yield show


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
    programs: in a log of text there are none, because the outcome follows.
    """
    p, summary, usage = result.progress, result.summary, result.usage or Usage(0.0, 0.0, 0.0, 0.0)
    price, shard, wall_s = config.usd_per_hour, f"{config.shard}/{config.shards}", p.wall_s
    if log.as_json:
        log.info(
            "run_finished", shard=shard, items=p.items, done=p.done, failed=p.failed, resumed=p.resumed,
            audio_s=round(p.audio_s, 1), audio_hours=round(p.audio_s / 3600, 4), wall_s=round(wall_s, 2),
            rtfx=round(p.audio_s / wall_s, 2) if result.usage else None,
            usd=None if price is None else round(wall_s / 3600 * price, 6),
            wer=summary.score.wer if summary and summary.score else None,
            decode_cpu_s=round(usage.decode_cpu_s, 2), engine_s=round(usage.engine_s, 2),
            starved_s=round(usage.starved_s, 2), short_s=round(usage.short_s, 2),
        )  # fmt: skip
    if summary is None:
        failed = p.resumed_failed + p.failed
        counts = f"{p.items - failed:,} done + {failed:,} failed = {counted(p.items, 'item')}"
        log.info("shard_done", text=f"shard {shard} is done: {counts}; the last shard to finish merges")
