"""Records of how far a run is and of how it uses its time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from voxbatch.storage.columns import Column, ItemSet


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
    measured: int = 0
    """Number of finished items among the `unknown` ones."""
    measured_s: float = 0.0
    """Seconds of audio in the `measured` items."""
    sample: dict[int, float] = field(default_factory=dict)
    """Item.index → seconds by the header, of some `unknown` items that are not finished. One thread adds them, and
    another one removes those that are finished."""
    committed: int = 0
    """Number of items in parts, which are safe, including those of earlier runs."""
    parts: int = 0
    """Number of parts committed since the start."""
    started_at: float = field(default_factory=time.monotonic)
    """Start of the run, by time.monotonic()."""
    engine_started_at: float | None = None
    """Time at which the engine took its first chunk, by time.monotonic(). None before that, or if it is not known."""
    waiting: str = ""
    """The reason for which the run does not proceed, for people: the model, a store, the engine. Empty if it does."""

    @property
    def wall_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_at

    @property
    def rtfx(self) -> float:
        """Audio seconds transcribed per second."""
        return self.audio_s / self.wall_s

    @property
    def total_audio_s(self) -> float | None:
        """Seconds of audio that this process has to do, or None before anything is known about the `unknown` items.

        It is an estimate until all of these are measured: each of the rest has the mean duration of the sample, or of
        the finished items if there is no sample.
        """
        rest, headers = self.unknown - self.measured, list(self.sample.values())
        if rest <= 0:
            return self.known_audio_s + self.measured_s
        if headers:
            return self.known_audio_s + self.measured_s + rest * sum(headers) / len(headers)
        if self.measured:
            return self.known_audio_s + self.measured_s + rest * self.measured_s / self.measured
        return None

    @property
    def remaining_s(self) -> float | None:
        """Seconds left at the present speed, or None before anything is finished. The time in which the engine was
        loaded does not count for the speed."""
        total_s = self.total_audio_s
        todo = self.items - self.resumed - self.done - self.failed
        if not todo:
            return 0.0
        if total_s is None or not self.audio_s:
            return None
        worked_s = time.monotonic() - (self.engine_started_at or self.started_at)
        return max(0.0, total_s - self.audio_s) / self.audio_s * worked_s

    @property
    def fraction(self) -> float:
        """The part of the whole shard that is done, from 0 to 1, including the items of earlier runs."""
        total_s, todo = self.total_audio_s, self.items - self.resumed
        by_items = (self.done + self.failed) / todo if todo else 1.0
        done = min(1.0, self.audio_s / total_s) if total_s else by_items
        return (self.resumed + todo * done) / self.items if self.items else 1.0


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


def known_audio(durations: Column, items: ItemSet) -> tuple[float, int]:
    """Return the seconds of the items whose duration is known, and the number of items whose duration is unknown.

    Args:
        durations: seconds of each item of the manifest, NaN if unknown.
        items: the items to count.
    """
    known_s, unknown = 0.0, 0
    for (_, seconds), (_, is_in) in zip(durations.blocks(), items.blocks(), strict=True):
        block = seconds[is_in]
        known_s += float(np.nansum(block, dtype=np.float64))
        unknown += int(np.isnan(block).sum())
    return known_s, unknown
