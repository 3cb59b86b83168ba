"""Find numbers that are secrets: cards, accounts, telephones, codes.

A number is a chain: digits and spelled letters with nothing between them but fillers ("and then"), and short answers of
another speaker. So it does not matter how a number is divided, who says its parts, and where sentences end:

    "four four oh one" — "okay" — "double five, 0012"   →  4401550012

The rules name the kind of a chain. A number whose check digits are wrong, or that lacks a digit, is a secret all the
same: it is one that was recognised wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module

from voxbatch.works.redact.rules import LanguageRules, NumberRule, RedactionRules
from voxbatch.works.redact.secrets import Secret, followed_by, is_near
from voxbatch.works.redact.tokens import Token

AFTER = 5
"""Words after a number in which a cue may follow: "4401 is the code"."""
NEAR_DIGITS = 3
"""Digits that a number has at least to belong to another one near it."""
MAX_AMOUNT = 7
"""Digits of a number that is an amount if a unit follows it."""


@dataclass(slots=True)
class Chain:
    """Digits and letters that are said as one number."""

    pieces: list[int] = field(default_factory=list)
    """Indexes of the words."""
    characters: str = ""
    is_international: bool = False
    is_weak: bool = True
    """True if each part is a year or an amount."""

    @property
    def digits(self) -> str:
        """Return the digits alone."""
        return "".join(filter(str.isdigit, self.characters))


def find_numbers(
    tokens: Sequence[Token], speakers: Sequence[str | None], rules: RedactionRules, words: LanguageRules
) -> Iterator[Secret]:
    """Yield the numbers among the tokens of an item that are secrets."""
    chains = list(_chains(tokens, speakers, rules.max_gap, words))
    named, low = list[Secret | None](), 0
    for chain in chains:
        named.append(_secret(chain, tokens, low, rules, words))
        low = chain.pieces[-1] + 1 if len(chain.digits) >= NEAR_DIGITS else low
    for at, chain in enumerate(chains):
        if named[at] is None and len(chain.digits) >= NEAR_DIGITS and not chain.is_weak:
            for beside in (*named[max(0, at - 1) : at], *named[at + 1 : at + 2]):
                if beside and _continues(chain, beside, tokens, rules, words):
                    named[at] = Secret(beside.kind, tuple(chain.pieces), f"part of {beside.rule}")
    yield from filter(None, named)


def _continues(
    chain: Chain, beside: Secret, tokens: Sequence[Token], rules: RedactionRules, words: LanguageRules
) -> bool:
    """Return whether a chain is a part of a secret near it."""
    first = min(chain.pieces[-1], beside.pieces[-1]) + 1
    stop = max(chain.pieces[0], beside.pieces[0])
    has_end = any(token.ends_sentence for token in tokens[first - 1 : stop])
    return stop - first <= rules.near and not has_end and not _is_amount(chain, tokens, words)


def _chains(
    tokens: Sequence[Token], speakers: Sequence[str | None], max_gap: int, words: LanguageRules
) -> Iterator[Chain]:
    """Yield the chains of digits and letters."""
    chain = Chain()
    for at, token in enumerate(tokens):
        if not token.characters:
            continue
        if chain.pieces and not _joins(tokens, speakers, chain.pieces[-1], at, max_gap, words):
            yield chain
            chain = Chain()
        chain.is_international = (
            chain.is_international
            or token.is_international
            or (not chain.pieces and at > 0 and words.signs.get(tokens[at - 1].folded) == "+")
        )
        chain.is_weak = chain.is_weak and token.is_weak
        chain.pieces += range(at, at + token.uses)
        chain.characters += token.characters
    if chain.pieces:
        yield chain


def _joins(
    tokens: Sequence[Token],
    speakers: Sequence[str | None],
    last: int,
    following: int,
    max_gap: int,
    words: LanguageRules,
) -> bool:
    """Return whether two parts of a number belong together, by what is between them."""
    token, gap = tokens[following], following - last - 1
    if gap > max_gap or (gap and (token.is_year or tokens[last].is_year)):
        return False
    if (
        words.numbers.get(token.folded) == "1"
        and tokens[last].word[:1].isdigit()
        and not _has_number(tokens, following + 1)
    ):
        return False  # "In 2020, one of them"
    speaker = speakers[following]
    return all(
        tokens[at].folded in words.fillers
        or tokens[at].folded in words.thousand
        or not tokens[at].folded
        or (speaker is not None and speakers[at] not in (speaker, None) and speakers[last] == speaker)
        for at in range(last + 1, following)
    )


def _has_number(tokens: Sequence[Token], at: int) -> bool:
    return at < len(tokens) and bool(tokens[at].characters)


def _secret(
    chain: Chain, tokens: Sequence[Token], low: int, rules: RedactionRules, words: LanguageRules
) -> Secret | None:
    """Return the secret that a chain is, by the first rule that fits; None if none does.

    Args:
        low: index of the word after the number before it: cues are looked for from there on.
    """
    first, last = chain.pieces[0], chain.pieces[-1]
    reach = range(last, min(last + AFTER, len(tokens)))
    stop = next((at + 1 for at in reach if tokens[at].ends_sentence), reach.stop)  # a cue after it is in its sentence
    cues = {
        kind
        for kind, texts in words.cues.items()
        if is_near(tokens, texts, max(low, first - rules.cue_distance), first) or is_near(tokens, texts, last + 1, stop)
    }
    if _is_amount(chain, tokens, words) or (chain.is_weak and not cues):
        return None
    for rule in rules.numbers:
        is_checked = rule.check is not None and _passes(rule.check, chain, words)
        if _fits(rule, chain, cues, is_checked, words):
            return Secret(rule.kind, tuple(chain.pieces), rule.rule, is_checked)
    return None


def _is_amount(chain: Chain, tokens: Sequence[Token], words: LanguageRules) -> bool:
    """Return whether a number is followed by a unit, and not too long for an amount."""
    return len(chain.digits) <= MAX_AMOUNT and followed_by(tokens, chain.pieces[-1] + 1, words.units)


def _fits(rule: NumberRule, chain: Chain, cues: set[str], is_checked: bool, words: LanguageRules) -> bool:
    if rule.countries and words.countries and not {*rule.countries} & {*words.countries}:
        return False
    if rule.letters:
        if not _is_match(rule.letters, chain.characters):
            return False
    else:
        count = len(chain.digits)
        if not rule.digits[0] <= count <= rule.digits[1] or 4 * (len(chain.characters) - count) > count:
            return False
    if rule.needs_cue or (rule.cue and not is_checked):
        return rule.cue in cues
    return is_checked or rule.check is None or rule.letters is not None


def _is_match(pattern: str, text: str) -> bool:
    return re.fullmatch(pattern, text) is not None


def _passes(check: str, chain: Chain, words: LanguageRules) -> bool:
    """Return whether a number has the check digits, or the form of a telephone number, that a rule asks for."""
    if check == "phone":
        return _is_phone(chain, words.countries)
    module = import_module(f"stdnum.{check}")
    text = chain.characters if check == "iban" else chain.digits
    return bool(module.is_valid(text)) and text.strip("0") != ""


def _is_phone(chain: Chain, countries: Sequence[str]) -> bool:
    """Return whether a number is valid as a telephone number of one of the countries, or of the one that it names."""
    import phonenumbers  # type: ignore[import-not-found,unused-ignore]  # of the extra `redact`

    text = f"+{chain.digits}" if chain.is_international else chain.digits
    for country in (None,) if chain.is_international else countries:
        try:
            if phonenumbers.is_valid_number(phonenumbers.parse(text, country)):
                return True
        except phonenumbers.NumberParseException:
            continue
    return False
