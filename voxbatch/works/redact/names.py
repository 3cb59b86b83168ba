"""Find names of persons: by lists of names, by the words before them, and where they are said again.

A list does not know every name, and many names are words or places, too. So a name on the list counts if it is written
with a capital, and an unknown word counts after "my name is" or a title.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from voxbatch.works.redact.rules import LanguageRules, sound
from voxbatch.works.redact.tokens import Secret, Token, TokenPassage

MAX_NAMES = 4
"""Words of a name."""
SHORTEST = 3
"""Letters of a name that is looked for again, and of one that is spelled."""
PARTICLES = frozenset((
    "von", "van", "de", "der", "den", "del", "la", "le", "du", "di", "da", "y", "i", "el", "zu", "al", "bin", "ben",
    "mac", "mc", "san", "dos", "das",
))  # fmt: skip
"""Words between the parts of a name."""
Span = tuple[int, int, str]
"""Index of the first word of a name, of the one after its last, and the rule that found it."""


def find_names(passage: TokenPassage, has_capitals: bool) -> Iterator[Secret]:
    """Yield the names of persons.

    Args:
        has_capitals: False if the whole text is written without capitals. Then known names get one.
    """
    tokens, language = passage.tokens, passage.language
    if not has_capitals:
        tokens = [
            replace(token, word=token.word.capitalize()) if _is_surely_known(token, language) else token
            for token in tokens
        ]
        passage = replace(passage, tokens=tokens)
    spans = [*_own_spans(passage)]
    if language.knows_names:
        spans += [*_cued_spans(passage), *_listed_spans(tokens, language)]
    spans += _spelled_spans(tokens)
    known = {_stem(tokens[at]) for first, stop, _ in spans for at in range(first, stop) if _is_capital(tokens[at])}
    known = {name for name in known if len(name) >= SHORTEST} - language.not_names - language.fillers - PARTICLES
    for first, stop, rule in spans:
        yield Secret("person", tuple(range(first, stop)), rule)
    for at, token in enumerate(tokens):
        if _is_capital(token) and _stem(token) in known:
            yield Secret("person", (at,), "said again")


def _own_spans(passage: TokenPassage) -> Iterator[Span]:
    texts = [tuple(name.split()) for name in passage.rules.own_names]
    for at in range(len(passage.tokens) if texts else 0):
        if count := passage.begins(texts, at):
            yield at, at + count, "own list"


def _cued_spans(passage: TokenPassage) -> Iterator[Span]:
    """Yield the names after a title or another cue."""
    tokens, language = passage.tokens, passage.language
    for at, token in enumerate(tokens):
        first = at
        while first < len(tokens) and _is_title(tokens[first], language):
            first += 1
        if first > at and (token.word[:1].isupper() or not token.word.isupper()):
            yield from _capitals(tokens, first, language, "after a title")
        for cues, is_weak in ((language.name_cues, False), (language.weak_name_cues, True)):
            if count := passage.begins(cues, at):
                for name in _capitals(tokens, at + count, language, "after a cue"):
                    is_known = any(_is_surely_known(tokens[k], language) for k in range(name[0], name[1]))
                    if is_known or not (is_weak or tokens[name[0]].folded in language.fillers):
                        yield name


def _is_title(token: Token, language: LanguageRules) -> bool:
    return token.folded.rstrip(".") in language.titles


def _capitals(tokens: Sequence[Token], first: int, language: LanguageRules, rule: str) -> Iterator[Span]:
    """Yield the capitalised words of a name that begins at a word, if it has one, with particles between them."""
    at = end = first
    while at < len(tokens) and at - first < MAX_NAMES:
        if at > first and tokens[at - 1].ends_sentence and len(tokens[at - 1].word) > 1:
            break
        at += 1
        if _is_capital(tokens[at - 1]) and tokens[at - 1].folded not in language.months:
            end = at
        elif tokens[at - 1].folded not in PARTICLES:
            break
    if end > first:
        yield first, end, rule


def _listed_spans(tokens: Sequence[Token], language: LanguageRules) -> Iterator[Span]:
    """Yield first names of the list, each with the capitalised words that follow it; and where one does, words that
    sound like a first name: a recogniser writes "Yanic" or "étienne"."""
    stop = 0
    for at, token in enumerate(tokens):
        if at < stop:
            continue
        is_listed = _stem(token) in language.first_names and _is_capital(token)
        for name in _capitals(tokens, at, language, "list of names") if is_listed else ():
            is_full = name[1] > at + 1 and _is_surely_known(tokens[at + 1], language)
            if is_full or _stem(token) not in language.not_names:
                stop = name[1]
                yield name
        if not is_listed and _sounds_known(token, language) and not token.ends_sentence:
            for _, stop, rule in _capitals(tokens, at + 1, language, "sounds like a name"):
                yield at, stop, rule


def _sounds_known(token: Token, language: LanguageRules) -> bool:
    stem = _stem(token)
    is_written = _is_capital(token) or stem in language.first_names
    return is_written and stem not in language.not_names and sound(stem) in language.name_sounds


def _spelled_spans(tokens: Sequence[Token]) -> Iterator[Span]:
    """Yield words that are spelled letter by letter."""
    first = 0
    while first < len(tokens):
        stop = first
        while stop < len(tokens) and tokens[stop].characters.isalpha():
            stop += 1
        if sum(len(tokens[at].characters) for at in range(first, stop)) >= SHORTEST:
            yield first, stop, "spelled"
        first = max(stop, first + 1)


def _is_surely_known(token: Token, language: LanguageRules) -> bool:
    """Return whether a word is a name on a list, and no other word or place."""
    stem = _stem(token)
    return (stem in language.first_names or stem in language.last_names) and stem not in language.not_names


def _is_capital(token: Token) -> bool:
    """Return whether a word is written as a name: "Elchand", "d'Elchand"."""
    word = token.word[2:] if token.word[1:2] in ("'", "’") else token.word
    return word[:1].isupper() and not token.characters and (len(word) > 1) and not (word.isupper() and len(word) < 4)


def _stem(token: Token) -> str:
    """Return a word without a possessive ending."""
    return token.folded.replace("’", "'").removesuffix("'s").removesuffix("'")
