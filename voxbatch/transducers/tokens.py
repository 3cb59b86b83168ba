"""The tokens of one clip as columns, and the rule by which the frames of a CTC network become tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """The tokens of one clip, each column of shape (num_tokens,)."""

    ids: NDArray[np.integer]
    starts: NDArray[np.integer]
    """Frame at which each token was written, in order."""
    ends: NDArray[np.integer]
    """Frame after the last one of the token. For a token of duration 0, its start."""
    probabilities: NDArray[np.float32]
    """Probability of each token among all tokens and blank, at the frame where it was written; with CTC, the mean over
    its frames."""


def ctc_tokens(best: NDArray[np.integer], probabilities: NDArray[np.float32], blank: int) -> Tokens:
    """Return the tokens of a CTC network: each run of the same best token, except blank.

    Args:
        best: the likeliest token of each frame.
        probabilities: its probability.
    """
    starts = np.flatnonzero(np.diff(best, prepend=-1))
    if not len(starts):
        return Tokens(best, starts, starts, np.zeros(0, np.float32))
    ends = np.append(starts[1:], len(best))
    means = (np.add.reduceat(probabilities, starts) / (ends - starts)).astype(np.float32)
    written = best[starts] != blank
    return Tokens(best[starts][written], starts[written], ends[written], means[written])
