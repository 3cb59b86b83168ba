"""Read rows with named values: JSON lines, JSON arrays, CSV and TSV; and the JSON that Whisper's programs write.

A row is of NeMo's kind, as the Open ASR Leaderboard and voxbatch itself write it: `audio_filepath` or `id`, the
reference `text`, the hypothesis `pred_text`. Other usual names are in REFERENCE_KEYS and HYPOTHESIS_KEYS.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from voxbatch.analysis.readers.entry import SPEAKER_KEY, Role, TextEntry, bad_line, whole_file
from voxbatch.analysis.readers.services import service_entry
from voxbatch.manifest.json_line import AUDIO_KEY, LineError, quote
from voxbatch.manifest.source import Source
from voxbatch.output.lines import REFERENCE_SEGMENTS_KEY, REFERENCE_WORDS_KEY
from voxbatch.scoring.word_times import timed_words
from voxbatch.sources.columns import COLUMNS, Row, Rows
from voxbatch.sources.tables import DELIMITERS, json_rows, split_table, table_rows
from voxbatch.sources.transcripts import TimedText

ID_KEYS = ("id", "utt_id", "utterance_id", "uttid", "key")
PATH_KEYS = COLUMNS[AUDIO_KEY]
REFERENCE_KEYS = ("text", "reference", "ref", "sentence", "transcript", *COLUMNS["text"])
HYPOTHESIS_KEYS = ("pred_text", "hypothesis", "hyp", "prediction", "predicted_text", "transcription", "transcript")
"""Names of values by meaning. The first one that a row has is taken."""
_KNOWN_KEYS = frozenset((*ID_KEYS, *PATH_KEYS, *REFERENCE_KEYS, *HYPOTHESIS_KEYS))
"""Names that a table may also write in capitals, such as SpeechBrain's ID."""
_PART_KEYS = ("offset", "duration", "channel")
_SEGMENT_KEYS = {"start", "end", "text"}
PARENT_KEY, CHUNK_KEY = "parent_id", "chunk_index"
"""Keys of the leaderboard's rows that are parts of one recording, whose reference each of them repeats."""


def json_line_entries(source: Source, role: Role, file_id: str, *ignored: object) -> Iterator[TextEntry]:
    """Yield the entries of JSON lines."""
    return _entries(source.name, _checked(source.name, json_rows(source, rename=False)), role, file_id)


def json_document_entries(source: Source, role: Role, file_id: str, *ignored: object) -> Iterator[TextEntry]:
    """Yield the entries of a file that is one JSON value: an array of rows, or a transcript as a service (see
    `services`), WhisperX, OpenAI's Whisper or faster-whisper writes it. The id of such a transcript is the file's name.
    """
    document = _document(source)
    if isinstance(document, list):
        for number, row in enumerate(document, 1):
            if not isinstance(row, dict):
                raise bad_line(source.name, 0, f"element {number} is {quote(row)}; it must be an object")
        yield from _entries(source.name, ((0, row) for row in document), role, file_id)
    elif entry := _service_entry(source.name, document, file_id):
        yield entry
    elif isinstance(document, dict) and isinstance(document.get("segments", document.get("text")), list | str):
        yield _transcript(source.name, document, file_id)
    else:
        problem = f"is {quote(document)}"
        raise bad_line(source.name, 0, f"{problem}; give JSON lines, an array of rows, or a transcript with `segments`")


def csv_entries(source: Source, role: Role, file_id: str, *ignored: object) -> Iterator[TextEntry]:
    """Yield the entries of a CSV file with a header."""
    return _table_entries(source, role, file_id, "CSV")


def tsv_entries(source: Source, role: Role, file_id: str, *ignored: object) -> Iterator[TextEntry]:
    """Yield the entries of a TSV file with a header."""
    return _table_entries(source, role, file_id, "TSV")


def _table_entries(source: Source, role: Role, file_id: str, kind: str) -> Iterator[TextEntry]:
    fields, records, _ = split_table(source, DELIMITERS[kind], lambda fields: _text_key(_header(fields)) is not None)
    header = _header(fields)
    if _text_key(header) is None:
        names = ", ".join(map(quote, header[:10])) or "none"
        header_keys = "`id` and `text`" if role is Role.REFERENCE else "`id`, `text` and `pred_text`"
        reason = f"names no column with texts: {names}; add a header with {header_keys}"
        raise bad_line(source.name, 1, reason)

    yield from _entries(source.name, _checked(source.name, table_rows(header, records)), role, file_id)


def _header(fields: Iterable[str]) -> list[str]:
    names = [name.strip() for name in fields]
    return [name.lower() if name.lower() in _KNOWN_KEYS else name for name in names]


def _text_key(header: Sequence[str]) -> str | None:
    return _key(header, (*REFERENCE_KEYS, *HYPOTHESIS_KEYS))


def _checked(name: str, rows: Rows) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a file, and raise an error for a reason in place of a row."""
    for number, row in rows:
        if isinstance(row, str):
            raise bad_line(name, number, row)
        yield number, row


def _entries(name: str, rows: Iterable[tuple[int, Mapping[str, Any]]], role: Role, file_id: str) -> Iterator[TextEntry]:
    """Yield the entries of rows. The parts of a recording of the leaderboard become one entry, at the end, and so do
    the utterances of a session in the SegLST of meeteval and CHiME, and the segments that Whisper's programs write:
    rows with `start`, `end` and `text` that name no recording."""
    segments_text: list[str] = []
    sessions: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
    parents: dict[str, tuple[TextEntry, list[tuple[int, str]]]] = {}
    for number, row in rows:
        if isinstance(row.get("words"), str) and isinstance(row.get("session_id"), str):
            sessions.setdefault(row["session_id"], []).append((number, row))
            continue
        if row.keys() >= _SEGMENT_KEYS and _key(row, (*ID_KEYS, *PATH_KEYS)) is None:
            segments_text.append(str(row["text"]).strip())
            continue
        try:
            entry = row_entry(number, row, role)
            parent, index = row.get(PARENT_KEY), row.get(CHUNK_KEY)
            if isinstance(parent, str) and type(index) is int:
                first, chunks = parents.setdefault(parent, (replace(entry, id=parent), []))
                if first.reference != entry.reference:
                    raise LineError(f"`text` is another one than in line {first.line}, of the same {PARENT_KEY}")
                chunks.append((index, (entry.text or "").strip()))
                continue
        except LineError as error:
            raise bad_line(name, number, str(error)) from error
        yield entry
    if segments_text:
        yield TextEntry(0, file_id, " ".join(segments_text), is_file=True)
    for first, chunks in parents.values():
        is_repeated = role is Role.REFERENCE
        text = first.text if is_repeated else " ".join(text for _, text in sorted(chunks) if text)
        yield replace(first, text=text, words=())
    for name, utterances in sessions.items():
        yield _session(name, utterances)


def _session(name: str, utterances: Sequence[tuple[int, Mapping[str, Any]]]) -> TextEntry:
    segments = []
    for _, row in utterances:
        start, end = _number(row.get("start_time")), _number(row.get("end_time"))
        speaker = str(row.get(SPEAKER_KEY, ""))
        segments.append(TimedText(row["words"], 0.0 if math.isnan(start) else start, end, speaker))
    segments.sort(key=lambda segment: segment.start)
    return TextEntry(utterances[0][0], name, " ".join(segment.text for segment in segments), segments=tuple(segments))


def row_entry(number: int, row: Mapping[str, Any], role: Role) -> TextEntry:
    """Return the entry of a row.

    Raises:
        LineError: the row has no text, or nothing that names it, or a value of a wrong type.
    """
    reference_key = _key(row, REFERENCE_KEYS)
    hypothesis_key = _key(row, [key for key in HYPOTHESIS_KEYS if key != reference_key])
    if role is Role.HYPOTHESIS and hypothesis_key is None and reference_key in HYPOTHESIS_KEYS:
        hypothesis_key = reference_key
    key = reference_key if role is Role.REFERENCE else hypothesis_key
    if key is None:
        missing_key = "`text`" if role is Role.REFERENCE else "`pred_text`"
        tip = "" if role is Role.REFERENCE else "; give a run's transcripts.jsonl, or rows like those"
        raise LineError(f"has no {missing_key}{tip}; its keys: {', '.join(map(quote, list(row)[:10])) or 'none'}")
    both = role is Role.BOTH and reference_key is not None
    lang = row.get("lang", row.get("language"))
    is_output = HYPOTHESIS_KEYS[0] in row  # its `words` are those of the hypothesis
    words_key, segments_key = (
        (REFERENCE_WORDS_KEY, REFERENCE_SEGMENTS_KEY) if role is Role.REFERENCE and is_output else ("words", "segments")
    )
    path_key = _key(row, PATH_KEYS)
    return TextEntry(
        line=number,
        id=_row_id(row, number, role),
        text=_text(row, key),
        reference=_text(row, reference_key) if both and reference_key else None,
        path=row[path_key] if path_key and isinstance(row[path_key], str) else None,
        lang=lang if isinstance(lang, str) and lang else None,
        words=tuple(timed_words(row.get(words_key))),
        reference_words=tuple(timed_words(row.get(REFERENCE_WORDS_KEY))) if both else (),
        segments=_spoken(_list(row.get(segments_key))),
        row=row,
    )


def _row_id(row: Mapping[str, Any], number: int, role: Role) -> str:
    """Return the id of a row; without one, its path with the part of the recording; without both, its number if no
    other file is to be matched."""
    if (key := _key(row, ID_KEYS)) is not None and row[key] is not None:
        if isinstance(row[key], bool) or not isinstance(row[key], str | int):
            raise LineError(f"`{key}` is {quote(row[key])}; it must be a string")
        return str(row[key])
    if (key := _key(row, PATH_KEYS)) is not None and isinstance(path := row[key], str) and path:
        part = [row.get(name) for name in _PART_KEYS]
        is_part = part[0] not in (None, 0, 0.0, "", "0") or part[2] not in (None, "")
        return path + ("#" + "-".join(str(value) for value in part if value is not None) if is_part else "")
    if role is Role.BOTH:
        return f"line {number}"
    raise LineError("has neither `id` nor `audio_filepath`, by which a hypothesis finds its reference; add one of them")


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(row: Mapping[str, Any], key: str) -> str | None:
    value = row[key]
    if value is None or isinstance(value, str):
        return value
    raise LineError(f"`{key}` is {quote(value)}; it must be a string or null")


def _key(names: Iterable[str], keys: Sequence[str]) -> str | None:
    available = set(names)
    return next((name for name in keys if name in available), None)


def _document(source: Source) -> Any:
    try:
        return json.loads(whole_file(source).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise bad_line(source.name, 0, f"byte {error.start:,} is not UTF-8; save the file again as UTF-8") from error
    except json.JSONDecodeError as error:
        reason = f"not JSON: {error.msg} at column {error.colno}; the file may be cut off: write it again"
        raise bad_line(source.name, error.lineno, reason) from error
    except (ValueError, RecursionError) as error:
        raise bad_line(source.name, 0, f"not JSON that can be read: {error}; write it again") from error


def _service_entry(name: str, document: Any, file_id: str) -> TextEntry | None:
    try:
        return service_entry(document, file_id)
    except ValueError as error:
        raise bad_line(name, 0, str(error)) from error
    except (TypeError, KeyError, AttributeError, IndexError) as error:
        raise bad_line(name, 0, f"is no whole transcript of a service ({error!r}); get it again") from error


def _transcript(name: str, document: Mapping[str, Any], file_id: str) -> TextEntry:
    segments = [segment for segment in document.get("segments") or () if isinstance(segment, dict)]
    text = document.get("text")
    if not isinstance(text, str):
        texts = [segment.get("text") for segment in segments]
        if any(not isinstance(segment_text, str) for segment_text in texts):
            raise bad_line(name, 0, "has a segment without a `text`; write the transcript again")
        text = " ".join(str(segment_text).strip() for segment_text in texts)
    words = timed_words(document.get("words") or document.get("word_segments"))
    words = words or timed_words([word for segment in segments for word in segment.get("words") or ()])
    lang = document.get("language")
    speakers = _spoken(segments)
    tag = lang if isinstance(lang, str) else None
    return TextEntry(0, file_id, text, lang=tag, words=tuple(words), segments=speakers, is_file=True)


def _spoken(segments: Iterable[Any]) -> tuple[TimedText, ...]:
    """Return the segments that name their speakers, as WhisperX writes them."""
    return tuple(
        TimedText(
            str(segment.get("text", "")),
            _number(segment.get("start")),
            _number(segment.get("end")),
            segment[SPEAKER_KEY],
        )
        for segment in segments
        if isinstance(segment, dict) and isinstance(segment.get(SPEAKER_KEY), str)
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
