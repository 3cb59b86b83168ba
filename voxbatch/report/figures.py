"""Add up what the page's tables and charts show, one item or one part at a time.

Memory does not grow with the run: groups, pairs of (errors, length) and the time line are bounded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from voxbatch.report.selection import Row
from voxbatch.scoring import ErrorCounts, error_unit, scored_language

DURATIONS_S = (0.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 300.0, 1200.0, 3600.0)
"""Lower bounds of the classes of durations, in seconds."""
RATE_STEP, RATE_CLASSES = 0.05, 20
"""Classes of error rates: 0, then 20 steps of 5 percentage points, then everything above 100 %."""
CONFIDENCE_CLASSES = 20
"""Classes of confidence, from 0 to 1."""
MAX_GROUPS = 2_000
"""Groups of one key that are added up. Items of further groups count as OTHER."""
OTHER = "(other values)"
NO_VALUE = "(none)"
"""Group of items that do not have the key."""
TIME_CLASSES = 60
"""Points of the chart of the speed."""


@dataclass(slots=True)
class Group:
    """The errors of a group of items that are counted in the same unit."""

    counts: ErrorCounts = field(default_factory=ErrorCounts)
    items: int = 0
    missing: int = 0
    """Items with a reference and without a transcript."""
    pairs: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Number of items by (errors, reference length), for the interval."""

    def add(self, counts: ErrorCounts, *, missing: bool = False) -> None:
        """Add the counts of an item."""
        self.counts += counts
        self.items += not missing
        self.missing += missing
        self.pairs[counts.errors, counts.reference_length] += 1


@dataclass(frozen=True, slots=True)
class PartSpeed:
    """The work in one part."""

    sharding: str
    """The number of shards, by which a run may have been continued: shardings come one after the other."""
    process: str
    """The process that made the part; the processes of a sharding run side by side."""
    wall_s: float
    audio_s: float


class Figures:
    """The sums over a run.

    Args:
        keys: keys of the manifest's lines by whose values the errors are grouped, besides the language.
        language: language of items that name none.
    """

    def __init__(self, keys: Sequence[str], language: str | None):
        self._language = language
        self.done = self.failed = self.flagged = self.with_warnings = 0
        self.audio_s = 0.0
        self.by_language: dict[tuple[str, str], Group] = {}
        """Groups by (language, unit)."""
        self.by_key: dict[str, dict[tuple[str, str], Group]] = {key: {} for key in keys}
        """Groups by (value, unit), for each key."""
        self.by_duration: dict[tuple[int, str], Group] = {}
        """Groups by (class of DURATIONS_S, unit)."""
        self.rates: Counter[int] = Counter()
        """Items by the class of their error rate."""
        self.confidences: Counter[int] = Counter()
        """Items by the class of their confidence."""
        self.confidence_sum, self.with_confidence = 0.0, 0
        self.flags: Counter[str] = Counter()
        """Items by kind of flag."""
        self.failures: Counter[tuple[str, str]] = Counter()
        """Items by (error, reason)."""
        self.parts: list[PartSpeed] = []

    def language_of(self, line: Mapping[str, Any]) -> str | None:
        """Return the language by which an item is scored."""
        return line.get("lang") or self._language

    def add_transcript(self, line: Mapping[str, Any], counts: ErrorCounts | None, row: Row) -> None:
        """Add an item with a transcript.

        Args:
            line: its output line.
            counts: its errors; None without a reference.
            row: its row of the table.
        """
        self.done += 1
        self.audio_s += line["audio_duration"]
        self.with_warnings += bool(line["warnings"])
        self.flagged += bool(row.flags)
        self.flags.update(row.flags)
        if row.confidence is not None:
            self.confidence_sum += row.confidence
            self.with_confidence += 1
            self.confidences[min(CONFIDENCE_CLASSES - 1, int(row.confidence * CONFIDENCE_CLASSES))] += 1
        if counts is None:
            return
        for group in self._groups(line):
            group.add(counts)
        unit, duration = error_unit(self.language_of(line)), line["audio_duration"]
        at = max(i for i, least in enumerate(DURATIONS_S) if duration >= least)
        self.by_duration.setdefault((at, unit), Group()).add(counts)
        if (rate := counts.rate) is not None:
            self.rates[min(RATE_CLASSES + 1, math.ceil(rate / RATE_STEP - 1e-9))] += 1

    def add_failure(self, line: Mapping[str, Any], counts: ErrorCounts | None, reason: str) -> None:
        """Add an item that failed. Its whole reference counts as deleted."""
        self.failed += 1
        self.failures[str(line["error"])[:100], reason[:200]] += 1
        if counts is not None:
            for group in self._groups(line):
                group.add(counts, missing=True)

    def _groups(self, line: Mapping[str, Any]) -> Iterator[Group]:
        """Yield the groups of an item: that of its language, and one for each key."""
        lang = self.language_of(line)
        unit = error_unit(lang)
        yield self.by_language.setdefault((scored_language(lang), unit), Group())
        for key, groups in self.by_key.items():
            value = line.get(key)
            name = NO_VALUE if value is None or value == "" else str(value)[:200]
            if (name, unit) not in groups and len(groups) >= MAX_GROUPS:
                name = OTHER
            yield groups.setdefault((name, unit), Group())

    def total(self, unit: str) -> Group:
        """Return the sum over the languages that are counted in a unit."""
        total = Group()
        for (_, each), group in self.by_language.items():
            if each == unit:
                total.counts += group.counts
                total.items, total.missing = total.items + group.items, total.missing + group.missing
                total.pairs.update(group.pairs)
        return total

    def speed_over_time(self) -> list[tuple[float, float]]:
        """Return (hours since the first work, audio seconds per second), the sum over all processes at that time.

        Only committed work counts, as in the summary: pauses between two starts, and work that was lost, do not show.
        """
        spans, begin = list[tuple[float, float, float]](), 0.0  # (start, end, audio seconds per second)
        for sharding in dict.fromkeys(part.sharding for part in self.parts):
            ends: dict[str, float] = {}
            for part in self.parts:
                if part.sharding == sharding:
                    start = ends.get(part.process, begin)
                    ends[part.process] = start + part.wall_s
                    if part.wall_s > 0:
                        spans.append((start, start + part.wall_s, part.audio_s / part.wall_s))
            begin = max(ends.values())
        if not spans:
            return []
        width = begin / TIME_CLASSES
        sums = [0.0] * TIME_CLASSES
        for start, end, speed in spans:
            for at in range(int(start / width), min(TIME_CLASSES, math.ceil(end / width))):
                overlap = min(end, (at + 1) * width) - max(start, at * width)
                sums[at] += speed * max(0.0, overlap) / width
        return [((at + 0.5) * width, each) for at, each in enumerate(sums)]
