"""Between a layer's first product and its attention: queries and keys are turned by position, and keys and values laid
out chunk by chunk, behind those that all chunks share. In PyTorch's words; `kernels` has the same as one kernel."""

from __future__ import annotations

from typing import Protocol

import torch

from voxbatch.vllm_plugin.packing import Packed


class Place(Protocol):
    def __call__(
        self,
        qkv: torch.Tensor,
        kv: torch.Tensor,
        pads: torch.Tensor,
        cos_sin: torch.Tensor,
        layout: Packed,
        head_dim: int,
    ) -> None:
        """Turn the queries where they are; keys, turned, and values go to `kv`, those of `pads` before each chunk's.

        Args:
            qkv: [frames, q + k + v]. Its first columns, the queries, are overwritten.
            kv: [2, rows, k], contiguous. All of it is written: `rows` is frames, and `known` more for each chunk.
            pads: [2, known, k], contiguous.
            cos_sin: [positions, head_dim], cosines in the left half. Numbers 2i and 2i + 1 of a head turn together.
        """


def place(
    qkv: torch.Tensor, kv: torch.Tensor, pads: torch.Tensor, cos_sin: torch.Tensor, layout: Packed, head_dim: int
) -> None:
    """See Place."""
    width = kv.shape[2]
    q, k, v = qkv.split([qkv.shape[1] - 2 * width, width, width], dim=1)
    angles = cos_sin[layout.positions].unsqueeze(1)
    q.copy_(_turned(q, angles, head_dim))
    kv[0, layout.places] = _turned(k, angles, head_dim)
    kv[1, layout.places] = v
    for begin in layout.key_starts[:-1].tolist() if layout.known else []:
        kv[:, begin : begin + layout.known] = pads


def _turned(x: torch.Tensor, angles: torch.Tensor, head_dim: int) -> torch.Tensor:
    """
    Args:
        x: [frames, heads * head_dim].
        angles: [frames, 1, head_dim].
    """
    cos, sin = angles.chunk(2, dim=-1)
    left, right = x.unflatten(1, (-1, head_dim // 2, 2)).unbind(-1)
    return torch.stack((left * cos - right * sin, right * cos + left * sin), dim=-1).flatten(1)
