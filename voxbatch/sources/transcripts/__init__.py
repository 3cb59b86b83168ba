"""Read the transcripts that people and programs write, each as texts with their times and speakers.

    he.srt, he.TextGrid, he.eaf, he.cha, …      →   [TimedText("he has known", 0.1, 2.0, "Ann"), …]

A reader gives all words that were said, once each and in the order of their times, or raises ValueError with the
reason.
To add a kind, write a function from the text of a file to its TimedTexts, and put it in READERS.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from pkgutil import resolve_name

from voxbatch.languages import primary_subtag
from voxbatch.manifest.encoding import UTF16_BOMS, TextDecoder
from voxbatch.manifest.source import SNIFFED_BYTES
from voxbatch.sources.cues import CUE_TIMES
from voxbatch.sources.transcripts.timed_text import TimedText, in_order, joined

__all__ = ["READERS", "UNREAD_KINDS", "TimedText", "in_order", "is_binary", "joined", "kind_of_text", "read_transcript"]

_XML = "transcripts.xml_kinds:xml_texts"
READERS = {
    **dict.fromkeys(("srt", "vtt", "sbv"), "transcripts.captions:cue_texts"),
    **dict.fromkeys(("ass", "ssa"), "transcripts.substation:substation_texts"),
    **dict.fromkeys(("ttml", "xml", "eaf", "exb", "trs"), _XML),
    "smi": "transcripts.sami:sami_texts",
    "sub": "transcripts.frames:sub_texts",
    "lrc": "transcripts.captions:lyrics_texts",
    "labels": "transcripts.captions:label_texts",
    "textgrid": "transcripts.praat:text_grid",
    "cha": "transcripts.chat:chat_texts",
    "stm": "annotations:stm_texts",
}
"""Functions of voxbatch.sources by kinds, which are extensions except for "labels"."""
UNREAD_KINDS = {
    "scc": "closed captions (SCC) are not read; convert them: ffmpeg -i captions.scc captions.srt",
    "mcc": "closed captions (MCC) are not read; convert them to SubRip",
    "stl": "subtitles for broadcasting (EBU-STL, Spruce) are not read; convert them, EBU-STL with the program of the "
    "package ttconv: tt convert -i captions.stl -o captions.ttml",
}
"""Kinds that are told apart and not read, with what to do."""
_BINARY = {b"ooBinaryFile": "transcripts.praat:binary_text_grid"}
"""Functions of the bytes of a file, by their begin."""
_CONTENT = {
    "vtt": re.compile("WEBVTT"),
    "srt": CUE_TIMES,
    "ass": re.compile(r"\[Script Info\]"),
    "smi": re.compile(r"\s*<SAMI\b", re.IGNORECASE),
    "xml": re.compile(r"\s*<(?:\?xml|tt)\b"),
    "textgrid": re.compile(r'File type = "oo'),
    "cha": re.compile(r"@(?:UTF8|Begin)\s*$"),
    "sub": re.compile(r"\{\d+\}\{\d*\}|\[\d+\]\[\d*\]"),
    "lrc": re.compile(r"\[\d+:\d+[.:]\d+\]"),
    "scc": re.compile("Scenarist_SCC"),
}
"""Kinds by the begin of one of the first lines."""
_MARKED_LINES = 10
"""First lines that are not blank, among which is one that shows a kind of _CONTENT."""
_LABEL = re.compile(r"\d+(?:[.,]\d+)?\t\d+(?:[.,]\d+)?(?:\t.*)?|\\\t.*|start\tend\ttext")
_AT_ONCE_S, _TRANSLATED = 0.5, 0.5
"""Greatest difference of the starts of a text and its translation, and the share of texts with one, from which texts of
two languages are translations."""


def kind_of_text(lines: Sequence[str]) -> str | None:
    """Return the kind of a file by its lines; None if they are no transcript with times."""
    filled = [line for line in lines if line.strip()]
    for kind, pattern in _CONTENT.items():
        if any(map(pattern.match, filled[:_MARKED_LINES])):
            return kind
    return "labels" if filled and all(map(_LABEL.fullmatch, filled)) else None


def is_binary(data: bytes) -> bool:
    """Return whether a file that begins so is no text, neither in UTF-8 nor in UTF-16."""
    return b"\0" in data[2:SNIFFED_BYTES] and b"\0" not in data[:2] and not data.startswith(UTF16_BOMS)


def read_transcript(
    data: bytes, kind: str, name: str, decoder: TextDecoder, language: str | None = None
) -> list[TimedText]:
    """Return the texts of a transcript that are not empty, in the order of time.

    Args:
        data: the bytes of the file.
        kind: one of READERS or UNREAD_KINDS.
        name: path of the file, for the note of the decoder.
        language: language of the texts of a file that has them in several.

    Raises:
        ValueError: the transcript cannot be read, or does not tell what was said.
    """
    if kind in UNREAD_KINDS:
        raise ValueError(UNREAD_KINDS[kind])
    for begin, reader in _BINARY.items():
        if data.startswith(begin):
            return in_order(_function(reader)(data))
    if is_binary(data):
        raise ValueError("it is binary")
    return _of_language(in_order(_function(READERS[kind])(decoder.decode(data, name))), language)


def _function(reader: str) -> Callable[..., list[TimedText]]:
    function: Callable[..., list[TimedText]] = resolve_name(f"voxbatch.sources.{reader}")
    return function


def _of_language(texts: list[TimedText], language: str | None) -> list[TimedText]:
    """Return the texts of the language that was said, if the others translate it."""
    by_language: dict[str, list[TimedText]] = {}
    for text in texts:
        by_language.setdefault(primary_subtag(text.lang), []).append(text)
    if len(by_language) < 2 or not _are_translations(by_language.values()):
        return texts
    spoken = primary_subtag(language or "")
    if spoken not in by_language:
        languages = ", ".join(sorted(filter(None, by_language)))
        raise ValueError(
            f"it has the same texts in several languages ({languages}); name the one that was said with --language"
        )
    return by_language[spoken]


def _are_translations(languages: Iterable[Sequence[TimedText]]) -> bool:
    """Return whether most texts of the languages but one begin with a text of that one."""
    first, *others = sorted(languages, key=len, reverse=True)
    starts = [text.start for text in first]
    times = [text.start for texts in others for text in texts]
    at_once = (bisect_left(starts, time - _AT_ONCE_S) < bisect_right(starts, time + _AT_ONCE_S) for time in times)
    return sum(at_once) >= _TRANSLATED * len(times)
