"""Mix several channels down to one without cancelling speech.

The mean of all channels is right for most recordings. It is silent or faint for two kinds of recordings that exist: the
same voice in opposite phase, and a voice in one of many channels. Therefore the energy of the mean is compared with the
energy of the loudest channel throughout the recording. Where the mean has lost most of the energy, the loudest channel
is used instead.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from voxbatch.audio.libsndfile import NativeBlock
from voxbatch.records import Samples

FAINT_SHARE = 0.15
"""Share of the loudest channel's energy below which the mean is no longer used.

One voice in one of two channels keeps 0.25 (−6 dB, harmless). Independent noise in C channels keeps 1/C. Opposite phase
keeps 0. One voice in one of six channels keeps 0.03.
"""
RECOVERED_SHARE = 0.3
"""Share of the loudest channel's energy above which the mean is used again. Between FAINT_SHARE and RECOVERED_SHARE
the mix stays as it is."""
STEP_SECONDS = 0.25
"""Length in seconds of the steps in which the mix is decided."""
ENERGY_DECAY = 0.9
"""Decay of the remembered energies per step. They are remembered for about 2.5 s, so that a pause does not change the
mix."""
FAINT_STEP_SHARE = 0.03
"""Share of the energy of a step's loudest channel. If the mix of the step holds less, the remembered energies are
discarded at once. In a meeting where each speaker has a microphone, the next speaker must not wait until the last
speaker's energy has faded."""
AUDIBLE_SHARE = 0.01
"""Share of the remembered energy that the loudest channel must exceed for FAINT_STEP_SHARE to apply. The remembered
energy covers about 10 steps, so the channel must be within 10 dB of the remembered loudness. Noise in a pause therefore
changes nothing."""
FADE_SECONDS = 0.01
"""Length in seconds of the crossfade when the mix changes."""


class Mixdown:
    """Callable that mixes consecutive blocks of one recording: (frames, channels) float32 → (frames,) float32.

    Call `finish` after the last block. The samples do not depend on the limits of the blocks: several channels are
    mixed in steps of STEP_SECONDS from the recording's start, and an unfinished step waits for the next block.
    """

    def __init__(self, rate: int, channels: int, channel: int | None = None):
        self._channel = 0 if channels == 1 else channel
        self._step, self._fade = max(1, int(rate * STEP_SECONDS)), max(1, int(rate * FADE_SECONDS))
        self._mean = np.full(channels, 1 / channels, np.float32)
        self._weights = self._mean
        self._energy = np.zeros(channels)
        self._mean_energy = 0.0
        self._has_begun = False
        self._pending: NativeBlock = np.zeros((0, channels), np.float32)

    def __call__(self, block: NativeBlock) -> Samples:
        """Return a block of shape (frames, channels) as one channel of shape (frames,)."""
        if self._channel is not None:
            samples: Samples = block[:, self._channel]
            return samples
        if len(self._pending):
            block = np.concatenate([self._pending, block])
        end = len(block) // self._step * self._step
        self._pending = block[end:]
        steps = [self._mix(block[at : at + self._step]) for at in range(0, end, self._step)]
        return np.concatenate(steps) if steps else np.zeros(0, np.float32)

    def finish(self) -> Samples:
        """Return the mixed samples of the unfinished last step."""
        pending, self._pending = self._pending, self._pending[:0]
        return self._mix(pending) if len(pending) else np.zeros(0, np.float32)

    def _mix(self, step: NativeBlock) -> Samples:
        mean, is_first = step @ self._mean, not self._has_begun
        self._has_begun = True
        energy: NDArray[np.float64] = np.einsum("fc,fc->c", step, step, dtype=np.float64)
        mean_energy, loudest = float(mean @ mean), energy.max()
        mixed_energy = mean_energy if self._weights is self._mean else energy[self._weights.argmax()]
        is_faint = mixed_energy < FAINT_STEP_SHARE * loudest and loudest > AUDIBLE_SHARE * self._energy.max()
        decay = 0.0 if is_faint else ENERGY_DECAY
        self._energy = decay * self._energy + energy
        self._mean_energy = decay * self._mean_energy + mean_energy
        before, self._weights = self._weights, self._choose_weights()
        mixed: Samples = mean if self._weights is self._mean else step @ self._weights
        if before is not self._weights and not is_first:
            n = min(self._fade, len(mixed))
            ramp = np.linspace(0, 1, n, dtype=np.float32)
            mixed[:n] = ramp * mixed[:n] + (1 - ramp) * (step @ before)[:n]
        return mixed

    def _choose_weights(self) -> NDArray[np.float32]:
        loudest = int(self._energy.argmax())
        share = self._mean_energy / self._energy[loudest] if self._energy[loudest] > 0 else 1.0
        uses_mean = self._weights is self._mean
        if share >= (FAINT_SHARE if uses_mean else RECOVERED_SHARE):
            return self._mean
        if not uses_mean and self._energy[loudest] < 2 * self._energy[int(self._weights.argmax())]:
            return self._weights
        one_hot: NDArray[np.float32] = np.eye(len(self._mean), dtype=np.float32)[loudest]
        return one_hot
