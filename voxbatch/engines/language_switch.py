"""Find where the language changes within a window of Whisper.

Whisper names one language for a window of 30 s, and writes all of the window in it: speech in another language is lost,
or becomes words that nobody said. The detector is one step of the decoder, so it can listen to a part of what the
encoder made: a part of 5 s costs a sixth of the whole window, and no part is encoded again.

A window of one language is recognised by the probability of its language, so that most windows cost nothing more. In
others, the parts say which language comes first and where it ends. Only languages that the whole window may have count,
and close languages (`drift`) are not told from each other. A border that is wrong does little harm: it lies in a pause,
and the next window begins there with a detection of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxbatch.text.drift import is_close

POSITIONS_PER_SECOND = 50
"""Positions of the encoder's output (openai/whisper, n_audio_ctx: 1,500 for 30 s)."""
ONE_LANGUAGE_PROBABILITY = 0.98
"""Probability of its language from which a window is in this language alone. With Whisper base, 24 talks in which
English, German, French, Spanish and Czech alternate every 5 to 30 s had at most 0.98 in the windows with two languages;
of the windows of one language, two thirds had more."""
CANDIDATE_PROBABILITY = 0.01
"""Probability that a language must have in the whole window to be looked for in its parts."""
PART, STEP = 5 * POSITIONS_PER_SECOND, 5 * POSITIONS_PER_SECOND // 2
"""Length of the parts, and their distance: 5 s and 2.5 s. A few words are too little to detect a language from."""
SHORT_PART, SHORT_STEP = 5 * POSITIONS_PER_SECOND // 2, POSITIONS_PER_SECOND // 2
"""The same for the parts before and after a possible border: 2.5 s and 0.5 s."""
PART_PROBABILITY, PART_SHARE = 0.3, 0.7
"""Probability of a language from which a part is in it, and its share of the probability of all candidates. In 186
windows of recordings in one language, one part had another language."""

Detect = Callable[[NDArray[np.float32], Sequence[int], int], list[dict[str, float]]]
"""`_languages` of a model."""


@dataclass(frozen=True, slots=True)
class Switch:
    """The change of the language within a window."""

    language: str
    """Whisper's code of the first language."""
    end_s: float
    """The position in the window at which the first language ends, to half a second."""


def find_switch(model: Any, encoded: Any, num_positions: int, probabilities: Mapping[str, float]) -> Switch | None:
    """Return the first change of the language within a window; None if there is none.

    Args:
        model: a multilingual ctranslate2.models.Whisper.
        encoded: the encoder's output for the window, of shape (1, positions, size).
        num_positions: number of positions that have audio. The rest is padding.
        probabilities: of all languages in the whole window, by Whisper's codes.
    """
    candidates = [code for code, probability in probabilities.items() if probability >= CANDIDATE_PROBABILITY]
    if len(candidates) < 2 or max(probabilities.values()) >= ONE_LANGUAGE_PROBABILITY:
        return None
    positions: NDArray[np.float32] = np.array(encoded)[0, :num_positions]
    starts = range(0, num_positions - PART + 1, STEP)
    detect = partial(_languages, model, type(encoded).from_array)
    parts = detect(positions, starts, PART)
    named = [(start, code) for start, part in zip(starts, parts, strict=True) if (code := _main(part, candidates))]
    for (before, first), (after, second) in pairwise(named):
        if not is_close(first, second):
            return Switch(first, _border(detect, positions, before, after, first, second) / POSITIONS_PER_SECOND)
    return None


def _main(part: Mapping[str, float], candidates: Sequence[str]) -> str | None:
    """Return the language of a part; None if it is not certain."""
    code = max(candidates, key=lambda code: part[code])
    is_certain = part[code] >= max(PART_PROBABILITY, PART_SHARE * sum(part[other] for other in candidates))
    return code if is_certain else None


def _border(detect: Detect, positions: NDArray[np.float32], before: int, after: int, first: str, second: str) -> int:
    """Return the position at which the language changes: the part before it is in the first language, and the part
    after it is in the second one.

    Args:
        before: start of the last part in the first language.
        after: start of the first part in the second language, as a position, too.
    """
    starts = range(before, min(after + PART, len(positions)) - SHORT_PART + 1, SHORT_STEP)
    parts = detect(positions, starts, SHORT_PART)
    by_start = dict(zip(starts, parts, strict=True))
    return max(
        (start for start in starts if start - SHORT_PART in by_start),
        key=lambda start: by_start[start - SHORT_PART][first] * by_start[start][second],
    )


def _languages(
    model: Any,
    storage: Callable[[NDArray[np.float32]], Any],
    positions: NDArray[np.float32],
    starts: Sequence[int],
    size: int,
) -> list[dict[str, float]]:
    """Return the probabilities of the languages of parts, which have `size` positions from each of `starts` on.

    Args:
        storage: makes a ctranslate2.StorageView of an array.
    """
    batch = np.stack([positions[start : start + size] for start in starts])
    return [
        {token[2:-2]: probability for token, probability in ranked} for ranked in model.detect_language(storage(batch))
    ]
