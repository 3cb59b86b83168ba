"""The kernel of the encoder's attention, run by Triton's interpreter without a GPU. The interpreter cannot multiply
bfloat16."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import environment

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton is not installed")

from voxbatch.vllm_plugin.packing import pack  # noqa: E402
from voxbatch.vllm_plugin.window_kernel import fits, tiles  # noqa: E402

CPU = torch.device("cpu")

CASES = """
import torch
from voxbatch.vllm_plugin.encoder_attention import Windowed
from voxbatch.vllm_plugin.packing import pack
from voxbatch.vllm_plugin.window_kernel import Tuning, attend, tiles

def given(lengths, known, heads, size):
    layout = pack(lengths, torch.device("cpu"), known)
    qkv = torch.randn(sum(lengths), heads * size + 48)  # the queries are a slice of a product's result
    k, v = torch.randn(2, sum(layout.key_lengths), heads, size)
    return qkv[:, : heads * size].unflatten(1, (-1, size)), k, v, layout

def wanted(q, k, v, layout, window):
    found = []
    parts = q.split(layout.lengths), k.split(layout.key_lengths), v.split(layout.key_lengths)
    for queries, keys, values in zip(*parts, strict=True):
        behind = layout.known + torch.arange(len(queries))[:, None] - torch.arange(len(keys))
        score = torch.einsum("qhd,khd->hqk", queries, keys) * q.shape[2] ** -0.5
        score = score.masked_fill((behind < 0) | (behind >= window), float("-inf"))
        found.append(torch.einsum("hqk,khd->qhd", score.softmax(-1), values))
    return torch.cat(found)

def told(lengths, known, window, heads, size, kind=torch.float32, tolerance=3e-6, **tuning):
    q, k, v, layout = given(lengths, known, heads, size)
    q, k, v = (each.to(kind) for each in (q, k, v))
    tuning = Tuning(**tuning)
    found = attend(q, k, v, tiles(layout, window, tuning.rows), window, size**-0.5, tuning)
    assert found.is_contiguous()
    assert found.dtype == kind
    exact = wanted(q.float(), k.float(), v.float(), layout, window)
    torch.testing.assert_close(found.float(), exact, atol=tolerance, rtol=1e-5)

torch.manual_seed(0)
lengths = [1, 150, 65, 64, 30]
for tuning in (
    dict(rows=64, keys=32), dict(rows=32, keys=64), dict(rows=16, keys=16),
):
    for known, window in ((0, 40), (20, 40), (20, 7), (20, 300), (124, 100), (3, 1)):
        told(lengths, known, window, 2, 64, **tuning)
told([5, 40], 3, 20, 1, 128, rows=16, keys=32)
told([90, 20], 20, 40, 1, 64, torch.float16, 1e-3)  # shares and results have 11 bits
told([400, 130], 124, 300, 1, 64)  # as it is used: a window of more than two tiles and a block

attention = Windowed(40, 0.125)
for lengths in ([3, 90], [70]):  # tiles are those of the group that is there
    q, k, v, layout = given(lengths, 20, 2, 64)
    found = attention(q, k, v, attention.prepare(layout))
    torch.testing.assert_close(found, wanted(q, k, v, layout, 40), atol=3e-6, rtol=1e-5)
"""


@pytest.mark.slow
def test_kernel_equals_causal_attention_within_a_window() -> None:
    """The kernel computes causal attention within a window for any lengths, with and without known frames.

    The window is one frame, within a tile, longer than any chunk, or begins among the known frames. A chunk may have
    one frame. Queries are contiguous or in wider rows.
    """
    settings = environment(TRITON_INTERPRET="1", OMP_NUM_THREADS="1")
    done = subprocess.run([sys.executable, "-c", CASES], env=settings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def test_tiles() -> None:
    """Every frame is in one tile, as computed by hand, and tiles that see most keys come first.

    Among equal tiles those of a chunk keep their order.
    """
    found = tiles(pack([5, 3], CPU, known=2), window=4, rows=2)
    assert found.dtype == torch.int32
    assert found.tolist() == [[2, 2, 0, 4], [0, 2, 0, 2], [4, 1, 0, 6], [5, 2, 7, 2], [7, 1, 7, 4]]


def test_unsupported_shapes_are_reported() -> None:
    """Other number formats and head sizes are left to FlashAttention."""
    assert fits(64, torch.bfloat16)
    assert fits(128, torch.float16)
    assert not fits(80, torch.bfloat16)
    assert not fits(64, torch.float32)


COMPILED = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from voxbatch.vllm_plugin.window_kernel import TUNING, _attend

def shared(known, capability, **options):
    names = _attend.arg_names
    kinds = dict.fromkeys(("q", "k", "v", "out"), "*bf16") | {"tiles": "*i32", "scale": "fp32"}
    given = {name: "constexpr" if name in known else kinds.get(name, "i32") for name in names}
    whole = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names)
             if given[name][0] in "*i"}
    known = {(names.index(name),): value for name, value in known.items()}
    source = ASTSource(_attend, given, constexprs=known, attrs=whole)
    return compile(source, target=GPUTarget("cuda", capability, 32), options=options).metadata.shared

tuning = dict(WINDOW=750, HEADS=32, ROWS=TUNING.rows, KEYS=TUNING.keys)
narrow = dict(num_stages=TUNING.stages, maxnreg=TUNING.registers)
for capability in (80, 86, 89, 90):
    for size, options in ((64, narrow), (128, dict(num_stages=2))):
        used = shared(tuning | dict(SIZE=size), capability, num_warps=TUNING.warps, **options)
        assert used <= 99 * 1024, (capability, size, used)
"""


@pytest.mark.slow
def test_kernel_compiles_for_the_supported_gpus() -> None:
    """The kernel compiles to machine code, within the shared memory of the smallest named card (see
    test_decode_kernel)."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
