"""Collect the bad lines of a manifest in bounded memory."""

from __future__ import annotations

from voxbatch.errors import BadLine, ManifestError


class BadLines:
    """Collects the first ManifestError.LIMIT bad lines, and counts all."""

    def __init__(self) -> None:
        self.first: list[BadLine] = []
        self.total = 0

    def add(self, line: int, reason: str, shard: str = "") -> None:
        """Add a bad line; see BadLine. Lines come in ascending order."""
        self.total += 1
        if len(self.first) < ManifestError.LIMIT:
            self.first.append(BadLine(line, reason, shard))

    def __iadd__(self, other: BadLines) -> BadLines:
        self.first = sorted(self.first + other.first, key=lambda bad: bad.line)[: ManifestError.LIMIT]
        self.total += other.total
        return self
