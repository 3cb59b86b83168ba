"""Write a transcript as JSON: our own, WhisperX's, and OpenAI's `verbose_json`.

The fields of the other two that voxbatch does not know are left out; docs/outputs.md names them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from voxbatch.records import Segment, Transcript, Word
from voxbatch.rounding import rounded
from voxbatch.word import spaces_before

if TYPE_CHECKING:
    from voxbatch.formats.document import Document


def to_json(document: Document) -> str:
    """Return one JSON object on one line: `version`, `id` and `transcript_dict`, with an id and the words in each
    segment."""
    transcript = document.transcript
    segments = [
        {"id": number, **_segment(segment), "words": _words(words, "confidence", segment.text)}
        for number, (segment, words) in enumerate(document.words_by_segment())
    ]
    content = {"version": 1, "id": document.item_id, **transcript_dict(transcript), "segments": segments}
    return _line({**content, "language": transcript.language})


def whisperx_json(document: Document) -> str:
    """Return the object that WhisperX writes: `segments` with their `words`, `word_segments`, and `language`."""
    segments = [
        {**_span(segment), **_text(segment), "words": _words(words, "score")}
        for segment, words in document.words_by_segment()
    ]
    words = _words(document.transcript.words, "score")
    return _line({"segments": segments, "word_segments": words, "language": document.transcript.language})


def openai_json(document: Document) -> str:
    """Return the object of OpenAI's `verbose_json`: `task`, `language`, `duration`, `text`, `words` and `segments`."""
    transcript = document.transcript
    content = {
        "task": "transcribe",
        "language": transcript.language,
        "duration": _rounded(transcript.audio_duration),
        "text": transcript.text,
        "words": [{"word": word.text.strip(), **_span(word), **_speaker(word)} for word in transcript.words],
        "segments": [
            {"id": number, **_span(segment), **_text(segment)} for number, segment in enumerate(document.segments)
        ],
    }
    return _line(content)


def transcript_dict(transcript: Transcript) -> dict[str, Any]:
    """Return the transcript as values for JSON. Seconds and confidences have 3 decimals. Words and segments have a
    `speaker` if speakers are told apart. A word that does not follow one space has its `space_before`.

    {"text": "Hi.", "words": [{"word": "Hi.", "start": 0.5, "end": 0.8, "confidence": 0.93}],
     "segments": [{"text": "Hi.", "start": 0.5, "end": 0.8}], "audio_duration": 1.0, "warnings": []}
    """
    return {
        "text": transcript.text,
        "words": _words(transcript.words, "confidence", transcript.text),
        "segments": [_segment(segment) for segment in transcript.segments],
        "audio_duration": _rounded(transcript.audio_duration),
        "warnings": list(transcript.warnings),
    }


def _words(words: Sequence[Word], confidence: str, text: str = "") -> list[dict[str, str | float]]:
    """Return words.

    Args:
        confidence: the name of that key.
        text: the text that they spell. "" leaves out the key `space_before`.
    """
    columns = (word.start for word in words), (word.end for word in words), (word.confidence or 0.0 for word in words)
    numbers, texts, entries = rounded([*chain(*columns)]), [word.text.strip() for word in words], []
    for at, (word, space) in enumerate(zip(words, spaces_before(texts, text.strip()), strict=True)):
        start, end, score = numbers[at :: len(words)]
        entry: dict[str, str | float] = {"word": texts[at], "start": start, "end": end}
        if word.confidence is not None:
            entry[confidence] = score
        if word.speaker is not None:
            entry["speaker"] = word.speaker
        if space != " " and at:
            entry["space_before"] = space
        entries.append(entry)
    return entries


def _segment(segment: Segment) -> dict[str, Any]:
    markup = {"markup": segment.markup} if segment.markup else {}
    return {"text": segment.text.strip(), **_span(segment), **_speaker(segment), **markup}


def _text(segment: Segment) -> dict[str, str]:
    return {"text": segment.text.strip(), **_speaker(segment)}


def _speaker(timed: Word | Segment) -> dict[str, str]:
    """Return the speaker, if speakers are told apart."""
    return {} if timed.speaker is None else {"speaker": timed.speaker}


def _span(timed: Word | Segment) -> dict[str, float]:
    return {"start": _rounded(timed.start), "end": _rounded(timed.end)}


def _rounded(value: float) -> float:
    return round(float(value), 3)


def _line(content: dict[str, Any]) -> str:
    """Return an object on one line of UTF-8. Lone surrogates are escaped."""
    text = json.dumps(content, ensure_ascii=False)
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"
