"""Attention of one new position a request to all that its K/V cache holds, for CUDA: what each layer of a step that
only decodes does.

A request's context is short here, some 220 positions on average, and hundreds of requests decode together: it is a walk
through memory. FlashAttention 3 fetches 2.4 TB/s of it on an H200 (1.3 at 100 positions), this 3.7 (3.1); a copy
reaches 4.1 (benchmarks/gpu/bench_kernels.py).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

KEYS = 64
"""Fetched at a time. With WARPS the fastest on an H200 of 32 to 128, and 2 to 8."""
WARPS, STAGES = 4, 2
QUERIES = 16
"""The least that a matrix product takes; the query heads that share a key's are padded to it."""


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, blocks: torch.Tensor, lengths: torch.Tensor, scale: float,
    out: torch.Tensor,
) -> None:  # fmt: skip
    """softmax(q · kᵀ · scale) · v for each request and head, in float32 within. A request of length 0 gets zeros.

    Args:
        q: [requests, heads, head_dim], bfloat16 or float16; a row's heads end to end.
        k, v: [blocks, block_size, kv_heads, head_dim], any strides but the last, which is 1.
        blocks: [requests, …], int32: the blocks of each request, in their order.
        lengths: [requests], int32: positions in the cache, the new one included.
        scale: of the products, 1 / sqrt(head_dim) as a rule.
        out: like q.
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
    """A program for each head of keys and each request; softmax as it goes (Milakov and Gimelshein, 2018), base 2."""
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
    """Whether `attend` is made for it.

    Args:
        group: query heads that share a key's.
    """
    powers: tuple[Any, ...] = (head_dim, max(QUERIES, group))
    return dtype in (torch.bfloat16, torch.float16) and all(each & (each - 1) == 0 for each in powers)
