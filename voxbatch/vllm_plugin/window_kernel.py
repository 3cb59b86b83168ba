"""CUDA kernel for each layer of the encoder: causal attention within a window, over chunks laid end to end.

The encoder's heads are small (64 numbers), and a frame sees at most 750 others. A tile of rows sees few blocks of keys.
Some of these blocks, at the beginning of the window and at the diagonal, are seen in part. Exponentials take as long as
products. So tiles are small, four programs share a multiprocessor and fill each other's waiting times, and only blocks
that are seen in part are masked. `attention` computes the same in PyTorch.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import triton
import triton.language as tl

from voxbatch.vllm_plugin.packing import Packed, to_device

ROWS, KEYS, WARPS = 64, 64, 4
"""Queries of a program, and keys fetched at a time: powers of two, at least 16. These settings change the speed and
nothing else; they are the fastest on an H200, of all that were tried (benchmarks/RESULTS.md)."""
STAGES = 3
"""Pipeline stages of the fetches. With 2, a Hopper GPU waits for each fetch at once."""
REGISTERS = 128
"""Maximum number of registers of a thread. With 128, four programs of four warps share a multiprocessor."""


def tiles(packed: Packed, window: int, rows: int = ROWS) -> torch.Tensor:
    """Cut the frames into tiles, and return [tiles, 4], int32, on the device.

    A tile is `rows` queries of a chunk, or the chunk's last ones. Its four numbers are its first frame, its number of
    frames, the chunk's first key, and the position of the first frame in the chunk.

    Tiles that see most keys come first, so that short ones fill the end. Among equal tiles, those of a chunk are
    neighbours.
    """
    first_frames = [0, *np.cumsum(packed.lengths).tolist()][:-1]
    tile_rows = [
        (frame + begin, min(rows, count - begin), frame + packed.known * chunk, packed.known + begin)
        for chunk, (frame, count) in enumerate(zip(first_frames, packed.lengths, strict=True))
        for begin in range(0, count, rows)
    ]
    tile_rows.sort(key=lambda tile: tile[1] + min(tile[3], window - 1), reverse=True)
    return to_device(np.array(tile_rows, np.int32), packed.starts.device)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tiles: torch.Tensor, window: int, scale: float
) -> torch.Tensor:
    """Return softmax(q · kᵀ · scale) · v for each frame and head, [frames, heads, head_dim], contiguous.

    A frame sees itself and the `window - 1` frames before it. The sums are in float32, and the result is rounded once.

    Args:
        q: [frames, heads, head_dim], bfloat16 or float16, with any strides, except that the last one is 1.
        k, v: [keys, heads, head_dim], likewise. The keys of one chunk are less than 2³¹ numbers apart.
        tiles: the result of `tiles`, with the same window.
        scale: factor of the products, more than 0.
    """
    _, heads, head_dim = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    stages, registers = (2, None) if head_dim > 64 else (STAGES, REGISTERS)  # a fetch has twice the size
    _attend[(len(tiles) * heads,)](
        q, k, v, tiles, out, scale * math.log2(math.e), *q.stride()[:2], *k.stride()[:2], *v.stride()[:2],
        WINDOW=window, HEADS=heads, SIZE=head_dim, ROWS=ROWS, KEYS=KEYS,
        num_warps=WARPS, num_stages=stages, maxnreg=registers,
    )  # fmt: skip
    return out


@triton.jit
def _attend(
    q, k, v, tiles, out, scale, q_row, q_head, k_row, k_head, v_row, v_head,
    WINDOW: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Attend for one tile and head per program: online softmax (Milakov and Gimelshein, 2018), in base 2.

    Keys are counted from the first key of their chunk.

    A row may have seen only masked keys so far. Then 0 is subtracted from their scores, not their own value, so that
    the masked keys count nothing. A fused multiplication and subtraction of their own value would leave 10²², and its
    power is infinite.
    """
    head, tile = tl.program_id(0) % HEADS, tiles + 4 * (tl.program_id(0) // HEADS)
    frame, rows = tl.load(tile).to(tl.int64), tl.load(tile + 1)
    begin, position = tl.load(tile + 2).to(tl.int64), tl.load(tile + 3)
    which, column = tl.arange(0, ROWS), tl.arange(0, SIZE)
    is_query = (which < rows)[:, None]
    queries = tl.load(
        q + frame * q_row + head * q_head + which[:, None] * q_row + column[None, :], mask=is_query, other=0.0
    )
    keys, values = k + begin * k_row + head * k_head, v + begin * v_row + head * v_head
    highest = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    accumulated = tl.zeros([ROWS, SIZE], tl.float32)
    row, end = position + which, position + rows
    first = tl.maximum(position - (WINDOW - 1), 0)
    early = end - WINDOW  # the last row no longer sees the keys before this position
    for at in range(first, end, KEYS):
        key = at + tl.arange(0, KEYS)
        is_key = (key < end)[:, None]
        score = tl.dot(
            queries, tl.trans(tl.load(keys + key[:, None] * k_row + column[None, :], mask=is_key, other=0.0))
        )
        if (at < early) | (at + KEYS > position + 1):
            is_seen = (key[None, :] > (row - WINDOW)[:, None]) & (key[None, :] <= row[:, None])
            score = tl.where(is_seen, score, -1e30)
        higher = tl.maximum(highest, tl.max(score, 1))
        least = tl.where(higher > -1e29, higher * scale, 0.0)
        share, fade = tl.exp2(score * scale - least[:, None]), tl.exp2((highest - higher) * scale)
        block = tl.load(values + key[:, None] * v_row + column[None, :], mask=is_key, other=0.0)
        total = total * fade + tl.sum(share, 1)
        accumulated = tl.dot(share.to(block.dtype), block, accumulated * fade[:, None])
        highest = higher
    to = (frame * HEADS + head) * SIZE + which[:, None] * (HEADS * SIZE) + column[None, :]
    tl.store(out + to, (accumulated / total[:, None]).to(out.dtype.element_ty), mask=is_query)


def fits(head_dim: int, dtype: torch.dtype) -> bool:
    """Return whether `attend` supports this head size and number format."""
    return dtype in (torch.bfloat16, torch.float16) and head_dim in (64, 128)
