"""Mix the audio streams of a conversation that is divided over them: a stream for each microphone.

Dubs, commentaries and a stream that is the mix already speak at the same times as the stream beside them. The streams
of a conversation speak in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
import soxr
from numpy.typing import NDArray

from voxbatch.audio.ffmpeg_stream import FFmpegStream
from voxbatch.audio.libsndfile import NativeBlock
from voxbatch.records import SAMPLING_RATE, Samples

MOST_TOGETHER = 0.35
"""Largest share of the sound of a stream that may come while another one of the conversation has sound. People who talk
in turn have 0.1 to 0.2; a dub has 0.7 and more, and the mix has all of a microphone."""
ACTIVE_RANGE_DB = 25.0
"""Frames have sound if they are at most so far below the loud ones (95th percentile)."""


def active_frames(levels: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which frames of a stream have sound, by their levels in dB."""
    return levels > max(float(np.percentile(levels, 95)) - ACTIVE_RANGE_DB, -60.0)


def speak_in_turn(streams: Sequence[NDArray[np.bool_]]) -> bool:
    """Return whether streams are the sides of a conversation, by the frames in which each has sound."""
    size = min(map(len, streams), default=0)
    for one, other in combinations((stream[:size] for stream in streams), 2):
        if (one & other).sum() > MOST_TOGETHER * max(1, min(one.sum(), other.sum())):
            return False
    return len(streams) > 1 and size > 0


def share_alone(stream: NDArray[np.bool_], other: NDArray[np.bool_]) -> float:
    """Return the share of the sound of a stream that comes while another one has none, by the frames in which each has
    sound."""
    size = min(len(stream), len(other))
    return 1 - float((stream[:size] & other[:size]).sum()) / max(1, int(stream.sum()))


class MixedStreams:
    """The sum of several streams of a recording: mono at 16 kHz, with the interface of FFmpegStream."""

    rate, channels, layout, is_uncompressed = SAMPLING_RATE, 1, "", False

    def __init__(self, streams: Sequence[FFmpegStream]) -> None:
        self._streams = streams
        self.frame_rate, self.average_frame_rate = streams[0].frame_rate, streams[0].average_frame_rate
        self.aspect_ratio = streams[0].aspect_ratio

    def blocks(self) -> Iterator[NativeBlock]:
        """Yield blocks of shape (frames, 1), then close the streams. Errors are those of FFmpegStream."""
        pending = [np.zeros(0, np.float32) for _ in self._streams]
        sources = [_mono(stream) for stream in self._streams]
        has_ended = [False] * len(sources)
        try:
            while not all(has_ended):
                shortest = min((n for n, ended in enumerate(has_ended) if not ended), key=lambda n: len(pending[n]))
                block = next(sources[shortest], None)
                if block is None:
                    has_ended[shortest] = True
                else:
                    pending[shortest] = np.concatenate([pending[shortest], block])
                running = [len(part) for part, ended in zip(pending, has_ended, strict=True) if not ended]
                size = min(running) if running else max(map(len, pending))
                if size:
                    parts = [np.pad(part[:size], (0, max(0, size - len(part)))) for part in pending]
                    pending = [part[size:] for part in pending]
                    yield np.stack(parts).sum(axis=0, dtype=np.float32).reshape(-1, 1)
        finally:
            for stream in self._streams:
                stream.close()

    def losses(self, frames: int | None) -> Iterator[str]:
        """Yield the messages of all streams; see FFmpegStream."""
        for stream in self._streams:
            yield from stream.losses(None if frames is None else round(frames / self.rate * stream.rate))

    def silence(self) -> Iterator[str]:
        """Yield the messages of all streams; see FFmpegStream."""
        for stream in self._streams:
            yield from stream.silence()


def _mono(stream: FFmpegStream) -> Iterator[Samples]:
    """Yield the blocks of a stream as mono at 16 kHz."""
    resampler = soxr.ResampleStream(stream.rate, SAMPLING_RATE, 1, dtype="float32", quality="HQ")
    for block in stream.blocks():
        yield resampler.resample_chunk(np.ascontiguousarray(block.mean(axis=1)))
    yield resampler.resample_chunk(np.zeros(0, np.float32), last=True)
