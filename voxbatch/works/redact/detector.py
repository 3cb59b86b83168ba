"""Find the secrets in the words of an item: each word is in one secret at most.

A passage is written as a line with a character for each tag of a word, so that a regular expression of rules.yaml finds
a sequence of words. Numbers need more than a sequence: see the module numbers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain

import numpy as np

from voxbatch.works.redact.numbers import MAX_GAP, find_numbers
from voxbatch.works.redact.rules import PatternRule, RedactionRules, language_rules, sequences, tag_characters
from voxbatch.works.redact.tokens import EDGES, Secret, Token, TokenPassage, stem, tokens

DOUBT = 0.85
"""Confidence below which a word is doubtful."""
SHORTEST = 3
"""Letters of a name that is looked for again."""


def find_secrets(
    words: Sequence[str],
    speakers: Sequence[str | None],
    lang: str | None,
    rules: RedactionRules,
    confidences: Sequence[float | None] = (),
) -> list[Secret]:
    """Return the secrets in the words of an item, in their order.

        "my", "card", "is", "4401", "five", "five", …  →  card: words 3, 4, 5, …

    Args:
        words: the words as they are written.
        speakers: the speaker of each word, or None.
        lang: primary subtag of the language. None if it is not known.
        confidences: that of each word, or None. A name that the recogniser does not know is one that it doubts.
    """
    language, has_capitals = language_rules(lang), any(word.strip(EDGES)[:1].isupper() for word in words)
    doubtful = {at for at, confidence in enumerate(confidences) if confidence is not None and confidence < DOUBT}
    stages: list[list[Secret]] = [[], [], [], [], []]
    for indexes in (range(len(words)), *_interrupted(speakers)):
        part = [words[at] for at in indexes]
        doubts = {at for at, index in enumerate(indexes) if index in doubtful}
        passage = TokenPassage(tokens(part, language, has_capitals, doubts), rules, language)
        of_tags = [*_matches(sequences(), [*map(_tagged, passage.tokens)], "")]
        names = [secret for secret in of_tags if secret.kind == "person"]
        others = [secret for secret in of_tags if secret.kind != "person"]
        own = _matches(rules.patterns, part, " ")
        kinds = own, others, find_numbers(passage), names, _said_again(passage, names)
        for stage, secrets in zip(stages, kinds, strict=True):
            stage += [replace(secret, pieces=tuple(indexes[at] for at in secret.pieces)) for secret in secrets]
    stages[2].sort(key=lambda secret: -len(secret.pieces))  # the whole of a number before what one speaker says of it
    taken, chosen = set[int](), list[Secret]()
    for secret in chain(*stages):
        if pieces := tuple(at for at in secret.pieces if at not in taken):
            taken.update(pieces)
            chosen.append(replace(secret, pieces=pieces))
    return sorted(chosen, key=lambda secret: secret.pieces)


def _interrupted(speakers: Sequence[str | None]) -> Iterator[Sequence[int]]:
    """Yield the indexes of the words that a speaker says while others talk.

    "my" "yes" "name" "is" "okay" "Olga"  →  0, 2, 3, 5
    """
    for speaker in dict.fromkeys(speakers):
        own = np.flatnonzero([other == speaker for other in speakers])
        for stretch in np.split(own, np.flatnonzero(np.diff(own) > MAX_GAP + 1) + 1):
            if len(stretch) <= stretch[-1] - stretch[0]:
                yield stretch.tolist()


def _matches(rules: Iterable[PatternRule], texts: Sequence[str], joint: str) -> Iterator[Secret]:
    """Yield the secrets that rules find in a line: the texts of the words with a joint between them."""
    line, ends = joint.join(texts), [*accumulate(len(text) + len(joint) for text in texts)]
    begins = [end - len(text) - len(joint) for text, end in zip(texts, ends, strict=True)]
    for rule in rules:
        for match in rule.pattern.finditer(line):
            begin, stop = match.span(rule.group)
            pieces = range(bisect_right(ends, begin + len(joint)), bisect_left(begins, stop))
            yield Secret(rule.kind, tuple(pieces), rule.rule)


def _tagged(token: Token) -> str:
    """Return a word in the line for the sequences. The tag "end" has the lowest character, and comes last."""
    characters = tag_characters()
    return ";" + "".join(sorted((characters[tag] for tag in token.tags if tag in characters), reverse=True))


def _said_again(passage: TokenPassage, names: Sequence[Secret]) -> Iterator[Secret]:
    """Yield the words of names where they are said again."""
    capitals = {at: stem(token) for at, token in enumerate(passage.tokens) if "capital" in token.tags}
    words = {capitals[at] for secret in names for at in secret.pieces if at in capitals}
    lists = passage.language.lists
    known = {word for word in words if len(word) >= SHORTEST} - lists["not_names"] - lists["filler"] - lists["particle"]
    yield from (Secret("person", (at,), "said again") for at, word in capitals.items() if word in known)
