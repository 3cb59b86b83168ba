"""Transcribe single recordings with a model that stays loaded."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, Unpack

from numpy.typing import NDArray

from voxbatch import engines, errors
from voxbatch.api.keyword_types import TranscribeKeywords
from voxbatch.api.keywords import run_options
from voxbatch.api.python_log import python_log
from voxbatch.api.recording_file import OpenFile, array_file, bytes_file, name_of
from voxbatch.config import RunOptions
from voxbatch.decoding import warm_pool
from voxbatch.engines import Engine, EngineCache
from voxbatch.engines.choice import choose
from voxbatch.errors import AudioError, ConfigError, UsageError
from voxbatch.manifest import LineError, parse_line
from voxbatch.records import Failure, Item, Outcome, Transcript
from voxbatch.runner import Stop
from voxbatch.runner.one_recording import transcribe_recording
from voxbatch.runner.steps import steps_of
from voxbatch.runner.transcribe import log_engine_message
from voxbatch.storage import DEFAULT_STORES, is_remote

Audio = str | os.PathLike[str] | bytes | bytearray | memoryview | OpenFile | NDArray[Any]
"""A path, an address (gs://, s3://, http(s)://), the bytes of a file, an open file, or samples: see recording_file."""


class Transcriber:
    """Transcribes recordings one by one, with a model that stays loaded.

        with voxbatch.Transcriber(model="tiny.en") as transcriber:
            for path in paths:
                print(transcriber.transcribe(path).text)

    The first recording loads the model. The text of a recording is the one that a run writes. Leaving the `with` block
    unloads the model. Any thread may call the methods; calls from several threads wait for each other. For many
    recordings use `run` or `start`, which decode and transcribe several at a time.
    """

    def __init__(self, **options: Unpack[TranscribeKeywords]):
        """Choose the engine and check the options. No model is loaded yet.

        Raises:
            UsageError: an option is wrong, or the engine is not installed.
            EngineError: the engine's library cannot be imported.
        """
        self._options = run_options(options, TranscribeKeywords)
        self._log, self._engine_cache = python_log(), EngineCache()
        self._lock = threading.Lock()
        """Held during a call: an engine has one stream at a time."""
        self._last: Future[Outcome] | None = None
        """The last call's work. It may still be in progress if its caller was interrupted twice."""
        self._is_closed = False
        engine = self._engine()
        self._diarization = steps_of(self._options).check(engine.spec)
        for warning in engine.spec.warnings:
            self._log.warning("engine", text=warning)
        warm_pool.open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the transcriber."""
        self.close()

    def close(self) -> None:
        """Unload the model. A second call does nothing."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                warm_pool.close()
                self._engine_cache.close()

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
        row = {"id": "recording", "offset": offset, "duration": duration, "channel": channel, "lang": language}
        with self._lock, _place(audio, sampling_rate) as (place, name):
            if self._is_closed:
                raise UsageError("this Transcriber is closed; make another one")
            outcome = self._outcome(_item({"audio_filepath": place, **row}, self._options))
        if isinstance(outcome, Failure):
            message = outcome.message.replace(place, name)
            error: errors.ItemError = getattr(errors, outcome.error)(message, outcome.kind)
            error.retryable = outcome.retryable
            raise error
        return outcome if name == place else replace(outcome, audio="")

    def _engine(self) -> Engine:
        options = self._options
        name = choose(options.engine, model=options.model, stores=options.stores).name
        engine_options = engines.options_with_kernels(name, options.engine_options, options.kernel_cache)
        return self._engine_cache.get(name, options.model, engine_options, options.stores)

    def _outcome(self, item: Item) -> Outcome:
        """Transcribe an item in a thread of its own, so that an interrupt of this thread stops it in order."""
        options, stop = self._options, Stop(ends_process=False)
        if not is_remote(item.audio):  # a wrong path fails before the model is loaded
            try:
                DEFAULT_STORES.recording(item.audio).close()
            except AudioError as e:
                return Failure(e.kind, str(e), e.retryable)
        if self._last is not None:
            wait([self._last])
        future = self._last = Future[Outcome]()
        pipeline = replace(options, decoders=1, part_items=1)
        on_message = functools.partial(log_engine_message, self._log)
        engine = self._engine()

        def work() -> None:
            try:
                outcome = transcribe_recording(engine, item, pipeline, stop, on_message, self._diarization)
                future.set_result(outcome)
            except BaseException as e:  # noqa: BLE001 the thread that waits raises it
                future.set_exception(e)

        threading.Thread(target=work, daemon=True, name="voxbatch-transcribe").start()
        try:
            return future.result()
        finally:
            stop.requested.set()
            wait([future])


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

    Each call loads the model. For several recordings use `Transcriber`, `run` or `start`.

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
    with Transcriber(**options) as transcriber:
        return transcriber.transcribe(
            audio, sampling_rate=sampling_rate, offset=offset, duration=duration, channel=channel
        )


@contextlib.contextmanager
def _place(audio: Audio, sampling_rate: int | None) -> Iterator[tuple[str, str]]:
    """Yield the absolute path or the address of a recording, and its name for messages. One that has neither is in a
    temporary file meanwhile.

    Raises:
        ConfigError: `audio` is nothing of the kind, or a sampling rate is missing or superfluous.
    """
    is_array = hasattr(audio, "__array__")
    if sampling_rate is not None and not is_array:
        raise ConfigError(f"sampling_rate={sampling_rate!r} is for arrays; a recording's file tells its own")
    if isinstance(audio, str | os.PathLike):
        place = os.fspath(audio)
        place = place if is_remote(place) else os.path.abspath(place)
        yield place, place
    elif isinstance(audio, bytes | bytearray | memoryview) or hasattr(audio, "read"):
        with bytes_file(audio) as path:
            yield path, name_of(audio)
    elif is_array:
        with array_file(audio, sampling_rate) as path:
            yield path, "the array"
    else:
        raise ConfigError(
            f"audio is of type {type(audio).__name__}; give one path, address, file, bytes or array, and several to "
            "voxbatch.run or one by one to a Transcriber"
        )


def _item(row: dict[str, Any], options: RunOptions) -> Item:
    """Return the item of a row, which is checked like a line of a manifest that may name any place."""
    policy = replace(steps_of(options).path_policy(), allow_outside=True)
    try:
        return parse_line(json.dumps(row).encode(), 1, 0, "/", policy)
    except LineError as e:
        raise ConfigError(str(e)) from e
