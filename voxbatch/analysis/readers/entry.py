"""The records that every reader yields, and the errors of a line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from voxbatch.errors import BadLine, ManifestError
from voxbatch.manifest.json_line import LongLine
from voxbatch.manifest.source import Source, is_binary
from voxbatch.scoring.word_times import TimedWord
from voxbatch.sources.transcripts import TimedText

MAX_DOCUMENT_BYTES = 100_000_000
"""Largest file that is read as a whole. The words of a day with their times take 20 MB in JSON."""
SPEAKER_KEY = "speaker"
SESSION_KEYS = ("session", "session_id")
"""Keys of rows that are one utterance of a speaker in a session."""


class Role(Enum):
    """The texts that are wanted of a file."""

    REFERENCE = "reference"
    HYPOTHESIS = "hypothesis"
    BOTH = "both"
    """Hypotheses, each with its reference in the same row."""


@dataclass(frozen=True, slots=True)
class TextEntry:
    """One text of a file."""

    line: int
    """1-based line number, or 0 if the whole file is one text."""
    id: str
    text: str | None
    """The text in the role that was asked for. None means that there is no transcript, or no reference."""
    reference: str | None = None
    """The reference of the same row, if both were asked for."""
    path: str | None = None
    """The recording's path as it is written."""
    lang: str | None = None
    words: tuple[TimedWord, ...] = ()
    """Words with their times, if the file has them."""
    reference_words: tuple[TimedWord, ...] = ()
    """Words of the reference of the same row, if both were asked for."""
    segments: tuple[TimedText, ...] = ()
    """Segments with times or speakers, if the file has them."""
    by_segment: bool = False
    """True if each segment is scored by itself, against the words within its time."""
    is_file: bool = False
    """True if the file is the text, and `id` the name of the file."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """The row as it was read, for groups. Empty for kinds of files without further values."""


def bad_line(name: str, line: int, reason: str) -> ManifestError:
    """Return the error of one line. Line 0 means the file as a whole."""
    return ManifestError(name, [BadLine(line, reason)])


def text_lines(source: Source) -> Iterator[tuple[int, str]]:
    """Yield (line number, line without its end) of each line, blank lines too.

    Raises:
        ManifestError: a line is too long; or see Source.pieces.
    """
    for number, raw in source.raw_lines():
        if isinstance(raw, LongLine):
            raise bad_line(source.name, number, f"has {raw.num_bytes:,} bytes; write one text a line")
        yield number, source.text(raw).rstrip("\r\n")


def whole_file(source: Source) -> bytes:
    """Return the bytes of a file.

    Raises:
        ManifestError: the file is too large; or see Source.pieces.
    """
    if source.size > MAX_DOCUMENT_BYTES:
        reason = f"has {source.size:,} bytes, at most {MAX_DOCUMENT_BYTES:,} are read at once"
        raise bad_line(source.name, 0, f"{reason}; divide it, or write JSON lines")
    if is_binary(source.begin()):  # bytes that are line ends in a text are none in it
        return os.pread(source.file.fileno(), source.size, 0)
    return b"".join(source.pieces())
