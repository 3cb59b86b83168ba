"""Write cues as SubRip, WebVTT, TTML and ASS, so that every character is shown and none acts as markup."""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable

from voxbatch.formats.cues import Cue
from voxbatch.formats.document import Document, without_control_characters
from voxbatch.formats.styles import styled
from voxbatch.formats.timed_cues import cues_of

_WORD_JOINER = "\u2060"
"""WORD JOINER: an invisible character without width that allows no line break. It splits text that a player takes for
markup."""


_HTML_TAGS = {style: (f"<{style}>", f"</{style}>") for style in "ibu"}
_ASS_TAGS = {style: (f"{{\\{style}1}}", f"{{\\{style}0}}") for style in "ibu"}
_TTML_STYLES = {"i": 'tts:fontStyle="italic"', "b": 'tts:fontWeight="bold"', "u": 'tts:textDecoration="underline"'}
_TTML_TAGS = {style: (f"<span {attribute}>", "</span>") for style, attribute in _TTML_STYLES.items()}


def srt(document: Document) -> str:
    """Return SubRip. The format has no escapes, so text that a player takes for markup gets an invisible WORD JOINER
    (U+2060) inside. The text of a speaker begins with the label, "Speaker 1: "."""
    return _numbered_cues(
        _cues(document, has_labels=True),
        ",",
        lambda cue: styled(cue.lines, cue.styles, _srt_text, _HTML_TAGS),
    )


def vtt(document: Document) -> str:
    """Return WebVTT with `&amp;`, `&lt;` and `&gt;`, as the standard demands, and with the speaker as the voice of
    a cue: `<v Speaker 1>`.

    Braces and backslashes get a WORD JOINER, because some players take them for markup.
    """
    return "WEBVTT\n\n" + _numbered_cues(
        _cues(document), ".", lambda cue: _voice(cue) + styled(cue.lines, cue.styles, _vtt_text, _HTML_TAGS)
    )


def vtt_words(document: Document) -> str:
    """Return WebVTT in which each word carries its time, for karaoke: `<00:00:01.250><c>word</c>`.

    A word that begins with its cue has no time of its own: the standard demands times inside the cue, in order.
    """
    return "WEBVTT\n\n" + _numbered_cues(_cues(document), ".", lambda cue: _voice(cue) + _karaoke(cue))


def ttml(document: Document) -> str:
    """Return TTML with the features of W3C's profile IMSC 1.1 Text: one region at the bottom, and a `p` for each cue.
    Speakers are agents in the metadata; their labels are also text, as in SubRip, because players show no agents. A cue
    of a script from right to left says so."""
    language = document.transcript.language or ""
    cues = _cues(document, has_labels=True)
    agents = {name: f"speaker{at}" for at, name in enumerate(dict.fromkeys(cue.speaker for cue in cues)) if name}
    attributes = {name: f' ttm:agent="{agent}"' for name, agent in agents.items()}
    paragraphs = "".join(
        f'      <p begin="{_timestamp(cue.start_ms, ".")}" end="{_timestamp(cue.end_ms, ".")}"'
        f"{attributes.get(cue.speaker or '', '')}{_direction(cue)}>"
        f"{styled(cue.lines, cue.styles, _ttml_text, _TTML_TAGS)}</p>\n"
        for cue in cues
    )
    names = "".join(
        f'      <ttm:agent xml:id="{agent}" type="person"><ttm:name type="full">{html.escape(_xml_text(name))}'
        "</ttm:name></ttm:agent>\n"
        for name, agent in agents.items()
    )
    return _TTML.format(
        namespace=' xmlns:ttm="http://www.w3.org/ns/ttml#metadata"' if names else "",
        language=html.escape(_xml_text(language)),
        metadata=f"    <metadata>\n{names}    </metadata>\n" if names else "",
        paragraphs=paragraphs,
    )


def ass(document: Document) -> str:
    """Return Advanced SubStation Alpha. Braces and backslashes are escaped as ffmpeg does it. A speaker is the name of
    a line, for editors, and the label of its text, as in SubRip, for players.

    The encoding is -1 if a cue goes from right to left: then libass takes the direction of each line from its first
    letter. Else its direction is that of English.
    """
    cues = _cues(document, has_labels=True)
    return _ASS.format(encoding=-1 if any(map(_direction, cues)) else 1) + "".join(
        f"Dialogue: 0,{_centiseconds(cue.start_ms)},{_centiseconds(cue.end_ms)},Default,{_ass_name(cue)},0,0,0,,"
        f"{_ass_text(cue)}\n"
        for cue in cues
    )


_ASS = """[Script Info]
ScriptType: v4.00+
PlayResX: 1920
PlayResY: 1080
WrapStyle: 0

[V4+ Styles]
Format: Name, Fontname, Fontsize, PrimaryColour, SecondaryColour, OutlineColour, BackColour, Bold, Italic, Underline, \
StrikeOut, ScaleX, ScaleY, Spacing, Angle, BorderStyle, Outline, Shadow, Alignment, MarginL, MarginR, MarginV, Encoding
Style: Default,Arial,56,&H00FFFFFF,&H00FFFFFF,&H00000000,&H80000000,0,0,0,0,100,100,0,0,1,3,1,2,120,120,60,{encoding}

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
"""


def _centiseconds(ms: int) -> str:
    """Return a time in the form of ASS: 3661009 → "1:01:01.00"."""
    return _timestamp(ms, ".")[1:-1]


def _ass_name(cue: Cue) -> str:
    """Return the speaker of a cue without commas, which divide the fields; "" if speakers are not told apart."""
    return _voice_name(cue).replace(",", ";")


def _ass_text(cue: Cue) -> str:
    def escape(text: str) -> str:
        return re.sub(r"[{}]", r"\\\g<0>", text.replace("\\", f"\\{_WORD_JOINER}")).replace("\n", r"\N")

    return styled(cue.lines, cue.styles, escape, _ASS_TAGS)


_TTML = """<?xml version="1.0" encoding="UTF-8"?>
<tt xmlns="http://www.w3.org/ns/ttml" xmlns:ttp="http://www.w3.org/ns/ttml#parameter" \
xmlns:tts="http://www.w3.org/ns/ttml#styling" ttp:contentProfiles="http://www.w3.org/ns/ttml/profile/imsc1.1/text" \
ttp:timeBase="media"{namespace} xml:lang="{language}">
  <head>
{metadata}    <layout>
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


def _direction(cue: Cue) -> str:
    """Return the attribute of a paragraph of TTML whose letters go from right to left, which most of its letters
    decide; "" for all others."""
    letters = Counter(unicodedata.bidirectional(char) for line in cue.lines for char in line)
    return ' tts:direction="rtl"' if letters["R"] + letters["AL"] > letters["L"] else ""


def _cues(document: Document, has_labels: bool = False) -> list[Cue]:
    return cues_of(document.transcript, document.limits, has_labels)


def _numbered_cues(cues: Iterable[Cue], decimal_mark: str, text: Callable[[Cue], str]) -> str:
    """Return the cues in the form that SubRip and WebVTT share: number, times, lines, and an empty line."""
    blocks = []
    for number, cue in enumerate(cues, 1):
        times = f"{_timestamp(cue.start_ms, decimal_mark)} --> {_timestamp(cue.end_ms, decimal_mark)}"
        blocks.append(f"{number}\n{times}\n{text(cue)}\n\n")
    return "".join(blocks)


def _karaoke(cue: Cue) -> str:
    """Return the lines of a cue with the time of each word."""
    lines, latest = list[str](), cue.start_ms
    for line in cue.pieces:
        text = ""
        for piece in line:
            at, space = round(piece.start * 1000), " " if text and piece.text[0] == " " else ""
            is_first = not text and not lines  # the cue begins with the frame before its first word
            if not is_first and latest < at < cue.end_ms:
                latest = at
                text += f"{space}<{_timestamp(at, '.')}>"
            else:
                text += space
            text += f"<c>{_vtt_text(piece.text.strip())}</c>"
        lines.append(text)
    return "\n".join(lines)


def _voice(cue: Cue) -> str:
    """Return the tag of the speaker of a cue, if speakers are told apart."""
    name = _voice_name(cue)
    return f"<v {html.escape(name, quote=False)}>" if name else ""


def _voice_name(cue: Cue) -> str:
    """Return the speaker of a cue in one line; "" if speakers are not told apart."""
    return " ".join(without_control_characters(cue.speaker or "").split())


def _srt_text(text: str) -> str:
    return _without_markup(text, r"[<{\\]|--(?=>)|&(?=#|[A-Za-z]+;)")


def _ttml_text(text: str) -> str:
    return html.escape(_xml_text(text), quote=False).replace("\n", "<br/>")


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
