"""Records of how far a run is and of how it uses its time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 16
"""Items whose durations are added up at a time, which avoids a copy of all of them."""


@dataclass(slots=True)
class Progress:
    """Progress of a shard. `audio_s` grows with each chunk, so that progress shows within a long recording."""

    items: int
    """Number of items in this shard, including those of earlier runs."""
    resumed: int = 0
    """Number of items that earlier runs finished."""
    resumed_failed: int = 0
    """Number of the resumed items that ended as failures."""
    done: int = 0
    failed: int = 0
    audio_s: float = 0.0
    """Seconds of audio transcribed since the start."""
    known_audio_s: float = 0.0
    """Seconds of audio in the items that this process has to do, as far as the manifest gives durations."""
    unknown: int = 0
    """Number of items that this process has to do and whose duration the manifest does not give."""
    committed: int = 0
    """Number of items in parts, which are safe, including those of earlier runs."""
    parts: int = 0
    """Number of parts committed since the start."""
    started_at: float = field(default_factory=time.monotonic)
    """Start of the run, by time.monotonic()."""

    @property
    def wall_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_at

    @property
    def rtfx(self) -> float:
        """Audio seconds transcribed per second."""
        return self.audio_s / self.wall_s


@dataclass(frozen=True, slots=True)
class Usage:
    """Use of a run's time. For several processes side by side, each value is the sum."""

    decode_cpu_s: float
    """CPU seconds of decoding and cutting."""
    engine_s: float
    """Seconds from the engine's first chunk to its last result."""
    starved_s: float
    """Part of `engine_s` in which the engine had nothing to do and waited for a chunk."""
    short_s: float
    """Part of `engine_s` in which the engine, busy or idle, could take one more chunk and none was there."""


def known_audio(durations: NDArray[np.float32], items: NDArray[np.bool_]) -> tuple[float, int]:
    """Return the seconds of the items whose duration is known, and the number of items whose duration is unknown.

    Args:
        durations: seconds of each item of the manifest, NaN if unknown, shape (num_items,).
        items: mask of the items to count, shape (num_items,).
    """
    known_s, unknown = 0.0, 0
    for start in range(0, len(durations), _BLOCK):
        block = durations[start : start + _BLOCK][items[start : start + _BLOCK]]
        known_s += float(np.nansum(block, dtype=np.float64))
        unknown += int(np.isnan(block).sum())
    return known_s, unknown
