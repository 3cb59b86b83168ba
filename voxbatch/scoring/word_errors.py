"""Find which words of a transcript are right, by the alignment that its errors are counted with.

Errors are counted on normalised texts, in which a word may become two tokens ("I'm" → "i am"), several words one token
("twenty five" → "25"), or no token ("um"). So the tokens of the whole normalised transcript are mapped back to its
words: each word is normalised by itself, and where that gives other tokens than the whole text, all words of the
differing stretch share its tokens. A word is right if all of its tokens are in the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from voxbatch.scoring.alignment import align
from voxbatch.scoring.counts import ErrorCounts, tokens, word_tokens

Origin = tuple[int, int]
"""Words [first, end) from which a token came."""


@dataclass(frozen=True, slots=True)
class WordErrors:
    """The truth about the words of one transcript."""

    right: tuple[bool | None, ...]
    """One entry for each word; None for a word without a token, such as a filler or a dash, which no count sees."""
    counts: ErrorCounts
    """The errors of the transcript, as `count_errors` counts them."""


def word_errors(reference: str, words: Sequence[str], lang: str | None) -> WordErrors:
    """Return which words of a transcript are right.

    word_errors("I am twenty five", ["I'm", "twenty", "six."], "en")
        → right (True, False, False): the tokens are "i am" and "26"
    """
    reference_tokens, hypothesis_tokens = tokens(reference, lang), tokens(" ".join(words), lang)
    edits = align(reference_tokens, hypothesis_tokens)
    is_right = [False] * len(hypothesis_tokens)
    for edit in edits:
        if edit.kind == "equal" and edit.hypothesis is not None:
            is_right[edit.hypothesis] = True
    kinds = [edit.kind for edit in edits]
    counts = ErrorCounts(
        kinds.count("substitution"), kinds.count("insertion"), kinds.count("deletion"), len(reference_tokens)
    )
    right: list[bool | None] = [None] * len(words)
    for token_is_right, (first, end) in zip(is_right, trace(words, hypothesis_tokens, lang), strict=True):
        for index in range(first, end):
            if word_tokens(words[index], lang):
                right[index] = token_is_right and right[index] is not False
    return WordErrors(tuple(right), counts)


def trace(words: Sequence[str], joined: Sequence[str], lang: str | None) -> list[Origin]:
    """Return the words that each token of the whole normalised text came from.

    Args:
        words: the words as they were written.
        joined: the tokens of the text that they make.
        lang: the language by whose rules the text was normalised.
    """
    alone = [(token, index) for index, word in enumerate(words) for token in word_tokens(word, lang)]
    origins, last = list[Origin](), (0, 0)
    for is_equal, run in groupby(align(joined, [token for token, _ in alone]), key=lambda edit: edit.kind == "equal"):
        edits = list(run)
        owners = [alone[edit.hypothesis][1] for edit in edits if edit.hypothesis is not None]
        if is_equal:
            origins += [(owner, owner + 1) for owner in owners]
        else:  # the words between two equal ones became these together
            last = (owners[0], owners[-1] + 1) if owners else last
            origins += [last for edit in edits if edit.reference is not None]
        last = origins[-1] if origins else last
    return origins
