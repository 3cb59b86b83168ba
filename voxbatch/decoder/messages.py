"""What a pool and its workers tell each other, beside a worker's None: it lives."""

from __future__ import annotations

from dataclasses import dataclass

from voxbatch.chunk import OVERLAP
from voxbatch.reach import Arrival, Fault
from voxbatch.records import Chunk, Failure, Span


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker needs of an Item."""

    item: int
    audio: str
    offset: float
    duration: float | None
    channel: int | None
    lang: str | None
    limit: int
    """The engine's longest chunk, in samples."""
    overlap: int = OVERLAP
    """Samples that both sides of a forced cut carry beyond it."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """All of an item's chunks have been sent."""

    item: int
    spans: tuple[Span, ...]
    warnings: tuple[str, ...]
    cpu_s: float
    came: Arrival | None = None
    """Where from, if it was fetched."""


@dataclass(frozen=True, slots=True)
class Undecodable:
    item: int
    failure: Failure
    came: Arrival | None = None
    """See Decoded; None too where the recording was never reached."""
    fault: Fault | None = None
    """Where the place of the recording failed, and not the recording."""


Message = Chunk | Decoded | Undecodable
