"""Read the files of NIST's scoring tools and of Kaldi: trn, ctm, stm and `text`.

    trn     the cat sat (utt-1)
    text    utt-1 the cat sat
    ctm     talk 1 0.50 0.30 cat 0.98                      file, channel, start, duration, word, confidence
    stm     talk 1 ann 0.00 2.50 <o,f0> the cat sat        file, channel, speaker, start, end, labels, text

Lines that begin with ;; are comments. The words of a ctm, or the segments of a stm, that belong to one channel of one
file are one entry. Its id is the file's name, with "#" and the channel if the file has several.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TypeVar

from voxbatch.analysis.readers.entry import TextEntry, bad_line, text_lines
from voxbatch.manifest.json_line import quote
from voxbatch.manifest.source import Source
from voxbatch.scoring.word_times import TimedWord
from voxbatch.sources.annotations import IGNORED_SEGMENT, without_labels
from voxbatch.sources.transcripts import TimedText

_COMMENT = ";;"
_T = TypeVar("_T")
_TRN = re.compile(r"(.*?)\s*\(([^()\s]+)\)\s*")
_ALTERNATIVES = re.compile(r"\{[^{}]*/[^{}]*\}|<ALT", re.IGNORECASE)


def trn_entries(source: Source, *ignored: object) -> Iterator[TextEntry]:
    """Yield the entries of a trn: the words, then the id in parentheses."""
    for number, line in _content(source):
        match = _TRN.fullmatch(line)
        if match is None:
            reason = f"is {quote(line)} and does not end in an id in parentheses; write: the words (the-id)"
            raise bad_line(source.name, number, reason)
        yield TextEntry(number, match[2], _plain(source, number, match[1]))


def kaldi_entries(source: Source, *ignored: object) -> Iterator[TextEntry]:
    """Yield the entries of Kaldi's `text`: the id, then the words."""
    for number, line in _content(source):
        utterance, _, text = line.strip().replace("\t", " ").partition(" ")
        yield TextEntry(number, utterance, text.strip())


def line_entries(source: Source, *ignored: object) -> Iterator[TextEntry]:
    """Yield the lines of a file without ids."""
    for number, text in text_lines(source):
        yield TextEntry(number, f"line {number}", text)


def ctm_entries(source: Source, *ignored: object) -> Iterator[TextEntry]:
    """Yield one entry for each channel of each file of a ctm. Its words are in the order of their starts."""
    channels: dict[tuple[str, str], tuple[int, list[TimedWord]]] = {}
    for number, line in _content(source):
        fields = line.split()
        if len(fields) < 5:
            reason = f"has {len(fields)} fields; a ctm has: file, channel, start, duration, word, and the confidence"
            raise bad_line(source.name, number, reason)
        word = _plain(source, number, fields[4])
        start, duration = _seconds(source, number, fields[2]), _seconds(source, number, fields[3])
        _, words = channels.setdefault((fields[0], fields[1]), (number, []))
        words.append(TimedWord(word, start, start + duration))
    for name, (number, words) in _named(channels).items():
        words.sort(key=lambda word: word.start)
        yield TextEntry(number, name, " ".join(word.text for word in words), words=tuple(words))


def stm_entries(source: Source, *ignored: object) -> Iterator[TextEntry]:
    """Yield one entry for each channel of each file of an stm. Its text leaves out ignored segments."""
    channels: dict[tuple[str, str], tuple[int, list[TimedText]]] = {}
    for number, line in _content(source):
        fields = line.split(None, 5)
        if len(fields) < 5:
            reason = f"has {len(fields)} fields; an stm has: file, channel, speaker, start, end, labels, and the text"
            raise bad_line(source.name, number, reason)
        start, end = _seconds(source, number, fields[3]), _seconds(source, number, fields[4])
        text = without_labels(fields[5].strip()) if len(fields) > 5 else ""
        scored = IGNORED_SEGMENT not in text.casefold()
        _, segments = channels.setdefault((fields[0], fields[1]), (number, []))
        segments.append(TimedText(_plain(source, number, text.strip()), start, end, fields[2], scored))
    for name, (number, segments) in _named(channels).items():
        segments.sort(key=lambda segment: segment.start)
        text = " ".join(segment.text for segment in segments if segment.scored)
        yield TextEntry(number, name, text, segments=tuple(segments), by_segment=True)


def _content(source: Source) -> Iterator[tuple[int, str]]:
    """Yield the lines that are neither blank nor a comment."""
    for number, line in text_lines(source):
        if line.strip() and not line.startswith(_COMMENT):
            yield number, line


def _plain(source: Source, number: int, text: str) -> str:
    if alternatives := _ALTERNATIVES.search(text):
        reason = (
            f"holds the alternatives {quote(alternatives[0])}, among which score does not choose; write one of them"
        )
        raise bad_line(source.name, number, reason)
    return text


def _seconds(source: Source, number: int, field: str) -> float:
    try:
        value = float(field)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise bad_line(source.name, number, f"has {quote(field)} where a time in seconds stands; correct the line")
    return value


def _named(channels: dict[tuple[str, str], tuple[int, list[_T]]]) -> dict[str, tuple[int, list[_T]]]:
    """Return the channels by id: the file's name, with the channel if the file has several."""
    several: dict[str, int] = {}
    for file, _ in channels:
        several[file] = several.get(file, 0) + 1
    return {
        f"{file}#{channel}" if several[file] > 1 else file: content for (file, channel), content in channels.items()
    }
