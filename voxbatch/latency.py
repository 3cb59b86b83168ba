"""Latency histograms: small enough for a part's header, merged over parts, and read as percentiles.

    h.add(2.64); h.to_dict() → {"397": 1}; h.percentile(50) → 2.6217

The buckets are the same everywhere: bucket k counts the seconds from 1 ms × 1.02^k up to 1 ms × 1.02^(k + 1). Merging
therefore adds counts, and a percentile is the middle of its bucket: within 1 % of the true value. What is shorter than
1 ms or longer than 10,000 s counts in the first or the last bucket. The module reads no clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

RATIO = 1.02
"""Between the bounds of a bucket."""
SHORTEST_S, LONGEST_S = 1e-3, 1e4
BUCKETS = math.ceil(math.log(LONGEST_S / SHORTEST_S) / math.log(RATIO))
"""814: no histogram holds more entries."""
PERCENTILES = (50, 90, 95)


@dataclass(slots=True)
class Histogram:
    """Counts of durations by bucket."""

    counts: dict[int, int] = field(default_factory=dict)

    def add(self, seconds: float) -> None:
        bucket = math.floor(math.log(max(seconds, SHORTEST_S) / SHORTEST_S) / math.log(RATIO))
        bucket = min(bucket, BUCKETS - 1)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1

    def update(self, other: Histogram) -> None:
        """Add the counts of another histogram."""
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count

    def percentile(self, percent: float) -> float | None:
        """Seconds that `percent` of the durations do not exceed (nearest rank), within 1 %; None without any."""
        wanted = max(1, math.ceil(sum(self.counts.values()) * percent / 100))
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= wanted:
                return SHORTEST_S * math.pow(RATIO, bucket + 0.5)
        return None

    def describe(self) -> dict[str, float | None]:
        """The count and the percentiles, as a summary shows them."""
        found = {f"p{percent}_s": self.percentile(percent) for percent in PERCENTILES}
        rounded = {name: None if seconds is None else round(seconds, 4) for name, seconds in found.items()}
        return {"count": sum(self.counts.values()), **rounded}

    def to_dict(self) -> dict[str, int]:
        """JSON: bucket → count, in the order of the buckets."""
        return {str(bucket): self.counts[bucket] for bucket in sorted(self.counts)}

    @classmethod
    def from_dict(cls, stored: Mapping[str, int]) -> Histogram:
        """Raises ValueError, TypeError or AttributeError where `to_dict` did not write this."""
        return cls({int(bucket): int(count) for bucket, count in stored.items()})


@dataclass(slots=True)
class Latency:
    """The durations of chunks and items; see Header.latency for what is measured."""

    chunk: Histogram = field(default_factory=Histogram)
    item: Histogram = field(default_factory=Histogram)

    def update(self, other: Latency) -> None:
        self.chunk.update(other.chunk)
        self.item.update(other.item)

    def describe(self) -> dict[str, dict[str, float | None]]:
        """See Histogram.describe."""
        return {"chunk": self.chunk.describe(), "item": self.item.describe()}

    def to_dict(self) -> dict[str, dict[str, int]]:
        """See Histogram.to_dict."""
        return {"chunk": self.chunk.to_dict(), "item": self.item.to_dict()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Latency:
        """Raises KeyError and what Histogram.from_dict raises."""
        return cls(Histogram.from_dict(stored["chunk"]), Histogram.from_dict(stored["item"]))
