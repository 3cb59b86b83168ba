"""Read the rules by which secrets are found: rules.yaml, and what a file for --rules adds.

The names of persons come from the package Faker, which keeps lists of them for each country.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, resources
from typing import Any

import yaml
from rapidfuzz import fuzz, process

from voxbatch.engines.align.numbers import number_words
from voxbatch.errors import ConfigError
from voxbatch.storage import Stores, redacted

KINDS = (
    "card", "iban", "account", "phone", "national_id", "code", "number", "email", "person", "address", "date_of_birth",
    "other", "file_name", "speaker_name",
)  # fmt: skip
"""Kinds of secrets. `other` is found by patterns of a file for --rules, `file_name` means the ids of items, and
`speaker_name` the speakers who have a name instead of a number."""
_OWN = {"names": "a list of names", "patterns": "patterns of Python by their kinds", "numbers": "a list of rules"}
"""The keys of a file for --rules."""
OWN = "own pattern"
"""The name of the rule of names and patterns in such a file."""
CLOSE = 80
"""Similarity of a word to a name, in percent, from which it may be that name as a recogniser heard it."""
TAGS = (
    "end", "more", "part", "year", "weak", "single", "international", "date", "mark", "letter", "spelled", "upper",
    "titled", "place", "house", "house_first", "road", "postcode", "mail", "mail_begin", "mail_end", "host", "tiny",
    "capital", "first", "maybe_first", "listed", "known", "common", "sounds",
    "doubtful", "begin", "nearly",
)  # fmt: skip
"""The names of words that the module tokens gives; rules.yaml uses them, and those of its lists."""
_TABLES = ("locales", "numbers", "repeats", "postcode")
"""The keys of a language that are no lists of texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberRule:
    """A rule that names the kind of a number; rules.yaml describes its fields."""

    rule: str
    kind: str
    digits: tuple[int, int] = (1, 40)
    letters: str | None = None
    cue: str | None = None
    check: str | None = None
    needs_cue: bool = False
    """True if the right check digits alone do not make it fit."""
    one_by_one: bool = False
    """True if each part must be said as single digits."""
    countries: tuple[str, ...] = ()
    """Countries of the languages in which it holds. Empty means all."""

    def __post_init__(self) -> None:
        """Check the rule.

        Raises:
            ConfigError: a kind is unknown, or a pattern is none.
        """
        if self.kind not in KINDS:
            raise ConfigError(f"rule {self.rule!r}: kind {self.kind!r} is unknown; known are {', '.join(KINDS)}")
        compiled(self.letters or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRule:
    """A rule that finds a sequence of words; rules.yaml describes it."""

    rule: str
    kind: str
    words: re.Pattern[str]
    """Pattern of the line that `TokenPassage` writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageRules:
    """The words of a language; rules.yaml describes them."""

    numbers: Mapping[str, str]
    """The digits of a number in words, with spaces between them."""
    repeats: Mapping[str, int]
    """Number of times that a word such as "double" repeats a digit."""
    lists: Mapping[str, frozenset[str]]
    """The texts of each list."""
    texts: Mapping[str, Sequence[tuple[tuple[str, ...], str]]]
    """(words, list) of each text, by its first word; by "" if that has a `*`."""
    postcode: str = ""
    """Pattern of a postcode that tells an address without a street. Empty if there is none."""
    countries: tuple[str, ...] = ()
    first_names: frozenset[str] = frozenset()
    last_names: frozenset[str] = frozenset()
    is_nearly_a_name: Callable[[str], bool] = bool
    """Returns whether a word of some length is nearly a first name: "garith" for "Gareth"."""
    common_words: frozenset[str] = frozenset()
    knows_names: bool = True
    """False in a language for which there are patterns alone."""

    def digits(self, words: Sequence[str]) -> str | None:
        """Return the digits of words that are one number, or of a word that has several: "four-one". None of others."""
        text = " ".join(words).casefold().replace("-", " ").strip()
        if (digits := self.numbers.get(text)) or len(words) > 1 or not text:
            return digits
        parts = [self.numbers.get(part) for part in text.split()]
        return "".join(filter(None, parts)) if all(parts) else None

    def has(self, name: str, word: str) -> bool:
        """Return whether a list has a word."""
        return word in self.lists.get(name, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class RedactionRules:
    """All rules of a run."""

    numbers: tuple[NumberRule, ...]
    sequences: tuple[SequenceRule, ...]
    patterns: Sequence[tuple[str, str, re.Pattern[str]]]
    """(kind, rule, pattern) of the names and patterns of a file for --rules, or of the answers about an item."""
    max_gap: int
    near: int
    cue_distance: Mapping[str, int]
    digest: str
    """SHA-256 of all files, of which the results depend."""

    def language(self, tag: str | None) -> LanguageRules:
        """Return the rules of a language by its primary subtag. One that has none takes the words of all languages for
        numbers and addresses, with its own number words, and finds no names."""
        return _language(tag)


def load(place: str | None, stores: Stores) -> RedactionRules:
    """Return the rules.

    Args:
        place: path or address of a file that adds to them.

    Raises:
        ConfigError: the file cannot be read, or has other keys.
    """
    own, content = _own(place, stores) if place else ({}, b"")
    builtin = _builtin()
    try:
        numbers = tuple(_number_rule(rule) for rule in (*own.get("numbers", ()), *builtin["numbers"]))
        patterns = [("person", OWN, own_name(str(name))) for name in own.get("names", ())]
        patterns += [(kind, OWN, compiled(text)) for kind, texts in own.get("patterns", {}).items() for text in texts]
    except (AttributeError, TypeError) as e:
        raise _wrong_keys(place or "") from e
    if unknown := sorted({kind for kind, _, _ in patterns} - {*KINDS}):
        raise ConfigError(f"{place}: patterns of {', '.join(unknown)}; known are {', '.join(KINDS)}")
    digest = hashlib.sha256(_text() + content).hexdigest()
    settings = {name: builtin[name] for name in ("max_gap", "near", "cue_distance")}
    return RedactionRules(numbers=numbers, sequences=_sequences(), patterns=patterns, digest=digest, **settings)


def compiled(text: str) -> re.Pattern[str]:
    """Return a pattern.

    Raises:
        ConfigError: the text is none.
    """
    try:
        return re.compile(text)
    except re.error as e:
        raise ConfigError(f"pattern {text!r}: {e}; give a regular expression of Python") from e


def own_name(name: str) -> re.Pattern[str]:
    """Return the pattern of a name, in which a `*` stands for the rest of a word."""
    words = r"\W+".join(re.escape(word).replace(r"\*", r"\w*") for word in name.split())
    return re.compile(rf"(?<!\w){words}(?!\w)", re.IGNORECASE)


def _number_rule(values: Mapping[str, Any]) -> NumberRule:
    frozen: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return NumberRule(**frozen)


def _own(place: str, stores: Stores) -> tuple[dict[str, Any], bytes]:
    try:
        with stores.open(place) as file:
            content = file.read()
        own = yaml.safe_load(content) or {}
    except (OSError, yaml.YAMLError) as e:
        raise ConfigError(f"--rules {redacted(place)}: {e}; give a YAML file with {', '.join(_OWN)}") from e
    if not isinstance(own, dict) or (own.keys() - _OWN):
        raise _wrong_keys(place)
    return own, content


def _wrong_keys(place: str) -> ConfigError:
    keys = ", ".join(f"{name} ({value})" for name, value in _OWN.items())
    return ConfigError(f"--rules {redacted(place)}: its keys must be among {keys}; docs/redact.md has an example")


def _text() -> bytes:
    return resources.files(__package__).joinpath("rules.yaml").read_bytes()


@functools.cache
def _builtin() -> dict[str, Any]:
    rules: dict[str, Any] = yaml.safe_load(_text())
    return rules


@functools.cache
def tag_characters() -> dict[str, str]:
    """Return the character that stands for each name of a word in the line of a passage."""
    builtin = _builtin()
    names = dict.fromkeys(name for language in (builtin["every"], *builtin["languages"].values()) for name in language)
    return {name: chr(0xE000 + number) for number, name in enumerate((*TAGS, *names))}


@functools.cache
def _sequences() -> tuple[SequenceRule, ...]:
    builtin, tags = _builtin(), tag_characters()

    def word(match: re.Match[str]) -> str:
        """Return the pattern of a word: "<a b -c>"."""
        names = match[1].split()
        without = "".join(tags[name[1:]] for name in names if name[0] == "-")
        wanted = "".join(tags[name] for name in names if name[0] != "-")
        return f"(?:;{f'[^;{without}{wanted}]*[{wanted}]' if wanted else ''}[^;{without}]*(?![^;]))"

    def pattern(text: str) -> re.Pattern[str]:
        for _ in builtin["parts"]:
            text = re.sub(r"\{([a-z]+)\}", lambda match: f"(?:{builtin['parts'][match[1]]})", text)
        return re.compile(re.sub("<((?:-?[a-z_]+ ?)*)>", word, text.replace("~", f"(?<!{tags['end']})")))

    return tuple(SequenceRule(**{**rule, "words": pattern(rule["words"])}) for rule in builtin["sequences"])


@functools.lru_cache(32)  # a manifest may name any number of languages
def _language(tag: str | None) -> LanguageRules:
    builtin, merged = _builtin(), dict[str, Any]()
    knows_names = tag in builtin["languages"]
    languages = [builtin["languages"][tag]] if knows_names else builtin["languages"].values()
    for source in (builtin["every"], *languages):
        for name, value in source.items():
            if isinstance(value, list):
                merged.setdefault(name, []).extend(map(str, value))
            else:
                merged[name] = merged.get(name, {}) | value if isinstance(value, dict) else value
    first, last = _names(tuple(merged["locales"])) if knows_names else (frozenset[str](), frozenset[str]())
    first |= _foreign_names() if knows_names else frozenset()
    lists = {name: [*map(str.casefold, values)] for name, values in merged.items() if name not in _TABLES}
    texts: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for words, name in ((tuple(text.split()), key) for key, values in lists.items() for text in values):
        texts.setdefault("" if "*" in words[0] else words[0], []).append((words, name))
    return LanguageRules(
        numbers=_number_words([*merged["locales"], *([tag] if tag else ())])
        | {word: str(value) for word, value in merged["numbers"].items()},
        repeats=merged["repeats"],
        lists={name: frozenset(values) for name, values in lists.items()},
        texts=texts,
        postcode=merged.get("postcode", ""),
        countries=tuple(locale[3:] for locale in merged["locales"]) if knows_names else (),
        first_names=first,
        last_names=last,
        is_nearly_a_name=functools.lru_cache(10_000)(functools.partial(_is_close, sorted(map(without_accents, first)))),
        common_words=_common_words(merged["locales"]).union(*(" ".join(value).split() for value in lists.values())),
        knows_names=knows_names,
    )


def without_accents(text: str) -> str:
    """Return a text without the accents of its letters."""
    return "".join(filter(lambda character: not unicodedata.combining(character), unicodedata.normalize("NFD", text)))


def _number_words(tags: Sequence[str]) -> dict[str, str]:
    """Return the digits of the numbers below 100 and of the hundreds in words, by the rules of ICU."""
    numbers = dict[str, str]()
    for number in (*range(100), *range(200, 1000, 100)):
        for tag in tags:
            words = number_words(number, tag).replace("-", " ")
            numbers |= {words: str(number), without_accents(words): str(number)}
    return numbers


@functools.cache
def _foreign_names() -> frozenset[str]:
    """Return the first names of all languages that are no words or places in any: people have names from elsewhere."""
    languages = [*_builtin()["languages"].values()]
    words = {str(word) for language in languages for word in (*language["not_names"], *language["filler"])}
    return frozenset().union(*(_names(tuple(language["locales"]))[0] for language in languages)) - words


def _is_close(names: Sequence[str], word: str) -> bool:
    plain = without_accents(word)
    return len(word) > 3 and process.extractOne(plain, names, scorer=fuzz.ratio, score_cutoff=CLOSE) is not None


def _common_words(locales: Sequence[str]) -> frozenset[str]:
    """Return the frequent words of Faker's languages, folded."""
    words = set[str]()
    for locale in locales:
        with contextlib.suppress(ModuleNotFoundError):
            words.update(map(str.casefold, import_module(f"faker.providers.lorem.{locale}").Provider.word_list))
    return frozenset(words)


@functools.cache
def _names(countries: tuple[str, ...]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the first and the last names of Faker's countries, folded."""
    first, last = set[str](), set[str]()
    for country in countries:
        provider = import_module(f"faker.providers.person.{country}").Provider
        for attribute in ("first_names", "first_names_male", "first_names_female", "last_names"):
            values = getattr(provider, attribute, ())
            if not isinstance(values, property):
                (last if attribute == "last_names" else first).update(name.casefold() for name in values)
    return frozenset(first), frozenset(last)
