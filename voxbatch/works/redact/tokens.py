"""Read the words of an item as what they may be in a secret: digits, a spelled letter, an amount, or a plain word.

"double" "five" "B" "44-01" "fünfundfünfzig" "$20"  →  55, B, 4401, 55, an amount
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from voxbatch.works.redact.rules import LanguageRules, RedactionRules

EDGES = "-–—.,;:!?…\"'“”„‚‘’«»¿¡()[]"
"""Punctuation around a word."""
CURRENCIES = "$€£"
_DIGITS = re.compile(r"\+?\d[\d.,/\-–()]*")
_GROUPED = re.compile(r"\d{1,3}([.,]\d{3})+([.,]\d{1,2})?|\d+[.,]\d{1,2}")
_AMOUNT = re.compile(r"%|\d(am|pm|k|kg|km|h|m|°)$|^\d+(st|nd|rd|th|er|ère|e|ème|º|ª)$", re.IGNORECASE)
_DATE = re.compile(r"\d{1,2}[./-]\d{1,2}[./-](\d{2}|\d{4})|\d{1,2}[./-](19|20)\d{2}|(19|20)\d{2}-\d{2}-\d{2}")
_SPELLED = re.compile(r"[^\W\d_](?:[-.][^\W\d_])+", re.UNICODE)
_CODE = re.compile(r"(?=.*\d)[A-Z0-9][A-Z0-9\-.,/]*")
_SENTENCE_END = re.compile(r"(?<!^[^\W\d])\.$|[!?…]$")
"""The end of a sentence, and not of a letter."""
_DAY = re.compile(r"\d{1,2}\.")
_TIME = re.compile(r"\d{1,2}[:h]\d{2}(:\d{2})?")
_HAS_DIGIT = re.compile(r"\d")
_ONE_BY_ONE = re.compile(r"\d(?:[-.,]+\d)*")
_PARTS = re.compile(r"[^\W\d_]+|\d+")
_YEAR = re.compile(r"(19|20)\d{2}")
_EMAIL = re.compile(
    r"[\w.+\-]+@[\w\-]+(\.[\w\-]+)*|@[\w\-]+\.[\w.\-]+|[\w.+\-]+@"
    r"|(?!www\.)[^\W\d]{2,}\.[^\W\d][\w\-]+\.(com|net|org|de|fr|es)",  # one without its "at"
    re.IGNORECASE,
)
_HOST = re.compile(r"[\w\-]+(\.[a-z]{2,})+", re.IGNORECASE)
SHORTEST_NUMBER = 3
"""Digits of a word with letters that is a number by itself. One with fewer is a part of others, or needs a cue."""
LONGEST_AMOUNT = 7
"""Digits of an amount without a unit. A recogniser writes longer numbers like amounts, too: "997,155,973,166,267"."""
NO_WORD_LISTS = frozenset(("begin", "end", "doubtful", "particle"))
"""Tags of words that are on no list of other words."""
LONGEST_POSTCODE = 5
"""Words of a postcode."""
LONGEST_NUMBER = 4
"""Words of a number below 100: "quatre vingt dix huit"."""
LONGEST_READ = LONGEST_NUMBER + 2
"""Words that are read together: "double double quatre vingt dix huit"."""


@dataclass(frozen=True, slots=True)
class Token:
    """A word as it may be read in a secret."""

    word: str
    """The word without punctuation around it."""
    characters: str = ""
    """Digits and capital letters. Empty for a plain word."""
    tags: frozenset[str] = frozenset()
    """The lists that have the word, or a text of which it is the last word, and TAGS. Of a number, `weak` is probably a
    year or an amount ("1999", "12,500"), and `single` a digit, or digits that are divided ("4", "four", "0,3,2")."""
    uses: int = 1
    """Number of words that were read together: "vingt" "deux" → 22 in the first, and none in the second."""

    @property
    def folded(self) -> str:
        """Return the word without case."""
        return self.word.casefold()


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
    rules: RedactionRules
    language: LanguageRules


def tokens(
    words: Sequence[str], rules: LanguageRules, has_capitals: bool, doubtful: Container[int] = ()
) -> list[Token]:
    """Return the token of each word. The characters of several words that are read together are in the first of them.

    Args:
        doubtful: indexes of the words of which the recogniser is not sure.
        has_capitals: False if the whole text is written without capitals. Then known names get one.
    """
    bare = [word.strip(EDGES) for word in words]
    read: list[Token] = []
    while len(read) < len(words):
        token = _token(bare[len(read) : len(read) + LONGEST_READ], rules)
        read += [token, *(Token(word, uses=0) for word in bare[len(read) + 1 : len(read) + token.uses])]
    texts = _texts([token.folded for token in read], rules)
    ends = [bool(_SENTENCE_END.search(word)) and not _is_day(words, at, rules) for at, word in enumerate(words)]
    for at, token in enumerate(read):
        if token.folded in rules.lists["not_letters"] and token.characters and not _is_spelled(read, ends, at):
            read[at] = replace(token, characters="")
    postcodes = {at for first in range(len(read)) for at in _postcode(read, ends, first, rules)}
    for at, token in enumerate(read):
        place = _true(
            postcode=at in postcodes,
            doubtful=at in doubtful,
            begin=at == 0 or words[at - 1][-1:] in ".!?…",
            end=ends[at + max(0, token.uses - 1)],
        )
        token = replace(token, tags=token.tags | texts[at] | place)
        read[at] = replace(token, tags=token.tags | _looks(token, rules) | _name(token, rules, has_capitals))
    return read


def _true(**tags: bool) -> frozenset[str]:
    """Return the names of the tags that are true."""
    return frozenset(name for name, is_true in tags.items() if is_true)


def digits_of(text: str) -> str:
    """Return the digits of a text."""
    return "".join(filter(str.isdigit, text))


def _texts(words: Sequence[str], rules: LanguageRules) -> list[set[str]]:
    """Return the lists of whose texts each word is the last."""
    lists: list[set[str]] = [set() for _ in words]
    for at, word in enumerate(words):
        for text, name in (*rules.texts.get(word, ()), *rules.texts.get("", ())):
            stop = at + len(text)
            if stop <= len(words) and all(map(fnmatchcase, words[at:stop], text)):
                lists[stop - 1].add(name)
    return lists


def _is_day(words: Sequence[str], at: int, rules: LanguageRules) -> bool:
    """Return whether a word is the day of a date: "9. März", "9. 3. 1984"."""
    following = "".join(words[at + 1 : at + 2]).strip(EDGES).casefold()
    return bool(_DAY.fullmatch(words[at])) and (following.isdigit() or following in rules.lists["month"])


def _looks(token: Token, rules: LanguageRules) -> frozenset[str]:
    """Return the tags of a word by its characters; see rules.yaml."""
    word, characters, folded, lists = token.word, token.characters, token.folded, rules.lists
    digits = digits_of(characters or word)
    is_house = digits != "" and len(characters) <= 5 and (characters != "" or word[0].isdigit())
    return _true(
        more=token.uses == 0,
        part=characters != "",
        letter=len(characters) == 1 and characters.isalpha(),
        spelled=len(characters) > 2 and characters.isalpha(),
        upper=word[:1].isupper(),
        titled=word.istitle(),
        place=characters != "" or digits != "" or word[:1].isupper(),
        house=is_house,  # or begins with its number: "53-Hero" for "53 Harrow"
        house_first=is_house and word[0].isdigit(),
        road=len(word) > 5 and word[0].isupper() and folded.endswith(tuple(lists["street"])),
        mark="date" in token.tags or (digits != "" and ":" not in word) or folded in lists["month"],
        mail=bool(_EMAIL.fullmatch(word)) or not lists["at"].isdisjoint(folded.split(".")[1:-1]),
        mail_begin=word.startswith("@"),
        mail_end=word.endswith("@"),
        host=bool(_HOST.fullmatch(word)) or not lists["dot"].isdisjoint(folded.split("-")[1:-1]),
        tiny=1 < len(word) < 4,
    )


def _name(token: Token, rules: LanguageRules, has_capitals: bool) -> frozenset[str]:
    """Return the tags of a word that may be a name. A known one needs no capital where the recogniser doubts it."""
    name = stem(token)
    is_first, is_other = name.split("-")[0] in rules.first_names, name in rules.lists["not_names"]
    is_listed = is_first or name in rules.last_names
    is_common = is_other or name in rules.common_words or not token.tags <= NO_WORD_LISTS
    is_known = is_listed and not is_other
    word = token.word[2:] if token.word[1:2] in ("'", "’") else token.word  # "d'Elchand"
    is_short = len(word) < 2 or (word.isupper() and len(word) < 4)
    is_doubtful = "doubtful" in token.tags
    needs_capital = has_capitals and (not is_doubtful or is_common)
    is_capital = not token.characters and not is_short and (word[:1].isupper() or (is_known and not needs_capital))
    is_first_name = is_first and is_capital
    is_nearly = (  # a recogniser writes "Yanic" or "étienne"
        not is_first_name and (is_first or is_capital or is_doubtful) and not is_common and rules.is_nearly_a_name(name)
    )
    return _true(
        listed=is_listed,
        known=is_known and is_capital,
        capital=is_capital,
        common=is_common,
        first=is_first_name and not is_other,
        maybe_first=is_first_name and is_other,
        nearly=is_nearly,
        sounds=is_nearly and (is_first or (is_capital and "begin" not in token.tags)),
    )


def stem(token: Token) -> str:
    """Return a word without a possessive ending."""
    return token.folded.replace("’", "'").removesuffix("'s").removesuffix("'")


def _postcode(read: Sequence[Token], ends: Sequence[bool], at: int, rules: LanguageRules) -> range:
    """Return the indexes of a postcode that begins at a word. It may be divided, and the town may have to follow: its
    capital is the end of the text that the pattern is compared with."""
    text = ""
    begins = not (at and read[at - 1].characters)
    for last in range(at, min(at + LONGEST_POSTCODE, len(read)) if begins else at):
        text += read[last].characters
        follower = "".join(token.word[:1] for token in read[last + 1 : last + 2])
        if rules.postcode and re.fullmatch(rules.postcode, f"{text} {follower}"):
            return range(at, last + 1)
        if not read[last].characters or ends[last]:
            break
    return range(0)


def _is_spelled(read: Sequence[Token], ends: Sequence[bool], at: int) -> bool:
    """Return whether a word of one letter, such as "I", is a letter: a letter is beside it in the same sentence."""
    beside = [*(read[at - 1 : at] if at and not ends[at - 1] else ()), *read[at + 1 : at + 2]]
    return any(len(token.characters) == 1 and token.characters.isalpha() for token in beside)


def _token(words: Sequence[str], rules: LanguageRules) -> Token:
    """Return the token of the first word, and of those after it that are read together with it."""
    word = words[0]
    for stop in range(min(len(words), LONGEST_NUMBER), 0, -1) if word else ():
        if (digits := rules.digits(words[:stop])) is not None:
            return Token(word, digits, _true(single=len(digits) == 1), stop)
    if (times := rules.repeats.get(word.casefold())) and len(words) > 1:
        following = _token(words[1:], rules)
        if text := following.characters:
            return Token(word, text[:1] * times + text[1:], following.tags & {"single"}, 1 + following.uses)
    return _written(word, rules)


def _written(word: str, rules: LanguageRules) -> Token:
    """Return the token of a single word. A recogniser joins hesitations with numbers: "UM-2370" is 2370."""
    parts, fillers = _PARTS.findall(word), rules.lists["filler"] | rules.repeats.keys()
    others = [part for part in parts if part.casefold() not in fillers]
    if _HAS_DIGIT.search(word) and len(others) < len(parts):
        word, parts = "-".join(others), others
    characters, digits = "".join(parts).upper(), digits_of(word)
    is_short = len(characters) <= LONGEST_AMOUNT and not word.startswith("0")
    if _TIME.fullmatch(word) or (_AMOUNT.search(word) and _HAS_DIGIT.search(word) and is_short):
        return Token(word)
    if _DATE.fullmatch(word):  # or digits that a recogniser joins: "5-8-05"
        return Token(word, digits if "-" in word else "", frozenset(("date", "weak")))
    if _DIGITS.fullmatch(word.strip(CURRENCIES)):
        is_year, is_grouped = bool(_YEAR.fullmatch(word)), bool(_GROUPED.fullmatch(word))
        tags = _true(
            year=is_year,
            weak=is_year or (is_short and (word[0] in CURRENCIES or is_grouped)),
            single=bool(_ONE_BY_ONE.fullmatch(word)),
            international=word.startswith("+"),
        )
        return Token(word, digits, tags)
    is_letter = len(word) == 1 and word.isalpha() and (word.isupper() or word not in rules.lists["not_letters"])
    if is_letter or _CODE.fullmatch(word) or _SPELLED.fullmatch(word):
        return Token(word, characters)
    # a recogniser joins words and numbers: "IVA-SS-41797", "LibanFR38"
    return Token(word, digits, _true(weak=0 < len(digits) < SHORTEST_NUMBER))
