"""Write a Transcript as the text of a file: subtitles, plain text, tables with times, or JSON.

The package opens no file and chooses no folder. Give each format a folder of its own, because an item may be called
"summary". To add a format, write a function and put it in WRITERS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from voxbatch.formats.cues import DEFAULT_LIMITS, Cue, CueLimits, split_into_cues, without_control_characters
from voxbatch.formats.document import Document
from voxbatch.formats.file_names import EXTENSIONS, output_name
from voxbatch.formats.json_formats import openai_json, to_json, transcript_dict, whisperx_json
from voxbatch.formats.subtitles import srt, ttml, vtt, vtt_words
from voxbatch.formats.tables import ctm, textgrid, tsv

__all__ = [
    "DEFAULT_LIMITS",
    "WRITERS",
    "Cue",
    "CueLimits",
    "Document",
    "Writer",
    "output_name",
    "split_into_cues",
    "transcript_dict",
]


@dataclass(frozen=True, slots=True)
class Writer:
    """A format of an item's file. The file's encoding is UTF-8."""

    extension: str
    """Extension of the file, without a dot."""
    write: Callable[[Document], str]
    """Function from a document to the text of the file."""


def txt(document: Document) -> str:
    """Return the transcript with one segment per line, or on one line if there are no segments."""
    texts = [segment.text for segment in document.segments] or [document.transcript.text]
    return "".join(" ".join(without_control_characters(text).split()) + "\n" for text in texts)


WRITERS: dict[str, Writer] = {
    "srt": Writer("srt", srt),
    "vtt": Writer("vtt", vtt),
    "vtt-words": Writer("vtt", vtt_words),
    "ttml": Writer("ttml", ttml),
    "txt": Writer("txt", txt),
    "tsv": Writer("tsv", tsv),
    "ctm": Writer("ctm", ctm),
    "textgrid": Writer("TextGrid", textgrid),
    "json": Writer("json", to_json),
    "whisperx-json": Writer("json", whisperx_json),
    "openai-json": Writer("json", openai_json),
}
"""The writer of each format. The name of the format is also the name of its folder."""

assert {writer.extension for writer in WRITERS.values()} == set(EXTENSIONS)
