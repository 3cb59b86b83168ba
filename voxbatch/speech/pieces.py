"""Cut a text into pieces for an engine that speaks: whole sentences of about 15 s, each with the pause that follows.

    "It rained. He stayed.\n\nThen he left."  →  ("It rained. He stayed.", 0.7), ("Then he left.", 0.0)

Engines lose words in long texts, and lose the melody of a sentence that is cut. So a sentence stays whole unless it
takes more than a piece; then it is cut at a clause, else between words. No piece ends after an abbreviation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import regex

from voxbatch.speech.abbreviations import is_abbreviation

CHARACTERS_PER_SECOND = 13.5
"""Characters of English that are spoken in a second, with the spaces."""
MAX_CHARACTERS = round(15 * CHARACTERS_PER_SECOND)
"""Characters of a piece."""
PARAGRAPH_PAUSE_S, SENTENCE_PAUSE_S, CLAUSE_PAUSE_S = 0.7, 0.35, 0.15
"""Seconds of silence after a paragraph, a sentence, and a part of a sentence."""
_PARAGRAPH = re.compile(r"\n\s*\n")
_CLAUSE = re.compile(r"(?<=[,;:—–])\s+")
_SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’)\]]*$")
_SPOKEN = regex.compile(r"[\p{L}\p{N}]")
_PRONUNCIATION = re.compile(r"\[([^\[\]]+)\]\(/[^()]*/\)")
_WORD = re.compile(r"\S+\s*")
_LETTER = regex.compile(r"\p{L}")


def split(text: str, lang: str) -> list[tuple[str, float]]:
    """Return the pieces of a text in order, each with the seconds of silence after it. The last one has none.

    Pieces without a letter or a digit are left out: they have no sound.

    Args:
        lang: primary subtag of its language.
    """
    pieces: list[tuple[str, float]] = []
    for paragraph in split_paragraphs(text):
        for piece in _joined(_sentences(" ".join(paragraph.split()), lang)):
            pause_s = SENTENCE_PAUSE_S if _SENTENCE_END.search(piece) else CLAUSE_PAUSE_S
            pieces.append((piece, pause_s))
        if pieces:
            pieces[-1] = pieces[-1][0], PARAGRAPH_PAUSE_S
    if pieces:
        pieces[-1] = pieces[-1][0], 0.0
    return pieces


def plain(text: str) -> str:
    """Return a text without pronunciations: "say [hibari](/hibˈɑɹi/)" → "say hibari"."""
    return _PRONUNCIATION.sub(r"\1", text)


def split_paragraphs(text: str) -> list[str]:
    """Return the parts of a text between blank lines."""
    return [paragraph for paragraph in _PARAGRAPH.split(text) if paragraph.strip()]


def unreadable(text: str, scripts: Iterable[str]) -> str | None:
    """Return why a voice cannot read a text, as text for people; None if it can.

    Args:
        scripts: the scripts that the voice reads, by their names in Unicode.
    """
    if not _SPOKEN.search(text):
        return "the text has no letter and no digit" if text.strip() else "the text is empty"
    letters = _LETTER.findall(text)
    known = regex.compile("".join(("[", *(rf"\p{{Script={script}}}" for script in scripts), "]")))
    foreign = [letter for letter in letters if not known.match(letter)]
    if 2 * len(foreign) > len(letters):
        names = " and ".join(scripts)
        return (
            f"{len(foreign):,} of its {len(letters):,} letters, such as {foreign[0]!r}, are not of the script {names}"
        )
    return None


def _sentences(paragraph: str, lang: str) -> Iterator[str]:
    """Yield the sentences of a paragraph, and the parts of sentences that are longer than a piece."""
    import sentencex

    for sentence in _unbroken(sentencex.segment(lang, paragraph), lang):
        if len(sentence) <= MAX_CHARACTERS:
            yield sentence
            continue
        for clause in _joined(_CLAUSE.split(sentence)):
            yield from _joined(_unbroken(_WORD.findall(clause), lang)) if len(clause) > MAX_CHARACTERS else [clause]


def _unbroken(texts: Iterable[str], lang: str) -> Iterator[str]:
    """Yield texts, each together with the following one if it ends with an abbreviation, or inside a word: "Ms. " and
    "Smith" are one text, and so are "J." and "-C."."""
    begun = ""
    for text in filter(str.strip, texts):
        if begun and (not begun[-1].isspace() or is_abbreviation(begun.rsplit(None, 1)[-1], text, lang)):
            begun += text
            continue
        if begun:
            yield begun.strip()
        begun = text
    if begun:
        yield begun.strip()


def _joined(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts with spaces between them, as many as fit into a piece. Texts that have no sound are left out."""
    piece = ""
    for text in filter(_SPOKEN.search, texts):
        if piece and len(piece) + 1 + len(text) > MAX_CHARACTERS:
            yield piece
            piece = ""
        piece = f"{piece} {text}" if piece else text
    if piece:
        yield piece
