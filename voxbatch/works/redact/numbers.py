"""Find numbers that are secrets: cards, accounts, telephones, codes.

A number is a chain: digits and spelled letters with nothing between them but fillers ("and then"). So it does not
matter how a number is divided, and where sentences end:

    "four four oh one." "Then double five, 0012"   →  4401550012

The rules name the kind of a chain. A number whose check digits are wrong, or that lacks a digit, is a secret all the
same: it is one that was recognised wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import takewhile

from voxbatch.works.redact.rules import NumberRule
from voxbatch.works.redact.tokens import Secret, Token, TokenPassage, digits_of

MAX_GAP = 8
"""Words of fillers and of another speaker between two parts of a number."""
BEFORE = {"mine": 2}
"""Words between a cue and a number after it, by cues."""
BEFORE_ANY = 12
AFTER = 5
"""Words after a number in which a cue may follow: "4401 is the code"."""
NEAR_DIGITS = 3
"""Digits that a number has at least to belong to another one several words away, if they are not said one by one."""
NEAR = 10
"""Words between two parts of a number with a cue, whatever they are."""
NEXT = 2
"""Words to the rest of a number, of which the recogniser has made words: "portable L06 fit, 1, 2, 8"."""
COUNTING = "0123456789"
"""A part of it is no code by itself: "one, two, three"."""
YEAR_AND_COUNT = re.compile(r"(19|20)\d\d[ -]\d{1,3}")
"""Two numbers that a recogniser writes as one: "in 2019 and 450 in 2020"."""
LONGEST_SUM = 12
"""Digits of amounts that are said one after the other. A recogniser writes cards so, too: "2.056, 2.523, 2.426, 4.375".
"""
MAX_AMOUNT = 7
"""Digits of a number that is an amount if a unit follows it."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Words that are said as one number."""

    words: Sequence[Token]
    pieces: tuple[int, ...]
    """Their indexes in the passage."""
    is_international: bool
    """True if a plus is written or said before it."""
    characters: str
    """The digits and letters."""
    digits: str

    @property
    def is_weak(self) -> bool:
        """Return whether it may be a year or an amount, or both: see YEAR_AND_COUNT."""
        is_pair = YEAR_AND_COUNT.fullmatch(" ".join(token.word for token in self.words))
        is_long = len(self.digits) > LONGEST_SUM and not any("year" in token.tags for token in self.words)
        return bool(is_pair) or (self.has_all("weak") and not is_long)

    def has_all(self, tag: str) -> bool:
        """Return whether each part has a tag."""
        return all(tag in token.tags for token in self.words if token.uses)


def find_numbers(passage: TokenPassage) -> Iterator[Secret]:
    """Yield the numbers in a passage that are secrets."""
    chains, named, low = [*_chains(passage)], list[Secret | None](), 0
    for chain in chains:
        named.append(_secret(chain, low, passage))
        low = chain.pieces[-1] + 1 if len(chain.digits) >= NEAR_DIGITS else low
    for at, chain in enumerate(chains):
        if named[at] is None and chain.digits and not chain.is_weak:
            is_part = len(chain.digits) >= NEAR_DIGITS or (len(chain.digits) > 1 and chain.has_all("single"))
            for secret in (*named[max(0, at - 1) : at if is_part else 0], *named[at + 1 : at + 2]):
                if secret and _is_near(chain, secret, NEAR if is_part else NEXT, passage):
                    named[at] = Secret(secret.kind, chain.pieces, f"part of {secret.rule}")
    yield from filter(None, named)


def _is_near(chain: Chain, secret: Secret, most: int, passage: TokenPassage) -> bool:
    """Return whether a chain is so many words at most from a secret in the same sentence."""
    first = min(chain.pieces[-1], secret.pieces[-1]) + 1
    stop = max(chain.pieces[0], secret.pieces[0])
    return stop - first <= most and not any("end" in token.tags for token in passage.tokens[first - 1 : stop])


def _chains(passage: TokenPassage) -> Iterator[Chain]:
    """Yield the chains of digits and letters that are no amounts."""
    tokens, stretches = passage.tokens, list[list[int]]()
    for at in (at for at, token in enumerate(tokens) if token.characters):
        if not (stretches and _joins(stretches[-1][-1], at, passage)):
            stretches.append([])
        stretches[-1] += range(at, at + tokens[at].uses)
    for pieces in stretches:
        words = [tokens[at] for at in pieces]
        is_international = "international" in words[0].tags or "plus" in tokens[max(0, pieces[0] - 1)].tags
        characters = "".join(token.characters for token in words)
        chain = Chain(words, tuple(pieces), is_international, characters, digits_of(characters))
        has_unit = any("unit" in token.tags for token in tokens[pieces[-1] + 1 : pieces[-1] + 2])
        if not has_unit or len(chain.digits) > MAX_AMOUNT:
            yield chain


def _joins(last: int, following: int, passage: TokenPassage) -> bool:
    """Return whether two parts of a number belong together, by what is between them."""
    tokens = passage.tokens
    token, gap = tokens[following], following - last - 1
    if gap > MAX_GAP or (gap and "year" in token.tags | tokens[last].tags):
        return False
    is_alone = not any(after.characters for after in tokens[following + 1 : following + 2])
    if passage.language.numbers.get(token.folded) == "1" and tokens[last].tags & {"weak", "end"} and is_alone:
        return False  # "In 2020, one of them"
    return all(not token.folded or token.tags & {"filler", "thousand"} for token in tokens[last + 1 : following])


def _secret(chain: Chain, low: int, passage: TokenPassage) -> Secret | None:
    """Return the secret that a chain is, by the first rule that fits; None if none does.

    Args:
        low: index of the word after the number before it: cues are looked for from there on.
    """
    cues, countries = _cues(chain, low, passage), passage.language.countries
    for rule in passage.rules.numbers if cues or not chain.is_weak else ():
        is_checked = rule.check is not None and _passes(rule.check, chain, countries)
        if _fits(rule, chain, rule.cue in cues, is_checked, countries):
            return Secret(rule.kind, chain.pieces, rule.rule, is_checked)
    return None


def _cues(chain: Chain, low: int, passage: TokenPassage) -> set[str]:
    """Return the cues before a chain, and after it in its sentence."""
    first, last, tokens = chain.pieces[0], chain.pieces[-1], passage.tokens
    cues = {rule.cue for rule in passage.rules.numbers if rule.cue}
    after = takewhile(lambda at: "end" not in tokens[at - 1].tags, range(last + 1, min(last + AFTER, len(tokens))))
    near = {cue for at in after for cue in cues & tokens[at].tags}
    for at in range(max(low, first - BEFORE_ANY), first):
        near |= {cue for cue in cues & tokens[at].tags if first - at <= BEFORE.get(cue, BEFORE_ANY)}
    return near


def _fits(rule: NumberRule, chain: Chain, has_cue: bool, is_checked: bool, countries: Sequence[str]) -> bool:
    if rule.countries and countries and not {*rule.countries} & {*countries}:
        return False
    if rule.one_by_one and (not chain.has_all("single") or chain.digits in COUNTING):
        return False
    count = len(chain.digits)
    if rule.letters:
        if not re.fullmatch(rule.letters, chain.characters):
            return False
    elif not rule.digits[0] <= count <= rule.digits[1] or 4 * (len(chain.characters) - count) > count:
        return False
    if rule.needs_cue or (rule.cue and not is_checked):
        return has_cue
    return is_checked or rule.check is None or rule.letters is not None


def _passes(check: str, chain: Chain, countries: Sequence[str]) -> bool:
    """Return whether a number has the check digits, or the form of a telephone number, that a rule asks for."""
    if check == "phone":
        return _is_phone(chain, countries)
    module = import_module(f"stdnum.{check}")
    text = chain.characters if check == "iban" else chain.digits
    return bool(module.is_valid(text)) and text.strip("0") != ""


def _is_phone(chain: Chain, countries: Sequence[str]) -> bool:
    """Return whether a number is valid as a telephone number of one of the countries, or of the one that it names."""
    import phonenumbers  # type: ignore[import-not-found,unused-ignore]  # of the extra `redact`

    text = f"+{chain.digits}" if chain.is_international else chain.digits
    for country in (None,) if chain.is_international else countries:
        with suppress(phonenumbers.NumberParseException):
            if phonenumbers.is_valid_number(phonenumbers.parse(text, country)):
                return True
    return False
