"""Find the secrets in the words of an item: each word is in one secret at most.

A passage is written as a line with a character for each tag of a word, so that a regular expression of rules.yaml finds
a sequence of words. Numbers need more than a sequence: see the module numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise

import numpy as np

from voxbatch.works.redact.numbers import find_numbers
from voxbatch.works.redact.rules import RedactionRules, tag_characters
from voxbatch.works.redact.tokens import EDGES, Secret, TokenPassage, stem, tokens

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
    language, has_capitals = rules.language(lang), any(word.strip(EDGES)[:1].isupper() for word in words)
    doubtful = {at for at, confidence in enumerate(confidences) if confidence is not None and confidence < DOUBT}
    stages: list[list[Secret]] = [[], [], [], [], []]
    for indexes in (range(len(words)), *_interrupted(speakers, rules.max_gap)):
        part = [words[at] for at in indexes]
        doubts = {at for at, index in enumerate(indexes) if index in doubtful}
        passage = TokenPassage(tokens(part, language, has_capitals, doubts), rules, language)
        sequences = [*_sequences(passage)]
        names = [secret for secret in sequences if secret.kind == "person"]
        others = [secret for secret in sequences if secret.kind != "person"]
        kinds = _patterns(part, rules), others, find_numbers(passage), names, _said_again(passage, names)
        for stage, secrets in zip(stages, kinds, strict=True):
            stage += [replace(secret, pieces=tuple(indexes[at] for at in secret.pieces)) for secret in secrets]
    stages[2].sort(key=lambda secret: -len(secret.pieces))  # the whole of a number before what one speaker says of it
    taken, chosen = set[int](), list[Secret]()
    for secret in chain(*stages):
        if pieces := tuple(at for at in secret.pieces if at not in taken):
            taken.update(pieces)
            chosen.append(replace(secret, pieces=pieces))
    return sorted(chosen, key=lambda secret: secret.pieces)


def _interrupted(speakers: Sequence[str | None], max_gap: int) -> Iterator[Sequence[int]]:
    """Yield the indexes of the words that a speaker says while others talk.

        "my" "yes" "name" "is" "okay" "Olga"  →  0, 2, 3, 5

    Args:
        max_gap: words of others between two of them.
    """
    for speaker in dict.fromkeys(speakers):
        own = np.flatnonzero([other == speaker for other in speakers])
        for stretch in np.split(own, np.flatnonzero(np.diff(own) > max_gap + 1) + 1):
            if len(stretch) <= stretch[-1] - stretch[0]:
                yield stretch.tolist()


def _patterns(words: Sequence[str], rules: RedactionRules) -> Iterator[Secret]:
    """Yield what the names and patterns of the user find, and the answers about the item."""
    text, begins = " ".join(words), [0, *accumulate(len(word) + 1 for word in words)]
    for kind, rule, pattern in rules.patterns:
        for match in pattern.finditer(text):
            spans = enumerate(pairwise(begins))
            pieces = tuple(at for at, (begin, stop) in spans if begin < match.end() and stop - 1 > match.start())
            yield Secret(kind, pieces, rule)


def _sequences(passage: TokenPassage) -> Iterator[Secret]:
    """Yield what the sequences of rules.yaml find."""
    characters = tag_characters()
    # "end" has the first character: it comes last
    line = "".join(
        f";{''.join(sorted((characters[tag] for tag in token.tags), reverse=True))}" for token in passage.tokens
    )
    for rule in passage.rules.sequences:
        for match in rule.words.finditer(line):
            begin, stop = match.span(match.lastindex or 0)
            first = line.count(";", 0, begin)
            yield Secret(rule.kind, tuple(range(first, first + line.count(";", begin, stop))), rule.rule)


def _said_again(passage: TokenPassage, names: Sequence[Secret]) -> Iterator[Secret]:
    """Yield the words of names where they are said again."""
    capitals = {at: stem(token) for at, token in enumerate(passage.tokens) if "capital" in token.tags}
    words = {capitals[at] for secret in names for at in secret.pieces if at in capitals}
    lists = passage.language.lists
    known = {word for word in words if len(word) >= SHORTEST} - lists["not_names"] - lists["filler"] - lists["particle"]
    yield from (Secret("person", (at,), "said again") for at, word in capitals.items() if word in known)
