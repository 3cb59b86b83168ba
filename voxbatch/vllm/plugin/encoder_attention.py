"""Causal attention within a window, over chunks of different lengths laid end to end.

A frame attends to itself and to the `window - 1` frames before it in its own chunk. The first frames of a chunk may be
present as keys and values only. So a chunk may have more keys than queries, and its last query belongs to its last key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from voxbatch.vllm.plugin.packing import Packed

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Packed], torch.Tensor]
"""Function of queries [frames, heads, head_dim], keys and values [keys, heads, head_dim], and the positions of the
chunks among both. It returns the attended values of each frame, [frames, heads, head_dim]."""


class Masked:
    """Attention with PyTorch's own functions, chunk by chunk, for any device and number format."""

    def __init__(self, window: int, scale: float):
        self._window, self._scale = window, scale

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, packed: Packed) -> torch.Tensor:
        """Return the attended values; see `Attention`."""
        parts = q.split(packed.lengths), k.split(packed.key_lengths), v.split(packed.key_lengths)
        return torch.cat([self._attend_chunk(*chunk) for chunk in zip(*parts, strict=True)])

    def _attend_chunk(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attend within one chunk, in stretches of a window's length.

        A stretch sees only itself and the stretch before it. This takes less work and memory than one mask over the
        whole chunk.
        """
        stretches = list[torch.Tensor]()
        for stretch in q.split(self._window):
            begin = len(k) - len(q) + self._window * len(stretches)
            first, end = max(0, begin - self._window + 1), begin + len(stretch)
            behind = torch.arange(begin, end, device=q.device)[:, None] - torch.arange(first, end, device=q.device)
            mask = (behind >= 0) & (behind < self._window)
            heads_first = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (stretch, k[first:end], v[first:end]))
            attended = functional.scaled_dot_product_attention(*heads_first, attn_mask=mask, scale=self._scale)
            stretches.append(attended.squeeze(0).transpose(0, 1))
        return torch.cat(stretches)


class Flash:
    """Attention with vLLM's FlashAttention, all chunks in one kernel; bfloat16 and float16 only.

    Args:
        version: FlashAttention's.
        expected_length: the longest length that FlashAttention is told, if no chunk is longer. It takes another kernel
            if no chunk is longer than the window, and may split the keys of a few chunks among the multiprocessors.
            With such a length, a chunk's result is the same in all groups. 0 tells it the length of the longest chunk.
    """

    def __init__(self, window: int, scale: float, version: int, expected_length: int = 0):
        from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func

        self._function: Any = flash_attn_varlen_func
        self._window, self._scale, self._version = [window - 1, 0], scale, version
        self._expected_length, self._num_splits = expected_length, 1 if expected_length else 0  # 0: it chooses

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, packed: Packed) -> torch.Tensor:
        """Return the attended values; see `Attention`."""
        longest = max(packed.longest, self._expected_length)
        attended: torch.Tensor = self._function(
            q, k, v, max_seqlen_q=longest, cu_seqlens_q=packed.starts, cu_seqlens_k=packed.key_starts,
            max_seqlen_k=packed.known + longest, softmax_scale=self._scale, causal=True, window_size=self._window,
            fa_version=self._version, num_splits=self._num_splits,
        )  # fmt: skip
        return attended
