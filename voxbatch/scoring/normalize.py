"""Make different spellings of the same speech equal before they are compared, language by language.

The module does not align or count (counts.py does), and it translates spellings, digits or scripts in English only.
docs/scoring.md states the rules with examples.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib import metadata
from typing import Literal

from voxbatch import languages
from voxbatch.errors import ConfigError
from voxbatch.scoring.english import english_normalizer
from voxbatch.scoring.leaderboard import Leaderboard
from voxbatch.scoring.replacements import Replacements

Normalizer = Callable[[str], str]
"""A function from a text to its normalised form."""
Unit = Literal["word", "character"]
"""The unit that is counted."""

ENGLISH = frozenset({"en", "eng"})

WITHOUT_SPACES = frozenset(
    {"zh", "zho", "chi", "cmn", "yue", "wuu", "nan", "hak", "ja", "jpn", "th", "tha", "lo", "lao"}
    | {"km", "khm", "my", "mya", "bur", "bo", "bod", "tib"}
)
"""Primary subtags of languages that are written without spaces. Words of these languages depend on the segmenter, so
characters are counted."""

WORDS_AND_CHARACTERS = frozenset({"ko", "kor"})
"""Primary subtags of languages that are counted in words and also in characters. Korean spacing varies between writers,
so publications give both rates."""

NORMALIZERS = ("auto", "english", "basic", "whisper-basic", "none")
"""Names of the sets of rules. "auto" takes "english" for English and "basic" for all other languages."""

_TAGS = re.compile(r"[<\[【][^<\[【>\]】]*[>\]】]|\([^()]+\)")
"""Text in brackets that is no speech: [laughter], <unk>, (coughs). Whisper's rules remove the same, apart from 【】."""

_APOSTROPHE_LETTERS = frozenset("\u02bb\u02bc")
"""Letters by category that are typed in place of the apostrophe ’ (Ukrainian п’ять, Hawaiian ʻokina)."""

_VARIATION_SELECTORS = frozenset(map(chr, range(0xFE00, 0xFE10)))
"""Marks by category that choose a glyph (text or emoji) and spell nothing."""


UNDETERMINED = "und"
"""The code of ISO 639 for a language that is not known."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules by which references and hypotheses are normalised.

    Raises:
        ConfigError: there is no such normaliser, or it cannot keep case or punctuation.
    """

    normalizer: str = "auto"
    """One of NORMALIZERS."""
    case: bool = False
    """Upper and lower case differ. Then "auto" is "basic" in all languages."""
    punctuation: bool = False
    """Punctuation and symbols stay where they are written: "yes," is not "yes". Then "auto" is "basic", too."""
    replacements: Replacements | None = None
    """Words that are replaced after the other rules."""
    leaderboard: Leaderboard | None = None
    """The Open ASR Leaderboard's rules, in place of all others. They are for English."""

    def __post_init__(self) -> None:
        if self.normalizer not in NORMALIZERS:
            raise ConfigError(f"normalizer {self.normalizer!r}: allowed are {', '.join(NORMALIZERS)}")
        if (self.case or self.punctuation) and self.normalizer not in ("auto", "basic"):
            kept = "the texts are compared as they are" if self.normalizer == "none" else "these rules remove both"
            raise ConfigError(
                f"--normalizer {self.normalizer} cannot be combined with --case or --punctuation: {kept}; give them "
                "with --normalizer basic, or alone"
            )

        others = self.normalizer != "auto" or self.case or self.punctuation or self.replacements is not None
        if self.leaderboard is not None and others:
            raise ConfigError("--leaderboard has rules of its own; leave out --normalizer and the options for them")

    def method(self, lang: str | None) -> str:
        """Return the name of the rules for a language, which is not "auto".

        Raises:
            ConfigError: the leaderboard's rules are not for this language.
        """
        if self.leaderboard is not None:
            if scored_language(lang) not in {*ENGLISH, UNDETERMINED}:
                raise ConfigError(f"--leaderboard has rules for English only, and a text is in {lang!r}; leave it out")
            return "leaderboard"
        if self.normalizer != "auto":
            return self.normalizer
        return "english" if scored_language(lang) in ENGLISH and not (self.case or self.punctuation) else "basic"


DEFAULT_RULES = Rules()
"""The rules of `voxbatch run`."""


@lru_cache(1024)
def scored_language(lang: str | None) -> str:
    """Return the primary subtag of a language tag: "pt-BR" → "pt", None or "" → "und" (undetermined)."""
    return languages.primary_subtag(lang or "") or UNDETERMINED


def error_unit(lang: str | None) -> Unit:
    """Return the unit of errors: characters if the language is written without spaces, else words."""
    return "character" if scored_language(lang) in WITHOUT_SPACES else "word"


def normalizer(lang: str | None, rules: Rules = DEFAULT_RULES) -> Normalizer:
    """Return the function that normalises a reference or a hypothesis in `lang` before the comparison.

    By default English gets Whisper's English rules ("It's my colour, Mr. Grey" → "it is my color mister gray"). Every
    other language, and None, gets `normalize_unicode`.
    """
    return _normalizer(rules.method(lang), rules, error_unit(lang))


def normalizer_name(lang: str | None, rules: Rules = DEFAULT_RULES) -> str:
    """Return the name of the rules of `normalizer(lang, rules)`, with the version of their library."""
    library, unicode = f"whisper-normalizer {metadata.version('whisper-normalizer')}", unicodedata.unidata_version
    name = {
        "leaderboard": rules.leaderboard.name if rules.leaderboard else "",
        "english": f"Whisper's English rules ({library})",
        "whisper-basic": f"Whisper's basic rules ({library})",
        "basic": f"basic rules (Unicode {unicode})",
        "none": "no rules: words are separated by spaces",
    }[rules.method(lang)]
    parts = [name]
    parts += ["case kept"] if rules.case else []
    parts += ["punctuation kept"] if rules.punctuation else []
    parts += [rules.replacements.name] if rules.replacements else []
    return ", ".join(parts)


@cache
def _normalizer(method: str, rules: Rules, unit: Unit) -> Normalizer:
    if rules.leaderboard is not None:
        normalize = rules.leaderboard.normalize
    elif method == "english":
        normalize = english_normalizer(normalize_unicode)
    elif method == "whisper-basic":
        from whisper_normalizer.basic import BasicTextNormalizer

        normalize = BasicTextNormalizer()
    elif method == "none":
        normalize = _collapse
    elif rules.case or rules.punctuation:
        normalize = partial(normalize_unicode, case=rules.case, punctuation=rules.punctuation)
    else:
        normalize = normalize_unicode
    return rules.replacements.after(normalize, unit) if rules.replacements else normalize


def _collapse(text: str) -> str:
    return " ".join(text.split())


def normalize_unicode(text: str, *, case: bool = False, punctuation: bool = False) -> str:
    """Apply NFKC and case folding, remove tags in brackets, replace punctuation and symbols by spaces, and collapse
    white space.

        "L’homme — 50 % d'ÉTÉ" → "l homme 50 d été"        "हिन्दी में। [हँसी]" → "हिन्दी में"

    Combining marks stay: they are the vowels of Hindi, Thai and most scripts of South Asia. Whisper's own
    BasicTextNormalizer deletes them. That turns "हिन्दी" into "ह न द" and makes a wrong transcript look right.
    Invisible format characters (soft hyphen, zero-width joiners, direction marks) are removed, as in Unicode's
    NFKC_Casefold. NFKC splits the Thai and Lao vowel AM into two characters, in reference and hypothesis alike.

    Args:
        text: a reference or a hypothesis.
        case: keep upper and lower case.
        punctuation: keep punctuation and symbols.
    """
    text = unicodedata.normalize("NFKC", text)
    if not case:
        text = unicodedata.normalize("NFKC", text.casefold())
    text = _TAGS.sub(" ", text)
    if punctuation:
        return " ".join("".join(char for char in text if unicodedata.category(char) != "Cf").split())
    letters = text.translate(_ASCII_TO_SPACES) if text.isascii() else "".join(_letters(text))
    return " ".join(letters.split())


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


_ASCII_TO_SPACES = {ord(char): " " for char in map(chr, range(128)) if next(_letters(char)) == " "}
"""The result of `_letters` for ASCII, in which no character depends on the one before."""
