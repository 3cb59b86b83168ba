"""Write plain text; and words and segments with their times for programs that score or annotate: CTM, TSV and Praat's
TextGrid."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from voxbatch.formats import percent_encode
from voxbatch.formats.document import Document, without_control_characters
from voxbatch.records import Segment, Word

_READ_ALOUD = frozenset("%&#")
"""Characters that are words, although Unicode's categories call them punctuation."""


def txt(document: Document) -> str:
    """Return the transcript with one segment per line, or on one line if there are no segments. The first line of
    a speaker begins with the label: "Speaker 1: Hello."""
    segments = document.segments or (Segment(document.transcript.text, 0.0, 0.0),)
    speakers = [None, *(segment.speaker for segment in segments)]
    texts = (
        segment.text if segment.speaker in (None, before) else f"{segment.speaker}: {segment.text}"
        for segment, before in zip(segments, speakers, strict=False)
    )
    return "".join(_one_line(text) + "\n" for text in texts)


def ctm(document: Document) -> str:
    """Return NIST CTM as sclite reads it, one word per line: file, channel, start, duration, word, and the confidence
    if the engine gives one.

    The file is the recording's name without its extension. Punctuation around and between words is left out, because
    sclite would count it as a part of the word. Spaces separate the fields, so characters that no field may hold are
    percent-encoded in the name, and "_" replaces a space within a word. The text is empty if the engine gives no word
    times.
    """
    name, lines = _file_field(document), []
    for word in document.transcript.words:
        if text := "_".join(_without_punctuation(without_control_characters(word.text)).split()):
            confidence = "" if word.confidence is None else f" {word.confidence:.3f}"
            duration = max(0.0, word.end - word.start)
            lines.append(f"{name} 1 {word.start:.3f} {duration:.3f} {text}{confidence}\n")
    return "".join(lines)


def _file_field(document: Document) -> str:
    return _field(document.name or document.item_id)


def _field(name: str) -> str:
    """Return a name without characters that a field of NIST's formats may not hold."""
    return re.sub(r"^;|[\s%\x00-\x20\x7f-\x9f\ud800-\udfff]", percent_encode, name)


def _one_line(text: str) -> str:
    return " ".join(without_control_characters(text).split())


def _without_punctuation(text: str) -> str:
    """Return the words of a text: "(New York!)" → "New York", "don’t" → "don't", "3.5%" → "3.5%", "–" → "".

    A mark between two letters or digits stays, unless it is a bracket or a quote.
    """
    text = text.replace("’", "'")
    if not any(char.isalnum() for char in text):
        return ""
    kept = ""
    for before, char, after in zip(f" {text}", text, f"{text} "[1:], strict=False):
        category = unicodedata.category(char)
        is_inner = before.isalnum() and after.isalnum() and category in {"Po", "Pd", "Pc"}
        kept += char if category[0] != "P" or is_inner or char in _READ_ALOUD else ""
    return kept


def tsv(document: Document) -> str:
    """Return the table that OpenAI's Whisper writes: a header, then start and end in milliseconds and the text of each
    segment, divided by tabs. If speakers are told apart, they are a fourth column."""
    rows = [("start", "end", "text", "speaker")]
    rows += [
        (str(round(s.start * 1000)), str(round(s.end * 1000)), _one_line(s.text), _one_line(s.speaker or ""))
        for s in document.segments
    ]
    columns = 4 if any(segment.speaker for segment in document.segments) else 3
    return "".join("\t".join(row[:columns]) + "\n" for row in rows)


def rttm(document: Document) -> str:
    """Return NIST RTTM, one line for each segment with a speaker: its file, start, duration and speaker.

    The names of the file and of the speaker are written as in `ctm`, with "_" for a space in a speaker's label. The
    text is empty if speakers are not told apart.
    """
    return "".join(
        f"SPEAKER {_file_field(document)} 1 {segment.start:.3f} {max(0.0, segment.end - segment.start):.3f} <NA> <NA> "
        f"{_field(segment.speaker.replace(' ', '_'))} <NA> <NA>\n"
        for segment in document.segments
        if segment.speaker
    )


def textgrid(document: Document) -> str:
    """Return Praat's TextGrid with the interval tiers "words" and "segments". If speakers are told apart, each speaker
    has two tiers, which are named as by the Montreal Forced Aligner: "Speaker 1 - words" and "Speaker 1".

    The intervals of a tier partition the time from 0 to the end of the recording, so there are empty ones. Praat admits
    neither overlaps nor intervals without length: a word that begins before its predecessor ends begins at that end,
    and lasts 1 ms at least.
    """
    words: Sequence[Word | Segment] = document.transcript.words
    segments: Sequence[Word | Segment] = document.segments
    tiers = {}
    for speaker in dict.fromkeys(timed.speaker for timed in (*segments, *words)) or (None,):
        names = ("words", "segments") if speaker is None else (f"{_one_line(speaker)} - words", _one_line(speaker))
        for name, timed in zip(names, (words, segments), strict=True):
            tiers[name] = list(_spans(text for text in timed if text.speaker == speaker))
    ends = [end for spans in tiers.values() for _, end, _ in spans]
    total = max([round(document.transcript.audio_duration * 1000), 1, *ends])
    lines = [
        'File type = "ooTextFile"', 'Object class = "TextGrid"', "", "xmin = 0", f"xmax = {total / 1000}",
        "tiers? <exists>", f"size = {len(tiers)}", "item []:",
    ]  # fmt: skip
    for number, (name, spans) in enumerate(tiers.items(), 1):
        intervals = list(_partition(spans, total))
        lines += [
            f"    item [{number}]:", '        class = "IntervalTier"', f'        name = "{_quoted(name)}"',
            "        xmin = 0",
            f"        xmax = {total / 1000}", f"        intervals: size = {len(intervals)}",
        ]  # fmt: skip
        for i, (start, end, text) in enumerate(intervals, 1):
            lines += [
                f"        intervals [{i}]:", f"            xmin = {start / 1000}", f"            xmax = {end / 1000}",
                f'            text = "{_quoted(text)}"',
            ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return text.replace('"', '""')


def _spans(timed: Iterable[Word | Segment]) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, text) in milliseconds, in order, without overlaps, each 1 ms at least."""
    earliest = 0
    for timed_text in timed:
        if text := _one_line(timed_text.text):
            start = max(earliest, round(timed_text.start * 1000))
            earliest = max(start + 1, round(timed_text.end * 1000))
            yield start, earliest, text


def _partition(spans: Sequence[tuple[int, int, str]], total: int) -> Iterator[tuple[int, int, str]]:
    """Yield the spans, and an empty one for each gap between them."""
    for before, after in pairwise([(0, 0, ""), *spans, (total, total, "")]):
        if before[2]:
            yield before
        if before[1] < after[0]:
            yield before[1], after[0], ""
