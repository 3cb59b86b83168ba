"""Write cues as SubRip, WebVTT and TTML, so that every character is shown and none acts as markup."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable

from voxbatch.formats.cues import Cue, split_into_cues
from voxbatch.formats.document import Document

_WORD_JOINER = "\u2060"
"""WORD JOINER: an invisible character without width that allows no line break. It splits text that a player takes for
markup."""


def srt(document: Document) -> str:
    """Return SubRip. The format has no escapes, so text that a player takes for markup gets an invisible WORD JOINER
    (U+2060) inside."""
    return _numbered_cues(
        _cues(document),
        ",",
        lambda cue: _without_markup("\n".join(cue.lines), r"[<{\\]|--(?=>)|&(?=#|[A-Za-z]+;)"),
    )


def vtt(document: Document) -> str:
    """Return WebVTT with `&amp;`, `&lt;` and `&gt;`, as the standard demands.

    Braces and backslashes get a WORD JOINER, because some players take them for markup.
    """
    return "WEBVTT\n\n" + _numbered_cues(_cues(document), ".", lambda cue: _vtt_text("\n".join(cue.lines)))


def vtt_words(document: Document) -> str:
    """Return WebVTT in which each word carries its time, for karaoke: `<00:00:01.250><c>word</c>`.

    A word that begins with its cue has no time of its own: the standard demands times inside the cue, in order.
    """
    return "WEBVTT\n\n" + _numbered_cues(_cues(document), ".", _karaoke)


def ttml(document: Document) -> str:
    """Return TTML with the features of W3C's profile IMSC 1.1 Text: one region at the bottom, and a `p` for each
    cue."""
    language = document.transcript.language or ""
    paragraphs = "".join(
        f'      <p begin="{_timestamp(cue.start_ms, ".")}" end="{_timestamp(cue.end_ms, ".")}">'
        f"{'<br/>'.join(html.escape(_xml_text(line), quote=False) for line in cue.lines)}</p>\n"
        for cue in _cues(document)
    )
    return _TTML.format(language=html.escape(_xml_text(language)), paragraphs=paragraphs)


_TTML = """<?xml version="1.0" encoding="UTF-8"?>
<tt xmlns="http://www.w3.org/ns/ttml" xmlns:ttp="http://www.w3.org/ns/ttml#parameter" \
xmlns:tts="http://www.w3.org/ns/ttml#styling" ttp:contentProfiles="http://www.w3.org/ns/ttml/profile/imsc1.1/text" \
ttp:timeBase="media" xml:lang="{language}">
  <head>
    <layout>
      <region xml:id="bottom" tts:origin="10% 80%" tts:extent="80% 15%" tts:displayAlign="after" \
tts:textAlign="center"/>
    </layout>
  </head>
  <body region="bottom">
    <div>
{paragraphs}    </div>
  </body>
</tt>
"""


def _cues(document: Document) -> list[Cue]:
    return split_into_cues(document.transcript, document.limits)


def _numbered_cues(cues: Iterable[Cue], decimal_mark: str, text: Callable[[Cue], str]) -> str:
    """Return the cues in the form that SubRip and WebVTT share: number, times, lines, and an empty line."""
    blocks = []
    for number, cue in enumerate(cues, 1):
        times = f"{_timestamp(cue.start_ms, decimal_mark)} --> {_timestamp(cue.end_ms, decimal_mark)}"
        blocks.append(f"{number}\n{times}\n{text(cue)}\n\n")
    return "".join(blocks)


def _karaoke(cue: Cue) -> str:
    """Return the lines of a cue with the time of each word."""
    lines, latest = [], cue.start_ms
    for line in cue.pieces:
        text = ""
        for piece in line:
            at, space = round(piece.start * 1000), " " if text and piece.text[0] == " " else ""
            if latest < at < cue.end_ms:
                latest = at
                text += f"{space}<{_timestamp(at, '.')}>"
            else:
                text += space
            text += f"<c>{_vtt_text(piece.text.strip())}</c>"
        lines.append(text)
    return "\n".join(lines)


def _vtt_text(text: str) -> str:
    return _without_markup(html.escape(text, quote=False), r"[{\\]")


def _xml_text(text: str) -> str:
    """Return the text without characters that XML admits nowhere."""
    return re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", "\ufffd", text)


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
