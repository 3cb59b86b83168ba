"""Cut a stream of Waveforms into Chunks that are no longer than the engine's limit, in pauses where possible.

A recording that fits the limit is one chunk. A longer recording is cut at the quietest position within SEARCH_SECONDS
before the limit. If that position is not a pause, the cut is forced: both chunks carry OVERLAP samples of each other's
audio, and stitching decides which words count. Every sample belongs to exactly one core, so no audio is skipped.

The module measures loudness only, at about 10,000 audio seconds per second. It does not recognise words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from voxbatch.records import OVERLAP, SAMPLING_RATE, Samples, Span, Waveform
from voxbatch.voice import FRAME, SILENCE_DB, is_silent, loudness, without_offset

SEARCH_SECONDS = 10
"""Distance before the limit in which a cut may fall. Read speech pauses every 3 to 6 s."""
PAUSE_FRAMES = 30
"""Length of a pause: 300 ms of quiet. This is longer than the closure of a stop consonant (50 to 150 ms)."""
PAUSE_LOUD_SHARE = 0.1
"""Share of a pause's frames that may be louder, so that a click does not end a pause. A pause is judged by its loudest
frame after this share is removed, not by its mean: 100 ms of digital silence between two sounds has a very low mean,
but is no pause."""
PAUSE_DEPTH_DB = 18
"""Minimum distance of a pause below the loud frames (95th percentile) around it, in dB."""
LATER_DB_PER_SECOND = 0.5
"""Bonus of a later position, in dB per second. Of two equal pauses the later one is taken, which makes fewer chunks. A
clearly deeper pause still wins."""
MIN_LAST_CHUNK_SECONDS = 2
"""Minimum length of a recording's last chunk, where it can be reached. Engines invent words in very short chunks."""


def cut_into_chunks(blocks: Iterable[Waveform], limit: int, overlap: int = OVERLAP) -> Iterator[tuple[Samples, Span]]:
    """Cut one recording.

    Args:
        blocks: the recording's consecutive Waveforms.
        limit: the engine's longest chunk in samples. It must be at least SEARCH_SECONDS, two overlaps and
            MIN_LAST_CHUNK_SECONDS together: 14 s with the default overlap.
        overlap: samples that each side of a forced cut carries beyond the cut.

    Yields:
        (samples, span) in order. `samples` is float32 of shape (span.end - span.start,) and never longer than `limit`.
        The cores of the spans partition the recording. Memory holds at most `limit` samples, MIN_LAST_CHUNK_SECONDS
        and two blocks.

    Raises:
        ValueError: `limit` is too short.
    """
    search, tail = SEARCH_SECONDS * SAMPLING_RATE, MIN_LAST_CHUNK_SECONDS * SAMPLING_RATE
    if limit < search + 2 * overlap + tail:
        raise ValueError(f"limit is {limit} samples; at least {search + 2 * overlap + tail} are needed to cut well")
    uncut = _Uncut()
    core_start = None
    for block, is_last in _mark_last(blocks):
        uncut.append(block)
        core_start = uncut.start if core_start is None else core_start
        while len(uncut.samples) > limit + (0 if is_last else tail):
            latest = min(limit, len(uncut.samples) - tail)
            at, is_pause = quietest_position(uncut.samples, latest - search, latest)
            if not is_pause:  # a forced cut leaves the overlap free before the limit
                latest = min(latest, limit - overlap)
                at, _ = quietest_position(uncut.samples, latest - search, latest)
            yield uncut.take(at if is_pause else at + overlap, core_start, uncut.start + at)
            core_start = uncut.start + at
            uncut.drop(at if is_pause else at - overlap)
    if core_start is not None and len(uncut.samples):
        yield uncut.take(len(uncut.samples), core_start, uncut.start + len(uncut.samples))


class _Uncut:
    """The part of the recording that is not cut yet."""

    def __init__(self) -> None:
        self.samples: Samples = np.zeros(0, np.float32)
        self.start = 0

    def append(self, block: Waveform) -> None:
        """Add the next block at the end."""
        if len(self.samples):
            self.samples = np.concatenate([self.samples, block.samples])
        else:
            self.samples, self.start = block.samples, block.start

    def take(self, size: int, core_start: int, core_end: int) -> tuple[Samples, Span]:
        """Return the first `size` samples and their span. The core is given on the recording's clock, in samples."""
        samples = self.samples[:size]
        return samples, Span(self.start, self.start + size, core_start, core_end, is_silent(samples))

    def drop(self, size: int) -> None:
        """Remove the first `size` samples."""
        self.samples, self.start = self.samples[size:], self.start + size


def _mark_last(blocks: Iterable[Waveform]) -> Iterator[tuple[Waveform, bool]]:
    """Yield each block with a flag that is true for the last block."""
    previous = None
    for block in blocks:
        if previous is not None:
            yield previous, False
        previous = block
    if previous is not None:
        yield previous, True


def quietest_position(samples: Samples, begin: int, end: int) -> tuple[int, bool]:
    """Return the middle of the quietest PAUSE_FRAMES in [begin, end), and whether these frames are a pause.

    A pause wins over a quieter position that is no pause.
    """
    levels = loudness(without_offset(samples[begin:end]))
    windows = np.lib.stride_tricks.sliding_window_view(levels, PAUSE_FRAMES)
    rank = round(PAUSE_FRAMES * (1 - PAUSE_LOUD_SHARE)) - 1
    loudest = np.partition(windows, rank, axis=1)[:, rank]
    is_pause = loudest <= max(np.percentile(levels, 95) - PAUSE_DEPTH_DB, SILENCE_DB)
    favour_later = np.arange(len(windows)) * (LATER_DB_PER_SECOND * FRAME / SAMPLING_RATE)
    mean = windows.mean(axis=1) - favour_later
    best = int(np.where(is_pause, mean, np.inf).argmin() if is_pause.any() else mean.argmin())
    return begin + (best + PAUSE_FRAMES // 2) * FRAME, bool(is_pause[best])
