"""A stream of Waveforms → Chunks no longer than the engine's limit, cut in pauses.

A recording that fits is one chunk. A longer one is cut at the quietest place within SEARCH_SECONDS before the limit;
where even that place is not quiet, the cut is forced: both sides carry OVERLAP_SECONDS of the other's audio, and
stitching decides which words count. Every sample belongs to exactly one core; nothing is skipped. Does not look for
words: it measures loudness, at some 10,000 audio seconds a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from voxbatch.records import SAMPLING_RATE, Samples, Span, Waveform

FRAME = SAMPLING_RATE // 100
"""Samples per loudness frame: 10 ms."""
SEARCH_SECONDS = 10
"""How far before the limit a cut may fall. Read speech pauses every 3 to 6 s."""
PAUSE_FRAMES = 30
"""A pause is sought that is quiet for 300 ms: longer than the closure of a stop consonant (50 to 150 ms)."""
PAUSE_CLICKS = 0.1
"""Share of a pause's frames that may be louder: a click does not end a pause. The loudest frame but these counts, and
not the mean: 100 ms of digital silence between two sounds have a very low mean and are no pause."""
PAUSE_DEPTH_DB = 18
"""A place is a pause when it is this far below the loud frames (95th percentile) around it."""
LATER_DB_PER_SECOND = 0.5
"""Of two equal pauses the later one is taken, which makes fewer chunks; a clearly deeper one wins all the same."""
OVERLAP_SECONDS = 1
"""On each side of a forced cut: two words at an ordinary pace, so that one word is heard whole by both chunks."""
TAIL_SECONDS = 2
"""A recording's last chunk is not cut shorter than this where it can be helped: engines invent words in scraps."""

FLOOR_DB = -100.0
SILENCE_DB = -75.0
"""No 10 ms above this (RMS 6 of 32,768): digital silence or dither, not even a whisper."""
STEADY_DB, STEADY_HIGH_DB, STEADY_LOW_DB = 6.0, 2.0, 5.0
"""A second or more is certain noise or tone when its 50 ms loudness stays within these ranges (1st percentile to
maximum: one short word counts) as it is, in its high and in its low frequencies. White, pink and hum stay 20 % below
each; syllables move speech by 20 dB, and real speech under white or pink noise of three times its power passes them."""


OVERLAP = OVERLAP_SECONDS * SAMPLING_RATE


def cut(blocks: Iterable[Waveform], limit: int, overlap: int = OVERLAP) -> Iterator[tuple[Samples, Span]]:
    """Cut one recording.

    Args:
        blocks: its consecutive Waveforms.
        limit: the engine's longest chunk in samples; at least 2 s more than SEARCH_SECONDS + 2 × OVERLAP_SECONDS
            leave room for, in practice 14 s.

    Yields:
        (samples, span) in order: samples float32 of shape (span.end - span.start,), never longer than `limit`; the
        spans' cores partition the recording. At most `limit` samples and one block are held.
    """
    search, tail = SEARCH_SECONDS * SAMPLING_RATE, TAIL_SECONDS * SAMPLING_RATE
    if limit < search + 2 * overlap + tail:
        raise ValueError(f"limit is {limit} samples; at least {search + 2 * overlap + tail} are needed to cut well")
    held = _Held()
    core_start = None
    for block, is_last in _with_last(blocks):
        held.append(block)
        core_start = held.start if core_start is None else core_start
        while len(held.samples) > limit + (0 if is_last else tail):
            at, is_pause = _best_cut(held.samples, limit, overlap, min(limit, len(held.samples) - tail))
            yield held.take(at if is_pause else at + overlap, core_start, held.start + at)
            core_start = held.start + at
            held.drop(at if is_pause else at - overlap)
    if core_start is not None and len(held.samples):
        yield held.take(len(held.samples), core_start, held.start + len(held.samples))


class _Held:
    """The stretch of the recording that is not yet cut."""

    def __init__(self) -> None:
        self.samples: Samples = np.zeros(0, np.float32)
        self.start = 0

    def append(self, block: Waveform) -> None:
        if len(self.samples):
            self.samples = np.concatenate([self.samples, block.samples])
        else:
            self.samples, self.start = block.samples, block.start

    def take(self, size: int, core_start: int, core_end: int) -> tuple[Samples, Span]:
        samples = self.samples[:size]
        return samples, Span(self.start, self.start + size, core_start, core_end, is_silent(samples))

    def drop(self, size: int) -> None:
        self.samples, self.start = self.samples[size:], self.start + size


def _with_last(blocks: Iterable[Waveform]) -> Iterator[tuple[Waveform, bool]]:
    previous = None
    for block in blocks:
        if previous is not None:
            yield previous, False
        previous = block
    if previous is not None:
        yield previous, True


def _best_cut(samples: Samples, limit: int, overlap: int, latest: int) -> tuple[int, bool]:
    """(position in samples, whether it is a pause). A forced one leaves room for the overlap before the limit."""
    search = SEARCH_SECONDS * SAMPLING_RATE
    at, is_pause = quietest(samples, latest - search, latest)
    if is_pause:
        return at, True
    latest = min(latest, limit - overlap)
    return quietest(samples, latest - search, latest)[0], False


def quietest(samples: Samples, begin: int, end: int) -> tuple[int, bool]:
    """The middle of the quietest PAUSE_FRAMES in [begin, end), and whether they are a pause; a pause goes first."""
    levels = loudness(samples[begin:end])
    windows = np.lib.stride_tricks.sliding_window_view(levels, PAUSE_FRAMES)
    rank = round(PAUSE_FRAMES * (1 - PAUSE_CLICKS)) - 1
    loudest = np.partition(windows, rank, axis=1)[:, rank]
    is_pause = loudest <= max(np.percentile(levels, 95) - PAUSE_DEPTH_DB, SILENCE_DB)
    favour_later = np.arange(len(windows)) * (LATER_DB_PER_SECOND * FRAME / SAMPLING_RATE)
    mean = windows.mean(axis=1) - favour_later
    best = int(np.where(is_pause, mean, np.inf).argmin() if is_pause.any() else mean.argmin())
    return begin + (best + PAUSE_FRAMES // 2) * FRAME, bool(is_pause[best])


def loudness(samples: Samples, frame: int = FRAME) -> NDArray[np.float64]:
    """RMS level of each whole frame in dB relative to full scale, not below FLOOR_DB; shape (len(samples) //
    frame,)."""
    frames = samples[: len(samples) // frame * frame].reshape(-1, frame)
    power = np.einsum("ij,ij->i", frames, frames, dtype=np.float64) / frame
    levels: NDArray[np.float64] = 10 * np.log10(np.maximum(power, 10 ** (FLOOR_DB / 10)))
    return levels


def is_silent(samples: Samples) -> bool:
    """Whether there is certainly no speech: silence throughout, or at least a second of stationary noise or tone."""
    levels = loudness(samples)
    if len(levels) == 0 or levels.max() <= SILENCE_DB:
        return bool(np.abs(samples).max(initial=0.0) <= 10 ** (SILENCE_DB / 20) * 4)
    if len(samples) < SAMPLING_RATE:
        return False
    low = samples[: len(samples) // 8 * 8].reshape(-1, 8).mean(axis=1)  # 0 to 1 kHz: where vowels are
    return (
        _range_db(samples, 5 * FRAME) <= STEADY_DB
        and _range_db(np.diff(samples), 5 * FRAME) <= STEADY_HIGH_DB
        and _range_db(np.diff(low), 5 * FRAME // 8) <= STEADY_LOW_DB
    )


def _range_db(samples: Samples, frame: int) -> float:
    levels = loudness(samples, frame)
    return float(levels.max() - np.percentile(levels, 1))
