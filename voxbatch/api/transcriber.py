"""Transcribe single recordings with a model that stays loaded."""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, Unpack

from voxbatch import engines, errors
from voxbatch.api.kept_model import keeper
from voxbatch.api.keyword_types import TranscribeKeywords
from voxbatch.api.keywords import run_options, with_keywords
from voxbatch.api.python_log import python_log
from voxbatch.api.python_words import python_words
from voxbatch.api.recording_file import Audio, path_failure, recording_place
from voxbatch.api.segment_stream import OnText, SegmentStream
from voxbatch.config import RunOptions
from voxbatch.decoding import warm_pool
from voxbatch.engines import Engine, EngineCache
from voxbatch.engines.choice import choose
from voxbatch.engines.model_files import downloads_logged
from voxbatch.errors import ConfigError, UsageError
from voxbatch.manifest import LineError, parse_line
from voxbatch.records import Failure, Item, Outcome, Transcript
from voxbatch.runner import Stop, StopRequested
from voxbatch.runner.one_recording import transcribe_recording
from voxbatch.runner.shared import POLL_INTERVAL_S
from voxbatch.runner.steps import steps_of
from voxbatch.runner.transcribe import log_engine_message
from voxbatch.storage import is_remote
from voxbatch.work import additions_of


class Transcriber:
    """Transcribes recordings one by one, with a model that stays loaded.

        with voxbatch.Transcriber(model="tiny.en") as transcriber:
            for path in paths:
                print(transcriber.transcribe(path).text)

    The first recording loads the model. The text of a recording is the one that a run writes. Leaving the `with` block
    unloads the model. Any thread may call the methods; calls from several threads wait for each other. For many
    recordings use `run` or `start`, which decode and transcribe several at a time.
    """

    @with_keywords(TranscribeKeywords)
    def __init__(self, **options: Unpack[TranscribeKeywords]):
        """Choose the engine and check the options. No model is loaded yet.

        Raises:
            UsageError: an option is wrong, or the engine is not installed.
            EngineError: the engine's library cannot be imported.
        """
        self._given, self._options = options, run_options(options, TranscribeKeywords)
        self._log, self._engine_cache = python_log(), EngineCache()
        self._lock = threading.Lock()
        """Held by the work on a recording: an engine has one stream at a time."""
        self._streams = weakref.WeakSet[SegmentStream]()
        """Streams that may be in progress, which `close` stops."""
        with python_words(options):
            self._spec = self._engine().spec
            self._diarization = steps_of(self._options).check(self._spec)
        for warning in self._spec.warnings:
            self._log.warning("engine", text=warning)
        keeper.unload()
        warm_pool.open()
        self._unload = weakref.finalize(self, _unload_later, self._engine_cache)
        """Alive until the model is unloaded, by `close` or after the end of the last reference."""
        self._unload.atexit = False  # the processes end with this one

    def __repr__(self) -> str:
        """Return the engine and the model."""
        closed = "" if self._unload.alive else ", closed"
        return f"Transcriber(engine={self._spec.name!r}, model={self._spec.model!r}{closed})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the transcriber."""
        self.close()

    def close(self) -> None:
        """Unload the model. Streams are stopped; other calls in progress are finished. A second call does nothing."""
        streams = list(self._streams)
        for segments in streams:  # all, before one is waited for: else its end would begin the next one
            segments.cancel()
        for segments in streams:
            segments.close()
        with self._lock:
            if self._unload.detach():
                _unload(self._engine_cache)

    def transcribe(
        self,
        audio: Audio,
        *,
        sampling_rate: int | None = None,
        language: str | None = None,
        offset: float = 0.0,
        duration: float | None = None,
        channel: int | None = None,
    ) -> Transcript:
        """Transcribe one recording, or a part of it.

        Args:
            audio: a path or an address (gs://, s3://, http(s)://); the bytes of a recording in any format; a file that
                is open in binary mode, which is read from its position to its end and stays open; or an array of
                shape (num_samples,) or (num_channels, num_samples): floats with full scale ±1, or int16 or int32.
            sampling_rate: samples per second of an array.
            language: language of the recording. Default: the language of the transcriber, else the engine decides.
            offset: seconds to skip at the start.
            duration: seconds to take from there. Default: to the end.
            channel: channel to take, from 0. Default: a mixdown of all.

        Raises:
            ItemError: the recording cannot be transcribed: AudioError, LanguageError, TranscriptionError, CrashError.
            UsageError: an argument is wrong.
            RunError: the engine cannot start or has died.
        """
        row = {"offset": offset, "duration": duration, "channel": channel, "lang": language}
        return self.begin(audio, sampling_rate, row, is_live=False).result()

    def stream(
        self,
        audio: Audio,
        *,
        sampling_rate: int | None = None,
        language: str | None = None,
        offset: float = 0.0,
        duration: float | None = None,
        channel: int | None = None,
    ) -> SegmentStream:
        """Start to transcribe one recording, and return its segments, which come while it is being transcribed.

        The segments are those of `transcribe`, with its arguments and errors. They come in order, each as soon as no
        later word can change it. With `speakers` or `channels`, all come at the end.
        """
        row = {"offset": offset, "duration": duration, "channel": channel, "lang": language}
        segments = self.begin(audio, sampling_rate, row)
        self._streams.add(segments)
        return segments

    def begin(
        self,
        audio: Audio,
        sampling_rate: int | None,
        row: Mapping[str, Any],
        is_live: bool = True,
        on_end: Callable[[], None] = lambda: None,
    ) -> SegmentStream:
        """Start to transcribe one recording.

        Args:
            row: the other keys of its line of a manifest.
            is_live: segments come before the end. What speakers and channels add needs the whole recording first.
            on_end: called when the work has ended, by its thread.
        """
        is_live = is_live and not any(additions_of(self._options.marks))

        def work(stop: Stop, on_text: OnText) -> Transcript:
            try:
                with python_words(audio, self._given):
                    return self._transcript(audio, sampling_rate, row, stop, on_text if is_live else None)
            finally:
                on_end()

        return SegmentStream(work, self._spec.word_times)

    def _engine(self) -> Engine:
        options = self._options
        name = choose(options.engine, model=options.model, stores=options.stores).name
        engine_options = engines.options_with_kernels(name, options.engine_options, options.kernel_cache)
        with downloads_logged(self._log):
            return self._engine_cache.get(name, options.model, engine_options, options.stores)

    def _transcript(
        self, audio: Audio, sampling_rate: int | None, row: Mapping[str, Any], stop: Stop, on_text: OnText | None
    ) -> Transcript:
        with self._turn(stop), recording_place(audio, sampling_rate) as (place, name):
            if not self._unload.alive:
                raise UsageError("this Transcriber is closed; make another one")
            item = _item({"id": "recording", "audio_filepath": place, **row}, self._options)
            outcome = self._outcome(item, stop, on_text)
        if isinstance(outcome, Failure):
            error: errors.ItemError = getattr(errors, outcome.error)(outcome.message.replace(place, name), outcome.kind)
            error.retryable = outcome.retryable
            raise error
        return outcome if name == place else replace(outcome, audio="")

    @contextlib.contextmanager
    def _turn(self, stop: Stop) -> Iterator[None]:
        """Hold the lock. Raise StopRequested if a stop is requested before it is free."""
        while not self._lock.acquire(timeout=POLL_INTERVAL_S):
            if stop.requested.is_set():
                raise StopRequested
        try:
            if stop.requested.is_set():
                raise StopRequested
            yield
        finally:
            self._lock.release()

    def _outcome(self, item: Item, stop: Stop, on_text: OnText | None) -> Outcome:
        if not is_remote(item.audio) and (failure := path_failure(item.audio)):  # before the model is loaded
            return failure
        pipeline = replace(self._options, decoders=1, part_items=1)
        on_message = functools.partial(log_engine_message, self._log)
        return transcribe_recording(self._engine(), item, pipeline, stop, on_message, self._diarization, on_text)


def _unload(engine_cache: EngineCache) -> None:
    warm_pool.close()
    engine_cache.close()


def _unload_later(engine_cache: EngineCache) -> None:
    """Unload a model in a thread of its own: the last reference may end in a thread that holds the locks for it."""
    threading.Thread(target=_unload, args=(engine_cache,), daemon=True, name="voxbatch-unload").start()


def _item(row: dict[str, Any], options: RunOptions) -> Item:
    """Return the item of a row, which is checked like a line of a manifest that may name any place."""
    policy = replace(steps_of(options).path_policy(), allow_outside=True)
    try:
        return parse_line(json.dumps(row).encode(), 1, 0, "/", policy)
    except LineError as e:
        raise ConfigError(str(e)) from e
