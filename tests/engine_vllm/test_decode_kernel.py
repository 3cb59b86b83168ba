"""The kernel of decode-only steps, run by Triton's interpreter: without a GPU, in float32's arithmetic."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import environment

pytest.importorskip("triton", reason="Triton is not installed")

CASES = """
import torch
from torch.nn import functional
from voxbatch.vllm_plugin.decode_kernel import attend

def told(block_size, heads, kv_heads, size, by_head, eight, many):
    torch.manual_seed(0)
    lengths = torch.tensor([1, 0, 63, 64, 65, 200], dtype=torch.int32)
    counts = torch.tensor([1, 0, 1, 7, 39, 2] if many else [1] * 6)
    starts = functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
    rows, most = int(starts[-1]), -(-200 // block_size)
    count = len(lengths) * most + 1
    shape = (count, kv_heads, block_size, 2 * size) if by_head else (count, block_size, kv_heads, 2 * size)
    cache = torch.randn(shape).to(torch.float8_e4m3fn if eight else torch.float32)
    cache = cache.transpose(1, 2) if by_head else cache
    k, v = cache.split(size, dim=-1)
    blocks = (torch.randperm(count - 1)[: len(lengths) * most] + 1).to(torch.int32).view(len(lengths), most)
    wide = torch.randn(rows, heads * size + 32) * (1e6 if eight else 1)  # as a slice of a product's result
    q = wide[:, : heads * size].view(rows, heads, size)
    out = torch.full((rows, heads, size), float("nan"))
    scale, k_scale, v_scale = (4e-6 * size**-0.5, 0.25, 0.5) if eight else (size**-0.5, 1.0, 1.0)
    attend(q, k, v, blocks, lengths, scale, out, starts if many else None, int(counts.max()), k_scale, v_scale)
    for i, length in enumerate(lengths.tolist()):
        new = slice(starts[i], starts[i + 1])
        if not length:
            assert out[new].eq(0).all()
            continue
        at = torch.arange(length)
        block = blocks[i, at // block_size].long()
        keys, values = (each.float()[block, at % block_size].transpose(0, 1) for each in (k, v))
        count = len(out[new])
        mask = torch.ones(count, length, dtype=torch.bool).tril(length - count)
        wanted = functional.scaled_dot_product_attention(
            q[new].transpose(0, 1)[None], keys[None] * k_scale, values[None] * v_scale, attn_mask=mask, scale=scale,
            enable_gqa=True)[0].transpose(0, 1)
        torch.testing.assert_close(out[new], wanted, atol=1e-3 if eight else 2e-5, rtol=1e-5)

shapes = [(16, 32, 8, 128, False), (64, 8, 8, 64, False), (16, 8, 1, 64, True), (128, 32, 1, 64, False),
          (16, 6, 2, 64, False)]
for shape in shapes:
    for eight in (False, True):
        for many in (False, True):
            told(*shape, eight, many)
"""


@pytest.mark.slow
def test_kernel_equals_attention_over_the_blocks_of_each_request() -> None:
    """The kernel computes attention for any block size, layout, number of heads that share keys, and length.

    Lengths are none, one, and those around a fetch. A request has one new position, or a prompt. The cache is in
    the queries' format or in 8 bits; then the queries are too large for float16.
    """
    settings = environment(TRITON_INTERPRET="1", OMP_NUM_THREADS="1")
    done = subprocess.run([sys.executable, "-c", CASES], env=settings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def test_unsupported_shapes_are_reported() -> None:
    """Other number formats and head sizes are left to FlashAttention."""
    import torch

    from voxbatch.vllm_plugin.decode_kernel import fits

    assert fits(128, 4, torch.bfloat16)
    assert not fits(80, 4, torch.bfloat16)
    assert not fits(128, 24, torch.float16)
    assert not fits(128, 4, torch.float32)


CHOSEN = """
import torch
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from voxbatch import vllm_plugin
from voxbatch.vllm_plugin.decode_attention import DecodeAttentionBackend

backend = AttentionBackendEnum[vllm_plugin.ATTENTION_BACKEND]
register_backend(backend, "voxbatch.vllm_plugin.decode_attention.DecodeAttentionBackend")
assert backend.get_class() is DecodeAttentionBackend
assert issubclass(DecodeAttentionBackend, FlashAttentionBackend)
assert AttentionBackendEnum[DecodeAttentionBackend.get_name()] is AttentionBackendEnum.FLASH_ATTN
assert DecodeAttentionBackend.supports_dtype(torch.bfloat16)
assert not DecodeAttentionBackend.supports_dtype(torch.float32)
assert DecodeAttentionBackend.supports_kv_cache_dtype("auto")
assert not DecodeAttentionBackend.supports_kv_cache_dtype("fp8")  # this machine has no GPU
"""


@pytest.mark.slow
def test_vllm_treats_the_backend_as_flash_attention() -> None:
    """The backend has FlashAttention's name, K/V layout and number formats, so that vLLM builds the encoder's layers on
    it too."""
    pytest.importorskip("mistral_common", reason="vLLM is not installed")
    done = subprocess.run(
        [sys.executable, "-c", CHOSEN], env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-3000:]


COMPILED = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from voxbatch.vllm_plugin import decode_kernel, quantise_kernel, rotary_kernel

def shared(kernel, kinds, known, capability, **options):
    names = kernel.arg_names
    given = {name: "constexpr" if name in known else kinds.get(name, "i32") for name in names}
    whole = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if given[name][0] in "*i"}
    known = {(names.index(name),): value for name, value in known.items()}
    source = ASTSource(kernel, given, constexprs=known, attrs=whole)
    return compile(source, target=GPUTarget("cuda", capability, 32), options=options).metadata.shared

numbers = dict.fromkeys(("q", "k", "v", "out", "qkv", "k_out", "v_out", "pads", "cos_sin", "x", "delta", "weight"),
                        "*bf16")
kinds = numbers | {"blocks": "*i32", "lengths": "*i32", "starts": "*i32", "key_starts": "*i32", "positions": "*i64",
                   "places": "*i64", "scale": "fp32", "v_scale": "fp32", "scales": "*fp32", "epsilon": "fp32"}
in_8_bits = kinds | {"k": "*fp8e4nv", "v": "*fp8e4nv", "out": "*bf16"}
rounded = kinds | {"out": "*fp8e4nv"}
decoding = dict(BLOCK=16, GROUP=4, SIZE=128, KEYS=decode_kernel.KEYS, QUERIES=16, MANY=False, EIGHT=False, starts=None)
of_prompts = {name: value for name, value in decoding.items() if name != "starts"} | dict(MANY=True, EIGHT=True)
decode_options = dict(num_warps=decode_kernel.WARPS, num_stages=decode_kernel.STAGES)
eight_options = dict(num_warps=decode_kernel.EIGHT_WARPS, num_stages=decode_kernel.EIGHT_STAGES)
placing = dict(q_width=2048, k_width=2048, head=64, block=2048)
norm = dict(width=1280, BLOCK=2048)
for capability in (80, 86, 89, 90):
    cases = [
        (decode_kernel._attend, kinds, decoding, decode_options),
        (rotary_kernel._rotate_and_lay_out, kinds, placing, dict(num_warps=rotary_kernel.WARPS)),
    ]
    if capability >= 89:
        cases += [
            (decode_kernel._attend, in_8_bits, decoding | dict(EIGHT=True), eight_options),
            (decode_kernel._attend, in_8_bits, of_prompts, eight_options),
            (quantise_kernel._norm_and_round, rounded, norm | dict(ADD=True), dict(num_warps=4)),
            (quantise_kernel._gate_and_round, rounded, dict(width=5120, BLOCK=8192), dict(num_warps=16)),
            (quantise_kernel._round_rows, rounded, dict(width=2048, BLOCK=2048), dict(num_warps=4)),
        ]
    for kernel, formats, known, options in cases:
        assert shared(kernel, formats, known, capability, **options) <= 99 * 1024, (capability, kernel)
"""


@pytest.mark.slow
def test_kernels_compile_for_the_supported_gpus() -> None:
    """The kernels compile to machine code, within the shared memory of the smallest named card.

    A program may have 99 KB on an A10G, an L4 or an L40S (CUDA C++ Programming Guide, compute capabilities). Compiling
    takes no GPU.
    """
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
