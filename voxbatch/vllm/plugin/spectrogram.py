"""Log-mel spectrograms of several chunks at once, equal to those that vLLM's VoxtralEncoderModel makes one by one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

LOUDEST_TO_FAINTEST = 8.0
"""Range of the spectrogram in decades. Fainter values are raised to its lower end (openai/whisper, audio.py)."""
STEP = 16 * 1_280
"""Samples. Lengths are rounded up to a multiple, because cuFFT and cuDNN make a new plan for each new shape, which is
slow."""


def rounded(samples: int) -> int:
    """Return the number of samples rounded up to a multiple of STEP."""
    return -(-samples // STEP) * STEP


class Spectrogram:
    """Function from audio to log-mel spectrograms."""

    def __init__(self, filters: torch.Tensor, window_size: int, hop: int, loudest: float):
        """Prepare the window and the filters on the device of `filters`.

        Args:
            filters: [frequencies, mels], float32.
            window_size: samples in a window.
            hop: samples from window to window.
            loudest: log10 of the loudest possible mel. It is fixed, and does not depend on the recording.
        """
        self._filters = filters.contiguous()
        self._window = torch.hann_window(window_size, dtype=torch.float32, device=filters.device)
        self._size, self._hop = window_size, hop
        self._faintest = max(1e-10, 10 ** (loudest - LOUDEST_TO_FAINTEST))

    def __call__(self, audio: Sequence[torch.Tensor], first: int = 0) -> torch.Tensor:
        """Return the log-mel spectrograms, [chunks, frames, mels], float32.

        There are at least as many frames as the longest chunk has. Frames after a chunk's own end are not silence, and
        their values have no meaning.

        Args:
            audio: [samples] for each chunk, 16 kHz.
            first: the first frame to compute. Every chunk has this frame.
        """
        padded = self._padded(audio, first * self._hop)
        bins = torch.stft(padded, self._size, self._hop, window=self._window, center=False, return_complex=True)
        bins = bins.transpose(1, 2)[:, :-1]  # the order in memory
        power = bins.imag.square().addcmul_(bins.real, bins.real)
        return (power @ self._filters).clamp_(min=self._faintest).log10_().div_(4.0).add_(1.0)

    def _padded(self, audio: Sequence[torch.Tensor], begin: int) -> torch.Tensor:
        """Mirror each chunk at its ends by half a window, then drop the first `begin` samples.

        torch.stft mirrors in the same way when it centres its frames.
        """
        half = self._size // 2
        longest = rounded(max(len(waveform) for waveform in audio) - begin)
        rows = self._window.new_zeros(len(audio), longest + self._size)
        for row, samples in zip(rows, audio, strict=True):
            mirrored = functional.pad(samples[None].float(), (half, half), mode="reflect")[0, begin:]
            row[: len(mirrored)] = mirrored
        return rows
