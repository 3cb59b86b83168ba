"""CUDA kernel between an attention layer's first product and FlashAttention: it rotates by position and lays out.

FlashAttention wants each chunk's keys and values in one piece, and a chunk begins with those that all chunks share (see
`silence`). So keys and values must be moved. The kernel rotates the keys on the way: each number is read once and
written once. `rotary` computes the same in PyTorch.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from voxbatch.vllm.plugin.packing import Packed

WARPS = 8
"""Warps of a program. A program has one row: if q, k and v are 2,048 numbers wide, each thread has 16 bytes of each."""


def rotate_and_lay_out(
    qkv: torch.Tensor, kv: torch.Tensor, pads: torch.Tensor, cos_sin: torch.Tensor, layout: Packed, head_dim: int
) -> None:
    """Compute what `rotary.rotate_and_lay_out` computes, for the same arguments.

    Args:
        qkv: may have any stride between rows.
        kv: of qkv's number format.
        pads: their number, `known`, may be 0.
        cos_sin: contiguous.
        layout: a chunk without keys gets none of `pads`.
        head_dim: a power of two. The widths of queries and keys are multiples of it.
    """
    frames, keys, known = len(qkv), kv.shape[2], pads.shape[1]
    queries = qkv.shape[1] - 2 * keys
    programs = frames + known * len(layout.lengths)
    _rotate_and_lay_out[(programs,)](
        qkv, kv[0], kv[1], pads, cos_sin, layout.positions, layout.places, layout.key_starts, frames, known,
        qkv.stride(0), q_width=queries, k_width=keys, head=head_dim, block=math.gcd(queries, keys, 2_048),
        num_warps=WARPS,
    )  # fmt: skip


@triton.jit(do_not_specialize=["frames", "known"])  # type: ignore[untyped-decorator]
def _rotate_and_lay_out(  # type: ignore[no-untyped-def] # the compiler reads annotations, and knows only its own
    qkv, k_out, v_out, pads, cos_sin, positions, places, key_starts, frames, known, stride,
    q_width: tl.constexpr, k_width: tl.constexpr, head: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Move one row in each program: a program for each frame, and one for each row of each chunk's pads."""
    number = tl.program_id(0)
    columns = tl.arange(0, block)
    if number < frames:
        row = qkv + number.to(tl.int64) * stride
        to = tl.load(places + number).to(tl.int64) * k_width
        pair = cos_sin + tl.load(positions + number).to(tl.int64) * head + tl.arange(0, block // 2) % (head // 2)
        cos, sin = tl.load(pair).to(tl.float32), tl.load(pair + head // 2).to(tl.float32)
        for begin in tl.static_range(0, k_width, block):
            at = begin + columns
            tl.store(v_out + to + at, tl.load(row + q_width + k_width + at))
            tl.store(k_out + to + at, _rotated(tl.load(row + q_width + at), cos, sin, block))
        for begin in tl.static_range(0, q_width, block):
            at = begin + columns
            tl.store(row + at, _rotated(tl.load(row + at), cos, sin, block))
    else:
        chunk, which = (number - frames) // known, (number - frames) % known
        first = tl.load(key_starts + chunk)
        if first < tl.load(key_starts + chunk + 1):  # a chunk that fills up a group has none
            to = (first + which).to(tl.int64) * k_width
            for begin in tl.static_range(0, k_width, block):
                at = begin + columns
                tl.store(k_out + to + at, tl.load(pads + which * k_width + at))
                tl.store(v_out + to + at, tl.load(pads + (known + which) * k_width + at))


@triton.jit  # type: ignore[untyped-decorator]
def _rotated(x, cos, sin, size: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rotate x, [size], by cos and sin, [size / 2], float32. The result is rounded once, to x's format."""
    left, right = tl.split(tl.reshape(x.to(tl.float32), [size // 2, 2]))
    rotated = tl.join(left * cos - right * sin, right * cos + left * sin)
    return tl.reshape(rotated, [size]).to(x.dtype)
