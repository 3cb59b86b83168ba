"""The CUDA kernels, run by Triton's interpreter without a GPU, compute what the same formulas compute in PyTorch.

The interpreter has float32's arithmetic, and cannot multiply bfloat16.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from warm_python import run_code

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton is not installed")

from voxbatch.vllm.plugin import decode_kernel  # noqa: E402

pytest_plugins = ["engine_runs"]

# -- attention of steps that only decode -------------------------------------------------------------------------------

DECODE = """
import torch
from torch.nn import functional
from voxbatch.vllm.plugin.decode_kernel import attend

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
for number, shape in enumerate(shapes):
    for eight in (False, True):
        told(*shape, eight, many=eight == bool(number % 2))
"""


@pytest.mark.slow
def test_decoding_equals_attention_over_the_blocks_of_each_request(tmp_path: Path) -> None:
    """The kernel computes attention for any block size, layout, number of heads that share keys, and length.

    Lengths are none, one, and those around a fetch. A request has one new position, or a prompt. The cache is in
    the queries' format or in 8 bits; then the queries are too large for float16.
    """
    run_code(DECODE, tmp_path, interpreted=True)


@pytest.mark.parametrize(
    ("fits", "shape"),
    [
        (True, (128, 4, torch.bfloat16)),
        (False, (80, 4, torch.bfloat16)),
        (False, (128, 24, torch.float16)),
        (False, (128, 4, torch.float32)),
    ],
)
def test_decoding_leaves_other_shapes_to_flash_attention(fits: bool, shape: tuple[int, int, Any]) -> None:
    """Other number formats and head sizes are left to FlashAttention."""
    assert decode_kernel.fits(*shape) is fits


CHOSEN = """
import torch
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from voxbatch.vllm import plugin as vllm_plugin
from voxbatch.vllm.plugin.decode_attention import DecodeAttentionBackend

backend = AttentionBackendEnum[vllm_plugin.ATTENTION_BACKEND]
register_backend(backend, "voxbatch.vllm.plugin.decode_attention.DecodeAttentionBackend")
assert backend.get_class() is DecodeAttentionBackend
assert issubclass(DecodeAttentionBackend, FlashAttentionBackend)
assert AttentionBackendEnum[DecodeAttentionBackend.get_name()] is AttentionBackendEnum.FLASH_ATTN
assert DecodeAttentionBackend.supports_dtype(torch.bfloat16)
assert not DecodeAttentionBackend.supports_dtype(torch.float32)
assert DecodeAttentionBackend.supports_kv_cache_dtype("auto")
assert not DecodeAttentionBackend.supports_kv_cache_dtype("fp8")  # this machine has no GPU
"""


@pytest.mark.slow
def test_vllm_treats_the_backend_as_flash_attention(tmp_path: Path) -> None:
    """The backend has FlashAttention's name, K/V layout and number formats, so that vLLM builds the encoder's layers on
    it too."""
    run_code(CHOSEN, tmp_path)


# -- the encoder's graphs ----------------------------------------------------------------------------------------------

GRAPHS = """
import torch
import tower

from voxbatch.vllm.plugin import encoder_graphs, rotary_kernel
from voxbatch.vllm.plugin.encoder import Encoder
from voxbatch.vllm.plugin.encoder_attention import Flash

WINDOW, PAD = 30, 3
CHUNKS, FRAMES = encoder_graphs.CHUNKS, encoder_graphs.FRAMES = 8, 64  # the interpreter takes seconds for more
tower.HEAD = 16  # the least that Triton multiplies
whole, adapter = tower.tower(WINDOW)
plain, graphed = Encoder(whole, adapter, PAD), Encoder(whole, adapter, PAD)

def flash_attention(q, k, v, *, cu_seqlens_q, cu_seqlens_k, softmax_scale, window_size, **_):  # it needs a GPU
    attended = torch.zeros_like(q)
    queries, keys = (list(zip(ends[:-1].tolist(), ends[1:].tolist())) for ends in (cu_seqlens_q, cu_seqlens_k))
    for (begin, end), (first, last) in zip(queries, keys, strict=True):
        behind = last - first - (end - begin) + torch.arange(end - begin)[:, None] - torch.arange(last - first)
        score = torch.einsum("qhd,khd->hqk", q[begin:end], k[first:last]) * softmax_scale
        score = score.masked_fill((behind < 0) | (behind > window_size[0]), float("-inf"))
        attended[begin:end] = torch.einsum("hqk,khd->qhd", score.softmax(-1), v[first:last])
    return attended

graphed._attention = attention = Flash.__new__(Flash)
attention._function, attention._window, attention._scale, attention._version = (
    flash_attention, [WINDOW - 1, 0], tower.HEAD**-0.5, None)
attention._expected_length, attention._num_splits = 0, 0
graphed._rotate_and_lay_out = rotary_kernel.rotate_and_lay_out
graphed._graphs = graphs = graphed._make_graphs()
silence = graphed._silence.frames
assert silence

def encoded(encoder, audio):
    with torch.no_grad():
        return encoder(audio)

def chunk(frames):
    samples = torch.randn(320 * (silence + frames)) * 0.1
    samples[: plain._silence.samples] = 0
    return samples

def compare(*frames):
    audio = [chunk(each) for each in frames]
    for found, expected in zip(encoded(graphed, audio), encoded(plain, audio), strict=True):
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)

torch.manual_seed(0)
compare(44, 16)               # padded
compare(FRAMES)               # exactly a size
compare(60)                   # what the groups before left in memory is not read
compare(8, 4, 8, 4, 20)       # more chunks, and fewer frames
compare(76, 40)               # the next size
assert graphs._sizes == {FRAMES, 2 * FRAMES}, graphs._sizes
assert graphs.fit([4] * (CHUNKS - 1)) and not graphs.fit([4] * CHUNKS)
assert graphs.fit([8_192]) and not graphs.fit([8_192, 4])

# a group without a graph: too many chunks, or a chunk that does not begin with silence
sizes = set(graphs._sizes)
compare(*[4] * CHUNKS)
loud = [torch.randn(320 * 40)]
torch.testing.assert_close(encoded(graphed, loud)[0], encoded(plain, loud)[0], atol=2e-5, rtol=1e-5)
assert graphs._sizes == sizes
"""


@pytest.mark.slow
def test_padded_groups_have_the_rows_of_groups_without_padding(tmp_path: Path) -> None:
    """The rows of a group that is padded for a CUDA graph are those of the same chunks without padding, also if an
    earlier group was larger."""
    run_code(GRAPHS, tmp_path, interpreted=True)


# -- norms, rounding and scores ----------------------------------------------------------------------------------------

ROUNDING = """
import torch
from torch.nn import functional
from voxbatch.vllm.plugin import quantise_kernel

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
SCORES = """
import math, torch
from voxbatch.vllm.plugin.score_kernel import BLOCK, score_rows
from voxbatch.vllm.plugin.token_scores import score

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
@pytest.mark.parametrize("code", [ROUNDING, SCORES], ids=["rounding", "scores"])
def test_rows_equal_their_formulas(code: str, tmp_path: Path) -> None:
    """Sums, norms, numbers before they are rounded to 8 bits, scales, log-probabilities and entropies are those of the
    formulas.

    Widths are those of the models, some that are no power of two, and of less, of one and of several fetches. Rows are
    tiny, large and zero, and have NaN or -inf.
    """
    run_code(code, tmp_path, interpreted=True)


# -- machine code ------------------------------------------------------------------------------------------------------

COMPILED = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from voxbatch.vllm.plugin import decode_kernel, quantise_kernel, rotary_kernel, score_kernel

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
                   "places": "*i64", "scale": "fp32", "v_scale": "fp32", "scales": "*fp32", "epsilon": "fp32",
                   "tokens": "*i32"}
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
    for logits in ("*bf16", "*fp16", "*fp32"):
        scored = kinds | {"logits": logits, "out": "*fp32"}
        options = dict(num_warps=score_kernel.WARPS)
        cases.append((score_kernel._score, scored, dict(BLOCK=score_kernel.BLOCK), options))
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
def test_kernels_compile_for_the_supported_gpus(tmp_path: Path) -> None:
    """The kernels compile to machine code, within the shared memory of the smallest named card.

    A program may have 99 KB on an A10G, an L4 or an L40S (CUDA C++ Programming Guide, compute capabilities). Compiling
    takes no GPU.
    """
    run_code(COMPILED, tmp_path)


# -- attention of the flow matching of Voxtral TTS ---------------------------------------------------------------------

THREE_TOKENS = """
import torch
from voxbatch.vllm.plugin.speech.layer_ops import LayerOps
from voxbatch.vllm.plugin.speech.fused_ops import FusedLayerOps

torch.manual_seed(0)
for heads, kv_heads, dim in ((32, 8, 128), (4, 2, 32), (4, 4, 64)):
    qkv = torch.randn(3, 3, (heads + 2 * kv_heads) * dim)
    read = FusedLayerOps(heads, kv_heads, dim, 1e-5).attend(qkv)
    torch.testing.assert_close(read, LayerOps(heads, kv_heads, dim, 1e-5).attend(qkv), atol=1e-5, rtol=1e-5)
"""


@pytest.mark.slow
def test_attention_among_three_tokens_equals_pytorchs(tmp_path: Path) -> None:
    """The kernel computes attention for any number of heads that share keys."""
    run_code(THREE_TOKENS, tmp_path, interpreted=True)
