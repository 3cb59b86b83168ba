"""Whisper's English rules, at many times the speed of the library.

The package whisper-normalizer has the rules and applies them. It takes 0.5 ms for a sentence: two minutes for 100,000
pairs. But the rules change most words by themselves: only numbers and a few contractions depend on the words beside
them. So the module remembers what the package makes of each word, and of each run of number words. A text with
anything unusual in it, such as brackets, goes through the package as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache
from itertools import groupby

_LETTERS = r"[^\W\d_]+"
_WORD = re.compile(
    rf"""["“]?{_LETTERS}(?:['’-]{_LETTERS})*[,.?!;:]?["”]?|-+|[0-9]+(?:[.,][0-9]+)*(?:st|nd|rd|th|s)?[,.?!;:]?"""
)
"""A token that no rule joins with a plain word beside it."""
_DEPENDS_ON_NEXT = re.compile(r"'[sd] (?:been|gone|done|got|gotta)\b|\bhalf\b|\b(?:hmm|mm|mhm|mmm|uh|um)'")
"""Texts in which a rule for contractions, "and a half" or fillers depends on the words beside."""
_SUFFIXES = frozenset({"st", "nd", "rd", "th", "s"})
"""Words that the rules join to a number before them."""
_NO_OPENING = str.maketrans("<[(", ";;;")
_REMEMBERED_WORDS = 1 << 16
_REMEMBERED_NUMBERS = 1 << 14
_LONGEST_WORD, _LONGEST_NUMBER = 50, 200
"""Characters of the longest word and number that are remembered, which bounds the memory to 30 MB."""


@cache
def english_normalizer(fallback: Callable[[str], str], own_numbers: bool = False) -> Callable[[str], str]:
    """Return Whisper's English rules.

    Args:
        fallback: rules for a text on which Whisper's fail. Its number rules fail on numbers of thousands of digits,
            which a model writes when stuck in a loop.
        own_numbers: give numbers one spelling; see the module `numbers`. Else the rules are exactly Whisper's.
    """
    from whisper_normalizer.english import EnglishTextNormalizer

    rules = EnglishTextNormalizer()
    if own_numbers:
        from voxbatch.scoring import numbers as own

        rules.standardize_numbers = own.EnglishNumbers()
    number_words = rules.standardize_numbers.words | _SUFFIXES

    def apply(text: str) -> str:
        return " ".join(rules(text).split())

    @lru_cache(_REMEMBERED_WORDS)
    def plain(token: str) -> str | None:
        """Return what the rules make of a word. None if the words beside it matter: it belongs to a number, or is a
        filler, which does not separate the words of a number."""
        normal = apply(token)
        parts = {*re.findall(r"[a-z]+", token), *normal.split()}
        return None if parts & number_words or any(char.isdigit() for char in token + normal) else normal or None

    numbers = lru_cache(_REMEMBERED_NUMBERS)(apply)

    def normalize(text: str) -> str:
        text = without_brackets(" ".join(text.lower().split()))
        tokens = text.split()
        try:
            if _DEPENDS_ON_NEXT.search(text) or not all(map(_WORD.fullmatch, tokens)):
                return apply(text)
            if max(map(len, tokens), default=0) > _LONGEST_WORD:
                return apply(text)
            parts: list[str] = []
            for is_plain, run in groupby(tokens, lambda token: plain(token) is not None):
                if is_plain:
                    parts += filter(None, map(plain, run))
                else:
                    number = " ".join(run)
                    parts.append(numbers(number) if len(number) <= _LONGEST_NUMBER else apply(number))
            return " ".join(filter(None, parts))
        except (AssertionError, ValueError, ArithmeticError):
            return fallback(text)

    return (lambda text: own.joined(normalize(own.spoken(text)))) if own_numbers else normalize


def without_brackets(text: str) -> str:
    """Remove what stands in brackets, exactly as Whisper's rules do. Those need hours for a megabyte of "((((…".

    Opening brackets that remain have no end. They become semicolons: to the rules both are punctuation.
    """
    text = _remove(text, re.compile(r"[<\[]"), re.compile(r"[>\]]"), 0)
    text = _remove(text, re.compile(r"\("), re.compile(r"\)"), 1)
    return text.translate(_NO_OPENING)


def _remove(text: str, opening: re.Pattern[str], closing: re.Pattern[str], least: int) -> str:
    """Remove each stretch from an opening bracket to the next closing one with at least so many characters between."""
    kept, position = [], 0
    start = opening.search(text)
    while start and (end := closing.search(text, start.end())):
        if end.start() - start.end() < least:
            start = opening.search(text, start.end())
            continue
        kept.append(text[position : start.start()])
        position = end.end()
        start = opening.search(text, position)
    return "".join((*kept, text[position:]))
