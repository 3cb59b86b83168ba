"""The unit in which errors are counted: words, or characters in languages that are written without spaces."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from voxbatch.languages import primary_subtag

Unit = Literal["word", "character"]
"""The unit that is counted."""
RATES: dict[str, Unit] = {"WER": "word", "CER": "character"}
"""The error rates with the units that they count."""

WITHOUT_SPACES = frozenset(("zh", "yue", "wuu", "nan", "hak", "ja", "th", "lo", "km", "my", "bo"))
"""Primary subtags of languages that are written without spaces. Words of these languages depend on the segmenter, so
characters are counted."""

WORDS_AND_CHARACTERS = frozenset(("ko",))
"""Primary subtags of languages that are counted in words and also in characters. Korean spacing varies between writers,
so publications give both rates."""

UNDETERMINED = "und"
"""The code of ISO 639 for a language that is not known."""


@lru_cache(1024)
def scored_language(lang: str | None) -> str:
    """Return the primary subtag of a language tag: "pt-BR" → "pt", None or "" → "und" (undetermined)."""
    return primary_subtag(lang or "") or UNDETERMINED


def error_unit(lang: str | None) -> Unit:
    """Return the unit of errors: characters if the language is written without spaces, else words."""
    return "character" if scored_language(lang) in WITHOUT_SPACES else "word"
