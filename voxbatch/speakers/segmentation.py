"""Tell who talks when from second to second, by the segmentation network 3.0 of pyannote.

The network tells up to three speakers of a window of ten seconds apart, of whom two may talk at a time, and it numbers
them anew in each window. Here the numbers of a window are aligned with those of the window before, and all windows that
contain a frame vote on it. So a number keeps its meaning while its speaker is heard every few seconds. It is not yet a
speaker of the recording.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
import numpy.typing as npt

from voxbatch.records import SAMPLING_RATE, Samples

Activity = npt.NDArray[np.bool_]
"""Which local speaker talks in which frame, shape (frames, LOCAL_SPEAKERS)."""
Array = npt.NDArray[np.float32]

WINDOW = 10 * SAMPLING_RATE
"""Samples of a window."""
FRAME = 270
"""Samples of a frame: 17 ms."""
FIRST = (991 - FRAME) // 2
"""Sample of a window at which its frame 0 begins: the middle of the 991 samples that the frame is computed from."""
FRAMES = 589
"""Frames of a window."""
STEP = 148
"""Frames between the starts of two windows: 2.5 s."""
BATCH = 4
"""Windows that the network takes at a time. It computes one alone in 1.4 times the time."""
LOCAL_SPEAKERS = 3
_POWERSET = np.array([(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1)], np.float32)
"""The local speakers who talk in each class of the network's output."""
_SILENCE, _OVERLAP = 0, slice(4, 7)
_ORDERS = [list(order) for order in permutations(range(LOCAL_SPEAKERS))]
SPEECH = 0.5
"""Probability from which somebody talks."""
OVERLAP = 0.4
"""Probability from which two talk."""


def windows(samples: Samples, count: int) -> Array:
    """Return the first windows of some samples, shape (count, WINDOW). Silence follows if there are too few."""
    length = (count - 1) * STEP * FRAME + WINDOW
    samples = np.pad(samples[:length], (0, max(0, length - len(samples))))
    return np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[:: STEP * FRAME]


class Segmenter:
    """Segments the frames of one recording, from batch to batch."""

    def __init__(self) -> None:
        self._before: Array | None = None
        self._sums = np.zeros((0, LOCAL_SPEAKERS + 2), np.float32)
        self._windows = np.zeros(0, np.float32)

    def add(self, scores: Array) -> Activity:
        """Take the network's scores of the next windows of the recording, shape (windows, FRAMES, classes), and return
        who talks in the frames that no later window sees."""
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        for position, probabilities in enumerate(scores / scores.sum(-1, keepdims=True)):
            self._vote(probabilities, position * STEP)
        return self._take(len(scores) * STEP)

    def rest(self) -> Activity:
        """Return who talks in the frames that are left, after the last window."""
        return self._take(len(self._sums))

    def _vote(self, probabilities: Array, start: int) -> None:
        """Add the probabilities of a window, shape (FRAMES, classes). `start` is its first frame in the sums."""
        talks = probabilities @ _POWERSET
        if self._before is not None:
            before, after = self._before[STEP:], talks[:-STEP]
            agreement = before.T @ after
            talks = talks[:, max(_ORDERS, key=lambda order: float(agreement[range(LOCAL_SPEAKERS), order].sum()))]
        self._before = talks
        missing = start + FRAMES - len(self._sums)
        self._sums = np.pad(self._sums, ((0, missing), (0, 0)))
        self._windows = np.pad(self._windows, (0, missing))
        speech = 1 - probabilities[:, [_SILENCE]]
        overlap = probabilities[:, _OVERLAP].sum(1, keepdims=True)
        self._sums[start:] += np.concatenate([talks, speech, overlap], axis=1)
        self._windows[start:] += 1

    def _take(self, count: int) -> Activity:
        """Remove the first frames of the sums, and return who talks in them."""
        means = self._sums[:count] / self._windows[:count, None]
        self._sums, self._windows = self._sums[count:], self._windows[count:]
        talks, speech, overlap = means[:, :LOCAL_SPEAKERS], means[:, -2] >= SPEECH, means[:, -1] >= OVERLAP
        order = np.argsort(-talks, axis=1, kind="stable")
        activity = np.zeros(talks.shape, np.bool_)
        rows = np.arange(len(talks))
        activity[rows, order[:, 0]] = speech
        activity[rows, order[:, 1]] = speech & overlap
        return activity
