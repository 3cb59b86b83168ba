"""Compare the model of a GPU's speed (voxbatch.engines.vllm.speed) with measurements.

The script also prints the model's results for GPUs that were not measured, such as the L4.

    python benchmarks/gpu/model.py

The script needs no GPU and almost no time. The measurements are those of RESULTS.md, from 2026-11-21 and 22, with one
H200 (two where stated) and vLLM 0.26.0. The model's constants come from profiles of single steps with the plugin. From
RUNS, only the counts of K/V blocks were used (memory.WORKING_BYTES), and none of the speeds. RUNS also states the
memory that vLLM planned with at the time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from voxbatch.engines.vllm import forecast, speed
from voxbatch.engines.vllm.gpu_specs import GPU_SPECS, GpuSpec
from voxbatch.engines.vllm.memory import UNCOUNTED_BYTES
from voxbatch.engines.vllm.model import DEFAULT_PARAMS, REALTIME
from voxbatch.engines.vllm.settings import resolve
from voxbatch.profiles import load_profile

BAR = 0.2
STOCK = {"lift_encoder_cache": "false", "max_num_batched_tokens": "0", "prefill_encoder": "false", "delay_ms": "0"}
PLUGIN = {"prefill_encoder": "true", "delay_ms": "0"}
FLASH = {"attention_backend": "FLASH_ATTN"}
"""Option for older measurements: the plugin had no attention kernel then."""
SEQUENCES_512 = {**PLUGIN, "max_num_seqs": "512"}
"""Option for older measurements: the largest number of requests that ran then."""
STOCK_128 = {**STOCK, "max_num_seqs": "128", "max_num_batched_tokens": "65536"}
SEQUENCES_1408, SEQUENCES_2048 = ({**PLUGIN, "max_num_seqs": requests} for requests in ("1408", "2048"))
L4_MEMORY = {"gpu_memory_gb": "22.94"}
STOCK_IN_L4 = {**STOCK, **L4_MEMORY, "max_num_seqs": "64"}
BESIDES = GPU_SPECS["NVIDIA H200"].reserved_bytes + UNCOUNTED_BYTES
WHOLE, SMALL = ({"gpu_memory_gb": str((planned + BESIDES) / 1e9)} for planned in (135.7e9, 22e9))
"""Options that make vLLM plan with 90 % of an H200, and with 22 GB."""
MIXED_S, SOME_SHORT = 25.8, (4.0, 35.0)
"""Seconds of the chunks of 4 to 35 s (evenly distributed): their mean, and the shortest and the longest."""
BROAD, MIXED = (20.0, 35.0), (2.0, 35.0)
WHOLE_S = 36_000 / 1110
"""Mean seconds of a chunk of the whole run."""


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run."""

    name: str
    rtfx: float
    seconds: float
    """Mean seconds of a chunk."""
    chunks: int
    options: Mapping[str, str] = field(default_factory=dict)
    """Options in addition to those of ctx512-batch."""
    running: float | None = None
    """Simultaneous requests."""
    cards: int = 1
    between: tuple[float, float] | None = None
    """Seconds of the shortest and of the longest chunk, evenly distributed; None: all chunks have the same length."""


RUNS = (
    Run("`ctx512`: one at a time, eager", 3.6, 30, 3,
        {name: str(value) for name, value in load_profile("ctx512")["engine_options"].items()}, 1),
    Run("stock vLLM at its best, 128 sequences", 497.7, 30, 384, {**STOCK_128, **WHOLE}, 127.6),
    Run("`ctx512-batch`", 506.3, 30, 1100, WHOLE, 407.7),
    Run("`ctx512-batch`, a longer run", 509.2, 30, 2600, WHOLE, 435.9),
    Run("`ctx512-batch`, 4 to 35 s", 470.0, MIXED_S, 1100, WHOLE, 401.8, between=SOME_SHORT),
    Run("22 GB: stock vLLM, 64 sequences", 256.5, 30, 128, {**STOCK, **SMALL, "max_num_seqs": "64"}, 37.3),
    Run("22 GB: `ctx512-batch`", 296.8, 30, 200, SMALL, 40.9),
    Run("22 GB: `ctx512-batch`, 4 to 35 s", 254.3, MIXED_S, 200, SMALL, 40.9, between=SOME_SHORT),
    Run("22 GB: `ctx512-batch`, 480 ms", 305.7, 30, 200, {**SMALL, "delay_ms": "0"}, 40.9),
    Run("`voxbatch run`, 10 hours", 466.8, WHOLE_S, 1110, WHOLE),
    Run("`voxbatch run --workers 2`, 20 hours", 895.4, WHOLE_S, 2220, WHOLE, None, 2),
    Run("`plugin`, 20 to 35 s", 1670, 27.5, 2048, {**SEQUENCES_512, **FLASH, **WHOLE}, 512, between=BROAD),
    Run("`plugin, 22 GB`, 20 to 35 s", 1412, 27.5, 884, {**PLUGIN, **FLASH, **SMALL}, 193, between=BROAD),
    Run("`plugin` of 2026-11-22, 20 to 35 s", 2033, 27.5, 1536, SEQUENCES_512, 512, between=BROAD),
    Run("`plugin` of 2026-11-22, 30 s", 2090, 30, 1536, SEQUENCES_512, 512),
    Run("`plugin` of 2026-11-22, 2 to 35 s", 1918, 18.5, 1536, SEQUENCES_512, 512, between=MIXED),
    Run("`voxbatch run` with it, 12 hours", 1920, WHOLE_S, 1332, SEQUENCES_512),
    Run("`voxbatch run --workers 2` with it, 24 hours", 3845, WHOLE_S, 2664, SEQUENCES_512, None, 2),
    Run("`stock` beside the next, 128 sequences, 20 to 35 s", 415.9, 27.5, 256, STOCK_128, 128, between=BROAD),
    Run("`stock` beside the next, 128 sequences, 30 s", 479.7, 30, 256, STOCK_128, 128),
    Run("`stock` beside the next, 128 sequences, 2 to 35 s", 350.6, 18.5, 256, STOCK_128, 128, between=MIXED),
    Run("`plugin`, 1,024 requests, 20 to 35 s", 2253, 27.5, 3072, PLUGIN, 1024, between=BROAD),
    Run("`plugin`, 1,024 requests, 30 s", 2245, 30, 2048, PLUGIN, 1024),
    Run("`plugin`, 1,024 requests, 2 to 35 s", 2118, 18.5, 2048, PLUGIN, 1024, between=MIXED),
    Run("`plugin` in an L4's memory, 20 to 35 s", 1599, 27.5, 945, {**PLUGIN, **L4_MEMORY}, 189, between=BROAD),
    Run("`plugin` in an L4's memory, 2 to 35 s", 1404, 18.5, 945, {**PLUGIN, **L4_MEMORY}, 189, between=MIXED),
    Run("`voxbatch run`, 1,024 requests, 32 hours", 2034, 115_200 / 3264, 3264, PLUGIN),
    Run("`plugin`, a longer run, 20 to 35 s", 2267, 27.5, 6144, PLUGIN, 1024, between=BROAD),
    Run("`plugin`, 1,408 requests, 20 to 35 s", 2242, 27.5, 8448, SEQUENCES_1408, 1408, between=BROAD),
    Run("`plugin`, 2,048 requests, 20 to 35 s", 2221, 27.5, 8192, SEQUENCES_2048, 2048, between=BROAD),
    Run("`plugin`, 2,048 requests, 30 s", 2200, 30, 4096, SEQUENCES_2048, 2048),
    Run("`plugin`, 2,048 requests, 2 to 35 s", 2183, 18.5, 4096, SEQUENCES_2048, 2048, between=MIXED),
    Run("`stock` in an L4's memory, 20 to 35 s", 196.8, 27.5, 128, STOCK_IN_L4, between=BROAD),
    Run("`stock` in an L4's memory, 2 to 35 s", 199.4, 18.5, 128, STOCK_IN_L4, between=MIXED),
    Run("`voxbatch run`, 1,408 requests, 16 hours", 1880, 57_600 / 1632, 1632, SEQUENCES_1408),
    Run("`voxbatch run --workers 2`, likewise, 32 hours", 3737, 57_600 / 1632, 3264, SEQUENCES_1408, None, 2),
    Run("`voxbatch run --workers 4`, likewise, 64 hours", 7255, 57_600 / 1632, 6528, SEQUENCES_1408, None, 4),
)  # fmt: skip
"""The runs of RESULTS.md, all on GPUs."""
STEPS = ((1, 2.90), (32, 3.20), (64, 3.44), (128, 4.09), (256, 5.72), (384, 7.79), (512, 9.61))
"""Requests, and milliseconds of GPU time of a step that only decodes, at about 105 positions."""
CONTEXT = 105
WALKS = ((512, 220, 3.26), (512, 100, 1.72), (221, 220, 1.64), (64, 220, 0.74))
"""Requests, positions, and milliseconds of our own kernel for the decoder's attention in all layers."""
ENCODING = (424, 5.79)
"""Positions of a chunk of 30 s, and milliseconds of GPU time to encode it, in batches of four."""
L4 = GPU_SPECS["NVIDIA L4"]
EXTREMES = {
    "NVIDIA L4, slow": replace(L4, flops=45e12, bytes_per_s=0.9 * L4.bytes_per_s),
    "NVIDIA L4, fast": replace(L4, flops=71e12, bytes_per_s=1.03 * L4.bytes_per_s),
}
"""The unknown properties of an L4, all at their worst and all at their best.

Matrix products depend on the temperature within its 72 W. The memory may deliver a tenth less, or a little more, of its
rate than an H200 delivers of its own.
"""


def predicted(run: Run, name: str = "NVIDIA H200", spec: GpuSpec | None = None) -> tuple[int, float]:
    """Return the predicted requests at a time, and seconds of audio per second."""
    settings = resolve(REALTIME, {"prefill_encoder": "false", **run.options})
    prefilled = settings.prefill_encoder == "true"
    mode = forecast.run_mode(DEFAULT_PARAMS, settings, name, prefilled, run.seconds)
    model = speed.model_sizes(DEFAULT_PARAMS)
    each = speed.rtfx(spec or GPU_SPECS[name], model, mode, run.seconds, run.chunks / run.cards, run.between)
    return mode.requests, run.cards * each


def runs() -> Iterator[str]:
    """Yield the table of measured and calculated runs."""
    yield "| configuration | running | … worked out | RTFx | … worked out | error |"
    yield "|---|---|---|---|---|---|"
    for run in RUNS:
        requests, rtfx = predicted(run)
        error = rtfx / run.rtfx - 1
        missed = "" if abs(error) <= BAR else ", missed"
        running = f"{run.running:g}" if run.running else ""
        yield f"| {run.name} | {running} | {requests} | {run.rtfx:,.4g} | {rtfx:,.4g} | {100 * error:+.0f} %{missed} |"


def steps() -> Iterator[str]:
    """Yield the table of the GPU times that the constants were fitted to."""
    spec, model = GPU_SPECS["NVIDIA H200"], speed.model_sizes(DEFAULT_PARAMS)
    yield "| GPU time, which the constants were fitted to | ms | … worked out | error |"
    yield "|---|---|---|---|"
    for requests, ms in STEPS:
        yield _fitted(
            f"a step that only decodes, {requests}", ms, speed.decoder_s(spec, model.decoder, requests, CONTEXT)
        )
    for requests, positions, ms in WALKS:
        name = f"attention by our kernel, {requests} of {positions} positions"
        yield _fitted(name, ms, speed.own_attention_s(spec, model.decoder, requests, positions))
    yield _fitted("a chunk of 30 s encoded", ENCODING[1], speed.encoding_s(spec, model, ENCODING[0], speed.SHARED))


def _fitted(name: str, ms: float, seconds: float) -> str:
    return f"| {name} | {ms:.2f} | {1000 * seconds:.2f} | {100 * (1000 * seconds / ms - 1):+.0f} % |"


def cards() -> Iterator[str]:
    """Yield the table of all GPUs: long runs with the profile ctx512-batch and chunks of 30 s."""
    yield "| card | stock, running | RTFx | encoder once a chunk, running | RTFx | error taken |"
    yield "|---|---|---|---|---|---|"
    for name, spec in {**GPU_SPECS, **EXTREMES}.items():
        own = name.partition(",")[0]
        stock, once = (
            predicted(Run(name, 0, 30, 10**9, {"prefill_encoder": value}), own, spec) for value in ("false", "true")
        )
        error = f"{100 * spec.error:.0f} %" if name == own else ""
        yield f"| {name} | {stock[0]} | {stock[1]:,.0f} | {once[0]} | {once[1]:,.0f} | {error} |"


if __name__ == "__main__":
    for table in (runs, steps, cards):
        print("\n".join(table()), end="\n\n")
