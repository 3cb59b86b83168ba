"""Messages that an engine yields between its results: to the user, and about its progress."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineMessage:
    """A message of an engine to the user."""

    text: str
    is_warning: bool = False
    is_progress: bool = False
    """True for the state of a download, which the next message replaces: it is shown in the progress, not as a line of
    the log."""


@dataclass(frozen=True, slots=True)
class ChunkProgress:
    """The progress within a chunk whose result is not there yet, from an engine that works on long chunks."""

    item: int
    """Item.index of the recording."""
    chunk: int
    """Index of the chunk within the recording."""
    num_samples: int
    """Number of samples that were transcribed since the last message about this chunk."""
