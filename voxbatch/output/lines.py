"""Convert between an Item with its outcome and the output line: the manifest's row plus the transcript or the error.

The scripts of NeMo and of the Open ASR Leaderboard can score the line unchanged: they read `text` and `pred_text`.

A person or a program may have changed a stored line. `parse_line` and `parse_merged_line` check it, because whatever
reads OUT relies on the types here. The error names the line, and the command that repairs it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import msgspec

from voxbatch import frame_rate
from voxbatch.errors import CheckpointError
from voxbatch.failure_kinds import KIND_KEY
from voxbatch.formats.json_formats import transcript_dict
from voxbatch.languages import DETECTED_LANGUAGE
from voxbatch.manifest import LineError, PathPolicy
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.manifest.recording_path import json_path
from voxbatch.output.layout import TRANSCRIPTS, VERSION
from voxbatch.output.parts import PartEntry, damaged_part
from voxbatch.output.products import PRODUCTS, Products
from voxbatch.output.stored_json import Count, Number, json_bytes, parse_json, record_of
from voxbatch.records import TRANSLATE, Failure, Flag, Item, Transcript
from voxbatch.storage import Store, is_remote, remove_command
from voxbatch.storage.signatures import unsigned_texts
from voxbatch.text.item_flags import item_flags

if TYPE_CHECKING:
    from voxbatch.scoring.counts import ErrorCounts

_ANYWHERE = PathPolicy(allow_outside=True)
"""A manifest's paths were checked when it was read."""

REFERENCE_WORDS_KEY = "text_words"
"""Key of an output line for the words of `text`, which are `words` in the manifest. The `words` of the line are those
of the transcript."""
REFERENCE_SEGMENTS_KEY = "text_segments"
"""Key of an output line for the segments of `text`, which are `segments` in the manifest."""
_FAILURE_KEYS = frozenset(("line", "error", KIND_KEY, "message", "retryable", "version"))
"""Keys that each line of failures.jsonl has besides those of the manifest and `id`."""
_TRANSCRIPT_KEYS = frozenset((
    "pred_text", "words", "segments", "audio_duration", "engine", "model", "confidence", "flags", "warnings", "version",
))  # fmt: skip
"""Keys that each line of transcripts.jsonl has besides those of the manifest and `id`."""
_SCORE_KEYS = ("wer", "substitutions", "insertions", "deletions", "reference_length")
CASCADE_KEY = "cascade"
"""Key of a line of a cascade: null, or both texts if two models did the item."""
CORRECTION_KEY = "recognised"
"""Key of a line that a person has corrected: the text of the recogniser, and its errors against the correction."""
_ANSWER_KEYS = frozenset(
    ("answer", "tool_calls", "finish_reason", "prompt_tokens", "completion_tokens", "answers_to_parts")
)
"""Further keys of the lines of answers."""
REFERENCE_TEXT_KEY = "reference_text"
"""Key of a manifest's `text` in the lines of answers and translations: they are not scored against a reference of the
speech."""
SPOKEN_LANGUAGE = "spoken_language"
"""Key of the language of the speech in the line of a translation."""
_LANGUAGE_KEYS = frozenset((DETECTED_LANGUAGE, SPOKEN_LANGUAGE))
LINE_KEYS = _TRANSCRIPT_KEYS | {*_SCORE_KEYS} | _LANGUAGE_KEYS | {"id", "lang"}
"""Keys that the line of a transcript has besides those of its row."""
RESULT_KEYS = (
    _FAILURE_KEYS | _TRANSCRIPT_KEYS | {*_SCORE_KEYS} | {CASCADE_KEY, CORRECTION_KEY} | _ANSWER_KEYS | _LANGUAGE_KEYS
)
"""All keys of output lines that are results, and not the manifest's."""


def transcript_line(
    item: Item,
    transcript: Transcript,
    engine: str,
    model: str,
    given: str | None,
    folder: str | None,
    counts: ErrorCounts | None = None,
    *,
    flags: Iterable[Flag] | None = None,
    row: Mapping[str, Any] = {},
    own: Mapping[str, Any] = {},
) -> dict[str, Any]:
    """Return the line of an item that was transcribed. Each line has the same keys, apart from those of its row.

    The line has the language by which it is scored as `lang`, so that it gets the same score anywhere, and also as
    `detected_language` if only the engine names it. The `lang` of a translation is that of its text.

    Args:
        given: the language of the item, or else of the run. None means the one that the engine detected.
        folder: place that relative paths of the manifest are resolved against.
        counts: the errors of the transcript. None counts them here.
        flags: the flags of the line. None takes those of the transcript, and adds those that it gets as a whole.
        row: see manifest_keys.
        own: keys of the kind of work.
    """
    fields = transcript_dict(transcript)
    lang = given or transcript.language
    if counts is None and item.text is not None:
        from voxbatch.scoring.counts import count_errors

        counts = count_errors(item.text, transcript.text, lang)
    confidence, translates = transcript.confidence, item.task == TRANSLATE
    if flags is None:
        flags = transcript.flags if translates else (*transcript.flags, *item_flags(transcript, given))
    languages = {"lang": "en", SPOKEN_LANGUAGE: lang} if translates else {"lang": lang}
    picture = {frame_rate.KEY: transcript.frame_rate, frame_rate.ASPECT_KEY: transcript.aspect_ratio}
    of_video = {name: value for name, value in picture.items() if value is not None}
    return {
        **of_video, **manifest_keys(item, folder, row),
        **languages, DETECTED_LANGUAGE: None if given else lang, "id": item.id, **own,
        "pred_text": fields["text"], "words": fields["words"], "segments": fields["segments"],
        "audio_duration": fields["audio_duration"], "engine": engine, "model": model,
        **score_keys(counts),
        "confidence": None if confidence is None else round(confidence, 3),
        "flags": [asdict(flag) for flag in flags],
        "warnings": fields["warnings"], "version": VERSION,
    }  # fmt: skip


def line_bytes(line: Mapping[str, Any]) -> bytes:
    """Return the line of an item that was transcribed, as `json_bytes` does.

    msgspec encodes the words and segments in a quarter of the time. It writes their numbers, which have three decimals,
    as json does; the numbers of a manifest's row may have exponents, which msgspec writes in another way.
    """
    keys = iter(line.items())
    head = dict(takewhile(lambda member: member[0] != "words", keys))  # without the words, which it takes
    segments = next(keys)
    assert segments[0] == "segments"
    try:
        timed = [msgspec.json.format(msgspec.json.encode(line[name]), indent=0) for name in ("words", "segments")]
        before, after = (json.dumps(part, ensure_ascii=False).encode() for part in (head, dict(keys)))
    except UnicodeEncodeError:
        return json_bytes(line)
    return b'%b, "words": %b, "segments": %b, %b' % (before[:-1], *timed, after[1:])


def score_keys(counts: ErrorCounts | None) -> dict[str, Any]:
    """Return the keys of a line for the errors of its item. The values are None without a reference."""
    return dict.fromkeys(_SCORE_KEYS) if counts is None else {"wer": counts.reported_rate, **asdict(counts)}


def failure_line(
    item: Item, failure: Failure, lang: str | None, folder: str | None, row: Mapping[str, Any] = {}
) -> dict[str, Any]:
    """Return the line of an item that failed. See `transcript_line`."""
    return {
        **manifest_keys(item, folder, row), "lang": lang, "id": item.id, "line": item.line, "error": failure.error,
        KIND_KEY: failure.kind, "message": failure.message, "retryable": failure.retryable, "version": VERSION,
    }  # fmt: skip


def manifest_keys(item: Item, folder: str | None, changed: Mapping[str, Any] = {}) -> dict[str, Any]:
    """Return the keys of the manifest's row that pass through: all of them, but not the results of an earlier run if
    the manifest is one of its outputs. The manifest's `words` and `segments` are those of the reference; a line has
    them under other keys than those of the transcript.

    A relative path becomes absolute, because readers of the output resolve it against another folder than the
    manifest's. `folder` is that of the run's first start, so that a run that continues with the recordings mounted
    elsewhere writes the same bytes. Addresses lose their signatures, with which anybody could read the recordings.

    Args:
        folder: None keeps the places that the paths mean in this run.
        changed: keys that take the place of those of the row.
    """
    row: dict[str, Any] = msgspec.json.decode(item.row)
    results = _LANGUAGE_KEYS
    if row.keys() >= _FAILURE_KEYS:
        results |= _FAILURE_KEYS
    if row.keys() >= _TRANSCRIPT_KEYS:
        results |= _TRANSCRIPT_KEYS | {*_SCORE_KEYS, CASCADE_KEY, CORRECTION_KEY} | _ANSWER_KEYS
    else:
        for key, reference_key in (("words", REFERENCE_WORDS_KEY), ("segments", REFERENCE_SEGMENTS_KEY)):
            if key in row:
                row[reference_key] = row.pop(key)
    if item.text is None and row.get("text") is not None:
        row[REFERENCE_TEXT_KEY] = row.pop("text")
    row |= changed
    row[AUDIO_KEY] = absolute(row[AUDIO_KEY], item.audio, folder)
    return {name: unsigned_texts(value) for name, value in row.items() if name not in results}


def absolute(path: str, place: str, folder: str | None) -> str:
    """Return a path of the manifest as a place that any reader can resolve.

    Args:
        place: the place that it means in this run.
    """
    if is_remote(path) or path.startswith("/"):
        return path
    try:
        return json_path(_ANYWHERE.resolve(path, folder) if folder else place)
    except LineError:  # the first start was with a bucket, in which no object can have this name
        return json_path(place)


def word_confidences(line: Mapping[str, Any]) -> list[float] | None:
    """Return the confidences of the words of an output line. None if a word has none, or if the text has no words."""
    confidences = [word.get("confidence") for word in line["words"]]
    known = [value for value in confidences if value is not None]
    return known if len(known) == len(confidences) and (known or not line["pred_text"].strip()) else None


def recogniser_keys(line: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what the recogniser wrote in a line that a person has corrected. None for another line: a manifest's row
    may have the same key."""
    recognised = line.get(CORRECTION_KEY)
    is_ours = isinstance(recognised, dict) and isinstance(recognised.get("estimated_words"), int)
    return recognised if is_ours else None


class _SpanKeys(msgspec.Struct):
    start: Number
    end: Number


class WordKeys(_SpanKeys):
    """The keys of a word that readers use."""

    word: str
    confidence: Number | None = None


class SegmentKeys(_SpanKeys):
    """The keys of a segment of a line."""

    text: str
    markup: str = ""


class _FlagKeys(msgspec.Struct):
    kind: str
    reason: str
    start: Number | None = None
    end: Number | None = None


class _Line(msgspec.Struct, kw_only=True):
    """The keys that readers use. Lines of some items lack those with a default."""

    id: str
    audio_filepath: str
    lang: str | None = None
    text: str | None = None


class DoneLine(_Line, kw_only=True):
    """The keys that the line has of an item that has not failed, whatever the kind of work."""

    audio_duration: Number
    flags: list[_FlagKeys]
    warnings: list[str]
    substitutions: Count | None = None
    insertions: Count | None = None
    deletions: Count | None = None
    reference_length: Count | None = None


class _RecognisedKeys(msgspec.Struct):
    """The keys of CORRECTION_KEY in the line of a corrected item."""

    subtitles: list[SegmentKeys] = []


class _TranscriptLine(DoneLine, kw_only=True):
    segments: list[SegmentKeys]
    pred_text: str
    words: list[WordKeys]
    confidence: Number | None


class _FailureLine(_Line, kw_only=True):
    error: str
    error_kind: str
    message: str
    retryable: bool


def parse_line(store: Store, entry: PartEntry, products: Products = PRODUCTS) -> dict[str, Any]:
    """Return the output line of a committed entry as its JSON object.

    Args:
        products: those of the run; any for a failure.

    Raises:
        CheckpointError: the part is damaged. Its checksum is compared later, after its last entry.
    """
    done = products.line or _TranscriptLine
    try:
        return _parsed(entry.line, done if entry.kind == "transcript" else _FailureLine)
    except ValueError as e:
        reason = f"the line of item {entry.index} is {e}: {entry.line[:60]!r}"
        raise damaged_part(store, entry.part, reason) from e


def parse_merged_line(store: Store, name: str, number: int, text: bytes) -> dict[str, Any]:
    """Return a line of transcripts.jsonl or failures.jsonl as its JSON object.

    Raises:
        CheckpointError: the line was changed.
    """
    try:
        return _parsed(text, _TranscriptLine if name == TRANSCRIPTS else _FailureLine)
    except ValueError as e:
        where, command = f"{store.place}/{name}, line {number:,}", remove_command(store.place, name)
        remedy = "remove the file and run again, so that it is written again from the parts"
        raise CheckpointError(f"{where}: was changed or damaged: it is {e}; {remedy}: {command}", "damaged") from e


def _parsed(text: bytes, kind: type[_Line]) -> dict[str, Any]:
    """Return the JSON object of a line.

    Raises:
        ValueError: the text is not JSON, a key is missing, or its value has another type or is out of range. The
            message follows "it is".
    """
    try:
        try:
            line: dict[str, Any] = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            line = parse_json(text)  # which takes lone surrogates
        checked = record_of(line, kind)
        if recognised := recogniser_keys(line):
            record_of(recognised, _RecognisedKeys)
    except msgspec.ValidationError as e:
        raise ValueError(f"no output line ({e})") from e
    except ValueError as e:
        raise ValueError("no JSON") from e
    if isinstance(checked, _TranscriptLine) and checked.text is not None:
        for name in ("substitutions", "insertions", "deletions", "reference_length"):
            if getattr(checked, name) is None:
                raise ValueError(f"no output line (it has a reference, and no `{name}`)")
    return line
