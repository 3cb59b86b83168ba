"""Transcribe one recording with a call, and keep its model for the next call."""

from __future__ import annotations

import asyncio
from typing import Unpack

from voxbatch.api.kept_model import keeper
from voxbatch.api.keyword_types import TranscribeKeywords
from voxbatch.api.keywords import with_keywords
from voxbatch.api.notebook_progress import in_notebook, shown_result
from voxbatch.api.recording_file import Audio
from voxbatch.api.segment_stream import SegmentStream
from voxbatch.api.transcriber import Transcriber
from voxbatch.records import Transcript


def _begin(
    audio: Audio,
    sampling_rate: int | None,
    offset: float,
    duration: float | None,
    channel: int | None,
    options: TranscribeKeywords,
    is_live: bool = True,
) -> SegmentStream:
    """Start to transcribe a recording with the transcriber of these options; see Transcriber.begin."""
    transcriber = keeper.acquire(options, lambda: Transcriber(**options))
    row = {"offset": offset, "duration": duration, "channel": channel}
    return transcriber.begin(audio, sampling_rate, row, is_live, on_end=lambda: keeper.release(transcriber))


@with_keywords(TranscribeKeywords)
def transcribe(
    audio: Audio,
    *,
    sampling_rate: int | None = None,
    offset: float = 0.0,
    duration: float | None = None,
    channel: int | None = None,
    **options: Unpack[TranscribeKeywords],
) -> Transcript:
    """Transcribe one recording. The text is the one that `voxbatch run` writes for it.

    The first call loads the model. It stays loaded for calls with the same options until five minutes pass without
    one, or until another model is needed: a call has other options, or a Transcriber or a run begins. Calls from
    several threads wait for each other.

    Args:
        audio: a path, an address, bytes, an open file or an array: see Transcriber.transcribe.
        sampling_rate: samples per second of an array.
        offset: seconds to skip at the start.
        duration: seconds to take from there. Default: to the end.
        channel: channel to take, from 0. Default: a mixdown of all.
        options: `model`, `language`, `engine`, …; see below.

    Raises:
        ItemError: the recording cannot be transcribed: AudioError, LanguageError, TranscriptionError, CrashError.
        UsageError: an argument is wrong, or the engine is not installed.
        RunError: the engine cannot start or has died.
    """
    shows = in_notebook()
    segments = _begin(audio, sampling_rate, offset, duration, channel, options, is_live=shows)
    return shown_result(segments) if shows else segments.result()


@with_keywords(TranscribeKeywords)
async def transcribe_async(
    audio: Audio,
    *,
    sampling_rate: int | None = None,
    offset: float = 0.0,
    duration: float | None = None,
    channel: int | None = None,
    **options: Unpack[TranscribeKeywords],
) -> Transcript:
    """Do as `transcribe` does, without blocking the event loop. A cancelled task stops the work."""
    work = await asyncio.to_thread(_begin, audio, sampling_rate, offset, duration, channel, options, is_live=False)
    return await work.result_async()


@with_keywords(TranscribeKeywords)
def stream(
    audio: Audio,
    *,
    sampling_rate: int | None = None,
    offset: float = 0.0,
    duration: float | None = None,
    channel: int | None = None,
    **options: Unpack[TranscribeKeywords],
) -> SegmentStream:
    """Start to transcribe one recording, and return its segments, which come while it is being transcribed.

        for segment in voxbatch.stream("talk.mp3"):
            print(segment.start, segment.text)

    The segments are those of `transcribe`, with its arguments, errors and model. They come in order, each as soon as no
    later word can change it. With `speakers` or `channels`, all come at the end.
    """
    return _begin(audio, sampling_rate, offset, duration, channel, options)
