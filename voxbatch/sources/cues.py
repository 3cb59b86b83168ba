"""Read the cues of SubRip, WebVTT and SBV: lines of text with their times.

    1
    00:00:00,120 --> 00:00:02,040      →   CueText(0.12, 2.04, ["<i>He has known her</i>"])
    <i>He has known her</i>

The lines that Whisper's programs print, `[00:00.000 --> 00:02.040]  He has known her`, are read as SubRip.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

_TIME = r"(?:\d+:)?\d+:\d+(?:[.,]\d+)?"
_SBV_TIME = r"(?:\d+:)?\d+:\d+\.\d+"
CUE_TIMES = re.compile(
    rf"\s*(?:\[{_TIME}\s*-->\s*{_TIME}\](?P<text>.*)|{_TIME}\s*-->\s*{_TIME}.*|{_SBV_TIME}\s*,\s*{_SBV_TIME}.*)"
)
"""A line with the times of a cue. In brackets, the text follows on the same line; else the settings of WebVTT do."""
TIMES_ALONE = re.compile(rf"\s*\[?{_TIME}\s*-->\s*{_TIME}(?:[\]\s].*)?")
"""The times of a cue of SubRip or WebVTT with nothing stuck to them: not "0:01 --> 0:02x"."""
MARKUP = re.compile(r"</?[^\W\d_][^<>]*>|<[\d:.]+>|\{\\[^{}]*\}|\u2060")
"""Tags, times of words, the overrides of SubStation, and WORD JOINER, with which voxbatch's own subtitles hide markup.
"5 < 6 and 7 > 4" has none."""


@dataclass(frozen=True, slots=True)
class CueText:
    """The lines of text that subtitles show at a time."""

    start: float | None
    """Seconds. None for text of SubRip before the first times."""
    end: float | None
    lines: list[str]
    """Lines with their markup."""


def read_cues(lines: Iterable[str], is_vtt: bool) -> Iterator[CueText]:
    """Yield the cues of a file by its lines. A paragraph without times is a comment or a style of WebVTT; in SubRip it
    is the number of a cue, or text after a blank line."""
    cue = CueText(None, None, [])
    for paragraph in _paragraphs(lines):
        matches = [CUE_TIMES.fullmatch(line) for line in paragraph]
        begin = next((index for index, match in enumerate(matches) if match), None)
        if begin is None and (is_vtt or (len(paragraph) == 1 and paragraph[0].strip().isdecimal())):
            continue
        for index, line in enumerate(paragraph[begin:], begin or 0):  # without the number or the name of the cue
            if match := matches[index]:
                yield cue
                start, end = map(_seconds, re.findall(_TIME, line)[:2])
                cue = CueText(start, end, [match["text"] or ""])
            elif not (line.strip().isdecimal() and any(matches[index + 1 : index + 2])):
                cue.lines.append(line)
    yield cue


def _paragraphs(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the runs of lines between blank lines."""
    for is_blank, paragraph in groupby(lines, lambda line: not line.strip()):
        if not is_blank:
            yield [*paragraph]


def _seconds(time: str) -> float:
    """Return the seconds of a time: "1:00:02,500" → 3602.5."""
    hours, minutes, seconds = f"0:{time}".replace(",", ".").split(":")[-3:]
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
