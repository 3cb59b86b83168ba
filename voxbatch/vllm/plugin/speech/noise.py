"""Normal random numbers that depend on a seed and the number of a frame alone: not on the batch, the device or order.

Each number is 16 bits of a hash (SplitMix64), looked up in a table of the normal distribution's quantiles. A lookup is
exact, where a logarithm or a cosine has other last bits on another device.
"""

from __future__ import annotations

from functools import lru_cache

import torch

_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64
"""The constants of SplitMix64, as signed numbers of 64 bits."""
_MAX_NUMBERS = 64
"""Largest number of numbers for a frame."""


def noise(seeds: torch.Tensor, frames: torch.Tensor, count: int) -> torch.Tensor:
    """Return normal random numbers, [rows, count], float32.

    Args:
        seeds: [rows], int64.
        frames: [rows], int64: the number of each row's frame.
        count: numbers of a row, at most 64.
    """
    places = frames[:, None] * _MAX_NUMBERS + torch.arange(1, count + 1, device=seeds.device)
    bits = seeds[:, None] + places * _STEP
    bits = (bits ^ _shifted(bits, 30)) * _FIRST
    bits = (bits ^ _shifted(bits, 27)) * _SECOND
    return _quantiles(seeds.device)[_shifted(bits, 48)]


def _shifted(bits: torch.Tensor, count: int) -> torch.Tensor:
    """Return numbers of 64 bits shifted to the right, with zeros from the left."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


@lru_cache
def _quantiles(device: torch.device) -> torch.Tensor:
    """Return the quantiles of the normal distribution at the middle of 65,536 equal parts: from -4.3 to 4.3."""
    parts = (torch.arange(2**16, dtype=torch.float64) + 0.5) / 2**16
    return torch.special.ndtri(parts).float().to(device)
