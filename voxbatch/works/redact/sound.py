"""Silence the secrets of a recording: the times of their words, with a margin that never enters another word."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from voxbatch.records import SAMPLING_RATE
from voxbatch.works.redact.options import SILENCE
from voxbatch.works.redact.transcript import SpokenWord

Pcm = NDArray[np.int16]
"""Samples of a recording, shape (num_samples,)."""
TONE_LEVEL, TONE_STEP = 3000, 2 * np.pi * 1000 / SAMPLING_RATE
"""Highest sample of the tone, -21 dB of full scale, and its radians a sample: 1 kHz."""


def silent_spans(pieces: Sequence[SpokenWord], secret: Iterable[int], margin: float) -> list[tuple[float, float]]:
    """Return the spans of a recording to silence, in seconds, ascending.

    Between two words of a secret that follow each other, everything is silent. Around them, so is the margin, up to the
    next word. Where another speaker talks at the same time, that word is cut, too.

    Args:
        secret: indexes of the words of secrets.
    """
    spans, indexes = list[tuple[float, float]](), {*secret}
    others = [piece for at, piece in enumerate(pieces) if at not in indexes]
    ends = np.sort([-np.inf, *(piece.end for piece in others)])
    starts = np.sort([*(piece.start for piece in others), np.inf])
    for at in sorted(indexes):
        start, end = pieces[at].start, pieces[at].end
        if spans and at - 1 in indexes:
            start = min(start, spans[-1][1])
        before = ends[np.searchsorted(ends, start, "right") - 1]
        after = starts[np.searchsorted(starts, end)]
        low, high = max(0.0, float(before), start - margin), min(float(after), end + margin)
        if spans and low <= spans[-1][1]:
            low, longest = spans.pop()
            high = max(high, longest)
        spans.append((low, high))
    return spans


def cut_words(pieces: Sequence[SpokenWord], secret: Iterable[int], spans: Iterable[tuple[float, float]]) -> int:
    """Return the number of other words that are silenced in part, because somebody talks at the same time."""
    indexes, silent = {*secret}, [*spans]
    return sum(
        any(low < piece.end - 1e-6 and high > piece.start + 1e-6 for low, high in silent)
        for at, piece in enumerate(pieces)
        if at not in indexes
    )


def silenced(samples: Pcm, spans: Iterable[tuple[float, float]], offset: float, sound: str) -> Pcm:
    """Return a recording whose spans are silent, or have a tone.

    Args:
        spans: seconds on the recording's clock.
        offset: seconds on it at which the samples begin.
    """
    copy = samples.copy()
    for span in spans:
        first, stop = (max(0, round((seconds - offset) * SAMPLING_RATE)) for seconds in span)
        hidden = copy[first:stop]
        hidden[:] = 0 if sound == SILENCE else np.rint(TONE_LEVEL * np.sin(TONE_STEP * np.arange(len(hidden))))
    return copy
