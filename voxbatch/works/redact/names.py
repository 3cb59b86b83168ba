"""Find names of persons: by lists of names, by the words before them, and where they are said again.

A list does not know every name, and many names are words or places, too. So a name on the list counts if it is written
with a capital, and an unknown word counts after "my name is" or a title.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from voxbatch.works.redact.rules import LanguageRules
from voxbatch.works.redact.secrets import Secret, begins
from voxbatch.works.redact.tokens import Token

MAX_NAMES = 4
"""Words of a name."""
SHORTEST = 3
"""Letters of a name that is looked for again."""
SPELLED = 3
"""Letters from which a spelled word may be a name."""
PARTICLES = frozenset((
    "von", "van", "de", "der", "den", "del", "la", "le", "du", "di", "da", "y", "i", "el", "zu", "al", "bin", "ben",
    "mac", "mc", "san", "dos", "das",
))  # fmt: skip
"""Words between the parts of a name."""


def find_names(
    tokens: Sequence[Token], words: LanguageRules, own: frozenset[str], has_capitals: bool
) -> Iterator[Secret]:
    """Yield the names of persons.

    Args:
        own: names of the user's list, folded.
        has_capitals: False if the whole text is written without capitals.
    """
    if not has_capitals:
        tokens = [_capitalized(token, words) for token in tokens]
    spans: list[tuple[int, int, str]] = list(_own_spans(tokens, own))
    if words.knows_names:
        spans += _cued_spans(tokens, words)
        spans += _listed_spans(tokens, words)
    spans += _spelled_spans(tokens)
    known = {_stem(tokens[at]) for first, stop, _ in spans for at in range(first, stop) if _is_capital(tokens[at])}
    known = {name for name in known if len(name) >= SHORTEST} - words.not_names - words.fillers - PARTICLES
    for first, stop, rule in spans:
        yield Secret("person", tuple(range(first, stop)), rule)
    for at, token in enumerate(tokens):
        if _stem(token) in known and _is_capital(token):
            yield Secret("person", (at,), "said again")


def _own_spans(tokens: Sequence[Token], own: frozenset[str]) -> Iterator[tuple[int, int, str]]:
    texts = [tuple(name.split()) for name in own]
    for at in range(len(tokens) if texts else 0):
        if count := begins(tokens, texts, at):
            yield at, at + count, "own list"


def _cued_spans(tokens: Sequence[Token], words: LanguageRules) -> Iterator[tuple[int, int, str]]:
    """Yield the names after a title or another cue."""
    for at, token in enumerate(tokens):
        if token.folded.rstrip(".") in words.titles and (token.word[:1].isupper() or not token.word.isupper()):
            first = at + 1
            while first < len(tokens) and tokens[first].folded.rstrip(".") in words.titles:
                first += 1
            if (stop := _capitals_end(tokens, first, words)) > first:
                yield first, stop, "after a title"
        for cues, is_weak in ((words.name_cues, False), (words.weak_name_cues, True)):
            if not (count := begins(tokens, cues, at)):
                continue
            first = at + count
            stop = _capitals_end(tokens, first, words)
            known = [k for k in range(first, stop) if _is_known(tokens[k], words) and not _is_word(tokens[k], words)]
            if stop > first and (known or not (is_weak or tokens[first].folded in words.fillers)):
                yield first, stop, "after a cue"


def _capitals_end(tokens: Sequence[Token], first: int, words: LanguageRules) -> int:
    """Return the index after the capitalised words of a name; `first` if there are none."""
    at = end = first
    while at < len(tokens) and at - first < MAX_NAMES:
        if at > first and tokens[at - 1].ends_sentence and len(tokens[at - 1].word) > 1:
            break
        if _is_capital(tokens[at]) and tokens[at].folded not in words.months:
            at = end = at + 1
        elif tokens[at].folded in PARTICLES and at + 1 < len(tokens):
            at += 1
        else:
            break
    return end


def _listed_spans(tokens: Sequence[Token], words: LanguageRules) -> Iterator[tuple[int, int, str]]:
    """Yield first names of the list, each with the capitalised words that follow it; and last names that follow an
    initial."""
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if _is_first_name(token, words):
            stop = at + 1
            while stop < len(tokens) and stop - at < MAX_NAMES and not tokens[stop - 1].ends_sentence:
                following = tokens[stop]
                if _is_capital(following) and following.folded not in words.months:
                    stop += 1
                elif following.folded in PARTICLES and stop + 1 < len(tokens) and _is_capital(tokens[stop + 1]):
                    stop += 2
                else:
                    break
            is_full = stop > at + 1 and _is_known(tokens[at + 1], words) and not _is_word(tokens[at + 1], words)
            if is_full or not _is_word(token, words):
                yield at, stop, "list of names"
                at = stop
                continue
        at += 1


def _spelled_spans(tokens: Sequence[Token]) -> Iterator[tuple[int, int, str]]:
    """Yield words that are spelled letter by letter."""
    first = 0
    while first < len(tokens):
        stop = first
        while stop < len(tokens) and _is_letter(tokens[stop]):
            stop += 1
        letters = "".join(tokens[at].characters for at in range(first, stop))
        if len(letters) >= SPELLED:
            yield first, stop, "spelled"
        first = max(stop, first + 1)


def _is_letter(token: Token) -> bool:
    return bool(token.characters) and token.characters.isalpha()


def _is_first_name(token: Token, words: LanguageRules) -> bool:
    return _is_capital(token) and _stem(token) in words.first_names


def _is_known(token: Token, words: LanguageRules) -> bool:
    return _stem(token) in words.first_names or _stem(token) in words.last_names


def _is_word(token: Token, words: LanguageRules) -> bool:
    """Return whether a name is also a word or a place."""
    return _stem(token) in words.not_names


def _is_capital(token: Token) -> bool:
    word = token.word
    return word[:1].isupper() and not token.characters and (len(word) > 1) and not (word.isupper() and len(word) < 4)


def _stem(token: Token) -> str:
    """Return a word without a possessive ending."""
    folded = token.folded.replace("’", "'")
    return folded.removesuffix("'s").removesuffix("'")


def _capitalized(token: Token, words: LanguageRules) -> Token:
    """Return a word of a text without capitals as it would be written: known names have one."""
    return (
        replace(token, word=token.word.capitalize())
        if _is_known(token, words) and not _is_word(token, words)
        else token
    )
