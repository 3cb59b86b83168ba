"""The operations of a layer of the flow matching that are no matrix products, in PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class LayerOps:
    """The operations of a layer that are no matrix products, in PyTorch. Those of a derived class may write into their
    arguments."""

    heads: int
    kv_heads: int
    head_dim: int
    eps: float

    def norm(
        self, residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the RMS norm of `residual + delta`, and the sum. None as `delta` adds nothing."""
        residual = residual if delta is None else residual + delta
        return functional.rms_norm(residual, weight.shape, weight, self.eps), residual

    def gate(self, x: torch.Tensor) -> torch.Tensor:
        """Return SwiGLU's product: SiLU of the left half of x times its right half."""
        gate, up = x.chunk(2, -1)
        return functional.silu(gate) * up

    def attend(self, qkv: torch.Tensor) -> torch.Tensor:
        """Return what each of the three tokens reads from all of them, [rows, 3, heads * head_dim].

        Args:
            qkv: [rows, 3, (heads + 2 * kv_heads) * head_dim]: queries, keys and values.
        """
        rows, tokens, _ = qkv.shape
        queries, dim = self.heads // self.kv_heads, self.head_dim
        q, k, v = qkv.split([self.heads * dim, self.kv_heads * dim, self.kv_heads * dim], -1)
        q = q.view(rows, tokens, self.kv_heads, queries, dim).permute(0, 2, 3, 1, 4).flatten(2, 3) * dim**-0.5
        k, v = (tensor.view(rows, tokens, self.kv_heads, dim).transpose(1, 2) for tensor in (k, v))
        read = (q @ k.transpose(2, 3)).softmax(-1) @ v
        return read.view(rows, self.kv_heads, queries, tokens, dim).permute(0, 3, 1, 2, 4).flatten(2)
