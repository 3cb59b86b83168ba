"""Make different spellings of the same speech equal before they are compared, language by language.

The scoring form of the language (forms.py) comes first, then the rules that are chosen. The module does not align or
count (counts.py does). docs/scoring.md states the rules with examples.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib import metadata

from voxbatch.errors import ConfigError
from voxbatch.scoring.units import UNDETERMINED, Unit, error_unit, scored_language

Normalizer = Callable[[str], str]
"""A function from a text to its normalised form."""
ENGLISH = "en"

NORMALIZERS = ("auto", "english", "basic", "whisper", "whisper-basic", "none")
"""Names of the sets of rules. "auto" takes "english" for English and "basic" for all other languages; "whisper" takes
Whisper's own, "english" or "whisper-basic"."""
_WITH_FORM = ("auto", "english", "basic")
"""Sets of rules that texts come to in their scoring form. The others are exactly those of Whisper, or none."""

FORM_VERSION = 3
"""Version of the scoring forms. Increase it with each change of what a form gives, because a rate depends on it."""

_TAGS = re.compile(r"[<\[【][^<\[【>\]】]*[>\]】]|\([^()]+\)")
"""Text in brackets that is no speech: [laughter], <unk>, (coughs). Whisper's rules remove the same, apart from 【】."""


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """The rules of one copy of the leaderboard's repository; see the module `leaderboard`."""

    checksum: str
    """First digits of the SHA-256 of the files with the rules."""
    normalize: Normalizer = field(compare=False)

    @property
    def name(self) -> str:
        """The name of the rules."""
        return f"Open ASR Leaderboard's rules (sha256 {self.checksum})"

    def count(self, reference: Sequence[str], hypothesis: Sequence[str]) -> tuple[int, int, int]:
        """Return the substitutions, insertions and deletions between two sequences of words. Words that are only
        joined or split are no error."""
        from kaldialign import edit_distance

        distances = edit_distance(reference, hypothesis, merge_compounds=True)
        return int(distances["sub"]), int(distances["ins"]), int(distances["del"])


@dataclass(frozen=True, slots=True)
class Replacements:
    """Words and what replaces them; see the module `replacements`."""

    name: str
    """Name and digest of the file, for results."""
    pairs: tuple[tuple[str, str], ...]

    def after(self, normalize: Normalizer, unit: Unit) -> Normalizer:
        """Return the function that normalises a text and then replaces words in it, the longest first, each once.

        Both columns are normalised by the same rules, so that "O.K." matches whatever the rules make of it. In a
        language that is counted in words, whole words are replaced.

        Args:
            normalize: the rules that come first.
            unit: "word" or "character".
        """

        def spelled(text: str) -> str:
            words = normalize(text).split()
            return " ".join(words) if unit == "word" else "".join(words)

        # Words that the rules remove anyway cannot be found.
        table = {spelled(old): spelled(new) for old, new in self.pairs if spelled(old)}
        if not table:
            return normalize
        longest_first = "|".join(re.escape(old) for old in sorted(table, key=len, reverse=True))
        pattern = re.compile(rf"(?<!\S)(?:{longest_first})(?!\S)" if unit == "word" else longest_first)
        return lambda text: " ".join(pattern.sub(lambda match: table[match[0]], spelled(text)).split())


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules by which references and hypotheses are normalised.

    Raises:
        ConfigError: there is no such normaliser, or it cannot keep case or punctuation.
    """

    normalizer: str | Normalizer = "auto"
    """One of NORMALIZERS, or a function of the caller, in place of all rules."""
    case: bool = False
    """Upper and lower case differ. Then "auto" is "basic" in all languages."""
    punctuation: bool = False
    """Punctuation and symbols stay where they are written: "yes," is not "yes". Then "auto" is "basic", too."""
    replacements: Replacements | None = None
    """Words that are replaced after the other rules."""
    leaderboard: Leaderboard | None = None
    """The Open ASR Leaderboard's rules, in place of all others. They are for English."""

    def __post_init__(self) -> None:
        if callable(self.normalizer):
            if self.case or self.punctuation:
                raise ConfigError(
                    "the normalizer is a function, which decides about case and punctuation itself; leave out both"
                )
        elif self.normalizer not in NORMALIZERS:
            raise ConfigError(f"normalizer {self.normalizer!r}: allowed are {', '.join(NORMALIZERS)}")
        if (self.case or self.punctuation) and self.normalizer not in ("auto", "basic"):
            effect = "the texts are compared as they are" if self.normalizer == "none" else "these rules remove both"
            raise ConfigError(
                f"--normalizer {self.normalizer} cannot be combined with --case or --punctuation: {effect}; give them "
                "with --normalizer basic, or alone"
            )

        has_other_rules = self.normalizer != "auto" or self.case or self.punctuation or self.replacements is not None
        if self.leaderboard is not None and has_other_rules:
            raise ConfigError("--leaderboard has rules of its own; leave out --normalizer and the options for them")

    def method(self, lang: str | None) -> str:
        """Return the name of the rules for a language, which is not "auto".

        Raises:
            ConfigError: the leaderboard's rules are not for this language.
        """
        if self.leaderboard is not None:
            if scored_language(lang) not in (ENGLISH, UNDETERMINED):
                raise ConfigError(f"--leaderboard has rules for English only, and a text is in {lang!r}; leave it out")
            return "leaderboard"
        if callable(self.normalizer):
            return "own"
        if self.normalizer not in ("auto", "whisper"):
            return self.normalizer
        if scored_language(lang) == ENGLISH and not (self.case or self.punctuation):
            return "english"
        return "whisper-basic" if self.normalizer == "whisper" else "basic"

    def form(self, lang: str | None) -> str | None:
        """Return the language whose scoring form the texts get first, as a primary subtag; None for no form."""
        return scored_language(lang) if self.leaderboard is None and self.normalizer in _WITH_FORM else None


DEFAULT_RULES = Rules()
"""The rules of `voxbatch run`."""


def normalizer(lang: str | None, rules: Rules = DEFAULT_RULES) -> Normalizer:
    """Return the function that normalises a reference or a hypothesis in `lang` before the comparison.

    By default a text gets its scoring form, and then English gets Whisper's English rules ("It's my colour, Mr. Grey"
    → "it is my color mister gray"). Every other language, and None, gets `normalize_unicode`.
    """
    return _normalizer(rules.method(lang), rules.form(lang), rules, error_unit(lang))


@lru_cache(1024)
def normalizer_name(lang: str | None, rules: Rules = DEFAULT_RULES) -> str:
    """Return the name of the rules of `normalizer(lang, rules)`, with the version of their library."""
    library, unicode = f"whisper-normalizer {metadata.version('whisper-normalizer')}", unicodedata.unidata_version
    name = {
        "leaderboard": rules.leaderboard.name if rules.leaderboard else "",
        "english": f"Whisper's English rules ({library})",
        "whisper-basic": f"Whisper's basic rules ({library})",
        "basic": f"basic rules (Unicode {unicode})",
        "none": "no rules: words are separated by spaces",
        "own": f"the rules of {_name_of(rules.normalizer)}",
    }[rules.method(lang)]
    parts = [name]
    parts += [f"scoring form {FORM_VERSION}"] if rules.form(lang) else []
    parts += ["case kept"] if rules.case else []
    parts += ["punctuation kept"] if rules.punctuation else []
    parts += [rules.replacements.name] if rules.replacements else []
    return ", ".join(parts)


def _name_of(function: object) -> str:
    """Return the name of a function, or of the class of an object that is called, for results."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{getattr(named, '__module__', 'builtins')}.{named.__qualname__}"


@lru_cache(1024)
def _normalizer(method: str, form_language: str | None, rules: Rules, unit: Unit) -> Normalizer:
    if rules.leaderboard is not None:
        normalize = rules.leaderboard.normalize
    elif method == "english":
        from voxbatch.scoring.english import english_normalizer

        normalize = english_normalizer(normalize_unicode, own_numbers=form_language is not None)
    elif method == "whisper-basic":
        from whisper_normalizer.basic import BasicTextNormalizer

        normalize = BasicTextNormalizer()
    elif method == "none":
        normalize = _collapse
    elif callable(rules.normalizer):
        normalize = partial(_checked, rules.normalizer)
    elif rules.case or rules.punctuation:
        normalize = partial(normalize_unicode, case=rules.case, punctuation=rules.punctuation)
    else:
        normalize = normalize_unicode
    if form_language is not None:
        from voxbatch.scoring.forms import scoring_form

        normalize = _chained(scoring_form(form_language, rules.case), normalize)
    return rules.replacements.after(normalize, unit) if rules.replacements else normalize


def _checked(function: Normalizer, text: str) -> str:
    """Return the text that the caller's function makes of a text."""
    normalized: object = function(text)
    if not isinstance(normalized, str):
        raise ConfigError(f"the normalizer made {normalized!r} of {text[:60]!r}; it must return a text")
    return normalized


def _chained(form: Normalizer, normalize: Normalizer) -> Normalizer:
    return lambda text: normalize(form(text))


def _collapse(text: str) -> str:
    return " ".join(text.split())


def normalize_unicode(text: str, *, case: bool = False, punctuation: bool = False) -> str:
    """Fold the case, remove tags in brackets, replace punctuation and symbols by spaces, and collapse white space.

        "L'homme — 50 % d'ÉTÉ" → "l homme 50 d été"        "हिन्दी में। [हँसी]" → "हिन्दी में"

    Combining marks stay: they are the vowels of Hindi, Thai and most scripts of South Asia. Whisper's own
    BasicTextNormalizer deletes them. That turns "हिन्दी" into "ह न द" and makes a wrong transcript look right.

    Args:
        text: a reference or a hypothesis, in its scoring form.
        case: keep upper and lower case.
        punctuation: keep punctuation and symbols.
    """
    if not case:
        text = unicodedata.normalize("NFKC", text.casefold())
    text = _TAGS.sub(" ", text)
    if punctuation:
        return _collapse(text)
    return _collapse(text.translate(_ASCII_TO_SPACES) if text.isascii() else "".join(_letters(text)))


def _letters(text: str) -> Iterator[str]:
    """Yield letters, digits and marks as they are, and a space for each other character.

    Marks without a letter before them are left out.
    """
    # True if a mark would follow no letter, because the symbol or punctuation that it belongs to is removed.
    after_no_letter = True
    for char in text:
        category = unicodedata.category(char)[0]
        if after_no_letter and category == "M":
            continue
        after_no_letter = category in "PSZC"
        yield " " if after_no_letter else char


_ASCII_TO_SPACES = {ord(char): " " for char in map(chr, range(128)) if next(_letters(char)) == " "}
"""The result of `_letters` for ASCII, in which no character depends on the one before."""
