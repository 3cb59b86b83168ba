"""Progress that is drawn again and again on a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from voxbatch.display import Observer, amounts, remainder
from voxbatch.log import Log
from voxbatch.runner import Progress
from voxbatch.storage.waits import longest_wait

REFRESH_S = 0.1
"""Seconds between two updates of the progress line."""
BAR_WIDTH = 30
SHOWN_START_S = 2.0
"""Seconds after which the progress says that the manifest is being read."""


@contextlib.contextmanager
def live_progress(log: Log, usd_per_hour: float | None = None) -> Iterator[Observer]:
    """Show a bar and two or three lines below it on a terminal. Log lines appear above it.

    The second line has what was done, and a third one what the run waits for. Lines that are wider than the terminal
    are cut off.
    """
    console = Console(stderr=True)
    latest: list[Progress] = []
    started_at = time.monotonic()

    def render() -> Group:
        """Return the lines. The thread of Live calls this several times a second."""
        lines: list[Table | Text] = []
        waiting = ""
        if latest:
            p, grid = latest[0], Table.grid(padding=(0, 1))
            rest = " · ".join([f"{p.fraction:.0%}", *remainder(p, usd_per_hour)])
            grid.add_row(
                ProgressBar(1.0, p.fraction, BAR_WIDTH, complete_style="green", finished_style="green"),
                Text(rest, no_wrap=True),
            )
            lines = [grid, Text(" · ".join(amounts(p)), no_wrap=True, overflow="ellipsis")]
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
    with Console(stderr=True).status("") as status:
        last = 0.0

        def show(number: int) -> None:
            """Update the line, at most every REFRESH_S."""
            nonlocal last
            if (now := time.monotonic()) - last >= REFRESH_S:
                last = now
                status.update(f"{number:,} of {total:,} {done}")

        yield show
