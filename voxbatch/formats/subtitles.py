"""Write cues as SubRip and WebVTT, so that every character is shown and none acts as markup."""

from __future__ import annotations

import html
import re
from collections.abc import Callable

from voxbatch.formats.cues import split_into_cues
from voxbatch.records import Transcript

_WORD_JOINER = "\u2060"
"""WORD JOINER: an invisible character without width that allows no line break. It splits text that a player takes for
markup."""


def srt(item_id: str, transcript: Transcript) -> str:
    """Return SubRip. The format has no escapes, so text that a player takes for markup gets an invisible WORD JOINER
    (U+2060) inside."""
    return _numbered_cues(transcript, ",", lambda text: _without_markup(text, r"[<{\\]|--(?=>)|&(?=#|[A-Za-z]+;)"))


def vtt(item_id: str, transcript: Transcript) -> str:
    """Return WebVTT with `&amp;`, `&lt;` and `&gt;`, as the standard demands.

    Braces and backslashes get a WORD JOINER, because some players take them for markup.
    """
    escaped_cues = _numbered_cues(
        transcript, ".", lambda text: _without_markup(html.escape(text, quote=False), r"[{\\]")
    )
    return f"WEBVTT\n\n{escaped_cues}"


def _numbered_cues(transcript: Transcript, decimal_mark: str, escape: Callable[[str], str]) -> str:
    """Return the cues in the form that both formats share: number, times, lines, and an empty line."""
    blocks = []
    for number, cue in enumerate(split_into_cues(transcript), 1):
        times = f"{_timestamp(cue.start_ms, decimal_mark)} --> {_timestamp(cue.end_ms, decimal_mark)}"
        text = escape("\n".join(cue.lines))
        blocks.append(f"{number}\n{times}\n{text}\n\n")
    return "".join(blocks)


def _timestamp(ms: int, decimal_mark: str) -> str:
    """Return a time as HH:MM:SS,mmm: 3661001 → "01:01:01,001"."""
    seconds = ms // 1000
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{decimal_mark}{ms % 1000:03}"


def _without_markup(text: str, markup: str) -> str:
    """Return `text` with a WORD JOINER after each `markup`, within times, and before numbers on a line of their own.

    Parsers take times and such numbers for the start of a cue.
    """
    text = re.sub(markup, rf"\g<0>{_WORD_JOINER}", text)
    text = re.sub(r"(?<=\d:\d)(\d?)(?=[.,]\d)", rf"\1{_WORD_JOINER}", text)
    return re.sub(r"(?<=\n)(?=\d+$)", _WORD_JOINER, text, flags=re.MULTILINE)
