"""Write cues as SubRip and WebVTT with pysubs2, so that every character is shown and none acts as markup."""

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
    return _subtitles("srt", transcript, lambda text: _without_markup(text, r"[<{\\]|--(?=>)|&(?=#|[A-Za-z]+;)"))


def vtt(item_id: str, transcript: Transcript) -> str:
    """Return WebVTT with `&amp;`, `&lt;` and `&gt;`, as the standard demands.

    Braces and backslashes get a WORD JOINER, because some players take them for markup.
    """
    return _subtitles("vtt", transcript, lambda text: _without_markup(html.escape(text, quote=False), r"[{\\]"))


def _subtitles(name: str, transcript: Transcript, escape: Callable[[str], str]) -> str:
    from pysubs2 import SSAEvent, SSAFile

    file = SSAFile()
    for cue in split_into_cues(transcript):
        text = escape("\n".join(cue.lines)).replace("\n", r"\N")
        file.append(SSAEvent(cue.start_ms, cue.end_ms, text))
    return file.to_string(name, keep_ssa_tags=True)  # keep text that still looks like a tag


def _without_markup(text: str, markup: str) -> str:
    """Return `text` with a WORD JOINER after each `markup`, within times, and before numbers on a line of their own.

    Parsers take times and such numbers for the start of a cue.
    """
    text = re.sub(markup, rf"\g<0>{_WORD_JOINER}", text)
    text = re.sub(r"(?<=\d:\d)(\d?)(?=[.,]\d)", rf"\1{_WORD_JOINER}", text)
    return re.sub(r"(?<=\n)(?=\d+$)", _WORD_JOINER, text, flags=re.MULTILINE)
