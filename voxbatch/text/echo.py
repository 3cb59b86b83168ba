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
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from voxbatch.records import LEVEL_FRAME, SAMPLING_RATE, Samples
from voxbatch.voice import frame_powers, windowed

STEP = 2 * SAMPLING_RATE
"""Samples that are judged at a time. The delay of an echo changes when a jitter buffer does."""
FITTED = SAMPLING_RATE // 2
"""Samples before and after a step that the filters of its paths are fitted to, too."""
BEFORE, AFTER = 3 * SAMPLING_RATE, 4 * SAMPLING_RATE
"""Samples before and after a step that decide on it, too: together some words of each side."""
MAX_DELAY = round(0.65 * SAMPLING_RATE)
"""Longest delay of an echo: satellites and bridges need 0.6 s."""
MAX_PATHS = 3
"""Largest number of delays at which one channel is heard in another one."""
SAME_MOMENT = round(0.02 * SAMPLING_RATE)
"""Delay up to which the levels of one moment tell an echo, see `crosstalk`, unless it is loud. With such a delay, each
channel seems to be the echo of the other one."""
LOUD = 0.2
"""Power of an echo relative to its source from which levels do not tell it: −7 dB."""
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
SYLLABLE = 8
"""Frames in a row that hold a channel's own sound, at least: 160 ms, of which 100 ms are the smoothing of one."""
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
        self._known: dict[tuple[int, int], list[int]] = {}
        """The delays of the last echo of a source in a channel."""

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
        step, self._pending = self._pending[:size], self._pending[size:]
        self._before = window[: begin + size][-(BEFORE + MAX_DELAY) :]
        paths = list(self._paths(window, begin, size))
        if not paths:
            return step
        step = step.copy()
        for path in paths:
            path.take_out(step[:, path.channel])
        return step

    def _paths(self, window: Samples, begin: int, size: int) -> Iterator[_EchoPath]:
        """Yield the echoes in a step, for each two channels at most one that comes at the same moment."""
        spectra = _spectra(window)
        for one, other in combinations(range(window.shape[1]), 2):
            cross = _whitened(spectra[other] * np.conj(spectra[one]))
            strengths = np.abs(np.fft.irfft(cross, 2 * len(cross)))  # at 8 kHz
            there = self._path(window, one, other, _delays(strengths), begin, size)
            back = self._path(window, other, one, _delays(np.roll(strengths[::-1], 1)), begin, size)
            if there and back and there.is_same_moment and back.is_same_moment:
                there, back = (there, None) if there.left_share < back.left_share else (None, back)
            yield from filter(None, (there, back))

    def _path(
        self, window: Samples, source: int, channel: int, delays: list[int], begin: int, size: int
    ) -> _EchoPath | None:
        """Return the echo of a source in a step. A path that was there before needs no further proof."""
        known = self._known.get((source, channel), [])
        is_known = any(abs(delay - before) < APART for delay in delays for before in known)
        path = _EchoPath.found(window, source, channel, delays, begin, size, 0 if is_known else FEWEST_FRAMES)
        if path is not None:
            self._known[source, channel] = delays
        return path


@dataclass(frozen=True, slots=True)
class _EchoPath:
    """The echo of one channel in another one, in a step. Both arrays have a value for each sample."""

    channel: int
    echo: Signal
    muted: NDArray[np.bool_]
    is_same_moment: bool
    left_share: float
    """Share of the power that is left where there is only the echo."""

    @classmethod
    def found(
        cls, window: Samples, source: int, channel: int, delays: list[int], begin: int, size: int, fewest: int
    ) -> _EchoPath | None:
        """Return the echo of a source in a step of a window, or None if fewer frames than `fewest` prove it."""
        if not delays:
            return None
        first = max(0, begin - FITTED)
        part = slice(max(0, first - max(delays) - HALF_FILTER), begin + size + FITTED)
        sound, heard_sound = window[part, source].astype(np.float64), window[part, channel].astype(np.float64)
        sounds = _delayed(sound, delays)
        skipped = first - part.start
        echo = _fitted(sound, heard_sound, delays, skipped)[skipped:]
        left, present, heard = (
            _smooth(signal) for signal in (heard_sound[skipped:] - echo, heard_sound[skipped:], echo)
        )
        loudest = np.max([_smooth(late[skipped:]) for late in sounds], axis=0)
        floor = np.percentile(heard, 95) * 10 ** (FLOOR_DB / 10)
        is_echo = (heard > floor) & (left < LEFT * present)
        gain = heard.sum() / max(loudest.sum(), 1e-20)
        is_same_moment = delays[0] < SAME_MOMENT
        if is_echo.sum() < fewest or gain > LOUDEST or (is_same_moment and gain < LOUD):
            return None
        # A codec makes noise of consonants, which is as loud as they are and does not correlate.
        expected = np.maximum(heard, gain * loudest)
        own = (left > expected) & (left > floor)
        own = windowed(windowed(own, SYLLABLE) >= SYLLABLE, SYLLABLE) > 0
        muted = (windowed(expected > floor, 2 * REACH) > 0) & ~(windowed(own, 2 * REACH) > 0)
        samples = np.pad(np.repeat(muted, LEVEL_FRAME), (0, len(echo) % LEVEL_FRAME), mode="edge")
        step = slice(begin - first, begin - first + size)
        left_share = float(left[is_echo].sum() / max(present[is_echo].sum(), 1e-20))
        return cls(channel, echo[step], samples[step], is_same_moment, left_share)

    def take_out(self, samples: Samples) -> None:
        """Take the echo out of the samples of the channel, in place."""
        samples[:] = np.where(self.muted, np.float32(0), samples - self.echo.astype(np.float32))


def _spectra(window: Samples) -> list[NDArray[np.complex128]]:
    """Return the spectrum of each channel up to 4 kHz, at least MAX_DELAY longer than the window."""
    size = 1 << (len(window) + MAX_DELAY - 1).bit_length()
    return [np.fft.rfft(channel.astype(np.float32), size)[: size // 4] for channel in window.T]


def _whitened(cross: NDArray[np.complex128]) -> NDArray[np.complex128]:
    """Return a cross-spectrum in the band of telephones, with weights: see WHITENING."""
    low, high = (round(hz / (SAMPLING_RATE / 4) * len(cross)) for hz in BAND_HZ)
    cross[:low] = cross[high:] = 0
    band = cross[low:high]
    strengths = np.abs(band)
    band *= np.maximum(strengths, max(float(strengths.max(initial=0.0)), 1e-20) * 1e-6) ** -WHITENING
    return cross


def _delays(strengths: Signal) -> list[int]:
    """Return the delays in samples at which a channel repeats a source, the clearest one first, by the strength of
    their correlation at each delay, at 8 kHz."""
    strengths = strengths[: MAX_DELAY // 2 + 1].copy()
    usual = float(np.median(strengths)) / 0.6745
    delays = list[int]()
    while len(delays) < MAX_PATHS and usual > 0 and strengths.max() > PEAK * usual:
        delay = int(strengths.argmax())
        delays.append(2 * delay)
        strengths[max(0, delay - APART // 2) : delay + APART // 2 + 1] = 0
    return delays


def _delayed(source: Signal, delays: list[int]) -> list[Signal]:
    return [np.concatenate([np.zeros(delay), source])[: len(source)] for delay in delays]


def _fitted(source: Signal, channel: Signal, delays: list[int], skipped: int) -> Signal:
    """Return what comes from a source along the paths with these delays, by least squares.

    Args:
        skipped: samples at the start of which only the source counts.
    """
    taps = np.unique(np.concatenate([np.arange(max(0, at - HALF_FILTER), at + HALF_FILTER) for at in delays]))
    size = 1 << (len(source) + int(taps[-1]) + 1).bit_length()
    spectrum = np.fft.rfft(source, size)
    auto = np.fft.irfft(np.abs(spectrum) ** 2, size)
    heard = np.concatenate([np.zeros(skipped), channel[skipped:]])
    cross = np.fft.irfft(np.conj(spectrum) * np.fft.rfft(heard, size), size)
    matrix = auto[np.abs(taps[:, None] - taps[None, :])]
    matrix[np.diag_indices(len(taps))] += REGULARISATION * auto[0] + 1e-12
    response = np.zeros(int(taps[-1]) + 1)
    response[taps] = np.linalg.solve(matrix, cross[taps])
    return np.asarray(np.fft.irfft(spectrum * np.fft.rfft(response, size), size)[: len(source)])


def _smooth(signal: Signal) -> Signal:
    """Return the power of each frame, summed with its neighbours."""
    return windowed(frame_powers(signal[:, None].astype(np.float32), LEVEL_FRAME)[:, 0], SMOOTHED)
