"""The operations of a layer of the flow matching that are no matrix products, by CUDA kernels.

At 512 rows they would take a third of the time in PyTorch: attention among three tokens is too small for its products.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from vllm import _custom_ops

from voxbatch.vllm.plugin.speech.layer_ops import LayerOps

TOKENS = 3
"""Tokens of a row of the flow matching."""


class FusedLayerOps(LayerOps):
    """The operations of `LayerOps`, for contiguous tensors on a GPU."""

    def norm(
        self, residual: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the norm of the sum, and the sum; see `LayerOps`."""
        width = len(weight)
        rows = residual.view(-1, width)
        if delta is None:
            normed = torch.empty_like(residual)
            _custom_ops.rms_norm(normed.view(-1, width), rows, weight, self.eps)
            return normed, residual
        _custom_ops.fused_add_rms_norm(delta.view(-1, width), rows, weight, self.eps)
        return delta, residual

    def gate(self, x: torch.Tensor) -> torch.Tensor:
        """Return SwiGLU's product; see `LayerOps`."""
        product = x.new_empty(*x.shape[:-1], x.shape[-1] // 2)
        torch.ops._C.silu_and_mul(product, x)
        return product

    def attend(self, qkv: torch.Tensor) -> torch.Tensor:
        """Return what each token reads; see `LayerOps`."""
        rows = len(qkv)
        read = qkv.new_empty(rows, TOKENS, self.heads * self.head_dim)
        queries = self.heads // self.kv_heads
        _attend[(rows, self.kv_heads)](
            qkv, read, self.head_dim**-0.5, kv_heads=self.kv_heads, queries=queries, tokens=TOKENS, dim=self.head_dim,
            block=triton.next_power_of_2(TOKENS * queries),
        )  # fmt: skip
        return read


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def] # the compiler reads annotations, and knows only its own
    qkv, read, scale, kv_heads: tl.constexpr, queries: tl.constexpr, tokens: tl.constexpr, dim: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """Attend with the queries of a row that share keys, in each program."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    number, columns = tl.arange(0, block), tl.arange(0, dim)
    token, query = number // queries, head * queries + number % queries
    is_query = (token < tokens)[:, None]
    width: tl.constexpr = kv_heads * queries * dim
    stride: tl.constexpr = width + 2 * kv_heads * dim
    begin = qkv + row * tokens * stride
    q = tl.load(begin + token[:, None] * stride + query[:, None] * dim + columns[None, :], mask=is_query, other=0.0)
    q = q.to(tl.float32) * scale
    highest = tl.full((block,), float("-inf"), tl.float32)
    total = tl.zeros((block,), tl.float32)
    values = tl.zeros((block, dim), tl.float32)
    for other in tl.static_range(0, tokens):
        key = begin + other * stride + width + head * dim + columns
        score = tl.sum(q * tl.load(key).to(tl.float32)[None, :], 1)
        higher = tl.maximum(highest, score)
        part, kept = tl.exp(score - higher), tl.exp(highest - higher)
        total = total * kept + part
        values = values * kept[:, None] + part[:, None] * tl.load(key + kv_heads * dim).to(tl.float32)[None, :]
        highest = higher
    place = read + (row * tokens + token[:, None]) * width + query[:, None] * dim + columns[None, :]
    tl.store(place, (values / total[:, None]).to(read.dtype.element_ty), mask=is_query)
