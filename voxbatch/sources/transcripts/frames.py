"""Read the kinds of subtitles that share the extension .sub: MicroDVD, SubViewer 1 and 2, and MPL2.

{25}{50}{y:i}He has|known her              frames
00:00:01.00,00:00:02.00 / He has[br]known her
[00:00:01] / He has|known her
[10][20]He has|known her                   tenths of a second
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from voxbatch.sources.cues import read_cues
from voxbatch.sources.transcripts.timed_text import TimedText, split_lines

_DEFAULT_RATE = 25.0
"""Frames per second of a file that does not name them. Only the times depend on them, not the order."""
_MICRODVD = re.compile(r"\{(\d+)\}\{(\d*)\}(.*)")
_MPL2 = re.compile(r"\[(\d+)\]\[(\d*)\](.*)")
_SUBVIEWER_1 = re.compile(r"\[(\d+):(\d+):(\d+)\]")
_SUBVIEWER_2 = re.compile(r"\d+:\d+:\d+\.\d+\s*,\s*\d+:\d+:\d+\.\d+")
_RATE = re.compile(r"\d{1,3}(?:[.,]\d+)?")
_BREAK = re.compile(r"\[br\]", re.IGNORECASE)
_STYLE = re.compile(r"\{[^{}]*\}|(?<![^|])/")
"""Controls of MicroDVD, and the slash before a line in italics."""


def sub_texts(document: str) -> list[TimedText]:
    """Return the subtitles of a .sub.

    Raises:
        ValueError: it is of none of the four kinds.
    """
    lines = [line.strip() for line in split_lines(document)]
    for pattern, read in _READERS.items():
        if any(map(pattern.fullmatch, lines)):
            return list(read(lines))
    if any(lines):
        raise ValueError("it is no MicroDVD, SubViewer or MPL2; save the subtitles as SubRip (.srt)")
    return []


def _microdvd(lines: list[str]) -> Iterator[TimedText]:
    """Yield the texts of MicroDVD. The first one may be the number of frames per second."""
    rate = _DEFAULT_RATE
    cues = [cue for line in lines if (cue := _MICRODVD.fullmatch(line))]
    if _RATE.fullmatch(cues[0][3].strip()) and cues[0][1] in "01" and cues[0][2] in ("", "0", "1"):
        rate = float(cues[0][3].replace(",", ".")) or _DEFAULT_RATE
        del cues[0]
    for cue in cues:
        start, end = (float(frame or cue[1]) / rate for frame in cue.group(1, 2))
        yield TimedText(_STYLE.sub("", cue[3]).replace("|", " "), start, end)


def _mpl2(lines: list[str]) -> Iterator[TimedText]:
    for cue in filter(None, map(_MPL2.fullmatch, lines)):
        start, end = (float(tenths or cue[1]) / 10 for tenths in cue.group(1, 2))
        yield TimedText(_STYLE.sub("", cue[3]).replace("|", " "), start, end)


def _subviewer_1(lines: list[str]) -> Iterator[TimedText]:
    start: float | None = None
    for line in lines:
        if time := _SUBVIEWER_1.fullmatch(line):
            hours, minutes, seconds = map(int, time.groups())
            start = hours * 3600 + minutes * 60 + seconds
        elif start is not None and not line.startswith("["):
            yield TimedText(line.replace("|", " "), start, start)


def _subviewer_2(lines: list[str]) -> Iterator[TimedText]:
    for cue in read_cues(lines, is_vtt=False):
        if cue.start is not None:  # else the head of the file
            yield TimedText(_BREAK.sub(" ", " ".join(cue.lines)), cue.start, cue.end or cue.start)


_READERS = {_MICRODVD: _microdvd, _MPL2: _mpl2, _SUBVIEWER_2: _subviewer_2, _SUBVIEWER_1: _subviewer_1}
