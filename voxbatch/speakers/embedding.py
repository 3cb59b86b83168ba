"""Kaldi's filter banks, the input of a speaker embedding network with the interface of WeSpeaker's and 3D-Speaker's."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from voxbatch.records import SAMPLING_RATE, Samples

Array = npt.NDArray[np.float32]

FRAME = SAMPLING_RATE * 25 // 1000
"""Samples of a frame: 25 ms."""
HOP = SAMPLING_RATE // 100
"""Samples between two frames: 10 ms."""
MIN_FRAMES = 50
"""Fewest frames that the network gets. Shorter audio is repeated."""
BINS = 80
FFT = 512
_LOWEST_HZ = 20
PRE_EMPHASIS = np.float32(0.97)
FLOOR = np.float32(2**-23)


def _mel(hz: npt.ArrayLike) -> npt.NDArray[np.float64]:
    return 1127 * np.log1p(np.asarray(hz, np.float64) / 700)


def _mel_filters() -> Array:
    """Return the triangular filters of Kaldi, shape (FFT // 2, BINS)."""
    edges = np.linspace(_mel(_LOWEST_HZ), _mel(SAMPLING_RATE / 2), BINS + 2)
    mels = _mel(SAMPLING_RATE / FFT * np.arange(FFT // 2))[:, None]
    rising = (mels - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - mels) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


FILTERS = _mel_filters()
POVEY_WINDOW = (np.hanning(FRAME) ** 0.85).astype(np.float32)


def filter_banks(samples: Samples) -> Array:
    """Return the logarithmic energies of Kaldi's mel filters without dither and mean, shape (frames, BINS).

    Args:
        samples: FRAME samples or more. What gives fewer than MIN_FRAMES is repeated.
    """
    frames = np.lib.stride_tricks.sliding_window_view(samples, FRAME)[::HOP]
    frames = frames - frames.mean(1, keepdims=True)
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    spectrum = np.fft.rfft((frames - PRE_EMPHASIS * before) * POVEY_WINDOW, FFT)[:, : FFT // 2]
    power = spectrum.real**2 + spectrum.imag**2
    banks = np.log(np.maximum(power.astype(np.float32) @ FILTERS, FLOOR))
    return np.resize(banks - banks.mean(0), (max(len(banks), MIN_FRAMES), BINS))
