"""Groups of chunks that are encoded together, and the position of each chunk when they are laid end to end.

All counting is done here on the host, so that nothing waits for the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Layout of the frames of some chunks end to end, and of their keys and values.

    Keys and values lie in the same order. Before each chunk's own there is space for those of the `known` frames that
    the chunk begins with and that are not encoded again (see `silence`).
    """

    lengths: list[int]
    """Frames of each chunk, without the known frames."""
    known: int
    """Number of frames that every chunk begins with and that are encoded already."""
    starts: torch.Tensor
    """[chunks + 1], int32: the first frame of each chunk, and the total number of frames."""
    key_starts: torch.Tensor
    """[chunks + 1], int32: the first key of each chunk, and the total number of keys."""
    positions: torch.Tensor
    """[frames], int64: the position of each frame within its chunk, with the known frames counted."""
    places: torch.Tensor
    """[frames], int64: the index of each frame's key among all keys."""

    @property
    def longest(self) -> int:
        """Number of frames of the longest chunk, without the known frames."""
        return max(self.lengths)

    @property
    def key_lengths(self) -> list[int]:
        """Keys of each chunk, with the known frames."""
        return [self.known + count for count in self.lengths]


def pack(lengths: Sequence[int], device: torch.device, known: int = 0) -> Packed:
    """Return the layout of chunks of these lengths, with its tensors on `device`.

    Args:
        lengths: frames of each chunk, without the known frames.
        known: number of frames that every chunk begins with and that are encoded already.
    """
    starts = np.cumsum([0, *lengths])
    key_starts = starts + known * np.arange(len(starts))
    positions = known + np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    places = positions + np.repeat(key_starts[:-1], lengths)
    arrays = starts.astype(np.int32), key_starts.astype(np.int32), positions, places
    return Packed(list(lengths), known, *(to_device(array, device) for array in arrays))


def group_chunks(lengths: Sequence[int], max_frames: int) -> list[list[int]]:
    """Group chunks of similar length, and return the indexes of each group.

    A group padded to its longest chunk has at most `max_frames` frames, or it is one chunk.
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: lengths[i], reverse=True):
        last = groups[-1] if groups else []
        if last and lengths[last[0]] * (len(last) + 1) <= max_frames:
            last.append(index)
        else:
            groups.append([index])
    return groups


def to_device(values: np.ndarray | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy an array or a tensor to the device, without waiting for the copy."""
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def copy_to(place: torch.Tensor, values: torch.Tensor) -> None:
    """Copy a tensor of the host to a place on the device, without waiting for the copy."""
    place.copy_(values.pin_memory() if place.is_cuda else values, non_blocking=True)
