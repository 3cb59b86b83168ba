"""A request to vLLM, the scores of its tokens, and the errors of a piece that cannot be transcribed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Request:
    """A request to vLLM."""

    prompt: Mapping[str, Any]
    """The prompt in the form that vLLM's `LLM.generate` takes."""
    max_tokens: int
    ignore_eos: bool = False
    allowed_token_ids: tuple[int, ...] = ()
    """The only tokens that the text may have. Empty means all tokens."""
    suppressed_token_ids: tuple[int, ...] = ()
    temperature: float = 0.0
    """0 means greedy decoding."""
    top_p: float = 1.0
    seed: int | None = None
    """Seed of this request alone, for a temperature above 0."""
    repetition_penalty: float = 1.0
    """Divisor of the scores of tokens that the text has already; 1 means none."""
    grammar: str = ""
    """Grammar of the text, in llguidance's variant of Lark. Empty means any text."""
    warning: str | None = None
    """Warning about the request, for the transcript."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenScores:
    """The scores of the tokens of one text, by the model's own distribution. A token without a score has NaN."""

    logprobs: NDArray[np.float32]
    """Shape (num_tokens,): the natural logarithm of the probability of each token."""
    entropies: NDArray[np.float32] | None = None
    """Shape (num_tokens,): the entropy of the distribution from which each token was taken, in nats. None if vLLM's own
    log-probabilities were taken."""

    def probabilities(self) -> list[float]:
        """Return the probability of each token."""
        probabilities: list[float] = np.exp(self.logprobs).tolist()
        return probabilities

    def confidence(self, token_ids: Sequence[int], controls: Collection[int]) -> float | None:
        """Return the mean probability of the text's tokens. None if there are none, or if one has no probability.

        Args:
            controls: ids of control tokens, which are no text.
        """
        pairs = zip(token_ids, self.probabilities(), strict=True)
        text_probabilities = [probability for token, probability in pairs if token not in controls]
        mean = fmean(text_probabilities) if text_probabilities else nan
        return None if isnan(mean) else mean


class UnsupportedPiece(Exception):
    """The model cannot take a piece: it is too long for the model, or in a language that the model does not know.

    A piece that is too long is never truncated.
    """


class UnusableAnswer(Exception):
    """The model's answer does not have the form that was asked for, such as a JSON Schema."""
