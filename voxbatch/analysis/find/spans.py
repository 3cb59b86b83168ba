"""The text of a transcript as it is indexed, and the times of its characters."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MARKS = "\x02", "\x03"
"""Characters before and after a match in a text from the index."""
_BORDER = "\u200b"
"""ZERO WIDTH SPACE, which separates words for the index, and is not shown."""
_NOT_TEXT = re.compile(f"[{_BORDER}{''.join(MARKS)}]")
_WITHOUT_SPACES = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff][\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece"
    "\u102b-\u103e\u17b4-\u17d3]*|[\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])"
)
"""A character, with its marks, of a script that is written without spaces: Thai, Lao, Burmese, Khmer, Chinese and
Japanese. Each is a word of the index, so that any part of a sentence can be found."""
_REACH = 100
"""Characters in which the next word of a text is looked for."""

_SPAN = np.dtype([("at", "<u4"), ("start", "<u4"), ("end", "<u4"), ("confidence", "<i2")])


def indexed_text(text: str) -> str:
    """Return a text with borders between the words of scripts that are written without spaces."""
    return _WITHOUT_SPACES.sub(rf"\1{_BORDER}", _NOT_TEXT.sub("", text))


def shown_text(indexed: str) -> str:
    """Return the text that was indexed."""
    return indexed.replace(_BORDER, "")


@dataclass(frozen=True, slots=True)
class SpokenStretch:
    """The times of some characters of a transcript."""

    start: float | None = None
    end: float | None = None
    """Seconds from the start of the item. None if the transcript has no times."""
    confidence: float | None = None
    """Mean confidence of the words, from 0 to 1. None if the engine gives none."""
    speaker: str | None = None
    """Speaker of the first word."""


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """The words of a transcript, or its segments if the words have no times, in the order of the text."""

    rows: NDArray[np.void]
    """For each span the position of its first character, its start and end in milliseconds, and its confidence in
    thousandths, or -1."""
    turns: Sequence[tuple[int, str | None]]
    """Position of the first character of each turn, and its speaker."""

    @classmethod
    def of(cls, text: str, line: Mapping[str, Any]) -> Spans:
        """Return the spans of the text of an output line."""
        key = "word" if line.get("words") else "text"
        rows, turns, at = list[tuple[int, int, int, int]](), list[tuple[int, str | None]](), 0
        for span in line.get("words") or line.get("segments") or ():
            piece = str(span[key]).strip()
            begin = max(text.find(piece, at, at + len(piece) + _REACH), at)
            confidence = span.get("confidence")
            thousandths = -1 if confidence is None else round(1000 * confidence)
            rows.append((begin, round(1000 * span["start"]), round(1000 * span["end"]), thousandths))
            speaker = span.get("speaker")
            if not turns or turns[-1][1] != speaker:
                turns.append((begin, speaker))
            at = begin + len(piece)
        return cls(np.array(rows, _SPAN), [] if {speaker for _, speaker in turns} <= {None} else turns)

    def stored(self) -> tuple[str, bytes]:
        """Return the turns as JSON, and the rows."""
        return json.dumps(self.turns), zlib.compress(self.rows.tobytes(), 1)

    @classmethod
    def of_stored(cls, turns: str, rows: bytes) -> Spans:
        """Rebuild the spans."""
        return cls(np.frombuffer(zlib.decompress(rows), _SPAN), json.loads(turns))

    def stretch(self, begin: int, end: int) -> SpokenStretch:
        """Return the times of the characters from `begin` to `end`, which is not included."""
        if not len(self.rows):
            return SpokenStretch()
        first = max(int(np.searchsorted(self.rows["at"], begin, "right")) - 1, 0)
        rows = self.rows[first : max(int(np.searchsorted(self.rows["at"], end)), first + 1)]
        known = rows["confidence"][rows["confidence"] >= 0]
        confidence = round(float(known.mean()) / 1000, 3) if len(known) else None
        speakers = [speaker for at, speaker in self.turns if at <= rows["at"][0]]
        return SpokenStretch(
            int(rows["start"][0]) / 1000, int(rows["end"][-1]) / 1000, confidence, (speakers or [None])[-1]
        )
