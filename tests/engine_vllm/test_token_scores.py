"""The scores of tokens: the kernel, run by Triton's interpreter, and the place of each score in its request."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import environment

pytest.importorskip("torch", reason="PyTorch is not installed")

KERNEL = """
import math, torch
from voxbatch.vllm_plugin.score_kernel import BLOCK, score_rows
from voxbatch.vllm_plugin.token_scores import score

torch.manual_seed(0)
for vocabulary in (5, BLOCK, BLOCK + 1, 3 * BLOCK + 77):
    for scale, dtype in ((1, torch.float32), (30, torch.float32), (8, torch.bfloat16)):
        wide = (torch.randn(4, vocabulary + 3) * scale).to(dtype)
        wide[1, 2:] = -math.inf  # as masked tokens have
        wide[2] = 7.0  # all alike: the entropy is log(vocabulary)
        logits = wide[:, :vocabulary]  # the rows are not next to each other
        tokens = logits.argmax(dim=-1, keepdim=True).to(torch.int32)
        tokens[3] = vocabulary - 1  # any token has a score, not only the likeliest
        out = torch.full((4, 2), math.nan)
        score_rows(logits, tokens, out)
        exact = logits.double().log_softmax(-1)
        wanted = exact.gather(1, tokens.long())[:, 0], torch.special.entr(exact.exp()).sum(-1)
        for found in (out, score(logits, tokens)):
            torch.testing.assert_close(found[:, 0].double(), wanted[0], atol=2e-5, rtol=1e-6)
            torch.testing.assert_close(found[:, 1].double(), wanted[1], atol=2e-5, rtol=1e-6)
        assert abs(float(out[2, 1]) - math.log(vocabulary)) < 2e-5
"""


@pytest.mark.slow
def test_kernel_equals_the_definitions_in_float64() -> None:
    """The kernel and the version without it give the log-probability and the entropy of float64's log-softmax.

    Vocabularies are smaller than one fetch, as large, and larger, and some logits are -inf.
    """
    pytest.importorskip("triton", reason="Triton is not installed")
    settings = environment(TRITON_INTERPRET="1", OMP_NUM_THREADS="1")
    done = subprocess.run([sys.executable, "-c", KERNEL], env=settings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


COMPILED = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from voxbatch.vllm_plugin import score_kernel

names = score_kernel._score.arg_names
for capability in (80, 86, 89, 90):
    for dtype in ("*bf16", "*fp16", "*fp32"):
        kinds = {"logits": dtype, "tokens": "*i32", "out": "*fp32", "BLOCK": "constexpr"}
        given = {name: kinds.get(name, "i32") for name in names}
        whole = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name in ("logits", "vocabulary")}
        known = {(names.index("BLOCK"),): score_kernel.BLOCK}
        source = ASTSource(score_kernel._score, given, constexprs=known, attrs=whole)
        compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": score_kernel.WARPS})
"""


@pytest.mark.slow
def test_kernel_compiles_for_the_supported_gpus() -> None:
    """The kernel compiles to machine code for each format of logits. Compiling takes no GPU."""
    pytest.importorskip("triton", reason="Triton is not installed")
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
