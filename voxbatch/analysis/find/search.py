"""Find places in the index of an OUT."""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from voxbatch.analysis.find.index import is_in_order
from voxbatch.analysis.find.spans import MARKS, Spans, indexed_text, shown_text
from voxbatch.errors import ConfigError

CONTEXT = 60
"""Characters that a place shows before the match, and after it."""
_MARKED = re.compile("|".join(MARKS))
_COUNT = "SELECT count(*) FROM texts WHERE texts MATCH ?"
_ROWS = """
SELECT texts.rowid FROM texts JOIN items ON items.row = texts.rowid WHERE texts MATCH ?{conditions}
ORDER BY items.position
"""
_PAGE = """
SELECT texts.rowid, id, audio, start, turns, spans, highlight(texts, 0, ?, ?)
FROM texts JOIN details ON details.row = texts.rowid WHERE texts MATCH ?{conditions}
AND texts.rowid BETWEEN ? AND ? ORDER BY texts.rowid LIMIT ?
"""
_HAS_MEMBER = """ AND EXISTS (SELECT 1 FROM details, json_each(details.members)
WHERE details.row = texts.rowid AND key = ? AND CAST(atom AS TEXT) = ?)"""
FIRST_PAGE, LARGEST_PAGE = 25, 400
"""Items that are read at first, and at most at a time. SQLite evaluates the query for each page: short ones give the
first places early, long ones give all of them soon."""
LAST_ROW = (1 << 63) - 1
"""Highest number of a row in SQLite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A request for places. Upper and lower case and accents are the same."""

    phrases: tuple[str, ...]
    """Words that follow each other. A `*` at the end of a phrase stands for the rest of its last word."""
    is_any: bool = False
    """True finds the items with any of the phrases; False those with all of them."""
    near: int | None = None
    """Most words between the phrases."""
    without: tuple[str, ...] = ()
    """Phrases that the item must not have."""
    members: Mapping[str, str] = field(default_factory=dict)
    """Values of the manifest's keys that the item must have."""
    speaker: str | None = None
    min_confidence: float | None = None
    max_confidence: float | None = None
    """Bounds for the mean confidence of the words that match."""
    start: float | None = None
    end: float | None = None
    """Bounds for the start of the match, in seconds from the start of the recording."""

    @property
    def filters_places(self) -> bool:
        """True if not every match counts."""
        bounds = self.speaker, self.min_confidence, self.max_confidence, self.start, self.end
        return any(bound is not None for bound in bounds)

    def takes(self, place: FoundPlace) -> bool:
        """Return whether a place lies between the bounds. An unknown value, as NaN, lies between none."""
        bounds = (place.confidence, self.min_confidence, self.max_confidence), (place.start, self.start, self.end)
        for value, low, high in bounds:
            number = math.nan if value is None else value
            if (low is not None and not number >= low) or (high is not None and not number <= high):
                return False
        return self.speaker in (None, place.speaker)

    def to_fts(self) -> str:
        """Return the query in the language of SQLite's FTS5.

        Raises:
            ConfigError: a phrase has no letters or digits.
        """
        phrases = [_phrase(text) for text in self.phrases]
        if self.near is not None:
            wanted = f"NEAR({' '.join(phrases)}, {self.near})"
        else:
            wanted = (" OR " if self.is_any else " AND ").join(phrases)
        return " NOT ".join([f"({wanted})", *map(_phrase, self.without)])


@dataclass(frozen=True, slots=True)
class FoundPlace:
    """A place where something was said."""

    id: str
    audio: str
    start: float | None
    end: float | None
    """Seconds from the start of the recording. None if the transcript has no times."""
    speaker: str | None
    confidence: float | None
    before: str
    match: str
    after: str
    """The text: what matches, and up to CONTEXT characters before and after."""


@dataclass(slots=True)
class FoundPlaces:
    """The places of a query."""

    items: int
    """Number of items whose text matches, whatever the bounds for speaker, confidence and time."""
    places: Iterator[FoundPlace]
    """The places, in the order of the list of recordings."""


def find_places(database: sqlite3.Connection, query: Query) -> FoundPlaces:
    """Find the places of a query in an index.

    Raises:
        ConfigError: a phrase has no letters or digits.
        sqlite3.DatabaseError: the index is damaged.
    """
    conditions, members = _HAS_MEMBER * len(query.members), [value for pair in query.members.items() for value in pair]
    arguments = (query.to_fts(), *members)
    ((num_items,),) = database.execute(_COUNT + conditions, arguments)
    page = _PAGE.format(conditions=conditions)

    def pages() -> Iterator[Sequence[tuple[Any, ...]]]:
        """Yield the items that match, several at a time if their rows have the order of the list."""
        if not is_in_order(database):
            for (row,) in database.execute(_ROWS.format(conditions=conditions), arguments).fetchall():
                yield database.execute(page, (*MARKS, *arguments, row, row, 1)).fetchall()
            return
        row, size = 0, FIRST_PAGE
        while items := database.execute(page, (*MARKS, *arguments, row + 1, LAST_ROW, size)).fetchall():
            yield items
            row, size = items[-1][0], min(2 * size, LARGEST_PAGE)

    items = (details for items in pages() for _, *details in items)
    return FoundPlaces(num_items, (place for item in items for place in _places_of(*item) if query.takes(place)))


def _places_of(item: str, audio: str, offset: float, turns: str, rows: bytes, marked: str) -> Iterator[FoundPlace]:
    """Yield the places of an item.

    Args:
        offset: start of the item in its recording, in seconds.
        turns, rows: see Spans.of_stored.
        marked: its text with MARKS around what matches.
    """
    pieces = _MARKED.split(shown_text(marked))
    text, spans, at = "".join(pieces), Spans.of_stored(turns, rows), 0
    for number, piece in enumerate(pieces):
        begin, at = at, at + len(piece)
        if number % 2:
            heard = spans.stretch(begin, at)
            start, end = (None if second is None else round(second + offset, 3) for second in (heard.start, heard.end))
            before, after = _before(text[:begin]), _before(text[at:][::-1])[::-1]
            yield FoundPlace(item, audio, start, end, heard.speaker, heard.confidence, before, piece, after)


def _before(text: str) -> str:
    """Return the last words of a text, up to CONTEXT characters."""
    if len(text) <= CONTEXT:
        return text
    cut = text[-CONTEXT:]
    return f"… {cut.split(maxsplit=1)[-1] if ' ' in cut[:-1] else cut}"


def _phrase(text: str) -> str:
    """Return a phrase in the language of FTS5."""
    words = text.removesuffix("*")
    if not re.search(r"\w", words):
        raise ConfigError(f"{text!r} has no letters or digits to look for")
    quoted = indexed_text(words).replace('"', '""')
    return f'"{quoted}"{" *" if text.endswith("*") else ""}'
