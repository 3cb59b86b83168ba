"""Latency histograms: small enough for the header of a part, merged over parts, and read as percentiles.

    h.add(2.64); h.to_dict() → {"397": 1}; h.percentile(50) → 2.6217

All histograms have the same buckets. Bucket k counts the durations from 1 ms × 1.02^k up to 1 ms × 1.02^(k + 1). So a
merge adds counts, and a percentile is the middle of its bucket, within 1 % of the true value. Durations below 1 ms
count in the first bucket, and durations above 10,000 s in the last. The module reads no clock.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from voxbatch.output.stored_json import Count, record_of

RATIO = 1.02
"""Ratio of the upper to the lower bound of a bucket."""
SHORTEST_S, LONGEST_S = 1e-3, 1e4
"""Bounds of the first and the last bucket, in seconds."""
BUCKETS = math.ceil(math.log(LONGEST_S / SHORTEST_S) / math.log(RATIO))
"""Number of buckets, 814: no histogram holds more entries."""
PERCENTILES = (50, 90, 95)
"""The percentiles of a summary, in the order of the fields of Percentiles."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The figures of a histogram that a summary contains. A percentile is None if the count is 0."""

    count: int
    p50_s: float | None
    p90_s: float | None
    p95_s: float | None


@dataclass(frozen=True, slots=True)
class LatencyPercentiles:
    """The figures of a Latency that a summary contains."""

    chunk: Percentiles
    item: Percentiles


class Histogram(Counter[int]):
    """Counts of durations by bucket. `update` adds the counts of another histogram."""

    @classmethod
    def from_json(cls, stored: Any) -> Histogram:
        """Rebuild a histogram from the result of `to_dict`.

        Raises:
            ValueError: `to_dict` did not write this value.
        """
        return cls(record_of(stored, dict[int, Count]))

    def add(self, seconds: float) -> None:
        """Count one duration."""
        bucket = math.floor(math.log(max(seconds, SHORTEST_S) / SHORTEST_S) / math.log(RATIO))
        self[min(bucket, BUCKETS - 1)] += 1

    def percentile(self, percent: float) -> float | None:
        """Return the seconds that `percent` of the durations do not exceed, or None if the histogram is empty.

        The rank is the nearest rank; the value is within 1 %.
        """
        wanted = max(1, math.ceil(self.total() * percent / 100))
        seen = 0
        for bucket in sorted(self):
            seen += self[bucket]
            if seen >= wanted:
                return SHORTEST_S * math.pow(RATIO, bucket + 0.5)
        return None

    def percentiles(self) -> Percentiles:
        """Return the count and the percentiles, rounded to 0.1 ms."""
        percentiles = [self.percentile(percent) for percent in PERCENTILES]
        return Percentiles(self.total(), *(None if value is None else round(value, 4) for value in percentiles))

    def to_dict(self) -> dict[str, int]:
        """Return a JSON object: bucket → count, in the order of the buckets."""
        return {str(bucket): self[bucket] for bucket in sorted(self)}


@dataclass(slots=True)
class Latency:
    """Durations of chunks and items. PartHeader.latency in the module `parts` says how they are measured."""

    chunk: Histogram = field(default_factory=Histogram)
    item: Histogram = field(default_factory=Histogram)

    @classmethod
    def total(cls, latencies: Iterable[Latency | None]) -> Latency:
        """Return the sum of latencies, of which some were not measured."""
        total = cls()
        for latency in filter(None, latencies):
            total.update(latency)
        return total

    def update(self, other: Latency) -> None:
        """Add the counts of another Latency."""
        self.chunk.update(other.chunk)
        self.item.update(other.item)

    def percentiles(self) -> LatencyPercentiles:
        """Return the percentiles of both histograms."""
        return LatencyPercentiles(self.chunk.percentiles(), self.item.percentiles())

    def to_dict(self) -> dict[str, dict[str, int]]:
        """Return the JSON object of each histogram; see Histogram.to_dict."""
        return {"chunk": self.chunk.to_dict(), "item": self.item.to_dict()}
