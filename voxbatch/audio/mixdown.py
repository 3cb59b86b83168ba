"""Several channels → one, without averaging speech away.

The mean of all channels is right for most recordings, and silent or faint for two kinds that exist: the same voice in
opposite phase, and a voice in one of many channels. So the mean's energy is compared with the loudest channel's as the
recording goes by, and where the mean has lost most of it, the loudest channel is taken instead.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from voxbatch.audio.native import NativeBlock
from voxbatch.records import Samples

LOST = 0.15
"""The mean is given up when its energy falls below this share of the loudest channel's. One voice in one of two
channels keeps 0.25 (−6 dB, harmless), independent noise in C channels keeps 1/C; opposite phase keeps 0, one of six
keeps 0.03."""
REGAINED = 0.3
"""… and taken again above this one; between the two, things stay as they are."""
STEP_SECONDS = 0.25
MEMORY = 0.9
"""Per step: energies are remembered for about 2.5 s, so that a pause does not change the mix."""
LOST_NOW = 0.03
"""Where the mix of one step holds less than this share of its loudest channel, the past is forgotten at once: in a
meeting with a microphone each, the next speaker is not to wait until the last one's energy has faded."""
AUDIBLE = 0.01
"""… if that channel is within 10 dB of the remembered loudness (the memory holds about 10 steps): noise in a pause
changes nothing."""
FADE_SECONDS = 0.01


class Mixdown:
    """Callable on consecutive blocks of one recording, (frames, channels) float32 → (frames,) float32; `finish` gives
    what is still held. Samples do not depend on where one block ends and the next begins: several channels are mixed in
    steps of STEP_SECONDS from the recording's start, and an unfinished step waits for the next block."""

    def __init__(self, rate: int, channels: int, channel: int | None = None):
        self._channel = 0 if channels == 1 else channel
        self._step, self._fade = max(1, int(rate * STEP_SECONDS)), max(1, int(rate * FADE_SECONDS))
        self._mean = np.full(channels, 1 / channels, np.float32)
        self._weights = self._mean
        self._energy = np.zeros(channels)
        self._mean_energy = 0.0
        self._begun = False
        self._held: NativeBlock = np.zeros((0, channels), np.float32)

    def __call__(self, block: NativeBlock) -> Samples:
        if self._channel is not None:
            one: Samples = block[:, self._channel]
            return one
        if len(self._held):
            block = np.concatenate([self._held, block])
        whole = len(block) // self._step * self._step
        self._held = block[whole:]
        steps = [self._mix(block[at : at + self._step]) for at in range(0, whole, self._step)]
        return np.concatenate(steps) if steps else np.zeros(0, np.float32)

    def finish(self) -> Samples:
        return self._mix(self._held) if len(self._held) else np.zeros(0, np.float32)

    def _mix(self, step: NativeBlock) -> Samples:
        mean, is_first = step @ self._mean, not self._begun
        self._begun = True
        self._remember(np.einsum("fc,fc->c", step, step, dtype=np.float64), float(mean @ mean))
        before, self._weights = self._weights, self._choose()
        mixed: Samples = mean if self._weights is self._mean else step @ self._weights
        if before is not self._weights and not is_first:
            self._crossfade(mixed, step @ before)
        return mixed

    def _remember(self, energy: NDArray[np.float64], mean_energy: float) -> None:
        loudest = energy.max()
        mixed = mean_energy if self._weights is self._mean else energy[self._weights.argmax()]
        lost_now = mixed < LOST_NOW * loudest and loudest > AUDIBLE * self._energy.max()
        memory = 0.0 if lost_now else MEMORY
        self._energy = memory * self._energy + energy
        self._mean_energy = memory * self._mean_energy + mean_energy

    def _choose(self) -> NDArray[np.float32]:
        loudest = int(self._energy.argmax())
        kept = self._mean_energy / self._energy[loudest] if self._energy[loudest] > 0 else 1.0
        averaging = self._weights is self._mean
        if kept >= (LOST if averaging else REGAINED):
            return self._mean
        if not averaging and self._energy[loudest] < 2 * self._energy[int(self._weights.argmax())]:
            return self._weights
        one_hot: NDArray[np.float32] = np.eye(len(self._mean), dtype=np.float32)[loudest]
        return one_hot

    def _crossfade(self, mixed: Samples, old: Samples) -> None:
        n = min(self._fade, len(mixed))
        ramp = np.linspace(0, 1, n, dtype=np.float32)
        mixed[:n] = ramp * mixed[:n] + (1 - ramp) * old[:n]
