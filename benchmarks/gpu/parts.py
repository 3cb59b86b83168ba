"""List each optimisation of the plugin and of the schedulers: lines of code and of tests, and the gain.

    python benchmarks/gpu/parts.py

The gains on an H200 were measured, and "where" names the place: RESULTS.md, or history/2026-11-22.md. The gains on an
L4 are calculated by voxbatch.engines.vllm.speed, because nobody has measured one. A part whose gain is below 1 % on
both is deleted. The script needs no GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from voxbatch.engines.vllm import default_model, speed
from voxbatch.engines.vllm.gpu_specs import GPU_SPECS
from voxbatch.engines.vllm.realtime_limits import LEFT_PAD

ROOT = Path(__file__).resolve().parents[2]
PLUGIN, TESTS = ROOT / "voxbatch" / "vllm_plugin", ROOT / "tests" / "engine_vllm"
SECONDS, DELAY = 27.5, 6
"""Seconds of a chunk: the mean of 20 to 35 s. Delay in tokens: 480 ms."""
STOCK_REQUESTS, REQUESTS, REQUESTS_BY_LENGTH = 38, 189, 214
"""Requests that an L4's memory admits: with stock vLLM, with the plugin, and with blocks for each one's own length."""
HOST_REQUEST_S = 25e-6
"""Seconds of the host for a request in a step without the fast path and the runner's patches: 12.7 ms for 512."""
LOGIT_BYTES = 8 * 131_072
"""Bytes of a float32 copy of a request's logits, written and read."""


@dataclass(frozen=True, slots=True)
class Part:
    """One optimisation."""

    name: str
    modules: tuple[str, ...]
    """Files of voxbatch/vllm_plugin, without their extension."""
    tests: tuple[str, ...]
    """Files of tests/engine_vllm, without test_ and their extension. A file may belong to several parts."""
    h200: str
    """The measured gain."""
    where: str
    l4: Callable[[], float] | None
    """Function that calculates the ratio of the speeds with and without the part. None: the formulas do not have it."""


def l4_ratio(**changes: object) -> float:
    """Return the speed with the plugin on an L4 relative to the speed with another mode.

    Args:
        changes: fields of speed.RunMode without the part.
    """
    mode = speed.RunMode(REQUESTS, DELAY, prefilled=True, own_attention=True)
    return _rtfx(mode) / _rtfx(replace(mode, **changes))  # type: ignore[arg-type]


def without_step_s(lost_s: float) -> float:
    """Return the ratio of the speeds if a step on an L4 takes `lost_s` seconds more."""
    return (_step_s() + lost_s) / _step_s()


def kernels(of_decoder: bool) -> float:
    """Return the gain of the attention kernel of the decoder or of the encoder on an L4."""
    each = speed.chunk(SECONDS, DELAY)
    if of_decoder:
        flash, own = (speed.decoder_s(L4, MODEL.decoder, REQUESTS, each.context, own) for own in (False, True))
        return without_step_s((flash - own) / speed.BUSY)
    flash, own = (speed.encoding_s(L4, MODEL, each.positions, speed.SHARED, own) for own in (False, True))
    return without_step_s(REQUESTS / each.steps * (flash - own) / speed.BUSY)


def shared(of_decoder: bool) -> float:
    """Return the gain on an L4 of computing the silence once, in the decoder or in the encoder."""
    each = speed.chunk(SECONDS, DELAY)
    prompt = 2 * MODEL.decoder.weights * speed.SHARED / (speed.MATRIX * L4.flops)
    whole, rest = (speed.encoding_s(L4, MODEL, each.positions, known, True) for known in (0, speed.SHARED))
    return without_step_s(REQUESTS / each.steps * (prompt if of_decoder else whole - rest) / speed.BUSY)


def host() -> float:
    """Return the gain on an L4 of less work of the host: none while the GPU's step takes longer."""
    return max(_step_s(), REQUESTS * HOST_REQUEST_S) / _step_s()


def _rtfx(mode: speed.RunMode) -> float:
    return speed.rtfx(L4, MODEL, mode, SECONDS)


def _step_s() -> float:
    mode = speed.RunMode(REQUESTS, DELAY, prefilled=True, own_attention=True)
    return speed.step_s(L4, MODEL, mode, speed.chunk(SECONDS, DELAY), REQUESTS)


L4, MODEL = GPU_SPECS["NVIDIA L4"], speed.model_sizes(default_model.PARAMS)
assert speed.SHARED == LEFT_PAD - 1
HISTORY = "history"
ONE_BY_ONE = "Parts one by one"
PARTS = (
    Part(
        "encoder once per chunk",
        ("model", "encoder", "encoder_attention", "encoder_ops", "packing", "spectrogram", "rotary"),
        ("plugin", "encoding", "reference"), "5.42 with all parts below (L4's memory: 8.1)", "Speed beside stock vLLM",
        lambda: l4_ratio(requests=STOCK_REQUESTS, prefilled=False, own_attention=False),
    ),
    Part(
        "memory for encoded audio, and its rows by one indexed copy",
        ("encoder_output_pool", "patches/gather_mm_embeddings"), ("encoding",),
        "1.41 in 22 GB (998 → 1,412), with the first shortcuts of the scheduler", HISTORY, host,
    ),
    Part(
        "silence encoded once", ("silence", "patches/execute_mm_encoder"), ("silence",),
        "1.06 (1,909 → 2,032)", ONE_BY_ONE, lambda: shared(of_decoder=False),
    ),
    Part(
        "the encoder's layers as one CUDA graph per group", ("encoder_graphs",), ("encoder_graphs",),
        "1.02 in runs of 110 s (2,028 → 2,066), 0.97 in runs of 28 s; 8 bits: the GPU idle 13 % in place of 27 %",
        ONE_BY_ONE, host,
    ),
    Part(
        "attention kernel of the encoder", ("window_kernel",), ("window_kernel",),
        "1.01 (1,998 → 2,021); 0.86 in place of 1.09 of 12.1 ms a chunk (1.02, history)", ONE_BY_ONE,
        lambda: kernels(of_decoder=False),
    ),
    Part(
        "rotation and layout in one kernel", ("rotary_kernel",), ("decode_kernel", "silence"),
        "1.26 (1,565 → 1,969)", ONE_BY_ONE, None,
    ),
    Part(
        "attention kernel of steps that only decode", ("decode_attention", "decode_kernel"), ("decode_kernel",),
        "3.26 in place of 5.11 of 9.6 ms a step of 512 (1.19)", HISTORY, lambda: kernels(of_decoder=True),
    ),
    Part(
        "rounding to 8 bits in the pass before (only with fp8=encoder)", ("quantise_kernel",), ("quantise_kernel",),
        "1.08 (2,222 → 2,409)", ONE_BY_ONE, None,
    ),
    Part(
        "plugin for the instruct models (only with prefill_encoder=true)", ("instruct_model", "layer_norm_kernel"),
        ("instruct_plugin", "layer_norm_kernel"), "1.04 (2,218 → 2,302), 1.06 (2,209 → 2,331, on another card)",
        "Voxtral Mini 3B and Small 24B on H200", None,
    ),
    Part(
        "shared prefix of the decoder", ("scheduler/shared_prefix", "patches/get_computed_blocks"), ("shared_prefix",),
        "1.034 (1,998 → 2,066, 512 requests); its block read in place: 1.018 (1,024)", HISTORY,
        lambda: shared(of_decoder=True),
    ),
    Part(
        "larger encoder cache, also without the plugin",
        ("scheduler/encoder_cache",),
        ("batch_scheduler",),
        "1.02 (498 → 509); in 22 GB 1.16 (257 → 297), stock's model", HISTORY, None,
    ),
    Part(
        "admission in bursts, with reserved K/V blocks",
        ("scheduler/admission", "scheduler/batch_scheduler", "patches/allocate_slots"),
        ("admission", "batch_scheduler"),
        "bursts 1.08 (1,822 → 1,969, Parts one by one); blocks for each request's own length: 0.96 in an L4's memory",
        "Admission by the length of each request",
        lambda: 1 / l4_ratio(requests=REQUESTS_BY_LENGTH),
    ),
    Part(
        "scheduler fast path", ("scheduler/fast_path", "scheduler/fast_path_conditions"), ("fast_path",),
        "CPU time of a step of 512: 21.3 → 4.1 ms; 12.3 → 3.5 ms beside the shortcuts of the day before",
        "The scheduler", host,
    ),
    Part(
        "bookkeeping of all requests at once", ("patches/update_states", "patches/bookkeeping_sync"),
        ("runner_bookkeeping",), "1.018 (1,997 → 2,033, 512 requests); 4 of the host's 12.9 ms a step", HISTORY, host,
    ),
    Part(
        "last tokens by one indexed copy", ("patches/prepare_input_ids",), ("fast_path",),
        "1.02 to 1.06, with a part that was deleted and gained 0.5 %; 0.96 in one pair of runs of 28 s",
        "Two parts of the plugin", host,
    ),
    Part(
        "likeliest token without float32", ("patches/sample",), ("sample",),
        "8.12 → 7.68 ms of GPU time, a step of 512 (1.06)", HISTORY,
        lambda: without_step_s(REQUESTS * LOGIT_BYTES / (speed.STREAM * L4.bytes_per_s) / speed.BUSY),
    ),
)  # fmt: skip
NO_OPTIMISATION = (
    "__init__", "loader", "weights", "memory_usage", "parent_watchdog", "worker_extension", "vllm_names", "vllm_source",
    "token_scores", "score_kernel", "patches/__init__", "patches/sample_scores", "patches/reset_generators",
    "patches/supported_mm_limits", "scheduler/__init__", "scheduler/score_table", "scheduler/question_scheduler",
    "scheduler/serving_scheduler", "preload", "patches/warmup_ll_bf16_router_gemm", "patches/sampler_call",
    "model_state",
)  # fmt: skip
"""Modules of the plugin that make no step faster: loading, the start, checks, confidences, questions, serving, the
engine, and the same parts in vLLM's second model runner."""


def lines(part: Part) -> tuple[int, int]:
    """Return the number of lines of the part's modules and of its tests."""
    code = [PLUGIN / f"{module}.py" for module in part.modules]
    tests = [TESTS / f"test_{test}.py" for test in part.tests]
    return sum(map(_lines, code)), sum(map(_lines, tests))


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def row(part: Part) -> str:
    """Return the part's line of the table."""
    code, tests = lines(part)
    calculated = "not covered" if part.l4 is None else f"{part.l4():.3f}"
    modules = ", ".join(f"`{module}`" for module in part.modules)
    where = f" ({part.where})" if part.where else ""
    return f"| {part.name}: {modules} | {code} | {tests} | {part.h200}{where} | {calculated} |"


def main() -> None:
    """Print the table."""
    print("| part of the plugin | lines | of tests | gain on an H200, measured | on an L4, calculated |")
    print("|---|---|---|---|---|")
    print("\n".join(map(row, PARTS)))


if __name__ == "__main__":
    main()
