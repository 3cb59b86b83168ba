"""Count the errors that separate one hypothesis from its reference: substitutions, insertions, deletions.

The module does not add up a corpus (corpus.py does). A rate of one utterance says little, and the mean of many rates
says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from voxbatch.scoring.normalize import DEFAULT_RULES, Rules, normalizer
from voxbatch.scoring.units import WORDS_AND_CHARACTERS, error_unit, scored_language

RATE_DIGITS = 6
"""Decimal places of a reported rate: one error in a million words still shows."""


def rounded(rate: float | None) -> float | None:
    """Return a rate as it is reported."""
    return None if rate is None else round(rate, RATE_DIGITS)


@dataclass(frozen=True, slots=True)
class ErrorCounts:
    """Errors in words or in characters, according to `error_unit(lang)`. Counts can be added; rates cannot."""

    substitutions: int = 0
    insertions: int = 0
    deletions: int = 0
    reference_length: int = 0

    @classmethod
    def of_line(cls, line: Mapping[str, Any]) -> ErrorCounts:
        """Return the counts in the output line of a transcript that has a reference."""
        return cls(line["substitutions"], line["insertions"], line["deletions"], line["reference_length"])

    @property
    def errors(self) -> int:
        """Sum of substitutions, insertions and deletions."""
        return self.substitutions + self.insertions + self.deletions

    @property
    def rate(self) -> float | None:
        """The ratio errors / reference_length. It exceeds 1 if there are many insertions.

        None for an empty reference, which has no rate. Its insertions still count in a sum: text that was invented in
        silence must make the corpus worse.
        """
        return self.errors / self.reference_length if self.reference_length else None

    @property
    def reported_rate(self) -> float | None:
        """The rate with RATE_DIGITS decimal places."""
        return rounded(self.rate)

    @property
    def hypothesis_length(self) -> int:
        """Number of words or characters of the hypothesis."""
        return self.reference_length - self.deletions + self.insertions

    @property
    def match_error_rate(self) -> float | None:
        """The ratio errors / (errors + equal tokens), which never exceeds 1 (Morris et al., "From WER and RIL to MER
        and WIL", 2004). None if both texts are empty."""
        aligned = self.reference_length + self.insertions
        return self.errors / aligned if aligned else None

    def __add__(self, other: ErrorCounts) -> ErrorCounts:
        return ErrorCounts(
            self.substitutions + other.substitutions,
            self.insertions + other.insertions,
            self.deletions + other.deletions,
            self.reference_length + other.reference_length,
        )


def count_errors(reference: str, hypothesis: str, lang: str | None, rules: Rules = DEFAULT_RULES) -> ErrorCounts:
    """Return the errors of the best alignment of the normalised texts, in the language's unit.

    An empty hypothesis counts as deletions only. See `edit_blocks` for the time that long texts take.
    """
    reference_tokens, hypothesis_tokens = tokens(reference, lang, rules), tokens(hypothesis, lang, rules)
    if rules.leaderboard is not None:
        return ErrorCounts(*rules.leaderboard.count(reference_tokens, hypothesis_tokens), len(reference_tokens))
    return count_token_errors(reference_tokens, hypothesis_tokens)


def count_characters(
    reference: str, hypothesis: str, lang: str | None, rules: Rules = DEFAULT_RULES
) -> ErrorCounts | None:
    """Return the errors in characters of a language that is counted in both units; None for all other languages."""
    if scored_language(lang) not in WORDS_AND_CHARACTERS:
        return None
    reference_characters, hypothesis_characters = (
        "".join(tokens(text, lang, rules)) for text in (reference, hypothesis)
    )
    return count_token_errors(list(reference_characters), list(hypothesis_characters))


def count_token_errors(reference: Sequence[str], hypothesis: Sequence[str]) -> ErrorCounts:
    """Return the errors of the best alignment of two lists of tokens."""
    if reference == hypothesis:
        return ErrorCounts(reference_length=len(reference))
    from voxbatch.scoring.alignment import edit_blocks

    counts = {"equal": 0, "substitution": 0, "insertion": 0, "deletion": 0}
    for kind, _, _, length in edit_blocks(reference, hypothesis):
        counts[kind] += length
    return ErrorCounts(counts["substitution"], counts["insertion"], counts["deletion"], len(reference))


def tokens(text: str, lang: str | None, rules: Rules = DEFAULT_RULES) -> list[str]:
    """Return the units that are compared: the words of the normalised text, or its characters without white space."""
    words = normalizer(lang, rules)(text).split()
    return list("".join(words)) if error_unit(lang) == "character" else words


@lru_cache(maxsize=100_000)
def word_tokens(word: str, lang: str | None) -> tuple[str, ...]:
    """Return the tokens of one word. The English rules take 0.1 ms for a word, and most words are frequent ones."""
    return tuple(tokens(word, lang))
