"""Which chunks are encoded together, and where each lies when they are laid end to end.

All counting is done here on the host, so that nothing has to be asked of the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    lengths: list[int]
    """Frames of each chunk."""
    longest: int
    starts: torch.Tensor
    """[chunks + 1], int32: where each chunk begins, and where the last one ends."""
    positions: torch.Tensor
    """[frames], int64: of each frame within its chunk."""


def packed(lengths: Sequence[int], device: torch.device) -> Packed:
    starts = np.cumsum([0, *lengths])
    positions = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    return Packed(list(lengths), max(lengths), sent(starts.astype(np.int32), device), sent(positions, device))


def groups(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Indexes of chunks, those of like length together: each group padded to its longest has at most `most` frames,
    or is one chunk."""
    found: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: lengths[i], reverse=True):
        last = found[-1] if found else []
        if last and lengths[last[0]] * (len(last) + 1) <= most:
            last.append(index)
        else:
            found.append([index])
    return found


def sent(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """A host array on the device, without waiting for it."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
