"""The best path of a text through the frames of a recording, by the Viterbi algorithm in numpy.

A text is a row of states: the characters of a CTC model with blanks between them, or the three states of each phone.
A path begins in the first or the second state. In each frame it stays, goes to the next state, or leaves out a state
that may be left out. The recursion is that of CTC's forward variables with a maximum in place of the sum (Graves et
al., "Connectionist temporal classification", 2006, section 4.1). Without blanks it is that of hidden Markov models
(Rabiner, "A tutorial on hidden Markov models", 1989, section III.B).

Two additions find the text where it is, and not only where it should be:

* A pause stands before, between and after the words. The engine scores it as silence or as sound of any kind, so that
  it also takes speech that the text lacks.
* From a pause the path may jump to any later pause for a fixed cost, so that text without audio is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """A text as a row of states. All arrays have one number for each state, apart from `pauses`."""

    columns: NDArray[np.int64]
    """Column of the scores that each state takes."""
    leaves_out: NDArray[np.bool_]
    """True if a path may come from the state before the last one, and leave out the last one."""
    words: NDArray[np.int64]
    """Index of the word; -1 for a pause."""

    @property
    def pauses(self) -> NDArray[np.int64]:
        """The states that are pauses: one before each word, and one after the last."""
        return np.flatnonzero(self.words < 0)


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """The best path."""

    states: NDArray[np.int64]
    score: float
    """Sum of the scores of the path, less the costs of its jumps."""


def best_path(
    scores: NDArray[np.float32], states: States, jump_cost: float = np.inf, may_end_early: bool = False
) -> Path:
    """Return the best path through all frames.

    Args:
        scores: logarithms of probabilities, shape (num_frames, num_columns).
        jump_cost: cost of a jump from a pause to a later one. Infinity forbids jumps.
        may_end_early: the path may end in any pause and at the end of any word, and not only at the end of the text.

    Raises:
        ValueError: there is no path: more states must be passed than there are frames.
    """
    num_frames, num_states, pauses = len(scores), len(states.columns), states.pauses
    came_from = np.zeros((num_frames, num_states), np.uint8)  # 0: itself, 1: the state before, 2: the one before that
    jumps = np.zeros((num_frames, len(pauses)), np.uint16)  # the pause that the path jumped from, or the pause itself
    numbers = np.arange(len(pauses))
    total = np.full(num_states, -np.inf, np.float32)
    total[:2] = scores[0, states.columns[:2]]
    from_previous, from_second_previous = np.full((2, num_states), -np.inf, np.float32)
    for frame in range(1, num_frames):
        from_previous[1:] = total[:-1]
        from_second_previous[2:] = np.where(states.leaves_out[2:], total[:-2], -np.inf)
        best = np.maximum(total, from_previous)
        origin = came_from[frame]
        origin[from_previous > total] = 1
        origin[from_second_previous > best] = 2
        np.maximum(best, from_second_previous, out=best)
        if jump_cost < np.inf:
            here = best[pauses]
            highest = np.maximum.accumulate(here)
            source = np.maximum.accumulate(np.where(here >= highest, numbers, 0))
            jumped = highest - np.float32(jump_cost) > here
            jumps[frame] = np.where(jumped, source, numbers)
            best[pauses] = np.where(jumped, highest - np.float32(jump_cost), here)
        total = best + scores[frame, states.columns]
    ends = np.concatenate((pauses, pauses[1:] - 1)) if may_end_early else np.array([num_states - 1, num_states - 2])
    end = int(ends[np.argmax(total[ends])])
    if total[end] == -np.inf:
        raise ValueError(f"{num_frames} frames are too few for {num_states} states")
    path = _traced(end, came_from, jumps if jump_cost < np.inf else None, pauses)
    return Path(path, float(total[end]))


def _traced(
    end: int, came_from: NDArray[np.uint8], jumps: NDArray[np.uint16] | None, pauses: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the state of each frame of the path that ends in a state."""
    path = np.empty(len(came_from), np.int64)
    number_of = {int(pause): number for number, pause in enumerate(pauses)} if jumps is not None else {}
    state = end
    for frame in range(len(came_from) - 1, 0, -1):
        path[frame] = state
        if jumps is not None and (number := number_of.get(state)) is not None:
            state = int(pauses[jumps[frame, number]])
        state -= int(came_from[frame, state])
    path[0] = state
    return path
