"""Causal attention within a window over chunks laid end to end, for CUDA: what each layer of the encoder does.

Heads are small there (64 numbers) and a frame sees 750 others at most: a tile of rows sees few blocks of keys, of which
those at the window's beginning and at the diagonal are seen in part, and exponentials take as long as products. So
tiles are small, four programs share a multiprocessor and fill each other's waits, and only blocks that are seen in part
are masked. `attention` says the same in PyTorch's words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from voxbatch.vllm_plugin.packing import Packed, sent


@dataclass(frozen=True, slots=True)
class Tuning:
    """What changes the speed and nothing else; `benchmarks/gpu/bench_kernels.py --sweep` tries them."""

    rows: int = 64
    """Queries of a program, a power of two from 16 on."""
    keys: int = 64
    """Fetched at a time, likewise."""
    warps: int = 4
    stages: int = 3
    """Of fetches: with 2 each is waited for at once, on a Hopper."""
    registers: int | None = 128
    """The most that a thread may have: with 128 four programs of four warps share a multiprocessor."""


TUNING = Tuning()
"""The fastest of all that bench_kernels.py --sweep tries, on an H200."""


def tiles(packed: Packed, window: int, rows: int) -> torch.Tensor:
    """[tiles, 4], int32, on the device: `rows` queries of a chunk or its last ones. Their first frame, how many there
    are, the chunk's first key, and the position of the first one in the chunk.

    Those that see most keys come first, so that short ones fill the end; of those alike, a chunk's are neighbours.
    """
    found = [
        (frame + begin, min(rows, count - begin), key, packed.known + begin)
        for frame, key, count in zip(*_begins(packed), packed.lengths, strict=True)
        for begin in range(0, count, rows)
    ]
    found.sort(key=lambda tile: tile[1] + min(tile[3], window - 1), reverse=True)
    return sent(np.array(found, np.int32), packed.starts.device)


def _begins(packed: Packed) -> tuple[list[int], list[int]]:
    """Each chunk's first frame, and its first key."""
    frames = [0, *np.cumsum(packed.lengths).tolist()][:-1]
    return frames, [frame + packed.known * chunk for chunk, frame in enumerate(frames)]


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tiles: torch.Tensor, window: int, scale: float,
    tuning: Tuning = TUNING,
) -> torch.Tensor:  # fmt: skip
    """softmax(q · kᵀ · scale) · v over itself and `window - 1` frames before it, for each frame and head, in float32
    within and rounded once: [frames, heads, head_dim], contiguous.

    Args:
        q: [frames, heads, head_dim], bfloat16 or float16; any strides but the last, which is 1.
        k, v: [keys, heads, head_dim], likewise. A chunk's own are less than 2³¹ numbers apart.
        tiles: of `tiles`, with the same window and `tuning.rows`.
        scale: of the products, more than 0.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    launch(q, k, v, tiles, window, scale, out, tuning)
    return out


def launch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tiles: torch.Tensor, window: int, scale: float,
    out: torch.Tensor, tuning: Tuning,
) -> Any:  # fmt: skip
    """As `attend`, into `out`. What comes back is Triton's: the kernel as compiled."""
    _, heads, head_dim = q.shape
    fetches, registers = (2, None) if head_dim > 64 else (tuning.stages, tuning.registers)  # each has twice the size
    return _attend[(len(tiles) * heads,)](
        q, k, v, tiles, out, scale * math.log2(math.e), *q.stride()[:2], *k.stride()[:2], *v.stride()[:2],
        WINDOW=window, HEADS=heads, SIZE=head_dim, ROWS=tuning.rows, KEYS=tuning.keys,
        num_warps=tuning.warps, num_stages=fetches, maxnreg=registers,
    )  # fmt: skip


@triton.jit
def _attend(
    q, k, v, tiles, out, scale, q_row, q_head, k_row, k_head, v_row, v_head,
    WINDOW: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """A program for each tile and head: softmax as it goes (Milakov and Gimelshein, 2018), base 2. Keys are counted
    from their chunk's first.

    A row that has seen nothing but masked keys yet counts none of them: what is taken from their scores is 0 then, and
    not their own size, of which a fused multiplication and subtraction leaves 10²², whose power is infinite.
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
    found = tl.zeros([ROWS, SIZE], tl.float32)
    row, end = position + which, position + rows
    first = tl.maximum(position - (WINDOW - 1), 0)
    early = end - WINDOW  # the last row does not see those up to here any more
    for at in range(first, end, KEYS):
        key = at + tl.arange(0, KEYS)
        is_key = (key < end)[:, None]
        score = tl.dot(
            queries, tl.trans(tl.load(keys + key[:, None] * k_row + column[None, :], mask=is_key, other=0.0))
        )
        if (at < early) | (at + KEYS > position + 1):
            seen = (key[None, :] > (row - WINDOW)[:, None]) & (key[None, :] <= row[:, None])
            score = tl.where(seen, score, -1e30)
        higher = tl.maximum(highest, tl.max(score, 1))
        least = tl.where(higher > -1e29, higher * scale, 0.0)
        share, fade = tl.exp2(score * scale - least[:, None]), tl.exp2((highest - higher) * scale)
        block = tl.load(values + key[:, None] * v_row + column[None, :], mask=is_key, other=0.0)
        total = total * fade + tl.sum(share, 1)
        found = tl.dot(share.to(block.dtype), block, found * fade[:, None])
        highest = higher
    to = (frame * HEADS + head) * SIZE + which[:, None] * (HEADS * SIZE) + column[None, :]
    tl.store(out + to, (found / total[:, None]).to(out.dtype.element_ty), mask=is_query)


def fits(head_dim: int, dtype: torch.dtype) -> bool:
    """Whether `attend` is made for it."""
    return dtype in (torch.bfloat16, torch.float16) and head_dim in (64, 128)
