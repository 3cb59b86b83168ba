"""Choose the items that the page shows: all of up to MAX_ITEMS; of more, the failed, the flagged, the worst, a sample.

The choice depends only on the items, not on their order or on chance. Memory is bounded by the number of rows and the
bytes of the texts, not by the run.
"""

from __future__ import annotations

import heapq
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, Generic, TypeVar

MAX_ITEMS = 10_000
"""Most items in the page's table."""
MAX_FAILED, MAX_FLAGGED, MAX_WORST = 1_000, 3_000, 3_000
"""Most items of each kind that come before the sample, if not all items fit."""
MAX_TEXT_BYTES = 24 << 20
"""Most bytes of output lines that are kept for the texts of each kind. The page holds less than that of all kinds."""

_T = TypeVar("_T")
Key = tuple[float, ...]


class Best(Generic[_T]):
    """The values with the highest keys whose costs add up to at most `limit`. One value always stays."""

    def __init__(self, limit: int):
        self._limit, self._total = limit, 0
        self._heap: list[tuple[Key, int, int, _T]] = []

    def add(self, key: Key, index: int, value: _T, cost: int = 1) -> None:
        """Add the value of an item, and drop the lowest values that exceed the limit."""
        heapq.heappush(self._heap, (key, -index, cost, value))
        self._total += cost
        while self._total > self._limit and len(self._heap) > 1:
            self._total -= heapq.heappop(self._heap)[2]

    def values(self) -> list[_T]:
        """Return the values, the highest key first, and of equal keys the lowest index."""
        return [value for *_, value in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the page's table: what is known of an item, without its texts."""

    index: int
    id: str
    audio: str
    lang: str | None
    duration: float | None
    """Seconds of audio that were transcribed. None if the item failed."""
    offset: float
    """Seconds in the recording where the item begins."""
    counts: tuple[int, int, int, int] | None
    """Substitutions, deletions, insertions and the reference's length. None without a reference."""
    cer: int
    """1 if the counts are of characters, else 0."""
    confidence: float | None
    flags: tuple[str, ...]
    """Kinds of the item's flags."""
    warnings: int
    failure: str | None
    """Error and message of an item that failed."""

    @property
    def errors(self) -> int:
        """Number of errors; 0 without a reference."""
        return sum(self.counts[:3]) if self.counts else 0


class Selection:
    """The items that are shown, chosen while all items pass by."""

    def __init__(self) -> None:
        self.total = 0
        self._failed, self._flagged, self._worst = Best[Row](MAX_FAILED), Best[Row](MAX_FLAGGED), Best[Row](MAX_WORST)
        self._sample = Best[Row](MAX_ITEMS)
        self._texts = [Best[tuple[int, bytes]](MAX_TEXT_BYTES) for _ in range(3)]
        """Lines of flagged items, of items with errors, and of a sample."""

    def add(self, row: Row, line: bytes) -> None:
        """Add an item.

        Args:
            line: its output line, for the texts. A parsed line would take ten times the memory.
        """
        self.total += 1
        chance = (-zlib.crc32(row.id.encode("utf-8", "surrogatepass")),)
        flagged = (len(row.flags), -(row.confidence or 0.0))
        worst = (row.errors,)
        self._sample.add(chance, row.index, row)
        if row.failure is not None:
            self._failed.add((), row.index, row)
            return
        if row.flags:
            self._flagged.add(flagged, row.index, row)
            self._texts[0].add(flagged, row.index, (row.index, line), len(line))
        if row.errors:
            self._worst.add(worst, row.index, row)
            self._texts[1].add(worst, row.index, (row.index, line), len(line))
        self._texts[2].add(chance, row.index, (row.index, line), len(line))

    def rows(self) -> list[Row]:
        """Return the rows to show, in the order of the manifest."""
        chosen: dict[int, Row] = {}
        for kind in (self._failed, self._flagged, self._worst, self._sample):
            for row in kind.values():
                if len(chosen) < MAX_ITEMS:
                    chosen[row.index] = row
        return [chosen[index] for index in sorted(chosen)]

    def lines(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield (index, output line) of the items whose texts are shown if there is room, the most telling first."""
        shown = set[int]()
        for entry in chain.from_iterable(zip_longest(*(kind.values() for kind in self._texts))):
            if entry is not None and entry[0] not in shown:
                shown.add(entry[0])
                yield entry[0], json.loads(entry[1])
