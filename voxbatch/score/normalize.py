"""Make two ways of writing the same speech equal, language by language, before they are compared.

It does not align or count (counts.py), and it does not translate spellings, digits or scripts outside English.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from typing import Literal

Normalizer = Callable[[str], str]

ENGLISH = frozenset({"en", "eng"})

WITHOUT_SPACES = frozenset(
    {"zh", "zho", "chi", "cmn", "yue", "wuu", "nan", "hak", "ja", "jpn", "th", "tha", "lo", "lao"}
    | {"km", "khm", "my", "mya", "bur", "bo", "bod", "tib"}
)
"""Primary subtags of languages written without spaces: what a word is there would be some segmenter's opinion."""

_APOSTROPHE_LETTERS = frozenset("\u02bb\u02bc")
"""Letters by category, but typed interchangeably with the apostrophe ’ (Ukrainian п’ять, Hawaiian ʻokina)."""

_VARIATION_SELECTORS = frozenset(map(chr, range(0xFE00, 0xFE10)))
"""Marks by category, but they choose a glyph (text or emoji) and spell nothing."""


def language(lang: str | None) -> str:
    """The primary subtag, lower case: "pt-BR" → "pt", "EN_us" → "en", None or "" → "und" (undetermined)."""
    return (lang or "").strip().replace("_", "-").partition("-")[0].lower() or "und"


def unit(lang: str | None) -> Literal["word", "character"]:
    """What errors are counted in: characters where the language is written without spaces, else words."""
    return "character" if language(lang) in WITHOUT_SPACES else "word"


def normalizer(lang: str | None) -> Normalizer:
    """The function that both a reference and a hypothesis in `lang` go through before they are compared.

    English gets Whisper's English rules, as the Open ASR Leaderboard does ("It's my colour, Mr. Grey" →
    "it is my color mister gray"); every other language, and None, gets `normalize_unicode`.
    """
    return _english() if language(lang) in ENGLISH else normalize_unicode


def normalize_unicode(text: str) -> str:
    """NFKC and case folding; punctuation and symbols become spaces; white space collapses.

        "L’homme — 50 % d'ÉTÉ" → "l homme 50 d été"        "हिन्दी में।" → "हिन्दी में"

    Combining marks stay: they are the vowels of Hindi, Thai and most scripts of South Asia. Whisper's own
    BasicTextNormalizer deletes them, which turns "हिन्दी" into "ह न द" and makes a wrong transcript look right.
    Invisible format characters (soft hyphen, zero-width joiners, direction marks) go, as in Unicode's NFKC_Casefold.
    NFKC splits the Thai and Lao vowel AM in two characters, in reference and hypothesis alike.
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return " ".join("".join(_letters(folded)).split())


def _letters(text: str) -> Iterator[str]:
    bare = True  # nothing for a mark to sit on: the symbol or punctuation that it belonged to is gone
    for char in text:
        category = unicodedata.category(char)
        if category == "Cf" or char in _VARIATION_SELECTORS or (bare and category[0] == "M"):
            continue
        bare = category[0] in "PSZC" or char in _APOSTROPHE_LETTERS
        yield " " if bare else char


@cache
def _english() -> Normalizer:
    from whisper_normalizer.english import EnglishTextNormalizer

    rules: Normalizer = EnglishTextNormalizer()

    def normalize(text: str) -> str:
        try:
            return " ".join(rules(" ".join(text.split())).split())
        except (AssertionError, ValueError, ArithmeticError):
            # Its number rules fail on numbers of thousands of digits, which a model stuck in a loop does write.
            return normalize_unicode(text)

    return normalize
