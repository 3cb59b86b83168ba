"""CUDA kernel for decode-only steps: attention of one new position for each request over all of its K/V cache.

Each layer of the decoder runs the kernel. A request's context is short here, about 220 positions on average, and
hundreds of requests decode together. So memory bandwidth is the limit. FlashAttention 3 reads 2.4 TB/s on an H200 (1.3
at 100 positions), and this kernel reads 3.7 (3.1). A plain copy reaches 4.1 (benchmarks/gpu/bench_kernels.py).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

KEYS = 64
"""Keys fetched at a time. This value and WARPS are the fastest on an H200, of 32 to 128 keys and 2 to 8 warps."""
WARPS, STAGES = 4, 2
QUERIES = 16
"""Minimum number of rows of a matrix product. The query heads that share a key head are padded to this number."""


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, blocks: torch.Tensor, lengths: torch.Tensor, scale: float,
    out: torch.Tensor,
) -> None:  # fmt: skip
    """Write softmax(q · kᵀ · scale) · v for each request and head to `out`. The sums are in float32.

    A request of length 0 gets zeros.

    Args:
        q: [requests, heads, head_dim], bfloat16 or float16. The heads of a row are contiguous.
        k, v: [blocks, block_size, kv_heads, head_dim], with any strides, except that the last one is 1.
        blocks: [requests, …], int32: the blocks of each request, in their order.
        lengths: [requests], int32: positions in the cache, the new one included.
        scale: factor of the products, usually 1 / sqrt(head_dim).
        out: the result, in the form of q.
    """
    requests, heads, head_dim = q.shape
    kv_heads = k.shape[2]
    _attend[(kv_heads, requests)](
        q, k, v, blocks, lengths, out, scale * math.log2(math.e), q.stride(0), out.stride(0), *k.stride()[:3],
        *v.stride()[:3], blocks.stride(0), BLOCK=k.shape[1], GROUP=heads // kv_heads, SIZE=head_dim, KEYS=KEYS,
        QUERIES=max(QUERIES, heads // kv_heads), num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip


@triton.jit
def _attend(
    q, k, v, blocks, lengths, out, scale, q_row, out_row, k_block, k_row, k_head, v_block, v_row, v_head, blocks_row,
    BLOCK: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, KEYS: tl.constexpr, QUERIES: tl.constexpr,
):  # fmt: skip
    """Attend for one key head of one request per program: online softmax (Milakov and Gimelshein, 2018), in base 2."""
    head, request = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + request)
    which, column = tl.arange(0, QUERIES), tl.arange(0, SIZE)
    is_query = (which < GROUP)[:, None]
    at = (head * GROUP + which)[:, None] * SIZE + column[None, :]
    queries = tl.load(q + request * q_row + at, mask=is_query, other=0.0)
    highest = tl.full([QUERIES], -1e30, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    found = tl.zeros([QUERIES, SIZE], tl.float32)
    for begin in range(0, length, KEYS):
        position = begin + tl.arange(0, KEYS)
        is_there = position < length
        block = tl.load(blocks + request * blocks_row + position // BLOCK, mask=is_there, other=0).to(tl.int64)
        row = position % BLOCK
        keys = tl.load(
            k + (block * k_block + row * k_row + head * k_head)[:, None] + column[None, :],
            mask=is_there[:, None], other=0.0,
        )  # fmt: skip
        score = tl.where(is_there[None, :], tl.dot(queries, tl.trans(keys)) * scale, -1e30)
        higher = tl.maximum(highest, tl.max(score, 1))
        share, fade = tl.exp2(score - higher[:, None]), tl.exp2(highest - higher)
        values = tl.load(
            v + (block * v_block + row * v_row + head * v_head)[:, None] + column[None, :],
            mask=is_there[:, None], other=0.0,
        )  # fmt: skip
        found = found * fade[:, None] + tl.dot(share.to(values.dtype), values)
        total, highest = total * fade + tl.sum(share, 1), higher
    found = found / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + request * out_row + at, found.to(out.dtype.element_ty), mask=is_query)


def fits(head_dim: int, group: int, dtype: torch.dtype) -> bool:
    """Return whether `attend` supports this shape and number format.

    Args:
        group: number of query heads that share a key head.
    """
    powers: tuple[Any, ...] = (head_dim, max(QUERIES, group))
    return dtype in (torch.bfloat16, torch.float16) and all(each & (each - 1) == 0 for each in powers)
