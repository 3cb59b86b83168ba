"""Rotation and layout of queries, keys and values, between a layer's first product and its attention.

Queries and keys are rotated by position. Keys and values are laid out chunk by chunk, after those that all chunks
share. This module uses PyTorch; `rotary_kernel` computes the same in one kernel.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from voxbatch.vllm.plugin.packing import Packed

RotateAndLayOut = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, Packed, int], None]
"""See `rotate_and_lay_out`."""


def rotate_and_lay_out(
    qkv: torch.Tensor, kv: torch.Tensor, pads: torch.Tensor, cos_sin: torch.Tensor, layout: Packed, head_dim: int
) -> None:
    """Rotate the queries in place, and write the rotated keys and the values to `kv`, after the shared ones of `pads`.

    Args:
        qkv: [frames, q + k + v]. Its first columns, the queries, are overwritten.
        kv: [2, rows, k], contiguous. All of it is written: `rows` is the number of frames, plus `known` for each chunk.
        pads: [2, known, k], contiguous: the keys and values that each chunk begins with.
        cos_sin: [positions, head_dim], with the cosines in the left half. Numbers 2i and 2i + 1 of a head are rotated
            together.
        layout: the positions of the chunks among frames and keys.
    """
    width = kv.shape[2]
    q, k, v = qkv.split([qkv.shape[1] - 2 * width, width, width], dim=1)
    angles = cos_sin[layout.positions].unsqueeze(1)
    q.copy_(_rotated(q, angles, head_dim))
    kv[0, layout.places] = _rotated(k, angles, head_dim)
    kv[1, layout.places] = v
    for begin in layout.key_starts[:-1].tolist() if layout.known else []:
        kv[:, begin : begin + layout.known] = pads


def _rotated(x: torch.Tensor, angles: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Return x rotated by position.

    Args:
        x: [frames, heads * head_dim].
        angles: [frames, 1, head_dim].
    """
    cos, sin = angles.chunk(2, dim=-1)
    left, right = x.unflatten(1, (-1, head_dim // 2, 2)).unbind(-1)
    return torch.stack((left * cos - right * sin, right * cos + left * sin), dim=-1).flatten(1)
