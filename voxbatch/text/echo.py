"""Take the echo of a call out of the other channel.

A phone or a bridge sends a side of a call back: up to 0.6 s late, as loud as it likes, and through codecs. The levels
of one moment (see `crosstalk`) do not tell that echo from the channel's own speaker. Its delay does: a channel that
repeats another one correlates with it at one delay. `EchoCanceller` finds the delays in a window that moves with the
recording, estimates the filters of their paths, subtracts what comes along them, and mutes the frames of which hardly
anything is left. Speech of both sides at once stays, because it does not correlate. Samples without an echo are
returned as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from voxbatch.records import LEVEL_FRAME, SAMPLING_RATE, Samples
from voxbatch.voice import frame_powers

STEP = 2 * SAMPLING_RATE
"""Samples that are judged at a time. The delay of an echo changes when a jitter buffer does."""
BEFORE, AFTER = 3 * SAMPLING_RATE, 4 * SAMPLING_RATE
"""Samples before and after a step that decide on it, too: together some words of each side."""
MAX_DELAY = round(0.65 * SAMPLING_RATE)
"""Longest delay of an echo: satellites and bridges need 0.6 s."""
MAX_PATHS = 3
"""Largest number of delays at which one channel is heard in another one."""
HALF_FILTER = round(0.004 * SAMPLING_RATE)
"""Half the length of the filter of a path: the bands and the small room of a phone."""
APART = 2 * HALF_FILTER
"""Smallest distance of two delays."""
BAND_HZ = (200.0, 3600.0)
"""Frequencies that a telephone transmits."""
WHITENING = 0.7
"""Exponent of the weight of the cross-spectrum: 1 is GCC-PHAT, 0 plain correlation, whose peak the pitch blurs."""
PEAK = 9.0
"""Height of a peak of the correlation above its usual deviation (median / 0.6745) from which it is an echo."""
REGULARISATION = 1e-3
"""Share of the source's power that is added to the diagonal, so that frequencies without speech have no gain."""
LOUDEST = 0.7
"""Largest power of an echo relative to its source: −1.5 dB. What is louder is the source."""
LEFT = 0.3
"""Share of a channel's power that subtracting leaves in a frame of echo, at most. Codecs leave more than rooms."""
FEWEST_FRAMES = 10
"""Fewest frames of a window in which subtracting leaves so little: 0.2 s. Two readers that correlate by chance have
fewer."""
SMOOTHED = 5
"""Frames over which powers are summed: 100 ms."""
SYLLABLE = 4
"""Frames in a row that hold a channel's own sound, at least: 80 ms."""
REACH = 8
"""Frames around own sound in which nothing is muted: 160 ms."""
FLOOR_DB = -40.0
"""Level of an echo relative to the loud frames of its window (95th percentile) below which it is not heard."""

Signal = NDArray[np.float64]


class EchoCanceller:
    """Callable that takes echoes out of consecutive blocks of a recording: (samples, channels) → (samples, channels).

    The samples are late by up to six seconds; call `finish` after the last block. They do not depend on the sizes of
    the blocks.
    """

    def __init__(self, channels: int) -> None:
        self._pending: Samples = np.zeros((0, channels), np.float32)
        self._before: Samples = np.zeros((0, channels), np.float32)
        """The samples before `_pending`, up to BEFORE + MAX_DELAY."""
        self._pairs = tuple(permutations(range(channels), 2))

    def __call__(self, block: Samples) -> Samples:
        """Return the samples that are decided with this block."""
        self._pending = np.concatenate([self._pending, block])
        decided = [block[:0]]
        while len(self._pending) >= STEP + AFTER:
            decided.append(self._step(STEP))
        return np.concatenate(decided)

    def finish(self) -> Samples:
        """Return the remaining samples."""
        decided = [self._pending[:0]]
        while len(self._pending):
            decided.append(self._step(min(STEP, len(self._pending))))
        return np.concatenate(decided)

    def _step(self, size: int) -> Samples:
        window = np.concatenate([self._before, self._pending[: size + AFTER]])
        begin = len(self._before)
        cancelled = self._cancelled(window)[begin : begin + size]
        self._pending = self._pending[size:]
        self._before = window[: begin + size][-(BEFORE + MAX_DELAY) :]
        return cancelled

    def _cancelled(self, window: Samples) -> Samples:
        """Return a window without the echoes in it."""
        out = window
        for source, channel in self._pairs:
            path = _EchoPath.found(window[:, source].astype(np.float64), window[:, channel].astype(np.float64))
            if path is not None:
                out = out.copy() if out is window else out
                out[:, channel] = np.where(path.muted, np.float32(0), out[:, channel] - path.echo.astype(np.float32))
        return out


@dataclass(frozen=True, slots=True)
class _EchoPath:
    """An echo in a window. Both arrays have a value for each sample."""

    echo: Signal
    muted: NDArray[np.bool_]

    @classmethod
    def found(cls, source: Signal, channel: Signal) -> _EchoPath | None:
        """Return the echo of a source in a channel, or None if there is none."""
        delays = _delays(source, channel)
        if not delays:
            return None
        echo = _echo(source, channel, delays)
        left = _smooth(channel - echo)
        present, heard = _smooth(channel), _smooth(echo)
        floor = np.percentile(heard, 95) * 10 ** (FLOOR_DB / 10)
        is_echo = (heard > floor) & (left < LEFT * present)
        if is_echo.sum() < FEWEST_FRAMES or heard.sum() > LOUDEST * _smooth(source).sum():
            return None
        own = (left > heard) & (left > floor)
        own = _windowed(_windowed(own, SYLLABLE) >= SYLLABLE, SYLLABLE) > 0
        muted = (_windowed(heard > floor, 2 * REACH) > 0) & ~(_windowed(own, 2 * REACH) > 0)
        samples = np.repeat(muted, LEVEL_FRAME)
        return cls(echo, np.pad(samples, (0, len(source) - len(samples)), mode="edge"))


def _delays(source: Signal, channel: Signal) -> list[int]:
    """Return the delays in samples at which a channel repeats a source, the clearest one first."""
    size = 1 << (len(source) + MAX_DELAY).bit_length()
    cross = np.fft.rfft(channel, size) * np.conj(np.fft.rfft(source, size))
    low, high = (round(hz / SAMPLING_RATE * size) for hz in BAND_HZ)
    cross[:low] = cross[high:] = 0
    weights = np.abs(cross)
    strengths = np.fft.irfft(cross / np.maximum(weights, weights.max(initial=1e-20) * 1e-6) ** WHITENING, size)
    strengths = np.abs(strengths[: MAX_DELAY + 1])
    usual = float(np.median(strengths)) / 0.6745
    delays = list[int]()
    while len(delays) < MAX_PATHS and usual > 0 and strengths.max() > PEAK * usual:
        delay = int(strengths.argmax())
        delays.append(delay)
        strengths[max(0, delay - APART) : delay + APART + 1] = 0
    return delays


def _echo(source: Signal, channel: Signal, delays: list[int]) -> Signal:
    """Return what comes from a source along the paths with these delays, by least squares."""
    taps = np.unique(np.concatenate([np.arange(max(0, at - HALF_FILTER), at + HALF_FILTER) for at in delays]))
    size = 1 << (len(source) + int(taps[-1]) + 1).bit_length()
    spectrum = np.fft.rfft(source, size)
    auto = np.fft.irfft(np.abs(spectrum) ** 2, size)
    cross = np.fft.irfft(np.conj(spectrum) * np.fft.rfft(channel, size), size)
    matrix = auto[np.abs(taps[:, None] - taps[None, :])]
    matrix[np.diag_indices(len(taps))] += REGULARISATION * auto[0]
    response = np.zeros(int(taps[-1]) + 1)
    response[taps] = np.linalg.solve(matrix, cross[taps])
    return np.asarray(np.fft.irfft(spectrum * np.fft.rfft(response, size), size)[: len(source)])


def _smooth(signal: Signal) -> Signal:
    """Return the power of each frame, summed with its neighbours."""
    return _windowed(frame_powers(signal[:, None].astype(np.float32), LEVEL_FRAME)[:, 0], SMOOTHED)


def _windowed(frames: NDArray[np.generic], size: int) -> Signal:
    """Return the sum of the `size` frames around each one."""
    padded = np.pad(frames.astype(np.float64), (size // 2 + 1, size - size // 2 - 1))
    total = np.cumsum(padded)
    return np.asarray(total[size:] - total[:-size])
