"""The kernel that adds, clamps and norms, run by Triton's interpreter, equals PyTorch's functions."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import environment

pytest.importorskip("triton", reason="Triton is not installed")

CASES = """
import math
import torch
from torch.nn import functional
from voxbatch.vllm_plugin import layer_norm_kernel

torch.manual_seed(0)
with torch.no_grad():
    for kind in (torch.float32, torch.float16):
        for width in (96, 1280):
            norm = torch.nn.LayerNorm(width).to(kind)
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.normal_()
            for limit in (math.inf, 2.0):
                x, delta = (torch.randn(2, 5, width).add(3).mul(scale).to(kind) for scale in (1, 0.1))
                wanted = (x + delta).clamp(-limit, limit)
                normed = layer_norm_kernel.add_and_norm(x, delta, norm, limit)
                assert torch.equal(x, wanted)
                exact = functional.layer_norm(
                    wanted.double(), (width,), norm.weight.double(), norm.bias.double(), norm.eps
                )
                few = 2 ** -10 if kind == torch.float16 else 4e-6  # rounding to the format
                torch.testing.assert_close(normed.double(), exact, rtol=few, atol=few)
    x = torch.zeros(1, 64)
    x[0, 0], x[0, 1] = float("nan"), float("inf")
    layer_norm_kernel.add_and_norm(x, torch.zeros(1, 64), torch.nn.LayerNorm(64), 5.0)
    assert x[0, 0].isnan() and x[0, 1] == 5.0
print("right")
"""


@pytest.mark.slow
def test_kernel_equals_pytorch() -> None:
    """Sums are equal, clamped or not. Norms differ by rounding only. A NaN stays one."""
    settings = environment(TRITON_INTERPRET="1", OMP_NUM_THREADS="1")
    ended = subprocess.run([sys.executable, "-c", CASES], env=settings, capture_output=True, text=True, timeout=240)
    assert ended.stdout == "right\n", ended.stderr[-2_000:]
