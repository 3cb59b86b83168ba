"""The record that every reader of a transcript yields: what was said, when, and by whom."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class TimedText:
    """The text of a segment, with its times in seconds."""

    text: str
    start: float
    end: float
    speaker: str = ""
    """The speaker, or "" where the file names none."""
    scored: bool = True
    """False for a segment of time that is left out of the score."""
    lang: str = ""
    """The tag of the language, in files that may have several."""


def split_lines(document: str) -> list[str]:
    """Return the lines of a document, between LF, CR LF or CR: other characters that `splitlines` knows are text."""
    return re.split(r"\r\n?|\n", document)


def in_order(texts: Iterable[TimedText]) -> list[TimedText]:
    """Return the texts that have words, with single spaces, in the order of their starts. Texts with one start keep
    their order."""
    spaced = (replace(text, text=" ".join(text.text.split())) for text in texts)
    return sorted((text for text in spaced if text.text), key=lambda text: text.start)


def joined(texts: Iterable[TimedText]) -> str:
    """Return the words of all texts."""
    return " ".join(text.text for text in texts)


def interpolated(times: Sequence[float | None]) -> list[float]:
    """Return the times of points in order, with even steps between those that are known: [0, None, 2] → [0, 1, 2].

    Points before the first known time or after the last one have that time; all have 0 if none is known.
    """
    known = [(index, time) for index, time in enumerate(times) if time is not None] or [(0, 0.0)]
    filled = [known[0][1]] * known[0][0]
    for (index, time), (following, later) in pairwise(known):
        filled += [time + (later - time) * step / (following - index) for step in range(following - index)]
    return filled + [known[-1][1]] * (len(times) - len(filled))
