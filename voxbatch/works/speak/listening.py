"""Listen to what an engine speaks (--verify): another engine transcribes each piece, and a piece that is misheard is
spoken again with another seed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import soxr

from voxbatch import engines
from voxbatch.config import RunOptions
from voxbatch.engines import Engine, Feed
from voxbatch.engines.choice import choose
from voxbatch.engines.results import Result
from voxbatch.languages import primary_subtag
from voxbatch.records import SAMPLING_RATE, Chunk, ChunkFailure, Hypothesis, Span, Speech
from voxbatch.scoring.counts import ErrorCounts, count_errors
from voxbatch.speech.pieces import plain
from voxbatch.works.speak.options import SpeechOptions

MAX_ATTEMPTS = 3
"""Times that a piece is spoken."""
_SEED_STEP = 0x9E3779B97F4A7C15
"""Difference of the seeds of two attempts: 2⁶⁴ divided by the golden ratio."""


def listener_of(options: RunOptions) -> Engine:
    """Return the engine that listens: the best one for transcripts on this machine, with its own model.

    Raises:
        ConfigError: no engine that transcribes is installed.
    """
    name = choose("auto").name
    return engines.create(name, None, {}, options.stores)


class ListeningEngine:
    """An engine that speaks, and that hears what it has spoken. See `Engine` for the methods.

    Args:
        speaker: speaks the pieces.
        listener: transcribes them.
        options: the WER above which a piece is spoken again.
    """

    def __init__(self, speaker: Engine, listener: Engine, options: SpeechOptions) -> None:
        self._speaker, self._listener, self._options = speaker, listener, options
        self.spec = speaker.spec

    def stream(self, feed: Feed) -> Iterator[Result]:
        """Speak each piece until it is heard right, at most MAX_ATTEMPTS times, and yield the best attempt."""
        while chunk := feed.get():
            best: Speech | ChunkFailure | None = None
            lowest = float("inf")
            for attempt in range(MAX_ATTEMPTS):
                result = yield from _result(self._speaker, _attempt(chunk, attempt))
                if isinstance(result, ChunkFailure):
                    best = best or result
                    break
                assert isinstance(result, Speech)
                heard = yield from _result(self._listener, self._as_audio(chunk, result))
                if isinstance(heard, ChunkFailure):
                    best = best or replace(heard, message=f"nothing listened to it: {heard.message}")
                    break
                assert isinstance(heard, Hypothesis)
                wer = piece_wer(replace(result, heard=heard.text), self._language(chunk))
                if wer < lowest:
                    best, lowest = replace(result, heard=heard.text), wer
                if wer <= self._options.max_wer:
                    break
            assert best is not None
            yield best

    def _language(self, chunk: Chunk) -> str | None:
        return chunk.lang or self.spec.only_language

    def _as_audio(self, chunk: Chunk, speech: Speech) -> Chunk:
        samples = np.asarray(soxr.resample(speech.samples, self.spec.sampling_rate, SAMPLING_RATE), np.float32)
        span = Span(0, len(samples), 0, len(samples))
        return Chunk(chunk.item, chunk.index, samples, span, self._language(chunk))

    def gpu_bytes(self) -> int | None:
        """Return the memory of the listener."""
        return self._listener.gpu_bytes()

    def close(self) -> None:
        """Unload both engines."""
        self._speaker.close()
        self._listener.close()


def piece_wer(speech: Speech, lang: str | None) -> float:
    """Return the word error rate of the text that was heard in a piece. Unheard speech counts as right."""
    if speech.heard is None:
        return 0.0
    return errors_heard(speech.piece.text, speech.heard, lang).reported_rate or 0.0


def errors_heard(text: str, heard: str, lang: str | None) -> ErrorCounts:
    """Return the errors of what was heard of a text. Amounts in English are compared as they are spoken, because
    the rules of scoring take "10 000" and "10 0" for one number, and "1,5" for 15."""
    text = plain(text)
    if lang and primary_subtag(lang) == "en" and find_spec("icu4py"):
        from voxbatch.engines.spoken_english import spoken

        text, heard = spoken(text), spoken(heard)
    return count_errors(text, heard, lang)


def _attempt(chunk: Chunk, attempt: int) -> Chunk:
    """Return a chunk with the seed of an attempt, counted from 0."""
    assert chunk.piece is not None
    return replace(chunk, piece=replace(chunk.piece, seed=(chunk.piece.seed + attempt * _SEED_STEP) % 2**64))


def _result(engine: Engine, chunk: Chunk) -> Generator[Result, None, Hypothesis | Speech | ChunkFailure]:
    """Yield the messages of an engine about one chunk, and return its result."""
    feed = Feed(max(1, len(chunk.samples)))
    feed.put(chunk)
    feed.close()
    last: Hypothesis | Speech | ChunkFailure | None = None
    for result in engine.stream(feed):
        if isinstance(result, Hypothesis | Speech | ChunkFailure):
            last = result
        elif not isinstance(result, engines.ChunkProgress):
            yield result
    assert last is not None
    return last
