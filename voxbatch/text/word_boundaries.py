"""Tell where a word begins.

In scripts with spaces that is behind white space alone: "U.S.", "-13" and "read-alongs" are words, into whatever pieces
an engine has divided them. In scripts without spaces, each piece is a word:

    " read", "-alongs", " he", "说", "hello"  →  " read-alongs", " he", "说", "hello"

The facts about a text decide it. They are bits, so that `transducers.words` computes with those of many pieces at once.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from voxbatch.word import Word

_DICTIONARY_SCRIPTS = ("THAI", "LAO", "KHMER", "MYANMAR")
_ATTACHED = "\u0e33\u0eb3"
"""Vowels of Thai and Lao that are letters for Unicode, and parts of the character before them."""
_LEADING = "เแโใไເແໂໃໄ"
"""Vowels of Thai and Lao that are written before their consonant."""
_OPENING = "¿¡"

SPACED, HELD, SOLID_START, SOLID_END, LETTER_START, LETTER_END, OPENING, TIMED = (1 << bit for bit in range(8))
"""Facts about a text: it begins with a space; the next piece belongs to the same word (this one is spaces alone, or
ends with a vowel of _LEADING); its first or last character is of a script without spaces, or a letter or digit of one
with spaces; it is punctuation that stands before a word; it has more than punctuation, so that its times count."""


def whole_words(words: Iterable[Word]) -> Iterator[Word]:
    """Yield the words that an engine has divided into pieces. The texts, joined, stay the same.

    A joined word reaches from the start of the first piece to the end of the last one. Its confidence is the mean of
    the pieces by their characters, because the tokens of a piece are not known here.
    """
    pieces = list[Word]()
    for word in words:
        if pieces and (word.text[:1] == " " or _is_divided(pieces[-1].text, word.text)):
            yield _joined(pieces)
            pieces = []
        pieces.append(word)
    if pieces:
        yield _joined(pieces)


def _is_divided(before: str, text: str) -> bool:
    """Return whether a text begins a word. There is no space before it."""
    first, last = _cached_facts(text), _cached_facts(before)
    if text[:1].isspace() or before[-1:].isspace():
        return bool(before.strip())
    opening = text[: next((at for at, char in enumerate(text) if not _is_opening(char)), 0)]
    if opening or first & OPENING:  # "「你" begins where "你" would, and "(s)" belongs to "word(s)"
        return not last & (OPENING | HELD | LETTER_END)
    if last & (OPENING | HELD):
        return False
    return bool(first & SOLID_START or (first & LETTER_START and last & SOLID_END))


def _joined(pieces: Sequence[Word]) -> Word:
    """Return the word of its pieces."""
    if len(pieces) == 1:
        return pieces[0]
    confidence, sizes = pieces[0].confidence, [len(piece.text.strip()) for piece in pieces]
    known = [piece.confidence * size for piece, size in zip(pieces, sizes, strict=True) if piece.confidence is not None]
    if len(known) == len(pieces):
        confidence = round(sum(known) / max(1, sum(sizes)), 3)
    end = max(piece.end for piece in pieces)
    return replace(pieces[0], text="".join(piece.text for piece in pieces), end=end, confidence=confidence)


def with_space(text: str) -> str:
    """Return a text with a space before it, as all other words have one. Otherwise it would stick to the chunk before.
    Scripts without spaces stay as they are."""
    return text if text[:1].isspace() or is_solid(text[:1]) else f" {text}"


def facts_of(text: str) -> int:
    """Return the facts about a text."""
    if not text:
        return 0
    core, first, last = text.strip(), text[0], text[-1]
    facts = SPACED if first == " " else 0
    if not core:
        return facts | HELD
    if not _is_punctuation(core):
        facts |= TIMED
    elif all(map(_is_opening, core)):
        facts |= OPENING
    for char, solid, letter in ((first, SOLID_START, LETTER_START), (last, SOLID_END, LETTER_END)):
        if is_solid(char):
            facts |= solid
        elif char.isalnum() and char not in _ATTACHED:
            facts |= letter
    if unicodedata.category(last)[0] == "M" or last in _ATTACHED:  # a sign of the character before
        facts |= SOLID_END if _is_of_dictionary_script(last) else LETTER_END
    return facts | HELD if last in _LEADING else facts


_cached_facts = lru_cache(maxsize=4096)(facts_of)


def is_solid(char: str) -> bool:
    """Return whether a character can begin a word without a space: of Chinese, Japanese, Thai, Lao, Khmer, Burmese."""
    if not char or char in _ATTACHED or unicodedata.category(char)[0] not in "LN":
        return False
    if unicodedata.east_asian_width(char) in "WF":
        return "HANGUL" not in unicodedata.name(char, "")  # Korean has spaces
    return _is_of_dictionary_script(char)


def _is_opening(char: str) -> bool:
    return char in _OPENING or unicodedata.category(char) in ("Ps", "Pi")


def _is_of_dictionary_script(char: str) -> bool:
    return unicodedata.name(char, "").startswith(_DICTIONARY_SCRIPTS)


def _is_punctuation(text: str) -> bool:
    return all(unicodedata.category(char)[0] == "P" for char in text)
