"""Read Praat's TextGrid: long, short or binary.

    "IntervalTier" "Ann" 0 2 1  0 2 "he said"      →   TimedText("he said", 0, 2, "Ann")

See `tiers` about which tiers are read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Any

from voxbatch.sources.transcripts.tiers import Tier, spoken
from voxbatch.sources.transcripts.timed_text import TimedText

BINARY = b"ooBinaryFile"
"""Begin of a binary TextGrid."""
_TOKEN = re.compile(r'"(?:[^"]|"")*"|!.*|(?<![\[\w.])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?')
"""A string, a comment or a number that stands alone. Times near 0 may have exponents: 1.1e-16."""
_POINTS = "TextTier"


def text_grid(grid: str) -> list[TimedText]:
    """Return what the tiers of a TextGrid say.

    Raises:
        ValueError: it is no TextGrid, or its tiers hold no words; see `spoken`.
    """
    tiers = list(_tiers(iter(_TOKEN.findall(grid))))
    if not tiers and "<exists>" not in grid:
        raise ValueError("it has no tiers; save it in Praat as a TextGrid")
    return spoken(tiers)


def _tiers(tokens: Iterator[str]) -> Iterator[Tier]:
    tier: Tier | None = None
    numbers = [0.0, 0.0]
    for token in tokens:
        if token in ('"IntervalTier"', f'"{_POINTS}"'):
            if tier:
                yield tier
            tier = Tier(_unquoted(next(tokens, '""')), is_points=_POINTS in token)
        elif token.startswith('"') and tier:
            start, end = numbers[-1:] * 2 if tier.is_points else numbers
            tier.labels.append(TimedText(_unquoted(token), start, end))
        elif not token.startswith(('"', "!")):
            numbers = [numbers[-1], float(token)]
    if tier:
        yield tier


def _unquoted(token: str) -> str:
    return token[1:-1].replace('""', '"')


def binary_text_grid(data: bytes) -> list[TimedText]:
    """Return what the tiers of a binary TextGrid say.

    Raises:
        ValueError: it is cut off, or no TextGrid; see `spoken`.
    """
    try:
        return spoken(list(_binary_tiers(_Reader(data, len(BINARY)))))
    except struct.error as error:
        raise ValueError("it ends within a tier; save it in Praat again") from error


def _binary_tiers(reader: _Reader) -> Iterator[Tier]:
    if reader.name() != "TextGrid":
        raise ValueError("it is binary, and no TextGrid; save the TextGrid alone in Praat")
    reader.numbers("dd?")
    for _ in range(reader.numbers("i")[0]):
        is_points = reader.name() == _POINTS
        tier = Tier(reader.text(), is_points=is_points)
        reader.numbers("dd")
        for _ in range(reader.numbers("i")[0]):
            times = reader.numbers("d" if is_points else "dd")
            tier.labels.append(TimedText(reader.text(), times[0], times[-1]))
        yield tier


class _Reader:
    """Reads numbers in the order of bytes of Praat (big-endian), and strings."""

    def __init__(self, data: bytes, at: int):
        self._data, self._at = data, at

    def numbers(self, form: str) -> tuple[Any, ...]:
        """Return numbers, or bytes, in a form of the module `struct`."""
        values = struct.unpack_from(f">{form}", self._data, self._at)
        self._at += struct.calcsize(f">{form}")
        return values

    def name(self) -> str:
        """Return the name of a class, which has its length before it in a byte."""
        return self._string(self.numbers("B")[0], "ascii")

    def text(self) -> str:
        """Return a string: its length and its characters, or -1, its length and UTF-16."""
        (length,) = self.numbers("h")
        return self._string(length, "latin-1") if length >= 0 else self._string(2 * self.numbers("h")[0], "utf-16-be")

    def _string(self, size: int, encoding: str) -> str:
        data: bytes = self.numbers(f"{size}s")[0]
        return data.decode(encoding, "replace")
