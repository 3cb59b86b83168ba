"""Measure what 8 bits cost and gain in the parts of a step, on one GPU, beside 16 bits.

The benchmark needs no model and no engine. It needs vLLM for its matrix products.

    python benchmarks/gpu/bench_eight_bits.py [--out FILE] [--quick]

Each measurement prints a JSON line:

- `errors`: our kernels in 8 bits beside their formulas in float32: the decoder's attention, and the rounding of rows.
- `attention`: the decoder's attention over K/V in 8 bits and in bfloat16, in all 26 layers; a step with prompts, too.
- `tuning`: the same over K/V in 8 bits, by keys fetched at a time, warps and stages, the fastest first.
- `product`: each matrix product of a layer, in bfloat16, by vLLM's CUTLASS kernel with a scale for each row and column,
  and by torch._scaled_mm.
- `rounding`: the kernels that make a product's input, in 16 and in 8 bits, ms for all 32 layers of a chunk.

Times are medians of 20 replays of a CUDA graph. With --quick there are fewer sizes.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from bench_kernels import DECODER, ENCODER, ENCODER_LAYERS, FRAMES, GPU, HEAD, HEADS, KV_HEADS, LAYERS, timed
from torch.nn import functional

EIGHT = torch.float8_e4m3fn
BLOCK = 16


def step(requests: int, mean: int, kind: torch.dtype, prompts: int = 0) -> tuple[Callable[[], None], Any]:
    """Return the attention of a step, and its result's tensor with what a reference needs.

    Args:
        mean: the contexts range from 40 positions to as far above the mean as 40 is below it.
        prompts: number of the requests that have 7 new positions and not one.
    """
    from voxbatch.vllm_plugin import decode_kernel

    torch.manual_seed(0)
    lengths = torch.randint(40, 2 * mean - 39, (requests,), dtype=torch.int32)
    counts = torch.ones(requests, dtype=torch.int32)
    counts[:prompts] = 7
    each = -(-512 // BLOCK)
    cache = torch.randn(requests * each + 1, BLOCK, KV_HEADS, 2 * HEAD, device=GPU, dtype=torch.bfloat16).to(kind)
    k, v = cache.split(HEAD, dim=-1)
    blocks = (torch.randperm(requests * each).to(torch.int32) + 1).view(requests, each).to(GPU)
    starts = functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32).to(GPU) if prompts else None
    q = torch.randn(int(counts.sum()), HEADS, HEAD, device=GPU, dtype=torch.bfloat16)
    out, seen = torch.empty_like(q), lengths.to(GPU)

    def run() -> None:
        decode_kernel.attend(q, k, v, blocks, seen, HEAD**-0.5, out, starts, int(counts.max()))

    return run, (q, k, v, blocks, lengths, counts, out)


def attention_error(prompts: int) -> float:
    """Return the largest difference of 32 requests' attention over K/V in 8 bits from float32's."""
    run, (q, k, v, blocks, lengths, counts, out) = step(32, 150, EIGHT, prompts)
    run()
    first, worst = 0, 0.0
    for i, (length, count) in enumerate(zip(lengths.tolist(), counts.tolist(), strict=True)):
        at = torch.arange(length, device=GPU)
        block = blocks[i, at // BLOCK].long()
        keys, values = (each[block, at % BLOCK].float().transpose(0, 1)[None] for each in (k, v))
        mask = torch.ones(count, length, dtype=torch.bool, device=GPU).tril(length - count)
        wanted = functional.scaled_dot_product_attention(
            q[first : first + count].float().transpose(0, 1)[None], keys, values, attn_mask=mask, enable_gqa=True
        )[0].transpose(0, 1)
        worst = max(worst, float((out[first : first + count].float() - wanted).abs().max()))
        first += count
    return round(worst, 5)


def errors() -> dict[str, Any]:
    """Compare our kernels with their formulas: the share of equal 8-bit numbers, and the largest relative error."""
    from vllm import _custom_ops

    from voxbatch.vllm_plugin import quantise_kernel

    x, delta = (torch.randn(500, 1280, device=GPU, dtype=torch.bfloat16) * 3 for _ in range(2))
    weight = torch.rand(1280, device=GPU, dtype=torch.bfloat16) + 0.5
    both = torch.randn(500, 10240, device=GPU, dtype=torch.bfloat16) * 3
    left, right = both.float().chunk(2, dim=1)
    total = (x.float() + delta.float()).bfloat16()
    wide = total.float()
    wanted = {
        "round": x.float(),
        "gate": functional.silu(left) * right,
        "norm": wide * torch.rsqrt(wide.pow(2).mean(1, keepdim=True) + 1e-5) * weight.float(),
    }
    found = {
        "round": quantise_kernel.round_rows(x),
        "gate": quantise_kernel.gate_and_round(both),
        "norm": quantise_kernel.norm_and_round(x, delta, weight, 1e-5),
    }
    line: dict[str, Any] = {"residual_is_equal": torch.equal(x, total)}
    for name, exact in wanted.items():
        values, scales = found[name]
        line[f"{name}_equal"] = round(float((values.float() == (exact / scales).to(EIGHT).float()).float().mean()), 5)
        line[f"{name}_error"] = round(
            float(((values.float() * scales - exact) / (exact.abs() + scales)).abs().max()), 4
        )
    matrix, by_column = quantise_kernel.round_rows(torch.randn(2048, 1280, device=GPU, dtype=torch.bfloat16))
    values, by_row = found["norm"]
    exact = (values.float() * by_row) @ (matrix.float() * by_column).t()
    product = _custom_ops.cutlass_scaled_mm(values, matrix.t(), by_row, by_column, torch.bfloat16)
    line["product_error"] = round(float((product.float() - exact).abs().max() / exact.abs().max()), 4)
    return {"what": "errors", **line, "attention": attention_error(0), "attention_prompts": attention_error(8)}


def attention(requests: int, mean: int, prompts: int = 0) -> dict[str, Any]:
    """Measure the decoder's attention in both formats, all layers."""
    found = {}
    for name, kind in (("bf16_ms", torch.bfloat16), ("fp8_ms", EIGHT)):
        found[name] = round(timed(step(requests, mean, kind, prompts)[0]) * LAYERS, 3)
    return {"what": "attention", "requests": requests, "positions": mean, "prompts": prompts, **found}


def tunings(requests: int, mean: int) -> Iterator[dict[str, Any]]:
    """Measure K/V in 8 bits by each tuning of the kernel, the fastest first."""
    from triton.runtime.errors import OutOfResources

    from voxbatch.vllm_plugin import decode_kernel

    before = decode_kernel.KEYS, decode_kernel.EIGHT_WARPS, decode_kernel.EIGHT_STAGES
    run, _ = step(requests, mean, EIGHT)
    found = []
    for keys, warps, stages in itertools.product((64, 128), (2, 4, 8), (2, 3)):
        decode_kernel.KEYS, decode_kernel.EIGHT_WARPS, decode_kernel.EIGHT_STAGES = keys, warps, stages
        try:
            found.append((round(timed(run) * LAYERS, 3), keys, warps, stages))
        except (OutOfResources, RuntimeError) as error:  # too large for the GPU: other tunings may work
            print(keys, warps, stages, type(error).__name__)
    decode_kernel.KEYS, decode_kernel.EIGHT_WARPS, decode_kernel.EIGHT_STAGES = before
    for ms, keys, warps, stages in sorted(found)[:8]:
        line = {"what": "tuning", "requests": requests, "positions": mean, "fp8_ms": ms}
        yield line | {"keys": keys, "warps": warps, "stages": stages}


def product(name: str, shape: tuple[int, int], layers: int, rows: int) -> dict[str, Any]:
    """Measure one product of all layers. Four matrices take turns, so that none stays in the cache."""
    from vllm import _custom_ops

    width, out = shape
    x = torch.randn(rows, width, device=GPU, dtype=torch.bfloat16)
    weights = [torch.randn(out, width, device=GPU, dtype=torch.bfloat16) * 0.02 for _ in range(4)]
    small, x8 = [each.to(EIGHT) for each in weights], x.to(EIGHT)
    by_row, by_column = torch.rand(rows, 1, device=GPU), torch.rand(out, 1, device=GPU)
    one, kind = torch.ones((), device=GPU), torch.bfloat16
    ways: dict[str, Callable[[torch.Tensor], Any]] = {
        "cutlass": lambda w: _custom_ops.cutlass_scaled_mm(x8, w.t(), by_row, by_column, kind),
        "torch_rows": lambda w: torch._scaled_mm(x8, w.t(), by_row, by_column.t(), out_dtype=kind, use_fast_accum=True),
        "torch_tensor": lambda w: torch._scaled_mm(x8, w.t(), one, one, out_dtype=kind, use_fast_accum=True),
    }
    found: dict[str, Any] = {"bf16_ms": round(timed(lambda: [torch.mm(x, w.t()) for w in weights]) / 4 * layers, 3)}
    for way, run in ways.items():
        try:
            ms = timed(lambda run=run: [run(w) for w in small])
            found[f"{way}_ms"] = round(ms / 4 * layers, 3)
        except RuntimeError as error:  # a way that this GPU lacks: the others may work
            found[f"{way}_ms"] = str(error)[:80]
    return {"what": "product", "of": name, "shape": shape, "rows": rows, **found}


def rounding(rows: int, chunks: int) -> dict[str, Any]:
    """Measure the kernels between the encoder's products, ms for the 32 layers of a chunk.

    In 16 bits they are vLLM's fused_add_rms_norm and silu_and_mul. `separate` is vLLM's kernel that rounds each row, as
    a pass of its own.
    """
    from vllm import _custom_ops

    from voxbatch.vllm_plugin import quantise_kernel

    x, delta = (torch.randn(rows, 1280, device=GPU, dtype=torch.bfloat16) for _ in range(2))
    seen = torch.randn(rows, 2048, device=GPU, dtype=torch.bfloat16)
    both, gated = (torch.randn(rows, w, device=GPU, dtype=torch.bfloat16) for w in (10240, 5120))
    weight = torch.ones(1280, device=GPU, dtype=torch.bfloat16)
    ways: dict[str, Callable[[], Any]] = {
        "norm_bf16": lambda: _custom_ops.fused_add_rms_norm(delta, x, weight, 1e-5),
        "norm_fp8": lambda: quantise_kernel.norm_and_round(x, delta, weight, 1e-5),
        "norm_fp8_vllm": lambda: _custom_ops.rms_norm_dynamic_per_token_quant(x, weight, 1e-5, EIGHT, None, delta),
        "gate_bf16": lambda: torch.ops._C.silu_and_mul(gated, both),
        "gate_fp8": lambda: quantise_kernel.gate_and_round(both),
        "attended_fp8": lambda: quantise_kernel.round_rows(seen),
        "attended_separate": lambda: _custom_ops.scaled_fp8_quant(seen, use_per_token_if_dynamic=True),
        "gate_separate": lambda: _custom_ops.scaled_fp8_quant(gated, use_per_token_if_dynamic=True),
    }
    found = {name: round(timed(run) * ENCODER_LAYERS / chunks, 4) for name, run in ways.items()}
    return {"what": "rounding", "rows": rows, **found}


def everything(quick: bool) -> Iterator[dict[str, Any]]:
    """Yield all measurements."""
    yield {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    yield errors()
    yield from (attention(r, m) for r, m in ((1024, 220), (189, 220)))
    yield attention(1024, 220, prompts=36)
    yield from tunings(1024, 220)
    yield from (product("encoder", shape, ENCODER_LAYERS, FRAMES) for shape in ENCODER)
    yield rounding(FRAMES, 4)
    for rows in (1024, 189) if quick else (1024, 512, 189, 64):
        yield from (product("decoder", shape, LAYERS, rows) for shape in DECODER)
    yield from (attention(r, m) for r, m in ((1024, 100), (512, 220), (320, 220)))
    if not quick:
        yield from tunings(189, 220)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="append the lines there too")
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    given = parser.parse_args()
    for line in everything(given.quick):
        text = json.dumps(line)
        print(text, flush=True)
        if given.out:
            with given.out.open("a") as file:
                file.write(text + "\n")


if __name__ == "__main__":
    main()
