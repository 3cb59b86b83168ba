"""Causal attention within a window over chunks laid end to end, for CUDA: what each layer of the encoder does.

Heads are small there (64 numbers) and a frame sees 750 others at most: a tile of rows sees few blocks of keys, of which
those at the window's beginning and at the diagonal are seen in part, and exponentials take as long as products. So
tiles are small, several programs share a multiprocessor and fill each other's waits, and only blocks that are seen in
part are masked. `attention` says the same in PyTorch's words.
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

    rows: int = 128
    """Queries of a program, a power of two from 16 on."""
    keys: int = 64
    """Fetched at a time, likewise."""
    warps: int = 8
    stages: int = 3
    """Of fetches: with 2 each is waited for at once, on a Hopper."""
    parted: bool = True
    """Three loops, of which the one in the middle masks nothing; else one that looks at each block whether to."""
    held: bool = True
    """Queries are held in registers, not in shared memory, which products of few columns keep busy enough. Not with one
    loop: a Hopper's products then wait for each other (ptxas: "wgmma … serialized")."""
    registers: int | None = 128
    """The most that a thread may have: with 128 two programs of eight warps share a multiprocessor, or four of four."""
    by_head: bool = False
    """All tiles of a head after each other, in place of all heads of a tile."""


TUNING = Tuning()
"""Not measured yet; by the compiler it spills nothing on a Hopper, and two programs share a multiprocessor."""


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
        q, k, v, tiles, out, scale * math.log2(math.e), len(tiles), *q.stride()[:2], *k.stride()[:2], *v.stride()[:2],
        WINDOW=window, HEADS=heads, SIZE=head_dim, ROWS=tuning.rows, KEYS=tuning.keys, PARTED=tuning.parted,
        HELD=tuning.held, BY_HEAD=tuning.by_head, num_warps=tuning.warps, num_stages=fetches, maxnreg=registers,
    )  # fmt: skip


@triton.jit(do_not_specialize=["count"])
def _attend(
    q, k, v, tiles, out, scale, count, q_row, q_head, k_row, k_head, v_row, v_head,
    WINDOW: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    PARTED: tl.constexpr, HELD: tl.constexpr, BY_HEAD: tl.constexpr,
):  # fmt: skip
    """A program for each tile and head. Keys are counted from their chunk's first."""
    number = tl.program_id(0)
    if BY_HEAD:
        head, tile = number // count, tiles + 4 * (number % count)
    else:
        head, tile = number % HEADS, tiles + 4 * (number // HEADS)
    frame, rows = tl.load(tile).to(tl.int64), tl.load(tile + 1)
    key, position = tl.load(tile + 2).to(tl.int64), tl.load(tile + 3)
    which, column = tl.arange(0, ROWS), tl.arange(0, SIZE)
    is_query = (which < rows)[:, None]
    queries = tl.load(
        q + frame * q_row + head * q_head + which[:, None] * q_row + column[None, :], mask=is_query, other=0.0
    )
    if HELD:
        queries = tl.where(is_query, queries, 0.0)  # what comes straight from memory goes to the shared one
    keys, values = k + key * k_row + head * k_head, v + key * v_row + head * v_head
    highest = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    found = tl.zeros([ROWS, SIZE], tl.float32)
    end = position + rows
    first = tl.maximum(position - (WINDOW - 1), 0)
    early = tl.maximum(end - WINDOW - first, 0)  # keys that the last row does not see any more
    middle = tl.minimum(first + tl.cdiv(early, KEYS) * KEYS, end)
    late = tl.maximum(middle, first + (position + 1 - first) // KEYS * KEYS)  # the first row sees those before it
    if PARTED:
        narrow: tl.constexpr = WINDOW < 2 * ROWS + KEYS  # a block may have keys too early and keys too late
        highest, total, found = _walked(
            queries, keys, values, highest, total, found, scale, position, first, middle, end, middle, late,
            k_row, v_row, True, narrow, False, WINDOW, ROWS, KEYS, SIZE,
        )  # fmt: skip
        highest, total, found = _walked(
            queries, keys, values, highest, total, found, scale, position, middle, late, end, middle, late,
            k_row, v_row, False, False, False, WINDOW, ROWS, KEYS, SIZE,
        )  # fmt: skip
        highest, total, found = _walked(
            queries, keys, values, highest, total, found, scale, position, late, end, end, middle, late,
            k_row, v_row, narrow, True, False, WINDOW, ROWS, KEYS, SIZE,
        )  # fmt: skip
    else:
        highest, total, found = _walked(
            queries, keys, values, highest, total, found, scale, position, first, end, end, middle, late,
            k_row, v_row, True, True, True, WINDOW, ROWS, KEYS, SIZE,
        )  # fmt: skip
    to = (frame * HEADS + head) * SIZE + which[:, None] * (HEADS * SIZE) + column[None, :]
    tl.store(out + to, (found / total[:, None]).to(out.dtype.element_ty), mask=is_query)


@triton.jit
def _walked(
    queries, keys, values, highest, total, found, scale, position, begin, until, end, middle, late, k_row, v_row,
    EARLY: tl.constexpr, LATE: tl.constexpr, LOOK: tl.constexpr,
    WINDOW: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Softmax as it goes (Milakov and Gimelshein, 2018), base 2, over the keys from `begin` to before `until`, of which
    EARLY ones and LATE ones are masked.

    A row that has seen nothing but masked keys yet counts them, all alike; its first seen key makes them fade to
    nothing, and every row sees its own.
    """
    row = position + tl.arange(0, ROWS)
    for at in range(begin, until, KEYS):
        key = at + tl.arange(0, KEYS)
        score = tl.dot(queries, tl.trans(_fetched(keys, key, k_row, end, LATE, SIZE)))
        if LOOK:
            if (at < middle) | (at >= late):
                score = _seen(score, row, key, EARLY, LATE, WINDOW)
        else:
            score = _seen(score, row, key, EARLY, LATE, WINDOW)
        higher = tl.maximum(highest, tl.max(score, 1))
        share, fade = tl.exp2(score * scale - (higher * scale)[:, None]), tl.exp2((highest - higher) * scale)
        block = _fetched(values, key, v_row, end, LATE, SIZE)
        total = total * fade + tl.sum(share, 1)
        found = tl.dot(share.to(block.dtype), block, found * fade[:, None])
        highest = higher
    return highest, total, found


@triton.jit
def _fetched(rows, key, stride, end, CHECKED: tl.constexpr, SIZE: tl.constexpr):
    """What is behind `end` is not there, if it is CHECKED."""
    at = rows + key[:, None] * stride + tl.arange(0, SIZE)[None, :]
    return tl.load(at, mask=(key < end)[:, None], other=0.0) if CHECKED else tl.load(at)


@triton.jit
def _seen(score, row, key, EARLY: tl.constexpr, LATE: tl.constexpr, WINDOW: tl.constexpr):
    if EARLY:
        score = tl.where(key[None, :] > (row - WINDOW)[:, None], score, -1e30)
    if LATE:
        score = tl.where(key[None, :] <= row[:, None], score, -1e30)
    return score


def fits(head_dim: int, dtype: torch.dtype) -> bool:
    """Whether `attend` is made for it."""
    return dtype in (torch.bfloat16, torch.float16) and head_dim in (64, 128)
