"""Measure the parts of a step on one GPU: the decoder's attention, matrix products by batch, memory.

The benchmark needs no model and no engine.

    python benchmarks/gpu/bench_kernels.py [--out FILE] [--sweep]

Each measurement prints a JSON line:

- `attention`: 26 layers of the 4B model's decoder, over K/V blocks in random order. Our kernel
  (voxbatch.vllm_plugin.decode_kernel) is compared with vLLM's FlashAttention as its CUDA graphs call it, in up to 32
  splits and in 1; with the largest difference.
- `products`: the decoder's 26 layers and its head, and the encoder's 32 layers, in bfloat16 and in FP8.
- `placing`: the encoder's kernel (voxbatch.vllm_plugin.rotary_kernel), ms per chunk, and its difference from PyTorch's
  operations in float32.
- `window`: the encoder's attention, ms per chunk of 30 s, by our kernel (voxbatch.vllm_plugin.window_kernel) and by
  FlashAttention as the encoder calls it; the difference between the two, and of each from float32.
- `spectrogram`: the step before the encoder's convolutions, and its difference from a CPU's result.

With --sweep only the lines of `window` are printed, after one line (`sweep`) for each tuning of our kernel, the fastest
first. Times are medians of 20 replays of a CUDA graph.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

HEADS, KV_HEADS, HEAD, LAYERS = 32, 8, 128, 26
DECODER = ((3072, 6144), (4096, 3072), (3072, 18432), (9216, 3072))
HEAD_PRODUCT = (3072, 131072)
ENCODER, ENCODER_LAYERS, FRAMES = ((1280, 6144), (2048, 1280), (1280, 10240), (5120, 1280)), 32, 6_500
"""Shapes of Voxtral Mini 4B Realtime: input and output of each product; frames of four chunks."""
WINDOW, ENCODER_HEADS, ENCODER_HEAD = 750, 32, 64
CHUNK = 1_500
"""Frames of a chunk of 30 s, without those of SILENT."""
SILENT = 124
"""Frames at the beginning that all chunks share (voxbatch.vllm_plugin.silence)."""
MOST_SPILLED = 64
"""Spilled words of registers beyond which a tuning of a kernel is not measured."""
MELS, DIM, SAMPLES = 128, 1_280, 440_000
"""Sizes of the encoder, and samples of a chunk of 27.5 s."""
GPU = torch.device("cuda")


def timed(work: Callable[[], Any], times: int = 20) -> float:
    """Return the milliseconds of one replay."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    found = []
    for _ in range(times + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end))
    return median(found[3:])


def attention(requests: int, mean: int, block_size: int) -> dict[str, Any]:
    """Measure the decoder's attention in an engine with contexts of 512 positions at most.

    The contexts range from 40 positions to as far above the mean as 40 is below it.
    """
    from voxbatch.vllm_plugin.decode_kernel import attend

    torch.manual_seed(0)
    lengths = torch.randint(40, 2 * mean - 39, (requests,), dtype=torch.int32)
    each = -(-512 // block_size)
    cache = torch.randn(requests * each + 1, block_size, KV_HEADS, 2 * HEAD, device=GPU, dtype=torch.bfloat16)
    k, v = cache.split(HEAD, dim=-1)
    blocks = (torch.randperm(requests * each).to(torch.int32) + 1).view(requests, each).to(GPU)
    q = torch.randn(requests, HEADS, HEAD, device=GPU, dtype=torch.bfloat16)
    seen, out = lengths.to(GPU), torch.empty_like(q)
    read = int(lengths.sum()) * KV_HEADS * HEAD * 4 / 1e9

    def ours() -> None:
        attend(q, k, v, blocks, seen, HEAD**-0.5, out)

    ms = timed(ours)
    found: dict[str, Any] = {"ms": round(ms * LAYERS, 3), "tb_s": round(read / ms, 2)}
    for splits in (32, 1):  # the first is attention_config.flash_attn_max_num_splits_for_cuda_graph
        if flash := _flash(q, k, v, blocks, seen, splits):
            theirs = flash().clone()
            found[f"flash_{splits}_ms"] = round(timed(flash) * LAYERS, 3)
            found["largest_difference"] = round(float((out.float() - theirs.float()).abs().max()), 4)
    return {"what": "attention", "requests": requests, "positions": mean, "block_size": block_size, **found}


def _flash(q: Any, k: Any, v: Any, blocks: Any, seen: Any, splits: int) -> Callable[[], Any] | None:
    try:
        from vllm.v1.attention.backends.fa_utils import (
            flash_attn_varlen_func,
            get_flash_attn_version,
            get_scheduler_metadata,
        )
    except ImportError:
        return None
    version, out = get_flash_attn_version(head_size=HEAD), torch.empty_like(q)
    starts = torch.arange(len(q) + 1, dtype=torch.int32, device=GPU)
    splits, plan = splits if version == 3 else 0, None
    if version == 3:
        plan = get_scheduler_metadata(
            batch_size=len(q), max_seqlen_q=1, max_seqlen_k=512, num_heads_q=HEADS, num_heads_kv=KV_HEADS, headdim=HEAD,
            cache_seqlens=seen, qkv_dtype=q.dtype, cu_seqlens_q=starts, page_size=k.shape[1], causal=True,
            num_splits=splits,
        )  # fmt: skip

    def run() -> Any:
        return flash_attn_varlen_func(
            q=q, k=k, v=v, out=out, cu_seqlens_q=starts, max_seqlen_q=1, seqused_k=seen, max_seqlen_k=512, causal=True,
            softmax_scale=HEAD**-0.5, block_table=blocks, scheduler_metadata=plan, fa_version=version,
            num_splits=splits,
        )  # fmt: skip

    return run


def products(name: str, shapes: tuple[tuple[int, int], ...], layers: int, rows: int) -> dict[str, Any]:
    """Measure matrix products. Four layers of weights take turns, so that no weights stay in the cache."""
    weights = [[torch.randn(o, i, device=GPU, dtype=torch.bfloat16) * 0.02 for i, o in shapes] for _ in range(4)]
    inputs = [torch.randn(rows, i, device=GPU, dtype=torch.bfloat16) for i, _ in shapes]
    ms = timed(lambda: [torch.mm(x, w.t()) for layer in weights for x, w in zip(inputs, layer, strict=True)])
    arithmetic = 4 * 2 * rows * sum(i * o for i, o in shapes)
    found = {"ms": round(ms / 4 * layers, 3), "tflop_s": round(arithmetic / ms / 1e9)}
    return {"what": "products", "of": name, "rows": rows, **found, "fp8_ms": _fp8(weights, inputs, layers)}


def _fp8(weights: list[list[torch.Tensor]], inputs: list[torch.Tensor], layers: int) -> float | None:
    """Measure the products alone, without the conversion of their inputs to FP8."""
    if torch.cuda.get_device_capability() < (8, 9):
        return None
    one, kind = torch.ones((), device=GPU), torch.float8_e4m3fn
    small = [[w.to(kind) for w in layer] for layer in weights]
    rows = -(-len(inputs[0]) // 16) * 16
    given = [torch.randn(rows, x.shape[1], device=GPU).to(kind) for x in inputs]

    def run() -> None:
        for layer in small:
            for x, w in zip(given, layer, strict=True):
                torch._scaled_mm(x, w.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

    return round(timed(run) / 4 * layers, 3)


def placing() -> dict[str, Any]:
    """Measure the encoder's kernel between a layer's first product and its attention, for four chunks after their
    shared silence.
    """
    from voxbatch.vllm_plugin import packing, rotary_kernel
    from voxbatch.vllm_plugin.rotary import rotate_and_lay_out

    head, width = 64, 2_048
    layout = packing.pack([FRAMES // 4] * 4, GPU, SILENT)
    angles = torch.outer(torch.arange(FRAMES // 2, device=GPU), 1e6 ** -(torch.arange(0, head, 2, device=GPU) / head))
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=-1).bfloat16()
    qkv = torch.randn(FRAMES // 4 * 4, 3 * width, device=GPU).bfloat16()
    pads = torch.randn(2, SILENT, width, device=GPU).bfloat16()
    found = []
    # the kernel rounds only once, at its end
    for way, kind in ((rotary_kernel.rotate_and_lay_out, torch.bfloat16), (rotate_and_lay_out, torch.float32)):
        queries, kv = qkv.to(kind, copy=True), qkv.new_empty(2, len(qkv) + 4 * SILENT, width, dtype=kind)
        way(queries, kv, pads.to(kind), cos_sin.to(kind), layout, head)
        found.append((queries[:, :width].bfloat16(), kv.bfloat16()))
    kv = found[0][1]
    ms = timed(lambda: rotary_kernel.rotate_and_lay_out(qkv, kv, pads, cos_sin, layout, head))
    moved = 4 * (qkv.numel() + kv[:, : 4 * SILENT].numel())
    largest = max(float((one.float() - other.float()).abs().max()) for one, other in zip(*found, strict=True))
    return {"what": "placing", "ms": round(ms * ENCODER_LAYERS / 4, 3), "tb_s": round(moved / ms / 1e9, 2),
            "largest_difference": round(largest, 4)}  # fmt: skip


def window(chunks: int) -> dict[str, Any]:
    """Measure the encoder's attention, for chunks after the silence that they share."""
    from voxbatch.vllm_plugin.encoder_attention import Masked, Windowed

    q, k, v, layout = windowed(chunks)
    scale = ENCODER_HEAD**-0.5
    exact = Masked(WINDOW, scale)(q.float(), k.float(), v.float(), layout)
    ways: dict[str, Any] = {"": Windowed(WINDOW, scale)}
    if flash := _encoder_flash(scale):
        ways["flash_"] = flash
    found: dict[str, Any] = {}
    results = []
    for name, way in ways.items():
        prepared = way.prepare(layout)
        results.append(way(q, k, v, prepared).float())
        ms = timed(lambda way=way, prepared=prepared: way(q, k, v, prepared))
        found[f"{name}ms"] = round(ms * ENCODER_LAYERS / chunks, 3)
        found[f"{name}tflop_s"] = round(_needed(layout) / ms / 1e9)
        found[f"{name}largest_error"] = round(float((results[-1] - exact).abs().max()), 4)
    found["largest_difference"] = round(float((results[0] - results[-1]).abs().max()), 4)
    return {"what": "window", "chunks": chunks, **found}


def windowed(chunks: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Any]:
    """Return queries as a slice of a product's result, keys and values as `placing` leaves them, and their layout."""
    from voxbatch.vllm_plugin import packing

    torch.manual_seed(0)
    layout = packing.pack([CHUNK] * chunks, GPU, SILENT)
    width = ENCODER_HEADS * ENCODER_HEAD
    qkv = torch.randn(CHUNK * chunks, 3 * width, device=GPU, dtype=torch.bfloat16)
    kv = torch.randn(2, sum(layout.key_lengths), width, device=GPU, dtype=torch.bfloat16)
    q, k, v = (each.unflatten(1, (-1, ENCODER_HEAD)) for each in (qkv[:, :width], *kv))
    return q, k, v, layout


def _encoder_flash(scale: float) -> Any:
    try:
        from vllm.v1.attention.backends.fa_utils import get_flash_attn_version
    except ImportError:
        return None
    from voxbatch.vllm_plugin.encoder_attention import Flash

    return Flash(WINDOW, scale, get_flash_attn_version(head_size=ENCODER_HEAD))


def _needed(layout: Any) -> int:
    """Return the operations of the two products, counting only visible keys."""
    pairs = sum(min(layout.known + i + 1, WINDOW) for count in layout.lengths for i in range(count))
    return pairs * ENCODER_HEADS * ENCODER_HEAD * 4


def swept() -> Iterator[dict[str, Any]]:
    """Measure four chunks with each tuning of the kernel, the fastest first, then the best five with one and sixteen
    chunks.

    A tuning that does not fit into the GPU is left out. Each result is printed to stderr at once.
    """
    four = windowed(4)
    found = [line for tuning in _tunings() if (line := _tuned(tuning, 4, four))]
    found.sort(key=lambda line: line["ms"])
    best = [line["tuning"] for line in found[:5]]
    for chunks in (1, 16):
        given = windowed(chunks)
        found += [line for tuning in best if (line := _tuned(tuning, chunks, given))]
    for line in found:
        yield line | {"tuning": asdict(line["tuning"])}


def _tunings() -> Iterator[Any]:
    from voxbatch.vllm_plugin.window_kernel import Tuning

    sizes = (
        (128, 64, 8, 128), (128, 32, 8, 128), (128, 128, 8, None), (128, 32, 4, 168), (128, 64, 4, None),
        (64, 64, 4, 128), (64, 64, 4, 168), (64, 128, 4, 168), (64, 32, 4, 128), (64, 32, 4, 96),
    )  # fmt: skip
    for (rows, keys, warps, limit), stages in itertools.product(sizes, (2, 3, 4)):
        yield Tuning(rows, keys, warps, stages, limit)


def _tuned(tuning: Any, chunks: int, given: tuple[Any, Any, Any, Any]) -> dict[str, Any] | None:
    from triton.runtime.errors import OutOfResources

    from voxbatch.vllm_plugin import window_kernel

    q, k, v, layout = given
    out, seen = torch.empty(q.shape, dtype=q.dtype, device=GPU), window_kernel.tiles(layout, WINDOW, tuning.rows)

    def run() -> Any:
        return window_kernel.launch(q, k, v, seen, WINDOW, ENCODER_HEAD**-0.5, out, tuning)

    try:
        made = run()
    # too large for the GPU, or the compiler failed: other tunings may work
    except (OutOfResources, RuntimeError) as error:
        print(tuning, error, file=sys.stderr)
        return None
    size = {"registers": made.n_regs, "spilled": made.n_spills, "shared": made.metadata.shared}
    if made.n_spills > MOST_SPILLED:
        return None
    ms = timed(run)
    found = {"ms": round(ms * ENCODER_LAYERS / chunks, 3), "tflop_s": round(_needed(layout) / ms / 1e9)}
    print(found, size, tuning, file=sys.stderr, flush=True)  # stdout gets the lines at the end, sorted
    return {"what": "sweep", "chunks": chunks, **found, **size, "tuning": tuning}


def spectrogram() -> dict[str, Any]:
    """Measure the spectrogram of four chunks."""
    from voxbatch.vllm_plugin.spectrogram import Spectrogram

    torch.manual_seed(0)
    filters, audio = torch.rand(201, MELS), [torch.randn(SAMPLES) * 0.1 for _ in range(4)]
    there, here = Spectrogram(filters.to(GPU), 400, 160, 1.5), [each.to(GPU) for each in audio]
    ms = timed(lambda: there(here))
    largest = float((there(here).cpu() - Spectrogram(filters, 400, 160, 1.5)(audio)).abs().max())
    return {"what": "spectrogram", "ms": round(ms / 4, 4), "largest_difference": round(largest, 6)}


def copying() -> dict[str, Any]:
    """Measure the memory's rate with a copy of 1 GiB."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device=GPU)
    target = torch.empty_like(source)
    return {"what": "copy", "tb_s": round(2 * source.numel() / timed(lambda: target.copy_(source)) / 1e9, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="append the lines there too")
    parser.add_argument("--sweep", action="store_true", help="only the encoder's attention, by each way to tune it")
    given = parser.parse_args()
    for line in everything(given.sweep):
        text = json.dumps(line)
        print(text, flush=True)
        if given.out:
            with given.out.open("a") as file:
                file.write(text + "\n")


def everything(sweep: bool) -> Iterator[dict[str, Any]]:
    """Yield all measurements, or those of the sweep."""
    yield {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    if sweep:
        yield from swept()
    else:
        yield copying()
        yield from (attention(r, m, b) for r, m in ((512, 100), (512, 220), (221, 220), (64, 220)) for b in (16, 128))
        yield from (products("decoder", DECODER, LAYERS, r) for r in (1, 32, 64, 128, 221, 256, 384, 512))
        yield from (products("head", (HEAD_PRODUCT,), 1, r) for r in (1, 64, 128, 221, 256, 384, 512))
        yield products("encoder", ENCODER, ENCODER_LAYERS, FRAMES)
        yield placing()
        yield spectrogram()
    yield from (window(chunks) for chunks in (1, 4, 16))


if __name__ == "__main__":
    main()
