"""Find the secrets in the words of an item: each word is in one secret at most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

import numpy as np

from voxbatch.works.redact.addresses import find_births, find_emails, find_streets
from voxbatch.works.redact.names import find_names
from voxbatch.works.redact.numbers import find_numbers
from voxbatch.works.redact.rules import RedactionRules
from voxbatch.works.redact.tokens import EDGES, Secret, TokenPassage, tokens


def find_secrets(
    words: Sequence[str], speakers: Sequence[str | None], lang: str | None, rules: RedactionRules
) -> list[Secret]:
    """Return the secrets in the words of an item, in their order.

        "my", "card", "is", "4401", "five", "five", …  →  card: words 3, 4, 5, …

    Args:
        words: the words as they are written.
        speakers: the speaker of each word, or None.
        lang: primary subtag of the language. None if it is not known.
    """
    language, has_capitals = rules.language(lang), any(word.strip(EDGES)[:1].isupper() for word in words)
    taken, secrets = set[int](), list[Secret]()
    for indexes in (range(len(words)), *_interrupted(speakers, rules.max_gap)):
        part, voices = [words[at] for at in indexes], [speakers[at] for at in indexes]
        passage = TokenPassage(tokens(part, language), voices, rules, language)
        finders = (
            _patterns(part, rules),
            find_emails(passage),
            find_births(passage),
            find_streets(passage),
            find_numbers(passage),
            find_names(passage, has_capitals),
        )
        for secret in chain(*finders):
            pieces = tuple(indexes[at] for at in secret.pieces if indexes[at] not in taken)
            if pieces:
                taken.update(pieces)
                secrets.append(Secret(secret.kind, pieces, secret.rule, secret.is_checked))
    return sorted(secrets, key=lambda secret: secret.pieces)


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
    """Yield what the patterns of the user find."""
    text, begins = " ".join(words), [0]
    for word in words:
        begins.append(begins[-1] + len(word) + 1)
    for kind, pattern in rules.patterns:
        for match in pattern.finditer(text):
            spans = enumerate(pairwise(begins))
            pieces = tuple(at for at, (begin, stop) in spans if begin < match.end() and stop - 1 > match.start())
            yield Secret(kind, pieces, "own pattern")
