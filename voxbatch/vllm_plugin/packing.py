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
    """Frames of some chunks end to end. Their keys and values lie likewise, but before each chunk's own is room for
    those of the `known` frames that it begins with and that are not encoded again (see `silence`)."""

    lengths: list[int]
    """Frames of each chunk, without the known ones."""
    known: int
    starts: torch.Tensor
    """[chunks + 1], int32: where each chunk's frames begin, and where the last one's end."""
    key_starts: torch.Tensor
    """The same of its keys."""
    positions: torch.Tensor
    """[frames], int64: of each frame within its chunk, the known ones counted."""
    places: torch.Tensor
    """[frames], int64: of each frame's key among the keys."""

    @property
    def longest(self) -> int:
        return max(self.lengths)

    @property
    def key_lengths(self) -> list[int]:
        return [self.known + count for count in self.lengths]


def packed(lengths: Sequence[int], device: torch.device, known: int = 0) -> Packed:
    starts = np.cumsum([0, *lengths])
    key_starts = starts + known * np.arange(len(starts))
    positions = known + np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    places = positions + np.repeat(key_starts[:-1], lengths)
    return Packed(
        list(lengths), known, sent(starts.astype(np.int32), device), sent(key_starts.astype(np.int32), device),
        sent(positions, device), sent(places, device),
    )  # fmt: skip


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
    return moved(torch.from_numpy(array), device)


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The same there, without waiting for it."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
