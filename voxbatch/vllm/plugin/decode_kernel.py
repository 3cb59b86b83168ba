"""CUDA kernel for the decoder's attention: new positions of each request over all of its K/V cache.

Each layer of the decoder runs the kernel. A request's context is short here, about 220 positions on average, and
hundreds of requests decode together. So memory bandwidth is the limit. FlashAttention 3 reads 2.4 TB/s on an H200 (1.3
at 100 positions), and this kernel reads 3.7 (3.1). A plain copy reaches 4.1 (benchmarks/RESULTS.md).

The K/V cache is in the format of the queries, or in 8 bits (e4m3). In 8 bits the numbers are converted to float16 in
registers, which is exact. The queries are divided by their largest number first, so that float16 can hold them.
"""

# mypy: disable-error-code="possibly-undefined"
# Triton decides about `if EIGHT` while it compiles, so that each name exists where it is used.

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

KEYS = 64
"""Keys fetched at a time. This value and WARPS are the fastest on an H200, of 32 to 128 keys and 2 to 8 warps."""
WARPS, STAGES = 4, 2
EIGHT_WARPS, EIGHT_STAGES = 2, 3
"""The same for K/V in 8 bits, of 64 and 128 keys, 2 to 8 warps, and 2 or 3 stages."""
QUERIES = 16
"""Minimum number of rows of a matrix product. The query heads that share a key head are padded to this number."""
EIGHT_BITS = torch.float8_e4m3fn
"""Format of a K/V cache in 8 bits."""


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, blocks: torch.Tensor, lengths: torch.Tensor, scale: float,
    out: torch.Tensor, starts: torch.Tensor | None = None, longest: int = 1, k_scale: float = 1.0, v_scale: float = 1.0,
) -> None:  # fmt: skip
    """Write softmax(q · kᵀ · scale) · v for each new position and head to `out`. The sums are in float32.

    The new positions of a request are its last ones, and each sees itself and all positions before it. A request of
    length 0 gets zeros.

    Args:
        q: [positions, heads, head_dim], bfloat16 or float16. The heads of a row are contiguous.
        k, v: [blocks, block_size, kv_heads, head_dim], in q's format or in EIGHT_BITS, with any strides, except that
            the last one is 1. In 8 bits the others are even.
        blocks: [requests, …], int32: the blocks of each request, in their order.
        lengths: [requests], int32: positions in the cache, the new ones included.
        scale: factor of the products, usually 1 / sqrt(head_dim).
        out: the result, in the form of q.
        starts: [requests + 1], int32: the first row of each request in q, and the number of rows. None means one row
            for each request.
        longest: the largest number of new positions of a request.
        k_scale, v_scale: factors of the numbers in the cache.
    """
    requests, (_, heads, head_dim) = len(lengths), q.shape
    kv_heads = k.shape[2]
    group = heads // kv_heads
    rows = max(QUERIES, group)
    eight = k.dtype == EIGHT_BITS
    warps, stages = (EIGHT_WARPS, EIGHT_STAGES) if eight else (WARPS, STAGES)
    _attend[(kv_heads, requests, -(-longest // (rows // group)))](
        q, k, v, blocks, lengths, starts, out, scale * k_scale * math.log2(math.e), v_scale, q.stride(0), out.stride(0),
        *k.stride()[:3], *v.stride()[:3], blocks.stride(0), BLOCK=k.shape[1], GROUP=group, SIZE=head_dim, KEYS=KEYS,
        QUERIES=rows, MANY=starts is not None, EIGHT=eight, num_warps=warps, num_stages=stages,
    )  # fmt: skip


@triton.jit
def _attend(
    q, k, v, blocks, lengths, starts, out, scale, v_scale, q_row, out_row, k_block, k_row, k_head, v_block, v_row,
    v_head, blocks_row,
    BLOCK: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, KEYS: tl.constexpr, QUERIES: tl.constexpr,
    MANY: tl.constexpr, EIGHT: tl.constexpr,
):  # fmt: skip
    """Attend for one key head and some positions of one request per program: online softmax (Milakov and Gimelshein,
    2018), in base 2."""
    head, request = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + request)
    which, column = tl.arange(0, QUERIES), tl.arange(0, SIZE)
    if MANY:
        first = tl.load(starts + request)
        count = tl.load(starts + request + 1) - first
        new = tl.program_id(2) * (QUERIES // GROUP) + which // GROUP
        if tl.program_id(2) * (QUERIES // GROUP) >= count:
            return
        is_query = ((new < count) & (which < QUERIES // GROUP * GROUP))[:, None]
        num_seen = (length - count + new + 1)[:, None]  # positions that a row sees
        length = tl.minimum(length, length - count + (tl.program_id(2) + 1) * (QUERIES // GROUP))
        q_at = (first + new).to(tl.int64)[:, None] * q_row
        out_at = (first + new).to(tl.int64)[:, None] * out_row
    else:
        is_query = (which < GROUP)[:, None]
        num_seen = length
        q_at, out_at = request * q_row, request * out_row
    at = (head * GROUP + which % GROUP)[:, None] * SIZE + column[None, :]
    queries = tl.load(q + q_at + at, mask=is_query, other=0.0)
    if EIGHT:
        largest = tl.maximum(tl.max(tl.abs(queries.to(tl.float32)), 1), 1e-30)[:, None]
        queries = (queries.to(tl.float32) / largest).to(tl.float16)
        factor = largest * scale
    else:
        factor = scale
    highest = tl.full([QUERIES], -1e30, tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    if EIGHT:  # values are read in pairs, of even and odd columns: see _halves
        pair = tl.arange(0, SIZE // 2)
        v = v.to(tl.pointer_type(tl.int16), bitcast=True)
        even = tl.zeros([QUERIES, SIZE // 2], tl.float32)
        odd = tl.zeros([QUERIES, SIZE // 2], tl.float32)
    else:
        accumulated = tl.zeros([QUERIES, SIZE], tl.float32)
    for begin in range(0, length, KEYS):
        position = begin + tl.arange(0, KEYS)
        is_there = position < length
        block = tl.load(blocks + request * blocks_row + position // BLOCK, mask=is_there, other=0).to(tl.int64)
        row = position % BLOCK
        keys = tl.load(
            k + (block * k_block + row * k_row + head * k_head)[:, None] + column[None, :],
            mask=is_there[:, None], other=0.0,
        )  # fmt: skip
        score = tl.dot(queries, tl.trans(keys.to(queries.dtype))) * factor
        score = tl.where(position[None, :] < num_seen, score, -1e30)
        higher = tl.maximum(highest, tl.max(score, 1))
        share, fade = tl.exp2(score - higher[:, None]), tl.exp2(highest - higher)
        rows = (block * v_block + row * v_row + head * v_head)[:, None]
        if EIGHT:
            pairs = tl.load(v + rows // 2 + pair[None, :], mask=is_there[:, None], other=0)
            left, right = _halves(pairs)
            even = even * fade[:, None] + tl.dot(share.to(tl.float16), left)
            odd = odd * fade[:, None] + tl.dot(share.to(tl.float16), right)
        else:
            values = tl.load(v + rows + column[None, :], mask=is_there[:, None], other=0.0)
            accumulated = accumulated * fade[:, None] + tl.dot(share.to(values.dtype), values)
        total, highest = total * fade + tl.sum(share, 1), higher
    sums = tl.where(total > 0, total, 1.0)[:, None]
    if EIGHT:
        factor = 256.0 * v_scale / sums
        to = out + out_at + (head * GROUP + which % GROUP)[:, None] * SIZE + 2 * pair[None, :]
        tl.store(to, (even * factor).to(out.dtype.element_ty), mask=is_query)
        tl.store(to + 1, (odd * factor).to(out.dtype.element_ty), mask=is_query)
    else:
        tl.store(out + out_at + at, (accumulated / sums).to(out.dtype.element_ty), mask=is_query)


@triton.jit
def _halves(pairs):
    """Return the lower and the upper e4m3 number of int16s as float16, divided by 256.

    The exponent has 4 bits with bias 7 in e4m3, and 5 bits with bias 15 in float16. So the same bits, moved by one, are
    the number divided by 2 ** (15 - 7). Numbers of 8 bits would be read from shared memory one by one, because they
    must be transposed for the product.
    """
    lower = ((pairs << 8) & -32768) | ((pairs << 7) & 0x3F80)
    upper = (pairs & -32768) | ((pairs >> 1) & 0x3F80)
    return lower.to(tl.float16, bitcast=True), upper.to(tl.float16, bitcast=True)


def fits(head_dim: int, group: int, dtype: torch.dtype) -> bool:
    """Return whether `attend` supports this shape and number format.

    Args:
        group: number of query heads that share a key head.
    """
    powers: tuple[Any, ...] = (head_dim, max(QUERIES, group))
    return dtype in (torch.bfloat16, torch.float16) and all(size & (size - 1) == 0 for size in powers)
