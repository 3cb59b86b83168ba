"""Make different spellings of the same speech equal before they are compared, language by language.

The module does not align or count (counts.py does), and it translates spellings, digits or scripts in English only.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata
from typing import Literal

from voxbatch import languages

Normalizer = Callable[[str], str]
"""A function from a text to its normalised form."""

ENGLISH = frozenset({"en", "eng"})

WITHOUT_SPACES = frozenset(
    {"zh", "zho", "chi", "cmn", "yue", "wuu", "nan", "hak", "ja", "jpn", "th", "tha", "lo", "lao"}
    | {"km", "khm", "my", "mya", "bur", "bo", "bod", "tib"}
)
"""Primary subtags of languages that are written without spaces. Words of these languages depend on the segmenter, so
characters are counted."""

_APOSTROPHE_LETTERS = frozenset("\u02bb\u02bc")
"""Letters by category that are typed in place of the apostrophe ’ (Ukrainian п’ять, Hawaiian ʻokina)."""

_VARIATION_SELECTORS = frozenset(map(chr, range(0xFE00, 0xFE10)))
"""Marks by category that choose a glyph (text or emoji) and spell nothing."""


UNDETERMINED = "und"
"""The code of ISO 639 for a language that is not known."""


def scored_language(lang: str | None) -> str:
    """Return the primary subtag of a language tag: "pt-BR" → "pt", None or "" → "und" (undetermined)."""
    return languages.primary_subtag(lang or "") or UNDETERMINED


def error_unit(lang: str | None) -> Literal["word", "character"]:
    """Return the unit of errors: characters if the language is written without spaces, else words."""
    return "character" if scored_language(lang) in WITHOUT_SPACES else "word"


def normalizer(lang: str | None) -> Normalizer:
    """Return the function that normalises a reference or a hypothesis in `lang` before the comparison.

    English gets Whisper's English rules, as on the Open ASR Leaderboard ("It's my colour, Mr. Grey" → "it is my color
    mister gray"). Every other language, and None, gets `normalize_unicode`.
    """
    return _english() if scored_language(lang) in ENGLISH else normalize_unicode


def normalizer_name(lang: str | None) -> str:
    """Return the name of the rules of `normalizer(lang)`, with the version of the library that they come from."""
    if scored_language(lang) in ENGLISH:
        return f"Whisper's English rules (whisper-normalizer {metadata.version('whisper-normalizer')})"
    return f"basic rules (Unicode {unicodedata.unidata_version})"


def normalize_unicode(text: str) -> str:
    """Apply NFKC and case folding, replace punctuation and symbols by spaces, and collapse white space.

        "L’homme — 50 % d'ÉTÉ" → "l homme 50 d été"        "हिन्दी में।" → "हिन्दी में"

    Combining marks stay: they are the vowels of Hindi, Thai and most scripts of South Asia. Whisper's own
    BasicTextNormalizer deletes them. That turns "हिन्दी" into "ह न द" and makes a wrong transcript look right.
    Invisible format characters (soft hyphen, zero-width joiners, direction marks) are removed, as in Unicode's
    NFKC_Casefold. NFKC splits the Thai and Lao vowel AM into two characters, in reference and hypothesis alike.
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return " ".join("".join(_letters(folded)).split())


def _letters(text: str) -> Iterator[str]:
    """Yield letters, digits and marks as they are, and a space for each other character.

    Format characters, and marks without a letter before them, are left out.
    """
    # True if a mark would follow no letter, because the symbol or punctuation that it belongs to is removed.
    after_no_letter = True
    for char in text:
        category = unicodedata.category(char)
        if category == "Cf" or char in _VARIATION_SELECTORS or (after_no_letter and category[0] == "M"):
            continue
        after_no_letter = category[0] in "PSZC" or char in _APOSTROPHE_LETTERS
        yield " " if after_no_letter else char


@cache
def _english() -> Normalizer:
    """Return Whisper's English rules."""
    from whisper_normalizer.english import EnglishTextNormalizer

    rules: Normalizer = EnglishTextNormalizer()

    def normalize(text: str) -> str:
        """Apply the rules, or `normalize_unicode` if they fail."""
        try:
            return " ".join(rules(" ".join(text.split())).split())
        except (AssertionError, ValueError, ArithmeticError):
            # Whisper's number rules fail on numbers of thousands of digits, which a model writes when stuck in a loop.
            return normalize_unicode(text)

    return normalize
