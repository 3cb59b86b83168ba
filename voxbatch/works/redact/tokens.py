"""Read the words of an item as what they may be in a secret: digits, a spelled letter, an amount, or a plain word.

"double" "five" "B" "44-01" "fünfundfünfzig" "$20"  →  55, B, 4401, 55, an amount
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from voxbatch.works.redact.rules import LanguageRules, RedactionRules

EDGES = "-–—.,;:!?…\"'“”„‚‘’«»¿¡()[]"
"""Punctuation around a word."""
_DIGITS = re.compile(r"\+?\d[\d.,/\-–()]*")
_GROUPED = re.compile(r"\d{1,3}([.,]\d{3})+([.,]\d{1,2})?|\d+[.,]\d{1,2}")
_AMOUNT = re.compile(r"[$€£%]|\d(st|nd|rd|th|am|pm|k|kg|km|h|m|°|er|ère|e|ème|º|ª)$", re.IGNORECASE)
_DATE = re.compile(r"\d{1,2}[./-]\d{1,2}[./-](\d{2}|\d{4})|(19|20)\d{2}-\d{2}-\d{2}")
_SPELLED = re.compile(r"[^\W\d_](?:[-.][^\W\d_])+", re.UNICODE)
_CODE = re.compile(r"(?=.*\d)[A-Z0-9][A-Z0-9\-.,/]*")
_SENTENCE_END = re.compile(r"(?<!^\w)(?<!^\d\d)\.$|[!?…]$")
"""The end of a sentence, and not that of the day in "9. März" or of a letter."""
_TIME = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")
_HAS_DIGIT = re.compile(r"\d")
_ONE_BY_ONE = re.compile(r"\d(?:[-.,]+\d)*")
_PARTS = re.compile(r"[^\W\d_]+|\d+")
SHORTEST_NUMBER = 3
"""Digits of a word that is read as a number whatever else it has."""
LONGEST_AMOUNT = 7
"""Digits of an amount without a unit. A recogniser writes longer numbers like amounts, too: "997,155,973,166,267"."""
_YEAR = re.compile(r"(19|20)\d{2}")


@dataclass(frozen=True, slots=True)
class Token:
    """A word as it may be read in a number."""

    word: str
    """The word without punctuation around it."""
    folded: str
    characters: str = ""
    """Digits and capital letters. Empty for a plain word."""
    is_amount: bool = False
    is_date: bool = False
    is_weak: bool = False
    """True for digits that are probably a year or an amount: "1999", "12,500"."""
    is_year: bool = False
    is_one_by_one: bool = False
    """True for a digit, and for digits that are divided: "4", "four", "0,3,2"."""
    is_international: bool = False
    """True for a number that begins with a plus."""
    uses: int = 1
    """Number of words that were read together: "vingt" "deux" → 22 in the first, and none in the second."""
    ends_sentence: bool = False


@dataclass(frozen=True, slots=True)
class Secret:
    """Words of an item that are a secret."""

    kind: str
    """One of rules.KINDS."""
    pieces: tuple[int, ...]
    """Indexes of the words, ascending."""
    rule: str
    """Name of the rule that found it, for people."""
    is_checked: bool = False
    """True if its check digits are right."""


@dataclass(frozen=True, slots=True)
class TokenPassage:
    """The words in which secrets are looked for, as tokens, with the rules for them."""

    tokens: Sequence[Token]
    speakers: Sequence[str | None]
    rules: RedactionRules
    language: LanguageRules

    def begins(self, texts: Iterable[tuple[str, ...]], at: int) -> int:
        """Return the number of words of the longest text that begins at a word; 0 if none does. A `*` stands for the
        rest of a word."""
        return max((len(text) for text in texts if self._is_at(text, at)), default=0)

    def has_cue(self, kind: str, first: int, stop: int) -> bool:
        """Return whether a cue of a kind of secret begins among some words."""
        texts = self.language.cues.get(kind, ())
        return any(self.begins(texts, at) for at in range(max(0, first), min(stop, len(self.tokens))))

    def _is_at(self, text: tuple[str, ...], at: int) -> bool:
        if at + len(text) > len(self.tokens):
            return False
        pairs = zip(self.tokens[at : at + len(text)], text, strict=True)
        return all(
            token.folded.startswith(part[:-1]) if part[-1] == "*" else token.folded == part for token, part in pairs
        )

    def sentence_end(self, first: int, most: int) -> int:
        """Return the index after the sentence that goes on at a word, or after so many words."""
        stop = min(first + most, len(self.tokens))
        return next((at + 1 for at in range(max(0, first), stop) if self.tokens[at].ends_sentence), stop)


def tokens(words: Sequence[str], rules: LanguageRules) -> list[Token]:
    """Return the token of each word. What several words say together is in the first of them."""
    bare = [word.strip(EDGES) for word in words]
    read: list[Token] = []
    while len(read) < len(words):
        token = _token(bare, len(read), rules)
        ends = bool(_SENTENCE_END.search(words[len(read) + token.uses - 1]))
        read.append(replace(token, ends_sentence=ends))
        read += [Token(bare[at], bare[at].casefold(), uses=0) for at in range(len(read), len(read) + token.uses - 1)]
    for at, token in enumerate(read):
        if token.folded in rules.not_letters and token.characters and not _is_spelled(read, at):
            read[at] = replace(token, characters="")
    return read


def _is_spelled(read: Sequence[Token], at: int) -> bool:
    """Return whether a word of one letter, such as "I", is a letter: a letter is beside it in the same sentence."""
    before, after = read[max(0, at - 1) : at], read[at + 1 : at + 2]
    beside = [*(token for token in before if not token.ends_sentence), *after]
    return any(len(token.characters) == 1 and token.characters.isalpha() for token in beside)


def _token(words: Sequence[str], at: int, rules: LanguageRules) -> Token:
    """Return the token of a word, and of those after it that are read together with it."""
    word = words[at]
    folded = word.casefold()
    if spoken := _spoken(words, at, rules):
        digits, uses = spoken
        is_hundred = at + uses < len(words) and words[at + uses].casefold() in rules.hundred
        one_by_one = len(digits) == 1
        return Token(word, folded, digits + "00" * is_hundred, is_one_by_one=one_by_one, uses=uses + is_hundred)
    if (times := rules.repeats.get(folded)) and at + 1 < len(words):
        following = _token(words, at + 1, rules)
        if text := following.characters:
            text = text[:1] * times + text[1:]
            return Token(word, folded, text, is_one_by_one=following.is_one_by_one, uses=1 + following.uses)
    return _written(word, folded, rules)


def _written(word: str, folded: str, rules: LanguageRules) -> Token:
    """Return the token of a single word. A recogniser joins hesitations with numbers: "UM-2370" is 2370."""
    parts = _PARTS.findall(word)
    others = [part for part in parts if part.casefold() not in rules.fillers and part.casefold() not in rules.repeats]
    if _HAS_DIGIT.search(word) and len(others) < len(parts):
        word, parts = "-".join(others), others
    characters = "".join(parts).upper()
    is_short = len(characters) <= LONGEST_AMOUNT and not word.startswith("0")
    if _TIME.fullmatch(word) or (_AMOUNT.search(word) and _HAS_DIGIT.search(word) and is_short):
        return Token(word, folded, is_amount=True)
    if _DATE.fullmatch(word):
        return Token(word, folded, is_date=True)
    if _DIGITS.fullmatch(word.lstrip("$€£")):
        is_year = bool(_YEAR.fullmatch(word))
        is_weak = is_year or (is_short and bool(_GROUPED.fullmatch(word)))
        digits = "".join(filter(str.isdigit, characters))
        return Token(
            word, folded, digits, is_weak=is_weak, is_year=is_year, is_one_by_one=bool(_ONE_BY_ONE.fullmatch(word)),
            is_international=word.startswith("+"),
        )  # fmt: skip
    is_letter = len(word) == 1 and word.isalpha() and (word.isupper() or folded not in rules.not_letters)
    if is_letter or _CODE.fullmatch(word) or _SPELLED.fullmatch(word):
        return Token(word, folded, characters)
    digits = "".join(filter(str.isdigit, word))  # a recogniser joins words and numbers: "IVA-SS-41797", "10bSW1A2BX"
    return Token(word, folded, digits if len(digits) >= SHORTEST_NUMBER else "")


def _spoken(words: Sequence[str], at: int, rules: LanguageRules) -> tuple[str, int] | None:
    """Return the digits of number words, and how many words they take: "quatre" "vingt" "dix" → ("90", 3)."""
    parts = [part for part in words[at].casefold().split("-") if part]
    if not parts or not all(part in rules.numbers or (k and part in _JOINTS) for k, part in enumerate(parts)):
        return None
    total, uses = _sum(parts, rules), 1
    if total is None:
        return "".join(rules.numbers[part] for part in parts if part in rules.numbers), 1
    while at + uses < len(words):
        joint = 1 if words[at + uses].casefold() in _JOINTS and at + uses + 1 < len(words) else 0
        further = [part for part in words[at + uses + joint].casefold().split("-") if part]
        if not further or not all(part in rules.numbers for part in further):
            break
        longer = _sum([*parts, *further], rules)
        if longer is None or (joint and total < 20):
            break
        parts, total, uses = [*parts, *further], longer, uses + joint + 1
    return str(total), uses


_JOINTS = ("et", "y")
"""Words between a ten and its unit: "trente et un", "cuarenta y dos"."""


def _sum(parts: Sequence[str], rules: LanguageRules) -> int | None:
    """Return the number below 100 that number words make together; None if they are several numbers."""
    values = [(part, int(rules.numbers[part])) for part in parts if part in rules.numbers]
    total = values[0][1]
    for (before, _), (part, value) in pairwise(values):
        if (total, part[:5]) == (4, "vingt"):
            total = 80
        elif (total in (60, 80) and 10 <= value < 20 and "soixante" in rules.numbers) or (
            0 < value < 10 and ((total % 10 == 0 and total >= 20) or (before == "dix" and value >= 7))
        ):  # up to "soixante dix"
            total += value
        else:
            return None
    return total
