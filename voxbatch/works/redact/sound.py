"""Silence the secrets of a recording: the times of their words, with a margin that never enters another word."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from voxbatch.records import SAMPLING_RATE
from voxbatch.works.redact.options import TONE
from voxbatch.works.redact.transcript import SpokenWord

Pcm = NDArray[np.int16]
"""Samples of a recording, shape (num_samples,)."""
TONE_HZ, TONE_LEVEL = 1000, 3000
"""The tone, and its highest sample: -21 dB of full scale."""


def silent_spans(pieces: Sequence[SpokenWord], secret: Iterable[int], margin: float) -> list[tuple[float, float]]:
    """Return the spans of a recording to silence, in seconds, ascending.

    Between two words of a secret that follow each other, everything is silent. Around them, so is the margin, up to the
    next word. Where another speaker talks at the same time, that word is cut, too.

    Args:
        secret: indexes of the words of secrets.
    """
    spans, indexes = list[tuple[float, float]](), {*secret}
    others = [piece for at, piece in enumerate(pieces) if at not in indexes]
    ends = np.sort([piece.end for piece in others]) if others else np.zeros(0)
    starts = np.sort([piece.start for piece in others]) if others else np.zeros(0)
    for at in sorted(indexes):
        start, end = pieces[at].start, pieces[at].end
        if spans and at - 1 in indexes:
            start = min(start, spans[-1][1])
        before = ends[: np.searchsorted(ends, start, "right")].max(initial=0.0)
        after = starts[np.searchsorted(starts, end) :].min(initial=np.inf)
        low, high = max(float(before), start - margin), min(float(after), end + margin)
        if spans and low <= spans[-1][1]:
            low, high = spans[-1][0], max(high, spans[-1][1])
            spans.pop()
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
    for low, high in spans:
        first, stop = (round((seconds - offset) * SAMPLING_RATE) for seconds in (low, high))
        first, stop = max(0, first), min(len(copy), max(0, stop))
        if stop > first:
            copy[first:stop] = _tone(stop - first) if sound == TONE else 0
    return copy


def _tone(num_samples: int) -> Pcm:
    tone: Pcm = np.rint(TONE_LEVEL * np.sin(2 * np.pi * TONE_HZ / SAMPLING_RATE * np.arange(num_samples))).astype(
        np.int16
    )
    return tone
