"""Write words and segments with their times for programs that score or annotate: CTM, TSV and Praat's TextGrid."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from voxbatch.formats.cues import without_control_characters
from voxbatch.formats.document import Document
from voxbatch.formats.file_names import percent_encode
from voxbatch.records import Segment, Word

_READ_ALOUD = frozenset("%&#")
"""Characters that are words, although Unicode's categories call them punctuation."""


def ctm(document: Document) -> str:
    """Return NIST CTM as sclite reads it, one word per line: file, channel, start, duration, word, and the confidence
    if the engine gives one.

    The file is the recording's name without its extension. Punctuation around and between words is left out, because
    sclite would count it as a part of the word. Spaces separate the fields, so characters that no field may hold are
    percent-encoded in the name, and "_" replaces a space within a word. The text is empty if the engine gives no word
    times.
    """
    name = re.sub(r"^;|[\s%\x00-\x20\x7f-\x9f\ud800-\udfff]", percent_encode, document.name or document.item_id)
    lines = []
    for word in document.transcript.words:
        if text := "_".join(_without_punctuation(without_control_characters(word.text)).split()):
            confidence = "" if word.confidence is None else f" {word.confidence:.3f}"
            duration = max(0.0, word.end - word.start)
            lines.append(f"{name} 1 {word.start:.3f} {duration:.3f} {text}{confidence}\n")
    return "".join(lines)


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
    segment, divided by tabs."""
    lines = [
        f"{round(s.start * 1000)}\t{round(s.end * 1000)}\t{' '.join(without_control_characters(s.text).split())}\n"
        for s in document.segments
    ]
    return "".join(["start\tend\ttext\n", *lines])


def textgrid(document: Document) -> str:
    """Return Praat's TextGrid with the interval tiers "words" and "segments".

    The intervals of a tier partition the time from 0 to the end of the recording, so there are empty ones. Praat admits
    neither overlaps nor intervals without length: a word that begins before its predecessor ends begins at that end,
    and lasts 1 ms at least.
    """
    tiers = {name: list(_spans(timed)) for name, timed in _tiers(document).items()}
    ends = [end for spans in tiers.values() for _, end, _ in spans]
    total = max([round(document.transcript.audio_duration * 1000), 1, *ends])
    lines = [
        'File type = "ooTextFile"', 'Object class = "TextGrid"', "", "xmin = 0", f"xmax = {total / 1000}",
        "tiers? <exists>", f"size = {len(tiers)}", "item []:",
    ]  # fmt: skip
    for number, (name, spans) in enumerate(tiers.items(), 1):
        intervals = list(_partition(spans, total))
        lines += [
            f"    item [{number}]:", '        class = "IntervalTier"', f'        name = "{name}"', "        xmin = 0",
            f"        xmax = {total / 1000}", f"        intervals: size = {len(intervals)}",
        ]  # fmt: skip
        for i, (start, end, text) in enumerate(intervals, 1):
            quoted = text.replace('"', '""')
            lines += [
                f"        intervals [{i}]:", f"            xmin = {start / 1000}", f"            xmax = {end / 1000}",
                f'            text = "{quoted}"',
            ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _tiers(document: Document) -> dict[str, Sequence[Word] | Sequence[Segment]]:
    return {"words": document.transcript.words, "segments": document.segments}


def _spans(timed: Iterable[Word | Segment]) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, text) in milliseconds, in order, without overlaps, each 1 ms at least."""
    earliest = 0
    for each in timed:
        text = " ".join(without_control_characters(each.text).split())
        if text:
            start = max(earliest, round(each.start * 1000))
            earliest = max(start + 1, round(each.end * 1000))
            yield start, earliest, text


def _partition(spans: Sequence[tuple[int, int, str]], total: int) -> Iterator[tuple[int, int, str]]:
    """Yield the spans, and an empty one for each gap between them."""
    for before, after in pairwise([(0, 0, ""), *spans, (total, total, "")]):
        if before[2]:
            yield before
        if before[1] < after[0]:
            yield before[1], after[0], ""
