"""Transcribe one recording with a call, and keep its model for the next call."""

from __future__ import annotations

import asyncio
import atexit
import threading
from typing import Unpack

from voxbatch.api.keyword_types import TranscribeKeywords
from voxbatch.api.recording_file import Audio
from voxbatch.api.segment_stream import SegmentStream
from voxbatch.api.transcriber import Transcriber
from voxbatch.records import Transcript

KEPT_S = 300.0
"""Seconds without a call after which the model is unloaded."""


class ModelKeeper:
    """Keeps one transcriber between calls with the same options, for KEPT_S. Any thread may use it.

    A call with other options takes its place; the transcriber before is closed when the last call with it has ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards all fields."""
        self._options: TranscribeKeywords | None = None
        self._transcriber: Transcriber | None = None
        self._num_calls = dict[Transcriber, int]()
        """Calls in progress with each transcriber."""
        self._timer: threading.Timer | None = None

    def begin(
        self,
        audio: Audio,
        sampling_rate: int | None,
        offset: float,
        duration: float | None,
        channel: int | None,
        options: TranscribeKeywords,
        is_live: bool = True,
    ) -> SegmentStream:
        """Start to transcribe a recording with the transcriber of these options; see Transcriber.begin."""
        transcriber = self._acquire(options)
        row = {"offset": offset, "duration": duration, "channel": channel}
        return transcriber.begin(audio, sampling_rate, row, is_live, on_end=lambda: self._release(transcriber))

    def unload(self) -> None:
        """Unload the model, at once or when its last call has ended."""
        with self._lock:
            self._unload()

    def _unload(self) -> None:
        """Do so under the lock. A transcriber without a call closes at once."""
        transcriber, self._transcriber, self._options = self._transcriber, None, None
        if self._timer is not None:
            self._timer.cancel()
        if transcriber is not None and transcriber not in self._num_calls:
            transcriber.close()

    def _acquire(self, options: TranscribeKeywords) -> Transcriber:
        with self._lock:  # also while a transcriber is made, so that several threads make one
            if self._timer is not None:
                self._timer.cancel()
            if self._transcriber is None or self._options != options:
                transcriber = Transcriber(**options)
                self._unload()
                self._transcriber, self._options = transcriber, options
            self._num_calls[self._transcriber] = self._num_calls.get(self._transcriber, 0) + 1
            return self._transcriber

    def _release(self, transcriber: Transcriber) -> None:
        with self._lock:
            self._num_calls[transcriber] -= 1
            if self._num_calls[transcriber]:
                return
            del self._num_calls[transcriber]
            if transcriber is not self._transcriber:
                transcriber.close()
                return
            self._timer = threading.Timer(KEPT_S, self.unload)
            self._timer.daemon = True
            self._timer.start()


keeper = ModelKeeper()
atexit.register(keeper.unload)


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
    one, a call has other options, or `run` or `start` is called. Calls from several threads wait for each other.

    Args:
        audio: a path, an address, bytes, an open file or an array: see Transcriber.transcribe.
        sampling_rate: samples per second of an array.
        offset: seconds to skip at the start.
        duration: seconds to take from there. Default: to the end.
        channel: channel to take, from 0. Default: a mixdown of all.
        options: `model`, `language`, `engine`, …: see docs/python.md.

    Raises:
        ItemError: the recording cannot be transcribed: AudioError, LanguageError, TranscriptionError, CrashError.
        UsageError: an argument is wrong, or the engine is not installed.
        RunError: the engine cannot start or has died.
    """
    return keeper.begin(audio, sampling_rate, offset, duration, channel, options, is_live=False).result()


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
    work = await asyncio.to_thread(
        keeper.begin, audio, sampling_rate, offset, duration, channel, options, is_live=False
    )
    return await work.result_async()


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
    return keeper.begin(audio, sampling_rate, offset, duration, channel, options)
