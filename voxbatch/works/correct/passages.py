"""Read the text of an item's file as a person or a program has saved it, with its times and speakers.

    1
    00:00:00,120 --> 00:00:02,040          →   Passage(["He has known her", "all her life."], 0.12, 2.04, "Anna")
    Anna: He has known her
    all her life.

Numbers, styles and positions are left out. The module reads the formats that voxbatch writes, as other programs save
them: with other line ends, a byte order mark, tags, and in the order of their times or not. It keeps line breaks, which
the readers of `sources.transcripts` drop, because only they tell a word that a subtitle has broken from two words.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from voxbatch.formats.styles import TAG, as_markup
from voxbatch.sources.cues import TIMES_ALONE, read_cues


@dataclass(frozen=True, slots=True)
class Passage:
    """A cue, or a line of plain text."""

    lines: tuple[str, ...]
    """The lines without markup."""
    start: float | None = None
    end: float | None = None
    """Seconds. None for plain text."""
    speaker: str | None = None
    """The speaker that it names. None if it names none."""
    markup: str = ""
    """Its text as HTML with <i>, <b> and <u>; see formats.styles. Empty if it has no style."""


_TAG = re.compile(r"</?[^\W\d_][^<>]*>|<[\d:.]+>|\{\\[^{}]*\}")
"""Tags, the times of words, and the overrides of SubStation. Text of voxbatch has a WORD JOINER after "<" and "{"."""
_ESCAPED_BRACE = re.compile(r"\\([{}])(?:\{\})?")
_WORD_JOINER = "\u2060"
_VOICE = re.compile(r"<v(?:\.[^\s<>]*)?\s+([^<>]*)>")
_PARAGRAPH = re.compile(r"<(?:\w+:)?p\b(?P<attributes>[^>]*?)(?:/>|>(?P<text>.*?)</(?:\w+:)?p>)", re.DOTALL)
_BREAK = re.compile(r"<(?:\w+:)?br\b[^>]*>")
_XML_TAG = re.compile(r"<[^<>]*>")
_XML_TIME = re.compile(r'\b(begin|end|dur)\s*=\s*["\']([^"\']*)["\']')
_OVERRIDE = re.compile(r"(?<!\\)\{(?P<codes>[^{}]*)(?<!\\)\}")
_ASS_STYLE = re.compile(r"\{\\(?P<style>[ibu])(?P<end>[01])\}")
_SPAN = re.compile(r"<(?P<end>/?)(?:\w+:)?span\b(?P<attributes>[^>]*)>")
_TTML_STYLES = {"i": "fontStyle=[\"']italic", "b": "fontWeight=[\"']bold", "u": "textDecoration=[\"']underline"}
_DRAWING = re.compile(r"\\p[1-9]")
_FIELDS_OF_DIALOGUE: tuple[str, ...] = (
    "Layer",
    "Start",
    "End",
    "Style",
    "Name",
    "MarginL",
    "MarginR",
    "MarginV",
    "Effect",
    "Text",
)
_WITH_VOICES = ("vtt", "vtt-words")
"""Formats in which speakers are voices and not labels."""
_LABEL = re.compile(r"(?P<speaker>[^\s:][^:\n]{0,59}):(?:\s+(?=\S)|\s*\Z)")
"""The label of a speaker at the begin of a text, or alone. A label of voxbatch has up to a line."""


_BEGINNINGS = {
    **dict.fromkeys(("srt", "txt"), re.compile(r"\A\s*\Z")),
    **dict.fromkeys(("vtt", "vtt-words"), re.compile(r"\A\s*WEBVTT")),
    "ass": re.compile(r"^\[(?:Script Info|Events)\]", re.MULTILINE),
    "ttml": re.compile(r"<(?:\w+:)?tt\b"),
}
"""The content of a file without any text in each format."""


def passages(form: str, text: str, speakers: Collection[str] = (), recognised: str = "") -> list[Passage]:
    """Return the passages of a file, in the order of their times.

    Args:
        form: the name of its format, one of READERS.
        text: its text.
        speakers: the speakers of the transcript. If there are some, texts begin with labels, except in _WITH_VOICES.
        recognised: the text of the transcript, which may have "Note: " where a label could be.
    """
    passages = _read(form, text)
    ordered = sorted(passages, key=lambda passage: passage.start or 0.0) if form != "txt" else list(passages)
    if not speakers or form in _WITH_VOICES:
        return ordered
    words = frozenset(recognised.split())
    return [_labelled(passage, speakers, words) for passage in ordered]


def is_readable(form: str, text: str) -> bool:
    """Return whether a text is a file of a format, which may say nothing: a person has deleted all cues."""
    return any(True for _ in _read(form, text)) or bool(_BEGINNINGS[form].search(text))


_SEEMS_TIMES = re.compile(r"\s*\[?\d{1,9}:\S{0,20}\s{0,9}(?:[-–—=]{0,4}[>→]|[-–—]{1,4}\s{0,9}\d+:\d+:\d+[.,])")
"""The begin of a line of SubRip or WebVTT that is meant as the times of a cue: "0:01 -> 0:02"."""
_HEADS = {"ass": re.compile(r"^Format:.*", re.MULTILINE), "ttml": re.compile(r"\b(?:frame|tick)Rate=\"\d+\"")}
"""The part of a file that decides how its times are read, by format."""
BROKEN = "has no readable times, or ends before it begins"
"""The fault of the cue at the place that broken_times returns."""


def broken_times(form: str, text: str) -> str:
    """Return the place of the first cue whose times cannot be read, or that ends before it begins; "" if all are right.

    "srt", "1\\n00:00:01,000 -> 00:00:02,000\\nHello"    →    "line 2: '00:00:01,000 -> 00:00:02,000'"
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    head = "\n".join(_HEADS[form].findall(text)[-2:]) if form in _HEADS else ""
    for number, line in enumerate(text.split("\n") if form != "txt" else (), 1):
        times = [(cue.start, cue.end) for cue in READERS[form](f"{head}\n{line}")]
        if form == "ass":
            is_unread = any(None in pair for pair in times)
        else:
            is_meant = _SEEMS_TIMES.match(line) or ("-->" in line and re.search(r"\d:\d", line))
            is_unread = form != "ttml" and bool(is_meant) and not TIMES_ALONE.fullmatch(line)
        if is_unread or any(start is not None and end is not None and end < start for start, end in times):
            return f"line {number:,}: {textwrap.shorten(line, 60, placeholder='…')!r}"
    return ""


def _read(form: str, text: str) -> Iterator[Passage]:
    for passage in READERS[form](text.replace("\r\n", "\n").replace("\r", "\n")):
        # Another program may have brought a joiner from a format that needs it into one that does not.
        lines = tuple(line.replace(_WORD_JOINER, "") for line in passage.lines)
        yield replace(passage, lines=lines, markup=passage.markup.replace(_WORD_JOINER, ""))


def _labelled(passage: Passage, speakers: Collection[str], recognised: Collection[str]) -> Passage:
    """Return a passage with the speaker that a label at its begin names, and without the label.

    A new label does not end as a word of the transcript: "My note: it works" has none if the transcript has "note:".
    """
    text = "\n".join(passage.lines)
    match = _LABEL.match(text)
    if match is None:
        return passage
    rest, last_word = text[match.end() :], match["speaker"].split()[-1]
    if match["speaker"] in speakers or (rest and f"{last_word}:" not in recognised):
        markup = passage.markup.removeprefix(html.escape(match[0], quote=False))
        return replace(passage, speaker=match["speaker"], lines=tuple(rest.split("\n")), markup=markup)
    return passage


def _subrip(text: str) -> Iterator[Passage]:
    """Yield the cues of SubRip."""
    for cue in read_cues(text.split("\n"), is_vtt=False):
        if cue.start is not None:
            markup = as_markup("\n".join(cue.lines), TAG, _shown)
            yield Passage(_lines(cue.lines), cue.start, cue.end, None, markup)


def _webvtt(text: str) -> Iterator[Passage]:
    """Yield the cues of WebVTT, with their voices."""
    for cue in read_cues(text.split("\n"), is_vtt=True):
        if cue.start is not None:
            voice = _VOICE.search("\n".join(cue.lines))
            speaker = html.unescape(voice[1]).strip() if voice else None
            lines = tuple(html.unescape(line) for line in _lines(cue.lines))
            markup = as_markup("\n".join(cue.lines), TAG, lambda text: html.unescape(_shown(text)))
            yield Passage(lines, cue.start, cue.end, speaker or None, markup)


def _lines(lines: list[str]) -> tuple[str, ...]:
    """Return the lines of a cue without tags, and with the braces that ffmpeg has escaped."""
    return tuple(_shown(line) for line in lines if line.strip())


def _shown(text: str) -> str:
    return _ESCAPED_BRACE.sub(r"\1", _TAG.sub("", text))


def _substation(text: str) -> Iterator[Passage]:
    """Yield the dialogues of (Advanced) SubStation Alpha, without comments and drawings."""
    fields = _FIELDS_OF_DIALOGUE
    for line in text.split("\n"):
        kind, _, value = line.partition(":")
        if kind == "Format" and "Text" in value:
            fields = tuple(name.strip() for name in value.split(","))
        elif kind == "Dialogue":
            values = dict(zip(fields, value.split(",", len(fields) - 1), strict=False))
            dialogue = values.get("Text", "")
            lines = _text_of_dialogue(dialogue).split("\n")
            start, end = (_clock(values.get(name, "").strip()) for name in ("Start", "End"))
            yield Passage(tuple(lines), start, end, None, as_markup(dialogue, _ASS_STYLE, _text_of_dialogue))


def _text_of_dialogue(text: str) -> str:
    return re.sub(r"\\[Nn]", "\n", _without_overrides(text).replace(r"\h", " "))


def _without_overrides(text: str) -> str:
    """Return the text of a dialogue without overrides and drawings; "\\{" is a brace."""
    shown, is_drawing, at = "", False, 0
    for match in _OVERRIDE.finditer(text):
        shown += "" if is_drawing else text[at : match.start()]
        if r"\p" in match["codes"]:
            is_drawing = bool(_DRAWING.search(match["codes"]))
        at = match.end()
    shown += "" if is_drawing else text[at:]
    return re.sub(r"\\([{}])", r"\1", shown)


def _ttml(text: str) -> Iterator[Passage]:
    """Yield the paragraphs of TTML. No XML is parsed, so that no entity is expanded."""
    rate = re.search(r'frameRate="(\d+)"', text)
    ticks = re.search(r'tickRate="(\d+)"', text)
    for match in _PARAGRAPH.finditer(text):
        times = {name: _ttml_time(value, rate, ticks) for name, value in _XML_TIME.findall(match["attributes"])}
        start, end = times.get("begin"), times.get("end")
        if start is not None and end is None and times.get("dur") is not None:
            end = start + (times["dur"] or 0.0)
        lines = (" ".join(_XML_TAG.sub("", line).split()) for line in _BREAK.split(match["text"] or ""))
        yield Passage(tuple(map(html.unescape, lines)), start, end, None, _ttml_markup(match["text"] or ""))


def _ttml_markup(text: str) -> str:
    """Return the text of a paragraph as HTML with the styles of its spans; "" if it has none."""
    pieces, opened, at = list[str](), list[str](), 0
    for match in [*_SPAN.finditer(text), None]:
        part = _BREAK.sub("\n", text[at : match.start() if match else len(text)])
        pieces.append(html.escape(html.unescape(_XML_TAG.sub("", part)), quote=False))
        if match is None:
            break
        at = match.end()
        if match["end"]:
            pieces += [f"</{style}>" for style in (opened.pop() if opened else "")]
        elif not match["attributes"].endswith("/"):
            opened.append("".join(s for s, wanted in _TTML_STYLES.items() if re.search(wanted, match["attributes"])))
            pieces += [f"<{style}>" for style in opened[-1]]
    markup = "".join(pieces)
    return markup if TAG.search(markup) else ""


def _ttml_time(value: str, rate: re.Match[str] | None, ticks: re.Match[str] | None) -> float | None:
    """Return the seconds of a time of TTML: "00:00:01.500", "00:00:01:12" with frames, "1.5s", "36t"."""
    if match := re.fullmatch(r"([\d.]+)(h|m|s|ms|f|t)", value):
        per_second = {"f": float(rate[1]) if rate else 30.0, "t": float(ticks[1]) if ticks else 1.0}
        factors = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
        return float(match[1]) * factors.get(match[2], 1 / per_second.get(match[2], 1.0))
    clock, _, frames = value.rpartition(":") if value.count(":") == 3 else (value, "", "")
    seconds = _clock(clock)
    return None if seconds is None else seconds + (int(frames) / (float(rate[1]) if rate else 30.0) if frames else 0.0)


def _clock(time: str) -> float | None:
    """Return the seconds of H:MM:SS.ss; None of anything else."""
    if not re.fullmatch(r"(?:\d+:)?\d+:\d+(?:[.,]\d+)?", time):
        return None
    hours, minutes, seconds = f"0:{time}".replace(",", ".").split(":")[-3:]
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def _plain(text: str) -> Iterator[Passage]:
    """Yield the lines of plain text."""
    return (Passage((line,)) for line in text.split("\n") if line.strip())


READERS: Mapping[str, Callable[[str], Iterator[Passage]]] = {
    "srt": _subrip,
    "vtt": _webvtt,
    "vtt-words": _webvtt,
    "ass": _substation,
    "ttml": _ttml,
    "txt": _plain,
}
"""The formats from which corrections are taken."""
