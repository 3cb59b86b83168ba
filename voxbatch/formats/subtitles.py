"""Cues → SubRip and WebVTT, through pysubs2, with every character shown and none obeyed."""

from __future__ import annotations

import html
import re
from collections.abc import Callable

from voxbatch.formats.cues import cues
from voxbatch.records import Transcript

_JOINER = "\u2060"
"""WORD JOINER: invisible, no width, no break. It keeps apart what a player would take for markup."""


def srt(item_id: str, transcript: Transcript) -> str:
    """SubRip. It has no escape: text that a player takes for markup gets an invisible WORD JOINER (U+2060) inside."""
    return _subtitles("srt", transcript, lambda text: _disarmed(text, r"[<{\\]|--(?=>)|&(?=#|[A-Za-z]+;)"))


def vtt(item_id: str, transcript: Transcript) -> str:
    """WebVTT: `&amp;`, `&lt;` and `&gt;`, as it prescribes; a joiner after braces and backslashes, for some players."""
    return _subtitles("vtt", transcript, lambda text: _disarmed(html.escape(text, quote=False), r"[{\\]"))


def _subtitles(name: str, transcript: Transcript, escape: Callable[[str], str]) -> str:
    from pysubs2 import SSAEvent, SSAFile

    file = SSAFile()
    for cue in cues(transcript):
        text = escape("\n".join(cue.lines)).replace("\n", r"\N")
        file.append(SSAEvent(cue.start_ms, cue.end_ms, text))
    return file.to_string(name, keep_ssa_tags=True)  # what still looks like a tag is text


def _disarmed(text: str, markup: str) -> str:
    """`text` with a joiner after each `markup`, within times and before numbers on a line of their own.

    Parsers look for the last two too, where a cue should begin.
    """
    text = re.sub(markup, rf"\g<0>{_JOINER}", text)
    text = re.sub(r"(?<=\d:\d)(\d?)(?=[.,]\d)", rf"\1{_JOINER}", text)
    return re.sub(r"(?<=\n)(?=\d+$)", _JOINER, text, flags=re.MULTILINE)
