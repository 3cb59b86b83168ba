"""Find which words of a transcript are right, by the alignment that its errors are counted with.

Errors are counted on normalised texts, in which a word may become two tokens ("I'm" → "i am"), several words one token
("twenty five" → "25"), or no token ("um"). So the tokens of the whole normalised transcript are mapped back to its
words: each word is normalised by itself, and where that gives other tokens than the whole text, all words of the
differing stretch share its tokens. A word is right if all of its tokens are in the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from voxbatch.scoring.alignment import align, edit_blocks
from voxbatch.scoring.counts import ErrorCounts, tokens, word_tokens


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
    owned = _tokens_of_words(words, hypothesis_tokens, lang)
    return WordErrors(
        tuple(all(is_right[token] for token in indices) if indices else None for indices in owned), counts
    )


def _tokens_of_words(words: Sequence[str], hypothesis_tokens: Sequence[str], lang: str | None) -> list[list[int]]:
    """Return the indices of the tokens of each word in the normalised transcript."""
    alone = [(token, index) for index, word in enumerate(words) for token in word_tokens(word, lang)]
    token_sets: list[set[int]] = [set() for _ in words]
    stretch_words: set[int] = set()
    stretch_tokens: set[int] = set()

    def close() -> None:
        for index in stretch_words:
            token_sets[index] |= stretch_tokens
        stretch_words.clear()
        stretch_tokens.clear()

    for kind, first, at, length in edit_blocks([token for token, _ in alone], hypothesis_tokens):
        for k in range(length):
            if kind == "equal":
                close()
                token_sets[alone[first + k][1]].add(at + k)
                continue
            if kind != "insertion":
                stretch_words.add(alone[first + k][1])
            if kind != "deletion":
                stretch_tokens.add(at + k)
    close()
    return [sorted(token_set) for token_set in token_sets]
