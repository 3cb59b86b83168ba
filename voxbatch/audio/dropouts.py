"""Find stretches of uncompressed audio in which every sample is the same, as in lost blocks of a file."""

from __future__ import annotations

import numpy as np

from voxbatch.audio.libsndfile import NativeBlock

MIN_SECONDS = 1.0
"""Length in seconds from which a stretch is reported. Editors and telephones write shorter ones in pauses."""
STEP_SECONDS = 0.1
"""Length in seconds of the steps in which samples are compared. A stretch is found to within a step at each end."""


class Dropouts:
    """Finder of stretches of equal samples with other samples before and after them, over the blocks of a recording."""

    def __init__(self, rate: int):
        self.stretches: list[tuple[float, float]] = []
        """Start and end of each stretch, in seconds from the first block on."""
        self._step, self._rate = max(1, int(rate * STEP_SECONDS)), rate
        self._pending: NativeBlock | None = None
        self._num_steps = 0
        self._last_varied: int | None = None
        """Number of the last step whose samples were not all the same."""

    def add(self, block: NativeBlock) -> None:
        """Look through the next block, of shape (frames, channels)."""
        if self._pending is not None:
            block = np.concatenate([self._pending, block])
        count = len(block) // self._step
        self._pending = block[count * self._step :]
        steps = block[: count * self._step].reshape(count, self._step, block.shape[1])
        for number in self._num_steps + np.flatnonzero((steps != steps[:, :1]).any(axis=(1, 2))):
            before, self._last_varied = self._last_varied, int(number)
            if before is not None and (number - before - 1) * self._step >= MIN_SECONDS * self._rate:
                self.stretches.append(((before + 1) * self._step / self._rate, number * self._step / self._rate))
        self._num_steps += count
