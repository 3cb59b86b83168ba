"""CUDA kernels that round rows of numbers to 8 bits (e4m3) for a matrix product, in the pass that makes the numbers.

Each row has a scale of its own: its largest magnitude divided by 448, e4m3's largest number. The product multiplies its
rows by these scales. The encoder is not compiled, so nothing else would fuse the rounding with the norm or with the
activation before it: as passes of their own they cost more than products in 8 bits save (benchmarks/RESULTS.md).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

LARGEST = 448.0
"""Largest number of e4m3 (Micikevicius et al., FP8 Formats for Deep Learning, 2022, table 1)."""
LEAST_SCALE = 1 / (LARGEST * 512.0)
"""Smallest scale, as in vLLM's kernels: a row of zeros needs one too."""
EIGHT_BITS = torch.float8_e4m3fn
Rounded = tuple[torch.Tensor, torch.Tensor]
"""Numbers in EIGHT_BITS, [rows, width], and the factor of each row, [rows, 1], float32."""


def round_rows(x: torch.Tensor) -> Rounded:
    """Round the rows of x, [rows, width], contiguous."""
    rounded, scales, block, warps = _prepared(x, x.shape[1])
    _round_rows[(len(x),)](x, rounded, scales, x.shape[1], BLOCK=block, num_warps=warps)
    return rounded, scales


def norm_and_round(x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, epsilon: float) -> Rounded:
    """Round the RMS norm of `x + delta`, and write the sum to x.

    The sum is rounded to x's format first, as vLLM's fused_add_rms_norm does. The norm is rounded only once.

    Args:
        x: [rows, width], contiguous.
        delta: likewise, or None for no sum.
        weight: [width].
    """
    rounded, scales, block, warps = _prepared(x, x.shape[1])
    _norm_and_round[(len(x),)](
        x, delta, weight, rounded, scales, epsilon, x.shape[1], ADD=delta is not None, BLOCK=block, num_warps=warps
    )
    return rounded, scales


def gate_and_round(x: torch.Tensor) -> Rounded:
    """Round SwiGLU's product: SiLU of the left half of x times its right half. x is [rows, 2 * width], contiguous."""
    width = x.shape[1] // 2
    rounded, scales, block, warps = _prepared(x, width)
    _gate_and_round[(len(x),)](x, rounded, scales, width, BLOCK=block, num_warps=warps)
    return rounded, scales


def _prepared(x: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    """Return space for the result of [rows, width], the numbers of a program, and its warps: 16 numbers a thread."""
    assert x.is_contiguous()
    block = triton.next_power_of_2(width)
    rounded = torch.empty(len(x), width, dtype=EIGHT_BITS, device=x.device)
    return rounded, torch.empty(len(x), 1, dtype=torch.float32, device=x.device), block, min(16, max(1, block // 512))


@triton.jit
def _round_rows(x, out, scales, width: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    value = tl.load(x + row * width + column, mask=column < width, other=0.0).to(tl.float32)
    _store_rounded(value, row, column, out, scales, width)


@triton.jit
def _norm_and_round(
    x, delta, weight, out, scales, epsilon, width: tl.constexpr, ADD: tl.constexpr, BLOCK: tl.constexpr
):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    is_there = column < width
    value = tl.load(x + row * width + column, mask=is_there, other=0.0)
    if ADD:
        added = tl.load(delta + row * width + column, mask=is_there, other=0.0).to(tl.float32)
        value = (value.to(tl.float32) + added).to(value.dtype)
        tl.store(x + row * width + column, value, mask=is_there)
    wide = value.to(tl.float32)
    mean = tl.sum(wide * wide, 0) / width
    factor = tl.load(weight + column, mask=is_there, other=0.0).to(tl.float32)
    _store_rounded(wide * tl.rsqrt(mean + epsilon) * factor, row, column, out, scales, width)


@triton.jit
def _gate_and_round(x, out, scales, width: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    is_there = column < width
    left = tl.load(x + row * (2 * width) + column, mask=is_there, other=0.0).to(tl.float32)
    right = tl.load(x + row * (2 * width) + width + column, mask=is_there, other=0.0).to(tl.float32)
    _store_rounded(left / (1.0 + tl.exp(-left)) * right, row, column, out, scales, width)


@triton.jit
def _store_rounded(value, row, column, out, scales, width: tl.constexpr):
    """Store one row, float32, and its scale. The constants are LARGEST and LEAST_SCALE."""
    scale = tl.maximum(tl.max(tl.abs(value), 0) / 448.0, 1.0 / (448.0 * 512.0))
    tl.store(scales + row, scale)
    rounded = tl.clamp(value / scale, -448.0, 448.0).to(out.dtype.element_ty)
    tl.store(out + row * width + column, rounded, mask=column < width)
