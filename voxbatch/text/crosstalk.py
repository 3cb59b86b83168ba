"""Tell the crosstalk in a channel from its own sound.

A headset also hears the other side of a call, and an engine recognises that fully: at -15 dB, the text becomes twice as
long, and the words beside it get worse. Crosstalk is as much quieter than the channel that it comes from as ever in the
recording. So `CrosstalkGate` mutes it before the recognition, and `Crosstalk` judges the words that are left.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from voxbatch.records import LEVEL_FRAME, SAMPLING_RATE, Samples
from voxbatch.voice import MIN_LEVEL_DB, decibels, frame_powers, windowed

USUAL_DB = -10.0
"""Highest level of crosstalk relative to its channel, in dB, if a recording does not tell more."""
HIGHEST_DB = -6.0
"""Highest level of crosstalk in any recording."""
RANGE_DB = 6.0
"""Range in dB of crosstalk above its usual level in a recording. A quiet word that is said while the other side speaks
loudly is above that."""
ACTIVE_RANGE_DB = 30.0
"""Distance in dB below the loud frames (95th percentile) of a channel from which nobody speaks in it."""
MIN_FRAMES = 50
"""Fewest frames that tell the usual level of crosstalk: a second."""

STEP = SAMPLING_RATE // LEVEL_FRAME
"""Frames that are judged at a time: a second."""
SMOOTHED = 5
"""Frames over which the power is smoothed: 100 ms, because crosstalk comes some milliseconds late."""
SYLLABLE = 4
"""Frames in a row that hold a channel's own sound, at least: 80 ms. Fewer are the echo of a pause."""
REACH = 10
"""Frames before and after its own sound in which nothing is muted: 0.2 s, so that no word is cut."""
CONTEXT = SMOOTHED + SYLLABLE + REACH
"""Frames on each side that decide on a frame."""

_DB = np.arange(101.0)
"""Levels of a histogram: dB above MIN_LEVEL_DB."""
Levels = NDArray[np.float64]
Mask = NDArray[np.bool_]


class CrosstalkGate:
    """Callable that mutes crosstalk in consecutive blocks of a recording: (samples, channels) → (samples, channels).

    What comes out is late by a second and a half; call `finish` after the last block. The samples do not depend on the
    sizes of the blocks.
    """

    def __init__(self, channels: int) -> None:
        self._pending: Samples = np.zeros((0, channels), np.float32)
        self._before: Levels = np.zeros((0, channels))
        """Powers of the frames before `_pending`."""
        self._num_known = 0
        """Number of frames of `_pending` that are in the statistics."""
        self._statistics = _Statistics(channels)

    def __call__(self, block: Samples) -> Samples:
        """Return the samples that are decided with this block."""
        self._pending = np.concatenate([self._pending, block])
        decided = [block[:0]]
        while len(self._pending) >= (STEP + CONTEXT) * LEVEL_FRAME:
            decided.append(self._step(STEP))
        return np.concatenate(decided)

    def finish(self) -> Samples:
        """Return the remaining samples."""
        rest = self._pending
        decided = self._step(len(rest) // LEVEL_FRAME)
        return np.concatenate([decided, self._pending])  # the last part of a frame stays

    def _step(self, num_frames: int) -> Samples:
        """Return the next frames, muted where they hold crosstalk."""
        powers = frame_powers(self._pending[: (num_frames + CONTEXT) * LEVEL_FRAME], LEVEL_FRAME)
        self._statistics.add(_levels(powers[self._num_known :]))
        window = np.concatenate([self._before, powers])
        muted = self._muted(window)[len(self._before) :][:num_frames]
        size = num_frames * LEVEL_FRAME
        samples, self._pending = self._pending[:size], self._pending[size:]
        self._before = window[: len(self._before) + num_frames][-CONTEXT:]
        self._num_known = len(powers) - num_frames
        if not muted.any():
            return samples
        return np.where(np.repeat(muted, LEVEL_FRAME, axis=0), np.float32(0), samples)

    def _muted(self, powers: Levels) -> Mask:
        """Return the frames of each channel that are muted: those near crosstalk and not near its own sound."""
        levels = _levels(windowed(powers, SMOOTHED) / SMOOTHED)
        active = levels > self._statistics.silence()
        muted = np.zeros(levels.shape, np.bool_)
        for channel, highest in enumerate(self._statistics.highest_crosstalk()):
            above = levels[:, [channel]] - levels >= highest
            others = np.arange(levels.shape[1]) != channel
            own = (active[:, channel] & above[:, others].all(axis=1))[:, None]
            own = windowed(windowed(own, SYLLABLE) >= SYLLABLE, SYLLABLE) > 0
            crosstalk = (active & ~above)[:, others].any(axis=1)[:, None]
            muted[:, [channel]] = (windowed(crosstalk, 2 * REACH) > 0) & ~(windowed(own, 2 * REACH) > 0)
        return muted


class Crosstalk:
    """Judge of the words of a recording.

    Args:
        levels: levels of the channels, see Decoded.
        start: seconds of the first frame on the recording's clock.
    """

    def __init__(self, levels: Sequence[bytes], start: float) -> None:
        self._start = start
        decibels = np.stack([np.frombuffer(channel, np.uint8) for channel in levels], axis=1).astype(np.float64)
        statistics = _Statistics(len(levels))
        statistics.add(decibels)
        self._highest = 10 ** (statistics.highest_crosstalk() / 10)
        """Power of the loudest crosstalk in a channel (row) relative to the channel that it comes from (column)."""
        self._energies = np.cumsum(np.insert(10 ** (decibels / 10), 0, 0.0, axis=0), axis=0)
        """Sums of the powers of all frames before each position; shape (frames + 1, channels)."""

    def is_in(self, channel: int, start: float, end: float) -> bool:
        """Return whether a channel holds no more than crosstalk from a start to an end, in seconds."""
        last = len(self._energies) - 1
        first = min(int((start - self._start) * SAMPLING_RATE / LEVEL_FRAME), last - 1)
        after = min(max(first + 1, round((end - self._start) * SAMPLING_RATE / LEVEL_FRAME)), last)
        energies = self._energies[after] - self._energies[first]
        others = np.arange(len(energies)) != channel
        return bool((energies[channel] < energies * self._highest[channel])[others].any())


class _Statistics:
    """Histograms of the levels of channels, from which the usual level of crosstalk is known."""

    def __init__(self, channels: int) -> None:
        self._levels = np.zeros((channels, len(_DB)), np.int64)
        self._differences = np.zeros((channels, channels, len(_DB)), np.int64)
        """Frames in which a channel (row) is so many dB below another one (column) that is active."""

    def add(self, levels: Levels) -> None:
        """Add levels in dB above MIN_LEVEL_DB; shape (frames, channels)."""
        for channel, own in enumerate(levels.T):
            self._levels[channel] += _histogram(own)
        active = levels > self.silence()
        for channel, own in enumerate(levels.T):
            for other, loud in enumerate(levels.T):
                self._differences[channel, other] += _histogram(
                    (loud - own)[active[:, other] & (loud > own - USUAL_DB)]
                )

    def silence(self) -> Levels:
        """Return the level of each channel up to which nobody speaks in it."""
        share = np.cumsum(self._levels, axis=1) / np.maximum(self._levels.sum(axis=1, keepdims=True), 1)
        loud: Levels = (share >= 0.95).argmax(axis=1) - ACTIVE_RANGE_DB
        return loud

    def highest_crosstalk(self) -> Levels:
        """Return the highest level of crosstalk in each channel (row) from each other one (column), in dB relative to
        the other one."""
        counts = self._differences.sum(axis=2)
        median = (np.cumsum(self._differences, axis=2) >= (counts[:, :, None] + 1) // 2).argmax(axis=2)
        highest: Levels = np.where(counts >= MIN_FRAMES, np.minimum(RANGE_DB - median, HIGHEST_DB), USUAL_DB)
        return highest


def _levels(powers: Levels) -> Levels:
    """Return powers as dB above MIN_LEVEL_DB, at least 0."""
    return decibels(powers) - MIN_LEVEL_DB


def _histogram(levels: Levels) -> NDArray[np.int64]:
    return np.bincount(np.clip(np.rint(levels), 0, len(_DB) - 1).astype(np.int64), minlength=len(_DB))
