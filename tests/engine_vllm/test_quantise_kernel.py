"""The kernels that round rows to 8 bits, run by Triton's interpreter: without a GPU, in float32's arithmetic."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import environment

pytest.importorskip("triton", reason="Triton is not installed")

CASES = """
import torch
from torch.nn import functional
from voxbatch.vllm_plugin import quantise_kernel

# The interpreter drops a carry when it rounds to e4m3 (7.9 becomes 4), so it gets float32 to store into.
quantise_kernel.EIGHT_BITS = torch.float32
torch.manual_seed(0)

def check(found, wanted):
    values, scales = found
    expected = (wanted.abs().amax(1, keepdim=True) / 448).clamp(min=quantise_kernel.LEAST_SCALE)
    torch.testing.assert_close(scales, expected, rtol=2e-6, atol=0)
    torch.testing.assert_close(values, wanted / expected, rtol=1e-5, atol=1e-3)
    assert values.abs().max() <= 448

def normed(x, weight):
    return x.float() * torch.rsqrt(x.float().pow(2).mean(1, keepdim=True) + 1e-5) * weight.float()

sizes = torch.tensor([1, 1e-3, 1e3, 0, 5.0])[:, None]
for kind in (torch.float32, torch.float16):
    for width in (96, 1280, 2048, 5120):
        x, delta = (torch.randn(5, width).mul(sizes).to(kind) for _ in range(2))
        check(quantise_kernel.round_rows(x), x.float())
        weight = (torch.rand(width) + 0.5).to(kind)
        check(quantise_kernel.norm_and_round(x, None, weight, 1e-5), normed(x, weight))
        given = x.clone()
        found = quantise_kernel.norm_and_round(x, delta, weight, 1e-5)
        assert torch.equal(x, (given.float() + delta.float()).to(kind))
        check(found, normed(x, weight))
        both = torch.randn(5, 2 * width).mul(4).to(kind)
        left, right = both.float().chunk(2, dim=1)
        check(quantise_kernel.gate_and_round(both), functional.silu(left) * right)
"""


@pytest.mark.slow
def test_kernels_compute_the_rows_and_scales_of_their_pytorch_formulas() -> None:
    """Each kernel's numbers, before they are rounded, and scales are those of the same formula in PyTorch.

    Widths are those of the encoder and one that is no power of two; rows are tiny, large, and zero.
    """
    settings = environment(TRITON_INTERPRET="1", OMP_NUM_THREADS="1")
    done = subprocess.run([sys.executable, "-c", CASES], env=settings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
