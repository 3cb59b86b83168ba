"""Listen to the blocks of a recording on their way to the cutting, and tell at its end who spoke when: the levels of
channels that are recognised alone, or the turns of the speakers of a mixdown. Note the frame rate of a video.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, tee
from typing import TYPE_CHECKING

import numpy as np

from voxbatch.decoding.messages import Diarization
from voxbatch.records import LEVEL_FRAME, SAMPLING_RATE, Samples, Span, Turn, Waveform
from voxbatch.text.chunking import cut_into_chunks
from voxbatch.voice import MIN_LEVEL_DB, loudness

if TYPE_CHECKING:
    from voxbatch.speakers import Diarizer
    from voxbatch.text.crosstalk import CrosstalkGate
    from voxbatch.text.echo import EchoCanceller


class VoiceListener:
    """Finds the voices of one recording: the turns of its speakers, or the levels of its channels.

    Args:
        diarization: the way to tell its speakers apart. None does not.
    """

    def __init__(self, diarization: Diarization | None = None) -> None:
        self._diarization = diarization
        self._diarizer: Diarizer | None = None
        self._start = 0
        self._levels: list[list[bytes]] = []
        """Levels of each separate channel, block by block."""
        self._unmeasured: Samples = np.zeros((0, 0), np.float32)
        """The samples after the last whole frame of levels."""
        self.frame_rate: float | None = None
        self.aspect_ratio: float | None = None
        """See Decoded."""

    def see(self, frame_rate: float | None, aspect_ratio: float | None) -> None:
        """Note the frame rate and the shape of the recording's picture."""
        self.frame_rate, self.aspect_ratio = frame_rate or self.frame_rate, aspect_ratio or self.aspect_ratio

    @property
    def levels(self) -> tuple[bytes, ...]:
        """The levels of each separate channel: see Decoded."""
        return tuple(map(b"".join, self._levels))

    def heard(self, blocks: Iterable[Waveform]) -> Iterator[Waveform]:
        """Yield the blocks of the recording, and listen to each after the chunks that end in it are on their way."""
        for block in blocks:
            yield block
            if block.samples.ndim == 2:
                self._measure(block.samples)
            elif self._diarization is not None:
                if self._diarizer is None:
                    self._diarizer, self._start = _take_diarizer(self._diarization), block.start
                self._diarizer.add(block.samples)

    def turns(self) -> tuple[Turn, ...] | None:
        """Return the turns of the speakers when the recording has ended; None if they are not told apart."""
        if self._diarization is None or self._levels:
            return None
        if self._diarizer is None:
            return ()
        start = self._start / SAMPLING_RATE
        turns = [replace(turn, start=start + turn.start, end=start + turn.end) for turn in self._diarizer.turns()]
        _diarizers[self._diarization] = self._diarizer
        return tuple(turns)

    def _measure(self, samples: Samples) -> None:
        """Add the levels of a block with the shape (num_samples, channels)."""
        if not self._levels:
            self._levels = [[] for _ in range(samples.shape[1])]
            self._unmeasured = samples[:0]
        samples = np.concatenate([self._unmeasured, samples])
        end = len(samples) // LEVEL_FRAME * LEVEL_FRAME
        self._unmeasured = samples[end:]
        for levels, channel in zip(self._levels, samples[:end].T, strict=True):
            above = np.clip(np.rint(loudness(channel, LEVEL_FRAME) - MIN_LEVEL_DB), 0, 255)
            levels.append(above.astype(np.uint8).tobytes())


_diarizers: dict[Diarization, Diarizer] = {}
"""The idle diarizer of this process. One that has not ended its recording is not used again."""


def _take_diarizer(diarization: Diarization) -> Diarizer:
    from voxbatch.speakers import Diarizer

    return _diarizers.pop(diarization, None) or Diarizer(diarization.weights, diarization.count, diarization.voices)


def cut_channels(blocks: Iterator[Waveform], limit: int, overlap: int) -> Iterator[tuple[Samples, Span]]:
    """Cut a recording as `cut_into_chunks` does, and each channel by itself, without crosstalk, if they are separate.

    The next chunk is the one of the channel that is least far, so that memory holds one more chunk for each channel.
    The order of the chunks does not depend on the sizes of the blocks.
    """
    first = next(blocks, None)
    if first is None:
        return
    blocks = chain([first], blocks)
    if first.samples.ndim == 1:
        yield from cut_into_chunks(blocks, limit, overlap)
        return
    channels = range(first.samples.shape[1])
    cutters = {
        channel: cut_into_chunks(_channel(copy, channel), limit, overlap)
        for channel, copy in zip(channels, tee(_gated(blocks), len(channels)), strict=True)
    }
    ends = dict.fromkeys(channels, first.start)
    while ends:
        channel = min(ends, key=lambda number: ends[number])
        chunk = next(cutters[channel], None)
        if chunk is None:
            del ends[channel]
        else:
            samples, span = chunk
            ends[channel] = span.core_end
            yield samples, replace(span, channel=channel)


def without_echo(blocks: Iterable[Waveform]) -> Iterator[Waveform]:
    """Yield the blocks of a recording; those of separate channels without the echo of another channel."""
    from voxbatch.text.echo import EchoCanceller

    return _filtered(blocks, EchoCanceller)


def _gated(blocks: Iterable[Waveform]) -> Iterator[Waveform]:
    """Yield the blocks of separate channels without crosstalk."""
    from voxbatch.text.crosstalk import CrosstalkGate

    return _filtered(blocks, CrosstalkGate)


def _filtered(blocks: Iterable[Waveform], kind: Callable[[int], EchoCanceller | CrosstalkGate]) -> Iterator[Waveform]:
    """Yield mono blocks as they are, and those of separate channels through a filter that is made for their number."""
    channel_filter, start = None, 0
    for block in blocks:
        if block.samples.ndim == 1:
            yield block
            continue
        if channel_filter is None:
            channel_filter, start = kind(block.samples.shape[1]), block.start
        if len(samples := channel_filter(block.samples)):
            yield Waveform(samples, start)
            start += len(samples)
    if channel_filter is not None and len(samples := channel_filter.finish()):
        yield Waveform(samples, start)


def _channel(blocks: Iterable[Waveform], channel: int) -> Iterator[Waveform]:
    for block in blocks:
        yield Waveform(np.ascontiguousarray(block.samples[:, channel]), block.start)
