"""Divide a corrected text into units, which are compared with those of the text before: words, and in scripts without
spaces, such as Chinese, characters.

A word that a subtitle has broken is whole again, and a line break stands for the space that it has replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import regex

from voxbatch.formats.document import visible_text
from voxbatch.works.correct.passages import Passage

_NO_SPACES = (
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
    r"\u3000-\u303f\uff00-\uffef]"
)
"""Characters of scripts without spaces, and their punctuation."""
_UNIT = regex.compile(rf"(?P<space>\s*)(?P<text>{_NO_SPACES}\p{{M}}*|(?:(?!{_NO_SPACES})\S)+)")
NARROWEST_LINE = 10
"""Columns of the narrowest line that --max-line allows. No shorter word is divided."""
_NEEDS_NO_SPACE = regex.compile(_NO_SPACES)
SAID = regex.compile(r"[\p{L}\p{M}\p{N}]+")
"""Pattern of the letters and digits of a word, which are spoken."""
_OPENING = regex.compile(r"[\p{Pd}♪♫]|>>")
"""A mark that stands before words: of a speaker, or of a song."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A word of a text, or a character of a script without spaces."""

    text: str
    space: str
    """White space before it."""
    follows_break: bool = False
    """True if it begins a line."""
    speaker: str | None = None
    """The speaker of the latest label."""
    is_labelled: bool = False
    """True if the label is in the same cue or line."""
    is_opening: bool = False
    """True for a mark that begins a line and belongs to the word after it: "- Hello"."""

    def speaker_after(self, before: str | None) -> str | None:
        """Return its speaker, who was another one before: a label is that of what follows, too, up to the next one.
        Words that were nobody's get only a label of their own."""
        return self.speaker if self.speaker and (self.is_labelled or before) else before

    @property
    def key(self) -> str:
        """The word as it is spoken: the unit without case and punctuation; a unit of punctuation alone as it is."""
        return "".join(SAID.findall(self.text)).casefold() or self.text


def units(text: str) -> list[Unit]:
    """Return the units of a text."""
    matches = (match for match in _UNIT.finditer(text) if visible_text(match["text"]))
    return [Unit(match["text"], match["space"]) for match in matches]


def units_of(passages: Sequence[Passage], before: Sequence[Unit]) -> list[Unit]:
    """Return the units of a corrected text.

    Args:
        before: the units of the text before.
    """
    return _whole([*_units_of_lines(passages)], before)


def _units_of_lines(passages: Sequence[Passage]) -> Iterator[Unit]:
    """Yield the units of passages. Between two lines is a space, except in scripts without spaces."""
    speaker, previous = None, ""
    for passage in passages:
        speaker = passage.speaker or speaker
        for line in passage.lines:
            of_line = units(line.strip())
            for number, unit in enumerate(of_line):
                space = " " if unit.space else ""
                if not number and previous:
                    divides = _NEEDS_NO_SPACE.match(previous[-1]) and _NEEDS_NO_SPACE.match(unit.text)
                    space = "" if divides else " "
                is_opening = not number and len(of_line) > 1 and bool(_OPENING.fullmatch(unit.text))
                yield Unit(unit.text, space, not number, speaker, bool(passage.speaker), is_opening)
                previous = unit.text


def _whole(after: Sequence[Unit], before: Sequence[Unit]) -> list[Unit]:
    """Return the units of the corrected text, in which a word that lines have divided is whole again."""
    texts, joined, at = {unit.text for unit in before if len(unit.text) > NARROWEST_LINE}, list[Unit](), 0
    longest = max(map(len, texts), default=0)
    while at < len(after):
        end, text = at + 1, after[at].text
        for stop in range(at + 1, len(after)):
            text += after[stop].text
            if not after[stop].follows_break or len(text) > longest:
                break
            end = stop + 1 if text in texts else end
        joined.append(replace(after[at], text="".join(unit.text for unit in after[at:end])))
        at = end
    return joined
