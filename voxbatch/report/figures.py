"""Add up what the page's tables and charts show, one item or one part at a time. `errors` has the error rates.

Memory does not grow with the run: the classes and the time line are bounded. The numbers of items and of seconds are in
the summary.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from voxbatch.failure_kinds import FailureKind
from voxbatch.report.selection import Row

if TYPE_CHECKING:
    from voxbatch.report.errors import Errors
    from voxbatch.scoring.counts import ErrorCounts

CONFIDENCE_CLASSES = 20
"""Classes of confidence, from 0 to 1."""
TIME_CLASSES = 60
"""Steps of the chart of the work."""


@dataclass(frozen=True, slots=True)
class PartSpeed:
    """The work in one part."""

    sharding: str
    """The number of shards, by which a run may have been continued: shardings come one after the other."""
    process: str
    """The process that made the part; the processes of a sharding run side by side."""
    wall_s: float
    audio_s: float
    committed_at: float
    """Time of the commit in seconds since 1970."""


class Figures:
    """The sums over a run.

    Args:
        keys: keys of the manifest's lines by whose values the errors are grouped, besides the language.
        language: language of items that name none.
    """

    def __init__(self, keys: Sequence[str], language: str | None):
        self._keys, self._language = keys, language
        self.errors: Errors | None = None
        """The errors of the items with a reference; None without such an item."""
        self.confidences: Counter[int] = Counter()
        """Items by the class of their confidence."""
        self.confidence_sum, self.with_confidence = 0.0, 0
        self.flagged = 0
        """Items with flags."""
        self.flags: Counter[str] = Counter()
        """Items by kind of flag."""
        self.failures: Counter[FailureKind] = Counter()

    def language_of(self, line: Mapping[str, Any]) -> str | None:
        """Return the language by which an item is scored."""
        return line.get("lang") or self._language

    def add_transcript(self, row: Row) -> None:
        """Add an item with a transcript."""
        self.flagged += bool(row.flags)
        self.flags.update(row.flags)
        if row.confidence is not None:
            self.confidence_sum += row.confidence
            self.with_confidence += 1
            self.confidences[min(CONFIDENCE_CLASSES - 1, int(row.confidence * CONFIDENCE_CLASSES))] += 1

    def add_errors(self, line: Mapping[str, Any], counts: ErrorCounts, *, missing: bool) -> None:
        """Add the errors of an item with a reference, which counts as deleted if there is no transcript."""
        from voxbatch.report.errors import Errors

        self.errors = self.errors or Errors(self._keys)
        self.errors.add(line, self.language_of(line), counts, missing=missing)


def work_over_time(parts: Sequence[PartSpeed]) -> list[tuple[float, float]]:
    """Return (seconds since the first work, seconds of audio done by then), the sum over all processes.

    Only committed work counts, as in the summary: pauses between two starts, and work that was lost, do not show.
    """
    spans, begin = list[tuple[float, float, float]](), 0.0  # (start, end, audio seconds per second)
    for sharding in dict.fromkeys(part.sharding for part in parts):
        ends: dict[str, float] = {}
        for part in parts:
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
    return [(0.0, 0.0), *(((at + 1) * width, work_s) for at, work_s in enumerate(accumulate(s * width for s in sums)))]
