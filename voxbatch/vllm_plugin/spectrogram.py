"""Audio → log-mel spectrograms of several chunks at once, as vLLM's VoxtralEncoderModel gives them one by one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

LOUDEST_TO_FAINTEST = 8.0
"""Decades below the loudest that are kept apart (openai/whisper, audio.py)."""
STEP = 16 * 1_280
"""Samples. Lengths are rounded up to it, for each new shape makes cuFFT and cuDNN plan anew, which takes its time."""


def rounded(samples: int) -> int:
    return -(-samples // STEP) * STEP


class Spectrogram:
    def __init__(self, filters: torch.Tensor, window_size: int, hop: int, loudest: float):
        """
        Args:
            filters: [frequencies, mels], float32.
            loudest: log10 of the loudest mel that there is; fixed, not the recording's own.
        """
        self._filters = filters.contiguous()
        self._window = torch.hann_window(window_size, dtype=torch.float32, device=filters.device)
        self._size, self._hop = window_size, hop
        self._faintest = max(1e-10, 10 ** (loudest - LOUDEST_TO_FAINTEST))

    def __call__(self, audio: Sequence[torch.Tensor], first: int = 0) -> torch.Tensor:
        """[chunks, frames, mels], float32, at least as many as the longest chunk has. What lies behind a chunk's own
        frames is no silence, and means nothing.

        Args:
            audio: [samples] each, 16 kHz.
            first: the frame to begin with; every chunk has it.
        """
        padded = self._padded(audio, first * self._hop)
        bins = torch.stft(padded, self._size, self._hop, window=self._window, center=False, return_complex=True)
        bins = bins.transpose(1, 2)[:, :-1]  # as they lie in memory
        power = bins.imag.square().addcmul_(bins.real, bins.real)
        return (power @ self._filters).clamp_(min=self._faintest).log10_().div_(4.0).add_(1.0)

    def _padded(self, audio: Sequence[torch.Tensor], begin: int) -> torch.Tensor:
        """Each mirrored at its own ends by half a window, as torch.stft does when it centres its frames; then without
        the first `begin` samples."""
        half = self._size // 2
        longest = rounded(max(len(each) for each in audio) - begin)
        rows = self._window.new_zeros(len(audio), longest + self._size)
        for row, samples in zip(rows, audio, strict=True):
            mirrored = functional.pad(samples[None].float(), (half, half), mode="reflect")[0, begin:]
            row[: len(mirrored)] = mirrored
        return rows
