"""Open a source of texts to speak as a manifest.

    {"id": "greeting", "audio_filepath": "greeting.flac", "text": "Hello.", "duration": 0.44}

Each line has these keys. `duration` is an estimate by which shards are balanced. A line may have `voice` and `lang`; a
cue of subtitles has `cue_start` and `cue_end`, and the beginning of a chapter `title`.

The lines come from JSON lines, a JSON array, CSV or TSV with a column `text`, SubRip or WebVTT; and from books: plain
text, Markdown and EPUB, which `books` divides into chapters.
"""

from __future__ import annotations

import html
import os
import posixpath
import shlex
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeGuard

from voxbatch.errors import ManifestError
from voxbatch.manifest.json_line import AUDIO_KEY, quote
from voxbatch.manifest.path_policy import PathPolicy
from voxbatch.manifest.recording_path import missing
from voxbatch.manifest.source import Source, manifest_error
from voxbatch.sources import tables
from voxbatch.sources.columns import Row, Rows
from voxbatch.sources.cues import MARKUP, read_cues
from voxbatch.sources.manifest_file import converted, open_file, open_manifest
from voxbatch.speech.pieces import CHARACTERS_PER_SECOND
from voxbatch.storage import Stores, is_remote, redacted
from voxbatch.storage.address import name_of
from voxbatch.works.speak.books import chapter_rows, whole_text

VOICE_KEY = "voice"
CUE_START, CUE_END = "cue_start", "cue_end"
_OF_RECORDINGS = ("offset", "channel", "prompt", "audio_filepaths")
"""Keys of manifests that are about recordings which exist. A line of texts loses them."""


class TextPolicy(PathPolicy):
    """The rules of a manifest of texts: it names no recording that is read."""

    __slots__ = ()

    def resolve(self, path: str, base: str) -> str:
        """Return the name, which is that of a recording to be made."""
        return path


def open_texts(name: str, stdin: BinaryIO, stores: Stores) -> Source:
    """Open a source of texts by its path or address; "-" is JSON lines from `stdin`.

    Raises:
        ManifestError: it does not exist, or holds something else than texts.
        StorageError: its place does not answer, or a temporary file cannot be written.
    """
    if name != "-" and not (is_remote(name) or os.path.splitext(name)[1] or os.path.lexists(name)):
        command = f"echo {shlex.quote(name)} > text.txt && voxbatch speak text.txt"
        raise manifest_error(name, f"{missing(name)}; to speak these words: {command}")
    source = open_manifest(name, stdin, stores) if name == "-" else open_file(name, stores)
    with source:
        suffix = os.path.splitext(redacted(source.name, "").lower().removesuffix(".gz"))[1]
        rows = _READERS.get(suffix, _json_rows)(source)
        return converted(source, _completed(rows), os.curdir)


def _completed(rows: Rows) -> Rows:
    """Yield the rows with all keys of a line, or with the reason why a row cannot be spoken."""
    for index, (number, row) in enumerate(rows, 1):
        yield number, row if isinstance(row, str) else _line(index, row)


def _line(index: int, row: dict[str, Any]) -> dict[str, Any] | str:
    text, voice, item_id, path = (row.get(key) for key in ("text", VOICE_KEY, "id", AUDIO_KEY))
    if not isinstance(text, str):
        return f"`text` is {quote(text)}; it must be a string, the text to speak"
    if voice is not None and not isinstance(voice, str):
        return f"`{VOICE_KEY}` is {quote(voice)}; it must be a string, the name of a voice"
    if item_id is None:
        item_id = _stem(path) if isinstance(path, str) and path.strip() else f"{index:06d}"
    if not isinstance(item_id, str | int) or isinstance(item_id, bool):
        return f"`id` is {quote(item_id)}; it must be a string or a whole number"
    start, end = row.get(CUE_START), row.get(CUE_END)
    if (start, end) != (None, None) and not (_is_number(start) and _is_number(end) and 0 <= start < end):
        return f"`{CUE_START}` is {quote(start)}, and `{CUE_END}` {quote(end)}; give seconds, the end after the start"
    rest = {key: value for key, value in row.items() if key not in _OF_RECORDINGS}
    return {
        **rest,
        "id": str(item_id),
        AUDIO_KEY: f"{item_id}.flac",
        "duration": round(max(1, len(text)) / CHARACTERS_PER_SECOND, 2),
    }


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _stem(path: str) -> str:
    """Return the id of a recording that is named so: "calls/a.wav" → "calls/a"."""
    return os.path.splitext(posixpath.normpath(name_of(path) if "://" in path else path).lstrip("/."))[0] or path


def _json_rows(source: Source) -> Rows:
    """Yield the rows of JSON lines or of a JSON array."""
    number, first = next(source.lines(), (0, b""))
    if first.lstrip().startswith(b"["):
        yield from tables.array_rows(source)
        return
    if first and not first.lstrip().startswith(b"{"):
        reason = f"line {number} is no JSON object; give a text as .txt, .md, .epub, .srt or .vtt, or a table as .csv"
        reason += ": echo hello > text.txt && voxbatch speak text.txt"
        raise manifest_error(source.name, reason)
    yield from tables.json_rows(source, rename=False)


def _table_rows(source: Source) -> Rows:
    """Yield the rows of CSV or TSV."""
    try:
        rows = tables.text_table(source, "text")[1]
    except ManifestError as e:
        raise manifest_error(source.name, "line 1 names no column `text`; call the column with the texts so") from e
    for number, row in rows:
        yield number, row if isinstance(row, str) else {"text": "", **row}  # empty cells are left out


def _cue_rows(source: Source) -> Rows:
    """Yield the cues of SubRip or WebVTT; the number of a cue is its line and its id."""
    text = whole_text(source)
    cues = (cue for cue in read_cues(text.split("\n"), text.startswith("WEBVTT")) if cue.start is not None)
    for number, cue in enumerate(cues, 1):
        words = " ".join(html.unescape(MARKUP.sub("", line)) for line in cue.lines).split()
        yield number, {"id": f"{number:06d}", "text": " ".join(words), CUE_START: cue.start, CUE_END: cue.end}


_READERS: dict[str, Callable[[Source], Iterator[tuple[int, Row | str]]]] = {
    **dict.fromkeys((".csv", ".tsv"), _table_rows),
    **dict.fromkeys((".srt", ".vtt"), _cue_rows),
    **dict.fromkeys((".txt", ".md", ".markdown", ".epub"), chapter_rows),
}
"""The reader of each extension. A file with another extension has JSON lines, or a JSON array."""
