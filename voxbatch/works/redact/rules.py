"""Read the rules by which secrets are found: rules.yaml, and what a file for --rules adds.

The names of persons come from the package Faker, which keeps lists of them for each country.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import unicodedata
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, resources
from typing import Any, Literal

import msgspec
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
Kind = Literal[KINDS]  # type: ignore[valid-type]
OWN = "own pattern"
"""The name of the rule of names and patterns in a file for --rules."""
CLOSE = 80
"""Similarity of a word to a name, in percent, from which it may be that name as a recogniser heard it."""
_TABLES = {"locales", "numbers", "repeats", "postcode"}
"""The keys of a language that are no lists of texts."""


class NumberRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A rule that names the kind of a number; rules.yaml describes its fields."""

    rule: str
    kind: Kind
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


class OwnRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a file for --rules."""

    names: tuple[str, ...] = ()
    patterns: dict[Kind, tuple[str, ...]] = {}
    numbers: tuple[NumberRule, ...] = ()


@dataclass(frozen=True, slots=True)
class PatternRule:
    """A rule that finds the words of a secret by a pattern."""

    kind: str
    rule: str
    pattern: re.Pattern[str]
    group: int = 0
    """The group of the pattern that is the secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageRules:
    """The words of a language; rules.yaml describes them."""

    numbers: Mapping[str, str]
    """The digits of a number in words, with spaces between them."""
    repeats: Mapping[str, int]
    """Number of times that a word such as "double" repeats a digit."""
    lists: Mapping[str, frozenset[str]]
    """The texts of each list of all languages, folded. Empty if this language has none."""
    texts: Mapping[str, Sequence[tuple[tuple[str, ...], str]]]
    """(words, list) of each text, by its first word; by "" if that has a `*`."""
    postcode: str
    """Pattern of a postcode that tells an address without a street. Empty if there is none."""
    countries: tuple[str, ...]
    first_names: frozenset[str]
    """Empty in a language for which there are patterns alone."""
    last_names: frozenset[str]
    is_nearly_a_name: Callable[[str], bool]
    """Returns whether a word of some length is nearly a first name: "garith" for "Gareth"."""
    common_words: Container[str]

    def digits(self, words: Sequence[str]) -> str | None:
        """Return the digits of words that are one number, or of a word that has several: "four-one". None of others."""
        text = " ".join(words).casefold().replace("-", " ").strip()
        if (digits := self.numbers.get(text)) or len(words) > 1 or not text:
            return digits
        parts = [self.numbers.get(part) for part in text.split()]
        return "".join(filter(None, parts)) if all(parts) else None


@dataclass(frozen=True, slots=True)
class RedactionRules:
    """The rules of a run that hold in all languages."""

    numbers: Sequence[NumberRule]
    patterns: Sequence[PatternRule]
    """Rules for the text: the names and patterns of a file for --rules, or of the answers about an item."""
    digest: str
    """SHA-256 of all files, of which the results depend."""


def load(place: str | None, stores: Stores) -> RedactionRules:
    """Return the rules.

    Args:
        place: path or address of a file that adds to them.

    Raises:
        ConfigError: the file cannot be read, or has other keys.
    """
    own, content = _own(place, stores) if place else (OwnRules(), b"")
    numbers = [*own.numbers, *msgspec.convert(_builtin()["numbers"], list[NumberRule], strict=False)]
    patterns = [PatternRule("person", OWN, own_name(name)) for name in own.names]
    patterns += [PatternRule(kind, OWN, _compiled(text)) for kind, texts in own.patterns.items() for text in texts]
    for rule in own.numbers:
        _compiled(rule.letters or "")
    return RedactionRules(numbers, patterns, hashlib.sha256(_text() + content).hexdigest())


def _own(place: str, stores: Stores) -> tuple[OwnRules, bytes]:
    try:
        with stores.open(place) as file:
            content = file.read()
        return msgspec.yaml.decode(content, type=OwnRules | None) or OwnRules(), content
    except (OSError, msgspec.DecodeError) as e:
        raise ConfigError(
            f"--rules {redacted(place)}: {e}; its keys must be among names (a list of names), patterns (patterns of "
            "Python by their kinds), numbers (a list of rules); docs/redact.md has an example"
        ) from e


def _compiled(text: str) -> re.Pattern[str]:
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


def _text() -> bytes:
    return resources.files(__package__).joinpath("rules.yaml").read_bytes()


@functools.cache
def _builtin() -> dict[str, Any]:
    rules: dict[str, Any] = yaml.load(_text(), yaml.BaseLoader)  # texts: "no", "yes" and "on" are words
    return rules


@functools.cache
def tag_characters() -> dict[str, str]:
    """Return the character that stands for each name of a word in the sequences. That of "end" is the lowest."""
    texts = [*_builtin()["parts"].values(), *(rule["words"] for rule in _builtin()["sequences"])]
    names = (name.strip("-") for text in texts for word in re.findall("<([^<>]*)>", text) for name in word.split())
    return {name: chr(0xE000 + number) for number, name in enumerate(dict.fromkeys(("end", *names)))}


@functools.cache
def sequences() -> Sequence[PatternRule]:
    """Return the sequences of rules.yaml, as rules for the line that the module detector writes."""
    parts, tags = _builtin()["parts"], tag_characters()

    def word(match: re.Match[str]) -> str:
        """Return the pattern of a word: "<a b -c>"."""
        names = match[1].split()
        without = "".join(tags[name[1:]] for name in names if name[0] == "-")
        wanted = "".join(tags[name] for name in names if name[0] != "-")
        return f"(?:;{f'[^;{without}{wanted}]*[{wanted}]' if wanted else ''}[^;{without}]*(?![^;]))"

    rules = list[PatternRule]()
    for rule in _builtin()["sequences"]:
        text = rule["words"]
        for _ in parts:  # which have parts themselves
            text = re.sub(r"\{([a-z]+)\}", lambda match: f"(?:{parts[match[1]]})", text)
        pattern = re.compile(re.sub("<([^<>]*)>", word, text).replace("~", f"(?<!{tags['end']})"))
        rules.append(PatternRule(rule["kind"], rule["rule"], pattern, pattern.groups))
    return rules


@functools.lru_cache(32)  # a manifest may name any number of languages
def language_rules(tag: str | None) -> LanguageRules:
    """Return the rules of a language by its primary subtag. One that has none takes the words of all languages for
    numbers and addresses, with its own number words, and finds no names."""
    every, languages = _builtin()["every"], _builtin()["languages"]
    sources = [every, languages[tag]] if tag in languages else [every, *languages.values()]
    lists = {
        name: [text.casefold() for source in sources for text in source.get(name, ())]
        for name in {name for source in (every, *languages.values()) for name in source} - _TABLES
    }
    texts: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for words, name in ((tuple(text.split()), name) for name, values in lists.items() for text in values):
        texts.setdefault("" if "*" in words[0] else words[0], []).append((words, name))
    locales = [locale for source in sources for locale in source.get("locales", ())]
    first, last = _names(locales) if tag in languages else (set[str](), set[str]())
    first |= _foreign_names() if tag in languages else set()
    numbers = {word: digits for source in sources for word, digits in source.get("numbers", {}).items()}
    return LanguageRules(
        numbers=_number_words([*locales, *([tag] if tag else ())]) | numbers,
        repeats={word: int(times) for source in sources for word, times in source.get("repeats", {}).items()},
        lists={name: frozenset(values) for name, values in lists.items()},
        texts=texts,
        postcode=["", *(source["postcode"] for source in sources if "postcode" in source)][-1],
        countries=tuple(locale[3:] for locale in locales) if tag in languages else (),
        first_names=frozenset(first),
        last_names=frozenset(last),
        is_nearly_a_name=functools.lru_cache(10_000)(functools.partial(_is_close, sorted(map(without_accents, first)))),
        common_words=_common_words(locales).union(*(" ".join(values).split() for values in lists.values())),
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
    languages = _builtin()["languages"].values()
    words = {word for language in languages for word in (*language["not_names"], *language["filler"])}
    return frozenset().union(*(_names(language["locales"])[0] for language in languages)) - words


def _is_close(names: Sequence[str], word: str) -> bool:
    plain = without_accents(word)
    return len(word) > 3 and process.extractOne(plain, names, scorer=fuzz.ratio, score_cutoff=CLOSE) is not None


def _common_words(locales: Sequence[str]) -> set[str]:
    """Return the frequent words of Faker's languages, folded."""
    words = set[str]()
    for locale in locales:
        with contextlib.suppress(ModuleNotFoundError):
            words.update(map(str.casefold, import_module(f"faker.providers.lorem.{locale}").Provider.word_list))
    return words


def _names(locales: Sequence[str]) -> tuple[set[str], set[str]]:
    """Return the first and the last names of Faker's locales, folded."""
    first, last = set[str](), set[str]()
    for locale in locales:
        provider = import_module(f"faker.providers.person.{locale}").Provider
        for attribute in ("first_names", "first_names_male", "first_names_female", "last_names"):
            values = getattr(provider, attribute, ())
            if not isinstance(values, property):
                (last if attribute == "last_names" else first).update(name.casefold() for name in values)
    return first, last
