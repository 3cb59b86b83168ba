"""Read subtitles as one text, without numbers, times and markup: SubRip, WebVTT, SBV, SubStation, TTML, SAMI, MicroDVD,
and lyrics.

    1
    00:00:00,120 --> 00:00:02,040      →   He has known her all her life.
    <i>He has known her</i>

    2
    00:00:02,040 --> 00:00:04,480
    all her life.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from voxbatch.analysis.readers.entry import TextEntry, text_lines
from voxbatch.manifest.source import Source
from voxbatch.sources.annotations import ANNOTATIONS
from voxbatch.sources.cues import MARKUP, read_cues

_WORD_TIME = re.compile(r"<(?:\d+:)?\d+:\d+\.\d+>")
_SPEAKER = re.compile(r"[^\W\d_][^:.,?!]{0,39}:\s+")
"""The name of a speaker before a text, as Zoom writes it."""
_FIELDS_OF_DIALOGUE = 10
_DIALOGUE_MARKUP = re.compile(r"\{[^{}]*\}|\\[Nnh]")
_PARAGRAPH = re.compile(r"<(?:\w+:)?(p|text)\b[^>]*>(.*?)</(?:\w+:)?\1>", re.DOTALL)
_SYNC = re.compile(r"<SYNC\b[^>]*>(.*?)(?=<SYNC\b|</BODY|\Z)", re.DOTALL | re.IGNORECASE)
_FRAMES = re.compile(r"\{\d+\}\{\d*\}(?:\{[^{}]*\})*(.*)")
_BREAK = re.compile(r"<(?:\w+:)?br\b[^>]*>")
_LYRICS_TAGS = re.compile(r"\[[^\[\]]*\]")


def cue_entries(source: Source, _: object, file_id: str) -> Iterator[TextEntry]:
    """Yield the text of a file of SubRip, WebVTT or SBV."""
    lines = [line for _, line in text_lines(source)]
    is_vtt = bool(lines) and lines[0].startswith("WEBVTT")
    cues = [cue.lines for cue in read_cues(lines, is_vtt)]
    texts = [text for text in (" ".join(cue).strip() for cue in cues) if text]
    if is_vtt and any(map(_WORD_TIME.search, texts)):  # YouTube's, in which each line stays for the next cue
        plain = [MARKUP.sub("", line).strip() for cue in cues for line in cue]
        texts = [line for before, line in pairwise(["", *filter(None, plain)]) if line != before]
    elif len(texts) > 1 and all(map(_SPEAKER.match, texts)):
        texts = [_SPEAKER.sub("", text, count=1) for text in texts]
    yield _entry(file_id, texts, has_entities=is_vtt)


def dialogue_entries(source: Source, _: object, file_id: str) -> Iterator[TextEntry]:
    """Yield the text of a file of SubStation Alpha."""
    texts, is_events, num_fields = list[str](), False, _FIELDS_OF_DIALOGUE
    for _, line in text_lines(source):
        name, _, value = line.partition(":")
        is_events = line.strip().lower() == "[events]" if line.startswith("[") else is_events
        if is_events and name == "Format":
            num_fields = value.count(",") + 1
        elif name == "Dialogue":
            texts.append(_DIALOGUE_MARKUP.sub(" ", value.split(",", num_fields - 1)[-1]))
    yield _entry(file_id, texts)


def ttml_entries(source: Source, _: object, file_id: str) -> Iterator[TextEntry]:
    """Yield the text of a file of TTML, or of YouTube's XML. No XML is parsed, so that no entity is expanded."""
    document = "\n".join(line for _, line in text_lines(source))
    paragraphs = (_BREAK.sub(" ", paragraph) for _, paragraph in _PARAGRAPH.findall(document))
    yield _entry(file_id, paragraphs, has_entities=True)


def sami_entries(source: Source, _: object, file_id: str) -> Iterator[TextEntry]:
    """Yield the text of a file of SAMI, whose elements have no ends."""
    document = "\n".join(line for _, line in text_lines(source))
    yield _entry(file_id, (_BREAK.sub(" ", cue) for cue in _SYNC.findall(document)), has_entities=True)


def frame_entries(source: Source, _: object, file_id: str) -> Iterator[TextEntry]:
    """Yield the text of a file of MicroDVD: `{0}{25}a line|another line`."""
    cues = (_FRAMES.fullmatch(line) for _, line in text_lines(source))
    yield _entry(file_id, (cue[1].replace("|", " ") for cue in cues if cue))


def annotation_entries(source: Source, _: object, file_id: str) -> Iterator[TextEntry]:
    """Yield the text of a transcript with annotations; see manifest.annotations."""
    document = "\n".join(line for _, line in text_lines(source))
    kind = os.path.splitext(source.name.removesuffix(".gz"))[1].lower()
    yield TextEntry(0, file_id, ANNOTATIONS[kind](document), is_file=True)


def lyrics_entries(source: Source, _: object, file_id: str) -> Iterator[TextEntry]:
    """Yield the text of a file of lyrics with times: `[00:12.00]the words`."""
    yield _entry(file_id, (_LYRICS_TAGS.sub("", line) for _, line in text_lines(source)))


def _entry(file_id: str, texts: Iterable[str], has_entities: bool = False) -> TextEntry:
    text = " ".join(MARKUP.sub("", text) for text in texts)
    words = (html.unescape(text) if has_entities else text).split()
    return TextEntry(0, file_id, " ".join(words), is_file=True)
