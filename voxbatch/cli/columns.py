"""Texts in columns, as wide as they are shown."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len, set_cell_size

from voxbatch.cli.commands import WIDTH

NO_BREAK = "\N{NO-BREAK SPACE}"
MIN_COLUMN = 40
"""Least width of a column of text that is wrapped."""
MIN_NAME = 12
"""Least width of the names of a table."""
ROOM_FOR_NAME = 32
"""Width of the names for which a table leaves out columns."""


def line_width() -> int:
    """Return the columns of a line: WIDTH on a terminal. In a file or a pipe nothing is cut or wrapped."""
    return WIDTH if sys.stdout.isatty() else sys.maxsize


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


def fitting(rows: Sequence[Sequence[str]], width: int, optional: Iterable[Sequence[str]]) -> Sequence[Sequence[str]]:
    """Return the rows of a table without optional columns, as many as it takes to fit the width.

    Args:
        rows: the first one is the head.
        optional: names of columns that go together, those that go first at the begin.
    """
    for names in optional:
        widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        if min(widths[0], ROOM_FOR_NAME) + sum(width + 2 for width in widths[1:]) <= width:
            break
        rows = [[cell for cell, name in zip(row, rows[0], strict=True) if name not in names] for row in rows]
    return rows


def end_of(text: str, width: int) -> str:
    """Return the end of a text, which tells paths apart: "calls/2026/a.wav", 8 → "…6/a.wav"."""
    return text if len(text) <= width else f"…{text[1 - width :]}"


def clock(seconds: float) -> str:
    """Return a position in a recording: 62.5 → "1:02.5", 3675 → "1:01:15.0"."""
    minutes, rest = divmod(round(seconds * 10), 600)
    hours, minutes = divmod(minutes, 60)
    clock = f"{hours}:{minutes:02d}" if hours else f"{minutes}"
    return f"{clock}:{rest // 10:02d}.{rest % 10}"
