"""Keep the italics, bold and underlined letters of a person's subtitles from one format to the others.

Between the formats, a styled text is HTML with three tags, and everything else escaped:

    {\\i1}Well,{\\i0} R&D.    →    <i>Well,</i> R&amp;D.    →    a style for each visible character: i i i i i, none …
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

from voxbatch.formats.document import visible_text

TAG = re.compile(r"<(?P<end>/?)(?P<style>[ibu])>", re.IGNORECASE)
"""A tag of a style, also in SubRip and WebVTT."""
_OPEN, _CLOSE = dict(zip("ibu", "\ufdd0\ufdd1\ufdd2", strict=True)), dict(zip("ibu", "\ufdd3\ufdd4\ufdd5", strict=True))
_MARKS = {*_OPEN.values(), *_CLOSE.values()}
"""Characters that Unicode gives to no text. They stand for the tags while a text is escaped."""


def as_markup(text: str, tag: re.Pattern[str], plain: Callable[[str], str]) -> str:
    """Return a styled text of a format as HTML; "" if it has no style.

    Args:
        tag: pattern of a tag of the format, with the groups `end`, "/" or "0" if it ends a style, and `style`.
        plain: returns what a text between two tags shows.
    """
    pieces, at = list[str](), 0
    for match in tag.finditer(text):
        pieces.append(html.escape(plain(text[at : match.start()]), quote=False))
        pieces.append(f"<{'/' if match['end'] in ('/', '0') else ''}{match['style'].lower()}>")
        at = match.end()
    return "".join([*pieces, html.escape(plain(text[at:]), quote=False)]) if pieces else ""


def styles_of(markup: str, text: str) -> list[str]:
    """Return the styles of the visible characters of a text, such as "" or "bi"; [] if it has none, or if the markup is
    of another text."""
    styles, present, at = list[str](), set[str](), 0
    for match in [*TAG.finditer(markup), None]:
        shown = visible_text(html.unescape(markup[at : match.start() if match else len(markup)]))
        styles += ["".join(sorted(present))] * len(shown)
        if match:
            (present.discard if match["end"] else present.add)(match["style"].lower())
            at = match.end()
    return styles if any(styles) and len(styles) == len(visible_text(text)) else []


def styled(
    lines: Sequence[str], styles: Sequence[str], escape: Callable[[str], str], tags: Mapping[str, tuple[str, str]]
) -> str:
    """Return the lines of a subtitle, joined by line feeds and escaped, with the tags of their styles.

    Args:
        styles: those of the visible characters of the lines; empty if there are none.
        escape: escapes a text for the format.
        tags: the texts before and after a stretch of each style.
    """
    if not styles:
        return escape("\n".join(lines))
    text = escape("\n".join(_marked(lines, iter(styles))))
    for marks, end in ((_OPEN, 0), (_CLOSE, 1)):
        for style, mark in marks.items():
            text = text.replace(mark, tags[style][end])
    return text


def _marked(lines: Sequence[str], styles: Iterator[str]) -> Iterator[str]:
    """Yield the lines with a mark where each style begins and ends. A space has the style of the character before."""
    for line in lines:
        latest, by_character = "", list[tuple[str, str]]()
        for character in line:
            latest = next(styles, "") if visible_text(character) else latest
            by_character.append((latest, character))
        marked = ""  # a mark in the text itself would become a tag
        for style, group in groupby(by_character, lambda pair: pair[0]):
            run = "".join(character for _, character in group if character not in _MARKS)
            shown = run.rstrip()
            ends = "".join(_CLOSE[letter] for letter in reversed(style))
            marked += "".join(_OPEN[letter] for letter in style) + shown + ends + run[len(shown) :]
        yield marked
