"""Align two sequences of tokens: the edits that turn a reference into a hypothesis, as few as possible.

The tokens are words or characters of normalised texts (counts.py). The module does not normalise and adds nothing up.

    align(["the", "cat", "sat"], ["the", "dog"])
        → [Edit("equal", 0, 0), Edit("substitution", 1, 1), Edit("deletion", 2, None)]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

EditKind = Literal["equal", "substitution", "deletion", "insertion"]

LONG_PAIR = 1_000_000_000
"""Product of the two lengths from which rapidfuzz first tries a narrow band around the diagonal: two texts of 32,000
tokens. A day of speech (216,000 words) with 10 % errors then takes 1 s, not 10 s. The number of errors is the same.
Below this product there is no band, because among alignments with equally few errors the band may choose another one
than jiwer, which would change how many errors are substitutions."""
_FIRST_BAND = 31
"""Errors that the first band has room for. rapidfuzz doubles it until the alignment fits."""

_KINDS: dict[str, EditKind] = {
    "equal": "equal",
    "replace": "substitution",
    "delete": "deletion",
    "insert": "insertion",
}


@dataclass(frozen=True, slots=True)
class Edit:
    """One step from the reference to the hypothesis."""

    kind: EditKind
    reference: int | None
    """Index of the token in the reference. None for an insertion."""
    hypothesis: int | None
    """Index of the token in the hypothesis. None for a deletion."""


def align(reference: Sequence[str], hypothesis: Sequence[str]) -> list[Edit]:
    """Return the alignment with the fewest errors, in the order of both texts. Equal tokens are edits, too."""
    return [
        Edit(kind, in_reference + k if kind != "insertion" else None, in_hypothesis + k if kind != "deletion" else None)
        for kind, in_reference, in_hypothesis, length in edit_blocks(reference, hypothesis)
        for k in range(length)
    ]


def edit_blocks(reference: Sequence[str], hypothesis: Sequence[str]) -> Iterator[tuple[EditKind, int, int, int]]:
    """Yield runs of edits of one kind: (kind, index in the reference, index in the hypothesis, number of tokens).

    Memory is linear in the lengths and time is their product. On one core, 45,000 words with 10 % errors take 0.1 s,
    216,000 words (a day of speech) 1 s; two texts that have nothing in common take 0.4 s and 12 s. rapidfuzz holds
    Python's interpreter lock all this time.
    """
    from rapidfuzz.distance import Levenshtein

    numbers: dict[str, int] = {}  # rapidfuzz compares strings by their hashes; numbers cannot collide
    reference_numbers = [numbers.setdefault(token, len(numbers)) for token in reference]
    hypothesis_numbers = [numbers.setdefault(token, len(numbers)) for token in hypothesis]
    hint = _FIRST_BAND if len(reference_numbers) * len(hypothesis_numbers) >= LONG_PAIR else None
    for op in Levenshtein.opcodes(reference_numbers, hypothesis_numbers, score_hint=hint):
        length = max(op.src_end - op.src_start, op.dest_end - op.dest_start)
        yield _KINDS[op.tag], op.src_start, op.dest_start, length
