"""Transcribe a chunk with faster-whisper, and report its failure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from voxbatch.engines.feed import Feed
from voxbatch.engines.known_models import WHISPER_CODES
from voxbatch.engines.results import ChunkProgress, failure_of
from voxbatch.engines.whisper_input import in_16_bits
from voxbatch.engines.whisper_windows import DecodingOptions, Window, windows
from voxbatch.records import OTHER_LANGUAGE, SAMPLING_RATE, Chunk, ChunkFailure, Flag, Hints, Hypothesis, Word

TAGS = {"jw": "jv"}
"""Codes that Whisper detects, as others write them."""
_MIN_SAMPLES = SAMPLING_RATE // 20
"""Length of the shortest chunk that is transcribed: 50 ms. Shorter audio holds no phoneme, and Whisper would only
invent text."""

ENGLISH_CONFIDENCE = 0.6
"""Mean confidence of the words of a chunk below which an English-only model probably hears another language. With
tiny.en on 64 English recordings of 3 to 30 s, telephone speech among them, it was never below 0.82; on 35 recordings in
Czech, German, Spanish and French it was below 0.6 for 27."""
MIN_WORDS = 5
"""Fewest words of which the mean confidence is judged."""


def transcribe(
    model: Any, chunk: Chunk, feed: Feed, beam_size: int, english: str | None
) -> Iterator[Hypothesis | ChunkFailure | ChunkProgress]:
    """Transcribe a chunk. Any error in it becomes its ChunkFailure.

    Args:
        feed: says whether the run is being stopped.
        english: name of a model that knows English only; None for others.

    Yields:
        The progress after each window; then the result. Nothing more once the run is being stopped.

    Raises:
        EngineError: a limit of this machine is to blame, and not the chunk.
    """
    if len(chunk.samples) < _MIN_SAMPLES:
        yield Hypothesis(chunk.item, chunk.index, "")
        return
    try:
        samples = in_16_bits(chunk.samples)
        language = WHISPER_CODES.get(chunk.lang or "", chunk.lang)
        decoded_windows, words = list[Window](), tuple[Word, ...]()
        hints = chunk.hints or Hints()
        options = DecodingOptions(beam_size, task=chunk.task, hotwords=hints.hotwords or "")
        for window in windows(model, samples, language, options, hints.prompt or ""):
            if feed.discarded:
                return
            decoded_windows.append(window)
            words = (*words, *window.words)
            num_samples = round((window.end - window.start) * SAMPLING_RATE)
            yield ChunkProgress(chunk.item, chunk.index, num_samples, words)
        text = "".join(word.text for word in words)
        warnings = tuple(warning for window in decoded_windows for warning in window.warnings)
        foreign = () if chunk.lang else _foreign(words, english)
        warnings += tuple(flag.reason for flag in foreign)
        heard = _main_language(decoded_windows)
        tag = chunk.lang if heard and chunk.lang else TAGS.get(heard or "", heard)
        doubts = tuple(flag for window in decoded_windows for flag in window.flags)
        yield Hypothesis(chunk.item, chunk.index, text, words, warnings, tag, (*doubts, *foreign))
    except Exception as e:  # noqa: BLE001 any error in one chunk fails that chunk only
        yield failure_of("faster-whisper", chunk, e)


def _foreign(words: tuple[Word, ...], english: str | None) -> tuple[Flag, ...]:
    """Return a flag if an English-only model seems to hear another language."""
    confidence = sum(word.confidence or 0.0 for word in words) / len(words) if words else 1.0
    if english is None or len(words) < MIN_WORDS or confidence >= ENGLISH_CONFIDENCE:
        return ()
    reason = (
        f"unsure words (mean confidence {confidence:.2f}): model {english} knows English only; another "
        "language needs another model: --quality best"
    )
    return (Flag(OTHER_LANGUAGE, reason),)


def _main_language(decoded_windows: Sequence[Window]) -> str | None:
    """Return the language of most of the audio that has one."""
    seconds: dict[str, float] = {}
    for window in decoded_windows:
        if window.language and window.words:
            seconds[window.language] = seconds.get(window.language, 0.0) + window.end - window.start
    return max(seconds, key=lambda language: seconds[language], default=None)
