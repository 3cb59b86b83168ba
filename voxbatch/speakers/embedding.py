"""Voices as vectors: Kaldi's filter banks, and a speaker embedding network on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from voxbatch.records import SAMPLING_RATE, Samples
from voxbatch.speakers.network import Network

Array = npt.NDArray[np.float32]

FRAME = SAMPLING_RATE * 25 // 1000
"""Samples of a frame: 25 ms."""
HOP = SAMPLING_RATE // 100
"""Samples between two frames: 10 ms."""
MIN_FRAMES = 50
"""Fewest frames that the network gets. Shorter audio is repeated."""
BINS = 80
_FFT = 512
_LOWEST_HZ = 20
_PRE_EMPHASIS = np.float32(0.97)
_FLOOR = np.float32(2**-23)


def _mel(hz: npt.ArrayLike) -> npt.NDArray[np.float64]:
    return 1127 * np.log1p(np.asarray(hz, np.float64) / 700)


def _mel_filters() -> Array:
    """Return the triangular filters of Kaldi, shape (_FFT // 2, BINS)."""
    edges = np.linspace(_mel(_LOWEST_HZ), _mel(SAMPLING_RATE / 2), BINS + 2)
    mels = _mel(SAMPLING_RATE / _FFT * np.arange(_FFT // 2))[:, None]
    rising = (mels - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - mels) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


_FILTERS = _mel_filters()
_POVEY_WINDOW = (np.hanning(FRAME) ** 0.85).astype(np.float32)


def filter_banks(samples: Samples) -> Array:
    """Return the logarithmic energies of Kaldi's mel filters without dither, shape (frames, BINS)."""
    frames = np.lib.stride_tricks.sliding_window_view(samples, FRAME)[::HOP]
    frames = frames - frames.mean(1, keepdims=True)
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    spectrum = np.fft.rfft((frames - _PRE_EMPHASIS * before) * _POVEY_WINDOW, _FFT)[:, : _FFT // 2]
    power = spectrum.real**2 + spectrum.imag**2
    banks: Array = np.log(np.maximum(power.astype(np.float32) @ _FILTERS, _FLOOR))
    return banks


class Embedder:
    """A speaker embedding network with the interface of WeSpeaker's and 3D-Speaker's."""

    def __init__(self, weights: Path) -> None:
        self._network = Network(weights)

    def embed(self, samples: Samples) -> Array:
        """Return a unit vector for the voice in some audio of FRAME samples or more, shape (dimensions,)."""
        banks = filter_banks(samples)
        banks = np.resize(banks - banks.mean(0), (max(len(banks), MIN_FRAMES), BINS))
        vector: Array = self._network(banks[None])[0]
        vector /= max(float(np.linalg.norm(vector)), 1e-9)
        return vector
