"""Read subtitles as one text, without numbers, times and markup: SubRip, WebVTT, SBV, SubStation, TTML, SAMI, MicroDVD,
and lyrics.

    1
    00:00:00,120 --> 00:00:02,040      →   He has known her all her life.
    <i>He has known her</i>

    2
    00:00:02,040 --> 00:00:04,480
    all her life.

The lines that Whisper's programs print, `[00:00.000 --> 00:02.040]  He has known her`, are read as SubRip.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from voxbatch.analysis.readers.entry import Entry, text_lines
from voxbatch.manifest.annotations import ANNOTATIONS
from voxbatch.manifest.source import Source

_TIME = r"(?:\d+:)?\d+:\d+(?:[.,]\d+)?"
_SBV_TIME = r"(?:\d+:)?\d+:\d+\.\d+"
CUE_TIMES = re.compile(
    rf"\s*(?:\[{_TIME}\s*-->\s*{_TIME}\](?P<text>.*)|{_TIME}\s*-->\s*{_TIME}.*|{_SBV_TIME}\s*,\s*{_SBV_TIME}.*)"
)
"""A line with the times of a cue. In brackets, the text follows on the same line; else the settings of WebVTT do."""
_MARKUP = re.compile(r"<[^<>]*>|\{\\[^{}]*\}|\u2060")
"""Tags, the overrides of SubStation, and WORD JOINER, with which voxbatch's own subtitles hide markup."""
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


def cue_entries(source: Source, _: object, file_id: str) -> Iterator[Entry]:
    """Yield the text of a file of SubRip, WebVTT or SBV."""
    lines = [line for _, line in text_lines(source)]
    is_vtt = bool(lines) and lines[0].startswith("WEBVTT")
    cues = [[*_cue_text(paragraph, is_vtt)] for paragraph in _paragraphs(lines)]
    texts = [text for text in (" ".join(cue).strip() for cue in cues) if text]
    if is_vtt and any(map(_WORD_TIME.search, texts)):  # YouTube's, in which each line stays for the next cue
        plain = [_MARKUP.sub("", line).strip() for cue in cues for line in cue]
        texts = [line for before, line in pairwise(["", *filter(None, plain)]) if line != before]
    elif len(texts) > 1 and all(map(_SPEAKER.match, texts)):
        texts = [_SPEAKER.sub("", text, count=1) for text in texts]
    yield _entry(file_id, texts, has_entities=is_vtt)


def _paragraphs(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the runs of lines between blank lines."""
    paragraph: list[str] = []
    for line in (*lines, ""):
        if line.strip():
            paragraph.append(line)
        elif paragraph:
            yield paragraph
            paragraph = []


def _cue_text(paragraph: list[str], is_vtt: bool) -> Iterator[str]:
    """Yield the lines of text of a paragraph. Without times it is a comment or a style of WebVTT; in SubRip it is the
    number of a cue, or text after a blank line."""
    times = [number for number, line in enumerate(paragraph) if CUE_TIMES.fullmatch(line)]
    for number, line in enumerate(paragraph):
        if match := CUE_TIMES.fullmatch(line):
            yield match["text"] or ""
        elif times and number < times[0]:
            continue  # the number or the name of the cue
        elif line.strip().isdecimal() and (number + 1 in times or len(paragraph) == 1):
            continue
        elif times or not is_vtt:
            yield line


def dialogue_entries(source: Source, _: object, file_id: str) -> Iterator[Entry]:
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


def ttml_entries(source: Source, _: object, file_id: str) -> Iterator[Entry]:
    """Yield the text of a file of TTML, or of YouTube's XML. No XML is parsed, so that no entity is expanded."""
    document = "\n".join(line for _, line in text_lines(source))
    paragraphs = (_BREAK.sub(" ", paragraph) for _, paragraph in _PARAGRAPH.findall(document))
    yield _entry(file_id, paragraphs, has_entities=True)


def sami_entries(source: Source, _: object, file_id: str) -> Iterator[Entry]:
    """Yield the text of a file of SAMI, whose elements have no ends."""
    document = "\n".join(line for _, line in text_lines(source))
    yield _entry(file_id, (_BREAK.sub(" ", cue) for cue in _SYNC.findall(document)), has_entities=True)


def frame_entries(source: Source, _: object, file_id: str) -> Iterator[Entry]:
    """Yield the text of a file of MicroDVD: `{0}{25}a line|another line`."""
    cues = (_FRAMES.fullmatch(line) for _, line in text_lines(source))
    yield _entry(file_id, (cue[1].replace("|", " ") for cue in cues if cue))


def annotation_entries(source: Source, _: object, file_id: str) -> Iterator[Entry]:
    """Yield the text of a transcript with annotations; see manifest.annotations."""
    document = "\n".join(line for _, line in text_lines(source))
    kind = os.path.splitext(source.name.removesuffix(".gz"))[1].lower()
    yield Entry(0, file_id, ANNOTATIONS[kind](document), is_file=True)


def lyrics_entries(source: Source, _: object, file_id: str) -> Iterator[Entry]:
    """Yield the text of a file of lyrics with times: `[00:12.00]the words`."""
    yield _entry(file_id, (_LYRICS_TAGS.sub("", line) for _, line in text_lines(source)))


def _entry(file_id: str, texts: Iterable[str], has_entities: bool = False) -> Entry:
    text = " ".join(_MARKUP.sub("", text) for text in texts)
    words = (html.unescape(text) if has_entities else text).split()
    return Entry(0, file_id, " ".join(words), is_file=True)
