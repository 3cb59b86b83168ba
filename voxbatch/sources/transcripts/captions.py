"""Read cues (SubRip, WebVTT and SBV), and simpler files with a time before each text: lyrics (LRC), and labels as
Audacity exports them.

    00:00:00,120 --> 00:00:02,040
    <v Ann>He has known her</v>            →   TimedText("He has known her", 0.12, 2.04, "Ann")

    [00:12.00][00:40.00]La la              →   TimedText("La la", 12, 12), TimedText("La la", 40, 40)
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from voxbatch.sources.cues import MARKUP, CueText, read_cues
from voxbatch.sources.transcripts.timed_text import TimedText, split_lines

_RUBY = re.compile(r"<(r[tp])\b[^<>]*>.*?(?:</\1>|(?=<r[tp]\b|</ruby>|\Z))", re.DOTALL)
"""How characters are read, beside them. The end of its element may be left out."""
_HARD_SPACE = re.compile(r"\\[hN]")
"""Spaces and line ends of SubStation, which programs leave in SubRip that they make of it."""
_VOICE = re.compile(r"<v(?:\.[^\s<>]*)?\s+([^<>]+)>")
_HEADS = ("NOTE", "STYLE", "REGION", "X-TIMESTAMP-MAP")
"""Begins of the paragraphs of WebVTT that are no cues."""
_WORD_TIME = re.compile(r"<(?:\d+:)?\d+:\d+\.\d+>")
_NAME = re.compile(r"([^\W_+(@#][^:：?!;\"]{0,59}|[+(@#][^:：?!;\"]{1,59})(?::\s+|：\s*)(?=\S)")
"""The name of a speaker before a text, as Zoom writes it: "Dr. May Wu: ", "Smith, John: "."""
_MOST_WORDS = 6
"""Words of a name."""
_CLAUSE = re.compile(r"[,.]\s+[^\W\d_]")
_LABEL = re.compile(r"((?:speaker|spk|sprecher|locuteur|hablante|falante)[ _-]?\d+)\s*:\s+(?=\S)", re.IGNORECASE)
"""The label of a speaker whom a program told apart."""
_ROLLED, _GROWN = 0.8, 1 / 3
"""Shares of cues that begin with the last line of the one before, and of those in which another line follows, from
which captions roll: each line is shown again above the next one."""
_FEWEST_ROLLED = 3
_LABEL_LINE = re.compile(r"(\d+(?:[.,]\d+)?)\t(\d+(?:[.,]\d+)?)(?:\t(.*))?")
_FREQUENCIES = re.compile(r"\\\t.*")
"""The line with the frequencies of a label of Audacity."""
_TABLE_HEADER = "start\tend\ttext"
_LYRICS_TIME = re.compile(r"\[(\d+):(\d+(?:[.:]\d+)?)\]")
_LYRICS_TAGS = re.compile(r"\[[^\[\]]*\]|<\d+:\d+(?:[.:]\d+)?>")


def cue_texts(document: str) -> list[TimedText]:
    """Return the cues of SubRip, WebVTT or SBV, or the lines that Whisper's programs print.

    Raises:
        ValueError: a file of WebVTT has text, and no cue.
    """
    lines = split_lines(document)
    is_vtt = lines[0].startswith("WEBVTT")
    cues = sorted(read_cues(lines, is_vtt), key=lambda cue: cue.start or 0.0)
    if is_vtt and len(cues) == 1 and any(_is_text(part) for part in re.split(r"\n\s*\n", "\n".join(lines))[1:]):
        raise ValueError("it has text and no times; save the subtitles again")
    written = [line for cue in cues for line in cue.lines]
    # YouTube's captions roll, and have times of words. voxbatch's own have these, too, and voices.
    has_word_times = is_vtt and any(map(_WORD_TIME.search, written)) and not any(map(_VOICE.search, written))
    lines_of_cues = [[plain for line in cue.lines if (plain := _plain(line, is_vtt))] for cue in cues]
    if has_word_times or _rolls([*filter(None, lines_of_cues)]):
        return list(_unrolled(cues, lines_of_cues))
    return _without_names([text for cue in cues for text in _voices(cue, is_vtt)])


def _is_text(paragraph: str) -> bool:
    return bool(paragraph.strip()) and not paragraph.lstrip().startswith(_HEADS)


def _voices(cue: CueText, is_vtt: bool) -> Iterator[TimedText]:
    """Yield the text of each voice of a cue."""
    parts = ["", *_VOICE.split("\n".join(cue.lines))]
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        if plain := _plain(text, is_vtt):
            yield TimedText(plain, cue.start or 0.0, cue.end or 0.0, html.unescape(name).strip())


def _plain(text: str, is_vtt: bool) -> str:
    text = MARKUP.sub("", _HARD_SPACE.sub(" ", _RUBY.sub("", text)))
    return " ".join((html.unescape(text) if is_vtt else text).split())


def _rolls(texts: Sequence[Sequence[str]]) -> bool:
    """Return whether each line is shown in two cues, as in captions that roll."""
    rolled = [(before, lines) for before, lines in pairwise(texts) if before[-1] == lines[0]]
    grown = sum(len(lines) > 1 and lines[-1] != lines[0] for _, lines in rolled)
    return len(rolled) >= max(_FEWEST_ROLLED, _ROLLED * (len(texts) - 1)) and grown >= _GROWN * len(rolled)


def _unrolled(cues: Sequence[CueText], lines_of_cues: Sequence[Sequence[str]]) -> Iterator[TimedText]:
    """Yield each line once, in the first of the cues that have it one after the other."""
    before = ""
    for cue, lines in zip(cues, lines_of_cues, strict=True):
        for line in lines:
            if line != before:
                yield TimedText(line, cue.start or 0.0, cue.end or 0.0)
            before = line


def _without_names(texts: list[TimedText]) -> list[TimedText]:
    """Return the texts without the names of the speakers before them. A text without a name is of the speaker before.

    Names are told by all texts, or by those where the speaker changes; the labels by which programs tell speakers apart
    are known.
    """
    names = [_name(text.text) for text in texts]
    labels = [name[1] for name in names if name]
    change = names[:1] != [None] and all(label != following for label, following in pairwise(labels))
    has_names = len(texts) > 1 and (all(names) or (change and len(labels) > len({*labels}) > 1))
    speaker, plain = "", []
    for text, name in zip(texts, names, strict=True):
        label = name if has_names else _LABEL.match(text.text)
        speaker = label[1].strip() if label else speaker
        rest = text.text[label.end() :] if label else text.text
        plain.append(replace(text, text=rest, speaker=text.speaker or speaker))
    return plain


def _name(text: str) -> re.Match[str] | None:
    """Return the name before a text. After a comma or a full stop, a name goes on with a capital."""
    match = _NAME.match(text)
    if match is None or len(match[1].split()) > _MOST_WORDS:
        return None
    return None if any(clause[0][-1].islower() for clause in _CLAUSE.finditer(match[1])) else match


def label_texts(document: str) -> list[TimedText]:
    """Return the labels of a track that Audacity exported: lines of start, end and text, with a tab between two of
    them; or the rows of the table that Whisper writes, in milliseconds.

    Raises:
        ValueError: a line is of another kind.
    """
    lines = [line for line in split_lines(document) if line.strip() and not _FREQUENCIES.fullmatch(line)]
    unit = 0.001 if lines and lines[0] == _TABLE_HEADER else 1.0
    texts = []
    for line in lines[unit < 1 :]:
        label = _LABEL_LINE.fullmatch(line)
        if label is None:
            raise ValueError(f"it has {line[:40]!r} among lines of start, end and text")
        start, end = (float(label[number].replace(",", ".")) * unit for number in (1, 2))
        texts.append(TimedText(label[3] or "", start, end))
    return texts


def lyrics_texts(document: str) -> list[TimedText]:
    """Return the lines of lyrics. A line with several times is sung at each of them; one without has that of the line
    before."""
    texts, times = list[TimedText](), [0.0]
    for line in split_lines(document):
        marks = _LYRICS_TIME.findall(line)
        times = [int(minutes) * 60 + float(seconds.replace(":", ".")) for minutes, seconds in marks] or times[-1:]
        texts += [TimedText(_LYRICS_TAGS.sub("", line), time, time) for time in times]
    return texts
