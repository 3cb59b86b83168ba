"""Made-up chunks of sound that change as often as speech does, for models with random weights."""

from __future__ import annotations

import numpy as np

SAMPLING_RATE = 16_000
SYLLABLE_S = 0.2


def babble(seconds: float, seed: int) -> np.ndarray:
    """Return syllables of varying pitch, timbre, loudness and noise, some silent: [samples], float32, 16 kHz, within
    ±1."""
    rng = np.random.default_rng(seed)
    count = round(seconds * SAMPLING_RATE)
    syllables = [_syllable(rng) for _ in range(int(seconds / SYLLABLE_S) + 1)]
    return np.concatenate(syllables)[:count].astype(np.float32)


def chunks(count: int, shortest: float = 3.0, longest: float = 30.0, seed: int = 0) -> dict[str, np.ndarray]:
    """Return `count` babbles by name, in mixed order. Their lengths (in seconds) are spread evenly by ratio over the
    range."""
    lengths = np.random.default_rng(seed).permutation(np.geomspace(shortest, longest, count))
    return {f"chunk{i:03d}": babble(seconds, seed=1_000 * seed + i) for i, seconds in enumerate(lengths)}


def noise(num_samples: int) -> np.ndarray:
    """Return float32 noise on the 16-bit grid. The official way through a WAV file keeps no more."""
    values = np.random.default_rng(num_samples).integers(-20_000, 20_000, num_samples)
    return (values / 32_768).astype(np.float32)


def _syllable(rng: np.random.Generator) -> np.ndarray:
    time = np.arange(round(SYLLABLE_S * SAMPLING_RATE)) / SAMPLING_RATE
    pitch = rng.uniform(80, 300) * (1 + rng.uniform(-0.5, 0.5) * time)
    harmonics = np.arange(1, 16)[:, None]
    timbre = rng.exponential(1 / harmonics)
    voice = (timbre * np.sin(2 * np.pi * harmonics * pitch * time)).sum(axis=0)
    noise = rng.standard_normal(len(time)) * rng.choice([0.01, 0.1, 1.0])
    loudness = rng.choice([0, 0.01, 0.1, 0.2]) * np.sin(np.pi * time / SYLLABLE_S)
    syllable: np.ndarray = np.clip(loudness * (voice + noise), -1, 1)
    return syllable
