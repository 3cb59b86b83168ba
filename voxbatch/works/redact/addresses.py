"""Find e-mail addresses, streets with their numbers and towns, and dates of birth."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from voxbatch.works.redact.rules import LanguageRules
from voxbatch.works.redact.tokens import Secret, Token, TokenPassage

_EMAIL = re.compile(
    r"[\w.+\-]+@[\w\-]+(\.[\w\-]+)*|@[\w\-]+\.[\w.\-]+|[\w.+\-]+@"
    r"|(?!www\.)[^\W\d]{2,}\.[^\W\d][\w\-]+\.(com|net|org|de|fr|es)",  # one without its "at"
    re.IGNORECASE,
)
_HOST = re.compile(r"[\w\-]+(\.[a-z]{2,})+", re.IGNORECASE)
MAX_LOCAL, MAX_HOST = 14, 8
"""Words of the two parts of an e-mail address, at most."""
MAX_NAME = 5
"""Words of the name of a street."""
MAX_TOWN = 8
"""Words after a street with its postcode and town."""
MAX_BIRTH = 14
"""Words between the cue of a date of birth and the end of the date."""


def find_emails(passage: TokenPassage) -> Iterator[Secret]:
    """Yield the e-mail addresses, written or spoken: "j dot smith at example dot com"; and after "my mail is", what
    ends in a host, because a recogniser often loses the "at"."""
    tokens, language = passage.tokens, passage.language
    for at, token in enumerate(tokens):
        if _EMAIL.fullmatch(token.word):
            last = _host_end(tokens, at + 1, language) if token.word.endswith("@") else None
            first = _local_start(tokens, at, language) if token.word.startswith("@") else at
            yield Secret("email", tuple(range(first, (last or at) + 1)), "e-mail address")
        elif token.folded in language.at and at and (last := _host_end(tokens, at + 1, language)):
            yield Secret("email", tuple(range(_local_start(tokens, at, language), last + 1)), "spoken e-mail address")
        elif count := passage.begins(language.cues.get("email", ()), at):
            first = at + count
            reach = range(first, min(first + MAX_LOCAL, len(tokens)))
            hosts = [k for k in reach if _HOST.fullmatch(tokens[k].word) or _is_dotted(tokens, k, language)]
            if hosts:
                first += first < hosts[-1] and 1 < len(tokens[first].word) < 4  # "is"
                yield Secret("email", tuple(range(first, hosts[-1] + 1)), "after a cue")


def _is_dotted(tokens: Sequence[Token], at: int, language: LanguageRules) -> bool:
    """Return whether a word follows a "dot", or has one inside: "example-dot-com"."""
    parts = tokens[at].folded.split("-")
    return tokens[at - 1].folded in language.dot or any(part in language.dot for part in parts[1:-1])


def _host_end(tokens: Sequence[Token], first: int, language: LanguageRules) -> int | None:
    """Return the index of the last word of a host that begins at a word; None if no dot follows."""
    end: int | None = None
    for at in range(first, min(first + MAX_HOST, len(tokens))):
        if _HOST.fullmatch(tokens[at].word):
            end = at
        elif tokens[at].folded in language.dot and at + 1 < len(tokens) and at > first:
            end = at + 1
            while end + 1 < len(tokens) and len(tokens[end].word) == len(tokens[end + 1].word) == 1:
                end += 1  # a domain that is spelled
        elif end is not None and at > end and tokens[at].folded not in language.dot:
            break
    return end


def _local_start(tokens: Sequence[Token], at: int, language: LanguageRules) -> int:
    """Return the index of the first word of the part before the "at"."""
    joints, names = {*language.dot, *language.signs}, language.first_names | language.last_names
    first = at - 1
    while first > max(0, at - MAX_LOCAL):
        before, token = tokens[first - 1], tokens[first]
        is_part = before.characters or before.uses == 0 or before.folded in names
        if not (is_part or {before.folded, token.folded} & joints):
            break
        first -= 1
    return max(0, first)


def find_streets(passage: TokenPassage) -> Iterator[Secret]:
    """Yield streets with their numbers, and the postcodes and towns that follow them; and after "I live at", a number
    with a name, because a recogniser often loses the "street"."""
    tokens, language = passage.tokens, passage.language
    endings, taken = tuple(language.streets), set[int]()
    for at, token in enumerate(tokens):
        span = None
        if token.folded in language.street_first:
            span = _numbered(tokens, at, at)
        elif token.folded in language.streets and token.word[0].isupper() and (first := _name_start(tokens, at)) < at:
            span = _numbered(tokens, first, at)
        elif token.word[:1].isupper() and len(token.word) > 5 and token.folded.endswith(endings):
            span = _numbered(tokens, at, at)
        elif not (at and tokens[at - 1].characters) and (last := _postcode_end(tokens, at, language)):
            span = at, last
        if span:
            pieces = range(span[0], _town_end(tokens, span[1], language) + 1)
            taken.update(pieces)
            yield Secret("address", tuple(pieces), "street or postcode")
    for at in range(len(tokens)):
        count = passage.begins(language.cues.get("address", ()), at)
        if count and (span := _after_cue(passage, at + count)):
            pieces = range(span[0], _town_end(tokens, span[1], language) + 1)
            if taken.isdisjoint(pieces[:2]):
                yield Secret("address", tuple(pieces), "after a cue")


def _after_cue(passage: TokenPassage, first: int) -> tuple[int, int] | None:
    """Return the first and the last word of a house number beside a name, in the sentence that goes on at a word."""
    tokens = passage.tokens
    inside = range(first, passage.sentence_end(first, MAX_NAME))
    numbers = [at for at in inside if _is_house_number(tokens[at]) and tokens[at].word[0].isdigit()]
    names = [at for at in inside if tokens[at].word.istitle()]
    if not (numbers and names):
        return None
    last = max(numbers[-1], names[-1])
    return min(numbers[0], names[0]), last + max(1, tokens[last].uses) - 1


def _postcode_end(tokens: Sequence[Token], at: int, language: LanguageRules) -> int | None:
    """Return the index of the last word of a postcode that begins at a word; None if none does. It may be divided, and
    the town may have to follow: its capital is the end of the text that the pattern is compared with."""
    text = ""
    for last in range(at, min(at + MAX_NAME, len(tokens))):
        text += tokens[last].characters
        follower = "".join(token.word[:1] for token in tokens[last + 1 : last + 2])
        if re.fullmatch(language.postcode, f"{text} {follower}"):
            return last
        if not tokens[last].characters or tokens[last].ends_sentence:
            break
    return None


def _name_start(tokens: Sequence[Token], at: int) -> int:
    """Return the index of the first word of the name before a street."""
    first = at
    while first > max(0, at - MAX_NAME) and tokens[first - 1].word[:1].isupper() and not tokens[first - 1].characters:
        first -= 1
    return first


def _numbered(tokens: Sequence[Token], first: int, last: int) -> tuple[int, int] | None:
    """Return the first and the last word of a street with its number, before or after it; None if there is none."""
    for number in (first - 1, first - 2):
        while number > 0 and tokens[number].uses == 0:
            number -= 1  # several words of one number
        if number >= 0 and _is_house_number(tokens[number]) and not tokens[first - 1].ends_sentence:
            while number > 0 and tokens[number - 1].characters and not tokens[number - 1].is_year:
                number -= 1
            return number, _name_end(tokens, last) if first == last else last
    for at in range(last + 1, min(last + 1 + MAX_NAME, len(tokens))):
        if tokens[at].characters:
            return first, at + tokens[at].uses - 1
        if tokens[at - 1].ends_sentence:
            break
    return None


def _name_end(tokens: Sequence[Token], last: int) -> int:
    """Return the index of the last word of the name after a street: "rue de la Paix"."""
    end = last
    while end + 1 < len(tokens) and end - last < MAX_NAME and not tokens[end].ends_sentence:
        end += 1
        if tokens[end].word[:1].isupper():
            break
    while end + 1 < len(tokens) and tokens[end + 1].word[:1].isupper() and not tokens[end].ends_sentence:
        end += 1
    return end


def _is_house_number(token: Token) -> bool:
    """Return whether a word is a house number, or begins with one: "53-Hero" for "53 Harrow"."""
    digits = "".join(filter(str.isdigit, token.characters or token.word))
    return digits != "" and len(token.characters) <= 5 and (token.characters != "" or token.word[0].isdigit())


def _town_end(tokens: Sequence[Token], last: int, language: LanguageRules) -> int:
    """Return the index of the last word of the postcode and the town after a street."""
    end = last
    for at in range(last + 1, min(last + 1 + MAX_TOWN, len(tokens))):
        if tokens[end].ends_sentence and end == at - 1:
            break
        if tokens[at].characters or any(map(str.isdigit, tokens[at].word)) or tokens[at].word[:1].isupper():
            end = at + max(1, tokens[at].uses) - 1
        elif tokens[at].uses and tokens[at].folded not in language.towns_after | language.fillers:
            break
    return end


def find_births(passage: TokenPassage) -> Iterator[Secret]:
    """Yield the dates that follow or precede the cue of a date of birth."""
    tokens, language = passage.tokens, passage.language
    for at in range(len(tokens)):
        if not passage.has_cue("date_of_birth", at, at + 1):
            continue
        begin = next((k for k in range(at, 0, -1) if tokens[k - 1].ends_sentence), 0)
        end = passage.sentence_end(at, MAX_BIRTH)
        for reach in (range(at + 1, end), range(max(begin, at - MAX_BIRTH), at)):
            marks = [k for k in reach if _is_of_date(tokens[k], language)]
            if marks and (len(marks) > 1 or tokens[marks[0]].is_date):
                first, last = marks[0], marks[-1] + max(1, tokens[marks[-1]].uses) - 1
                if tokens[first].folded in language.months and first > at + 1:
                    first -= 2 if tokens[first - 1].folded in ("of", "de") and first > at + 2 else 1
                yield Secret("date_of_birth", tuple(range(first, last + 1)), "date of birth")
                break


def _is_of_date(token: Token, language: LanguageRules) -> bool:
    has_digits = any(map(str.isdigit, token.characters or token.word)) and ":" not in token.word
    return token.is_date or has_digits or token.folded in language.months
