"""Convert between an Item with its outcome and the output line: the manifest's row plus the transcript or the error.

The scripts of NeMo and of the Open ASR Leaderboard can score the line unchanged: they read `text` and `pred_text`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any

from voxbatch.formats import transcript_dict
from voxbatch.item_flags import item_flags, mean_confidence
from voxbatch.languages import primary_subtag
from voxbatch.manifest import LineError, PathPolicy
from voxbatch.manifest.folder import json_path
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.manifest.questions import AUDIOS_KEY
from voxbatch.output.layout import TRANSCRIPTS, VERSION
from voxbatch.records import Answer, Failure, Flag, Item, Segment, Transcript, Word
from voxbatch.scoring import DETECTED_LANGUAGE, ErrorCounts, count_errors
from voxbatch.scoring.corpus import RATE_DIGITS
from voxbatch.scoring.word_times import REFERENCE_WORDS_KEY
from voxbatch.storage import Store, is_remote

_ANYWHERE = PathPolicy(allow_outside=True)
"""A manifest's paths were checked when it was read."""

_FAILURE_KEYS = frozenset(("line", "error", "message", "retryable", "version"))
"""Keys that each line of failures.jsonl has besides those of the manifest and `id`."""
_TRANSCRIPT_KEYS = frozenset(
    ("pred_text", "words", "segments", "audio_duration", "engine", "model", "warnings", "version")
)
"""Keys that each line of transcripts.jsonl has besides those of the manifest and `id`."""
_SCORE_KEYS = frozenset(("wer", "substitutions", "insertions", "deletions", "reference_length"))
_TRUST_KEYS = frozenset(("confidence", "flags"))
"""Further keys that lines of transcripts.jsonl may have. Lines of an earlier version have none of _TRUST_KEYS."""
_ANSWER_KEYS = frozenset(
    ("answer", "tool_calls", "finish_reason", "prompt_tokens", "completion_tokens", "answers_to_parts")
)
"""Further keys of the lines of answers."""
REFERENCE_TEXT_KEY = "reference_text"
"""Key of a manifest's `text` in the lines of questions. An answer is not scored against a reference of the speech."""
RESULT_KEYS = _FAILURE_KEYS | _TRANSCRIPT_KEYS | _SCORE_KEYS | _TRUST_KEYS | _ANSWER_KEYS | {DETECTED_LANGUAGE}
"""All keys of output lines that are results, and not the manifest's."""


def transcript_line(
    item: Item,
    transcript: Transcript,
    engine: str,
    model: str,
    given: str | None,
    folder: str | None,
    counts: ErrorCounts | None = None,
) -> dict[str, Any]:
    """Return the line of an item that was transcribed. Each line has the same keys, apart from those of its row.

    The line has the language by which it is scored as `lang`, so that it gets the same score anywhere, and also as
    `detected_language` if only the engine names it.

    Args:
        given: the language of the item, or else of the run. None means the one that the engine detected.
        folder: place that relative paths of the manifest are resolved against.
        counts: the errors of the transcript. None counts them here.
    """
    fields = transcript_dict(transcript)
    lang = given or transcript.language
    if counts is None and item.text is not None:
        counts = count_errors(item.text, transcript.text, lang)
    confidence, answer = mean_confidence(transcript), transcript.answer
    flags = transcript.flags if answer else (*transcript.flags, *item_flags(transcript, given))
    return {
        **_row(item, folder), "lang": lang, DETECTED_LANGUAGE: None if given else lang, "id": item.id,
        **(_answer_fields(answer) if answer else {}),
        "pred_text": fields["text"], "words": fields["words"], "segments": fields["segments"],
        "audio_duration": fields["audio_duration"], "engine": engine, "model": model,
        "wer": None if counts is None or counts.rate is None else round(counts.rate, RATE_DIGITS),
        "substitutions": counts and counts.substitutions,
        "insertions": counts and counts.insertions,
        "deletions": counts and counts.deletions,
        "reference_length": counts and counts.reference_length,
        "confidence": None if confidence is None else round(confidence, 3),
        "flags": [asdict(flag) for flag in flags],
        "warnings": fields["warnings"], "version": VERSION,
    }  # fmt: skip


def _answer_fields(answer: Answer) -> dict[str, Any]:
    """Return the keys of a line that are about the answer to its question."""
    calls = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in answer.tool_calls]
    return {
        "answer": answer.text, "tool_calls": calls, "finish_reason": answer.finish_reason,
        "prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.completion_tokens,
        "answers_to_parts": list(answer.parts),
    }  # fmt: skip


def failure_line(item: Item, failure: Failure, lang: str | None, folder: str | None) -> dict[str, Any]:
    """Return the line of an item that failed. See `transcript_line`."""
    return {
        **_row(item, folder), "lang": lang, "id": item.id, "line": item.line, "error": failure.error,
        "message": failure.message, "retryable": failure.retryable, "version": VERSION,
    }  # fmt: skip


def _row(item: Item, folder: str | None) -> dict[str, Any]:
    """Return the keys of the manifest's row that pass through: all of them, but not the results of an earlier run if
    the manifest is one of its outputs. The manifest's `words` are those of the reference; a line has them under another
    key than those of the transcript.

    A relative path becomes absolute, because readers of the output resolve it against another folder than the
    manifest's. `folder` is that of the run's first start, so that a run that continues with the recordings mounted
    elsewhere writes the same bytes. A line with several recordings names the first one also as `audio_filepath`.
    """
    row: dict[str, Any] = json.loads(item.row)
    results = {DETECTED_LANGUAGE}
    if row.keys() >= _FAILURE_KEYS:
        results |= _FAILURE_KEYS
    if row.keys() >= _TRANSCRIPT_KEYS:
        results |= _TRANSCRIPT_KEYS | _SCORE_KEYS | _TRUST_KEYS | _ANSWER_KEYS
    elif "words" in row:
        row[REFERENCE_WORDS_KEY] = row.pop("words")
    if item.prompt is not None:
        row["prompt"] = item.prompt
        if "text" in row:
            row[REFERENCE_TEXT_KEY] = row.pop("text")
        if row.get(AUDIOS_KEY):
            places = zip(row[AUDIOS_KEY], (item.audio, *item.further), strict=True)
            row[AUDIOS_KEY] = [_absolute(path, place, folder) for path, place in places]
            row[AUDIO_KEY] = row[AUDIOS_KEY][0]
    row[AUDIO_KEY] = _absolute(row[AUDIO_KEY], item.audio, folder)
    return {name: value for name, value in row.items() if name not in results}


def _absolute(path: str, place: str, folder: str | None) -> str:
    """Return a path of the manifest as a place that any reader can resolve.

    Args:
        path: the path in the manifest.
        place: the place that it means in this run.
        folder: see `transcript_line`.
    """
    if is_remote(path) or path.startswith("/"):
        return path
    try:
        return json_path(_ANYWHERE.resolve(path, folder) if folder else place)
    except LineError:  # the first start was with a bucket, in which no object can have this name
        return json_path(place)


def read_transcript(line: dict[str, Any]) -> Transcript:
    """Return the Transcript of a line that `transcript_line` wrote, in this version or an earlier one. Its words have
    lost their leading spaces; its text keeps them."""
    words = tuple(Word(w["word"], w["start"], w["end"], w.get("confidence")) for w in line["words"])
    segments = tuple(Segment(**segment) for segment in line["segments"])
    language = primary_subtag(line.get("lang") or "") or None
    flags = tuple(Flag(**flag) for flag in line.get("flags") or ())
    duration, warnings = line["audio_duration"], tuple(line["warnings"])
    confidence = None if words else line.get("confidence")
    return Transcript(line["pred_text"], words, segments, duration, warnings, language, flags, confidence)


def word_confidences(line: Mapping[str, Any]) -> list[float] | None:
    """Return the confidences of the words of an output line. None if a word has none, or if the text has no words."""
    confidences = [word.get("confidence") for word in line["words"]]
    known = [value for value in confidences if value is not None]
    return known if len(known) == len(confidences) and (known or not line["pred_text"].strip()) else None


def read_failure(line: dict[str, Any]) -> Failure:
    """Return the Failure of a line that `failure_line` wrote."""
    return Failure(line["error"], line["message"], line["retryable"])


def first_texts(store: Store, count: int) -> list[tuple[str, str]]:
    """Return (id, text) of the first transcripts in transcripts.jsonl; [] if they cannot be read.

    Raises:
        StorageError: OUT cannot be read.
    """
    with contextlib.suppress(ValueError, KeyError, TypeError):
        lines = (json.loads(line) for line in islice(store.lines(TRANSCRIPTS), count))  # one parsed line at a time
        return [(line["id"], line["pred_text"]) for line in lines]
    return []
