"""Read the rules by which secrets are found: rules.yaml, and what a file for --rules adds.

The names of persons come from the package Faker, which keeps lists of them for each country.
"""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module, resources
from typing import Any

import yaml

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
_SOUNDS = {"ph": "f", "ck": "k", "qu": "k", "ch": "k", "c": "k", "h": "", "y": "i", "w": "v", "z": "s"}
"""Letters that recognisers take for others."""


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
class LanguageRules:
    """The words of a language; rules.yaml describes them."""

    countries: tuple[str, ...] = ()
    numbers: Mapping[str, str] = field(default_factory=dict)
    """The digits of each number word below 100."""
    hundred: frozenset[str] = frozenset()
    thousand: frozenset[str] = frozenset()
    repeats: Mapping[str, int] = field(default_factory=dict)
    not_letters: frozenset[str] = frozenset()
    """Words of one letter."""
    fillers: frozenset[str] = frozenset()
    at: frozenset[str] = frozenset()
    dot: frozenset[str] = frozenset()
    signs: Mapping[str, str] = field(default_factory=dict)
    units: frozenset[str] = frozenset()
    """Words after which a number is an amount."""
    cues: Mapping[str, Sequence[tuple[str, ...]]] = field(default_factory=dict)
    """The words of each cue, by the kind of secret that it tells."""
    titles: frozenset[str] = frozenset()
    name_cues: Sequence[tuple[str, ...]] = ()
    weak_name_cues: Sequence[tuple[str, ...]] = ()
    """Cues after which only a known name is one."""
    streets: frozenset[str] = frozenset()
    street_first: frozenset[str] = frozenset()
    """Words that come before the name of a street."""
    towns_after: frozenset[str] = frozenset()
    months: frozenset[str] = frozenset()
    not_names: frozenset[str] = frozenset()
    """Names that are also words or places."""
    postcode: str = ""
    """Pattern of a postcode that tells an address without a street. Empty if there is none."""
    first_names: frozenset[str] = frozenset()
    name_sounds: frozenset[str] = frozenset()
    """How the first names sound; see `sound`."""
    last_names: frozenset[str] = frozenset()
    knows_names: bool = True
    """False in a language for which there are patterns alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedactionRules:
    """All rules of a run."""

    numbers: tuple[NumberRule, ...]
    patterns: Sequence[tuple[str, re.Pattern[str]]]
    """(kind, pattern) of a file for --rules."""
    own_names: frozenset[str]
    """Names of such a file, folded."""
    max_gap: int
    cue_distance: Mapping[str, int]
    near: int
    digest: str
    """SHA-256 of all files, of which the results depend."""

    def distance(self, cue: str) -> int:
        """Return the number of words in which a cue is looked for before a number."""
        return self.cue_distance.get(cue, self.cue_distance["any"])

    def language(self, tag: str | None) -> LanguageRules:
        """Return the rules of a language by its primary subtag. One that has none takes the words of all languages for
        numbers and addresses, and finds no names."""
        return _language(tag if tag in _builtin()["languages"] else None)


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
        numbers = [_number_rule(rule) for rule in (*own.get("numbers", ()), *builtin["numbers"])]
        patterns = [(kind, compiled(text)) for kind, texts in own.get("patterns", {}).items() for text in texts]
        names = frozenset(str(name).casefold() for name in own.get("names", ()))
    except (AttributeError, TypeError) as e:
        raise _wrong_keys(place or "") from e
    if unknown := sorted({kind for kind, _ in patterns} - {*KINDS}):
        raise ConfigError(f"{place}: patterns of {', '.join(unknown)}; known are {', '.join(KINDS)}")
    return RedactionRules(
        numbers=tuple(numbers),
        patterns=patterns,
        own_names=names,
        max_gap=builtin["max_gap"],
        cue_distance=builtin["cue_distance"],
        near=builtin["near"],
        digest=hashlib.sha256(_text() + content).hexdigest(),
    )


def compiled(text: str) -> re.Pattern[str]:
    """Return a pattern.

    Raises:
        ConfigError: the text is none.
    """
    try:
        return re.compile(text)
    except re.error as e:
        raise ConfigError(f"pattern {text!r}: {e}; give a regular expression of Python") from e


def _number_rule(values: Mapping[str, Any]) -> NumberRule:
    frozen: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
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
def _language(tag: str | None) -> LanguageRules:
    builtin = _builtin()
    sources = [builtin["every"], *([builtin["languages"][tag]] if tag else builtin["languages"].values())]
    merged: dict[str, Any] = {}
    for source in sources:
        for name, value in source.items():
            merged[name] = _joined(merged.get(name), value)
    countries = merged.pop("names")
    first, last = _names(tuple(countries)) if tag else (frozenset[str](), frozenset[str]())
    unit_first = merged.pop("unit_first", None)
    numbers = {word: str(value) for word, value in merged.pop("numbers").items()}
    cues = {kind: _cue_words(words) for kind, words in merged.pop("cues").items()}
    tables: dict[str, Any] = {name: _cue_words(merged.pop(name)) for name in ("name_cues", "weak_name_cues")}
    countries = tuple(merged.pop("countries"))
    tables |= {
        name: value if isinstance(value, dict | str) else frozenset(map(str, value)) for name, value in merged.items()
    }
    first |= _foreign_names() if tag else frozenset()
    return LanguageRules(
        numbers=numbers | (_compounds(numbers, unit_first) if unit_first else {}),
        cues=cues,
        first_names=first,
        name_sounds=frozenset(map(sound, first)) - {""},
        last_names=last,
        knows_names=tag is not None,
        countries=countries if tag else (),
        **tables,
    )


def _joined(before: Any, value: Any) -> Any:
    """Return a value of all languages and one of a single language together."""
    if isinstance(value, dict):
        before = before or {}
        return before | {name: _joined(before.get(name), further) for name, further in value.items()}
    return [*(before or ()), *value] if isinstance(value, list) else value


def sound(name: str) -> str:
    """Return how a folded name sounds, roughly; "" of a short one, which sounds like too many words.

    "yannick", "yanic"  →  "ianik"
    """
    letters = "".join(filter(str.isalpha, unicodedata.normalize("NFD", name)))
    for written, heard in _SOUNDS.items():
        letters = letters.replace(written, heard)
    return re.sub(r"(.)\1", r"\1", letters) if len(letters) > 3 else ""


def _cue_words(cues: Iterable[Any]) -> Sequence[tuple[str, ...]]:
    return [tuple(str(cue).split()) for cue in cues]


def _compounds(numbers: Mapping[str, str], joint: str) -> dict[str, str]:
    """Return the numbers whose units come first: "vierundvierzig" → 44."""
    units = {word: int(value) for word, value in numbers.items() if 0 < int(value) < 10}
    tens = {word: int(value) for word, value in numbers.items() if int(value) >= 20}
    return {f"{unit}{joint}{ten}": str(units[unit] + tens[ten]) for unit in units for ten in tens}


@functools.cache
def _foreign_names() -> frozenset[str]:
    """Return the first names of all languages that are no words or places in any: people have names from elsewhere."""
    languages = [*_builtin()["languages"].values()]
    words = {str(word) for language in languages for word in (*language["not_names"], *language["fillers"])}
    return frozenset().union(*(_names(tuple(language["names"]))[0] for language in languages)) - words


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
