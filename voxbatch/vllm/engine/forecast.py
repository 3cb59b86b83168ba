"""Forecast what an engine will do, before it is made and without vLLM: its speed, and the arguments of vLLM's `LLM`.

The speed of Voxtral Realtime follows from the settings and the name of a GPU; `speed` has the formulas.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from voxbatch.engines import gpu
from voxbatch.engines.gpu_specs import GPU_SPECS
from voxbatch.engines.previews import ExpectedSpeed
from voxbatch.records import SAMPLING_RATE
from voxbatch.storage.address import is_bucket_address
from voxbatch.storage.columns import Column
from voxbatch.vllm import plugin as vllm_plugin
from voxbatch.vllm.engine import compat, memory, prefill, realtime_limits, speed
from voxbatch.vllm.engine.arguments import compiler_passes, graph_mode
from voxbatch.vllm.engine.families import OTHER_REQUESTS
from voxbatch.vllm.engine.families.choice import family_of, model_for, published_family, resolve
from voxbatch.vllm.engine.families.realtime import Realtime
from voxbatch.vllm.engine.model import DEFAULT_DELAY_MS, DEFAULT_MODEL, DEFAULT_PARAMS, locate
from voxbatch.vllm.engine.planned_memory import planned_bytes
from voxbatch.vllm.engine.settings import TRANSCRIBE, VllmSettings
from voxbatch.vllm.plugin import vllm_version

CHUNK_S = 30.0
"""Seconds of an average chunk of a long recording, which is cut in pauses. With a limit of 35 s the average was 32 s
(benchmarks/RESULTS.md, the whole run)."""
DTYPES = ("auto", "bfloat16", "float16")


def expected_speed(
    model: str | None,
    options: Mapping[str, str],
    durations: Column | None = None,
    gpu_name: str | None = None,
    num_gpus: int = 1,
) -> ExpectedSpeed | None:
    """Return the expected speed; see previews.expected_speed.

    A model in a bucket, or in a folder that is not on this machine, is assumed to be the published one.
    """
    params, settings = _params(model), resolve(Realtime.name, options)
    name = gpu_name
    if name is None:
        vllm, visible = compat.find(), gpu.visible_gpus()
        name = visible[0].name if visible and vllm is not None and vllm[0] == "vllm" else None
    # `speed` knows one GPU for each engine, and numbers of 16 bits.
    is_covered = prefill.is_plain(settings) and not settings.fp8_parts and settings.dtype in DTYPES
    if name is None or name not in GPU_SPECS or params is None or not is_covered:
        return None
    prefilled = prefill.is_expected(settings) if gpu_name else prefill.decide(Realtime.name, settings).on
    spec, longest = GPU_SPECS[name], realtime_limits.longest_chunk(settings.max_model_len, _delay(settings))
    chunks, seconds = _chunks(durations, longest / SAMPLING_RATE)
    mode = run_mode(params, settings, name, prefilled, seconds)
    rtfx = num_gpus * speed.rtfx(spec, speed.model_sizes(params), mode, seconds, max(1.0, chunks / num_gpus))
    gpus = f"{num_gpus} {name}" if num_gpus > 1 else f"an {name}"
    of = f"{gpus} with {'the encoder once a chunk' if prefilled else 'stock vLLM'}"
    return ExpectedSpeed(float(f"{rtfx:.2g}"), spec.error, of)


def _params(model: str | None) -> dict[str, Any] | None:
    """Return the content of params.json of a model.

    Returns:
        None if the model is not Voxtral Realtime, or if it must be fetched to find out.
    """
    if model is None or model == DEFAULT_MODEL:
        return DEFAULT_PARAMS
    if os.path.isdir(model):
        located_model = locate(model, None)
        family = family_of(located_model.family, TRANSCRIBE)
        return located_model.shape() if family.has_speed_forecast else None
    return DEFAULT_PARAMS if is_bucket_address(model) or model.startswith("/") else None


def _chunks(durations: Column | None, longest_s: float) -> tuple[float, float]:
    """Return the number of chunks, and their average length in seconds.

    Args:
        durations: seconds of each recording; None means infinitely many long recordings.
    """
    count = audio_s = 0.0
    for _, block in durations.blocks() if durations is not None else ():
        audio_s += float(block.sum(dtype=np.float64))
        count += float(np.ceil(block / np.float32(longest_s)).sum(dtype=np.float64)) if longest_s > 0 else 0.0
    if not audio_s:
        return math.inf, min(CHUNK_S, max(0.0, longest_s))
    return count or 1.0, audio_s / (count or 1.0)


def run_mode(
    params: dict[str, Any], settings: VllmSettings, name: str, prefilled: bool, seconds: float
) -> speed.RunMode:
    """Return the way in which the engine would run the model on a GPU.

    Args:
        name: the name of the GPU in GPU_SPECS.
        seconds: average length of a chunk.
    """
    return speed.RunMode(
        requests(params, settings, name, prefilled, seconds),
        _delay(settings),
        prefilled,
        eager=settings.enforce_eager or settings.cudagraph_mode == "NONE",
        own_attention=prefilled and prefill.brings_attention(settings),
    )


def requests(params: dict[str, Any], settings: VllmSettings, name: str, prefilled: bool, seconds: float) -> int:
    """Return the number of requests that run at a time on a GPU.

    This is the number in the settings, or a smaller one if the K/V blocks or the encoder cache do not admit so many.
    The arguments are those of `run_mode`.
    """
    total, reserved = int(GPU_SPECS[name].total_bytes), int(GPU_SPECS[name].reserved_bytes)
    planned = planned_bytes(settings, gpu.GpuInfo("0", name, total, total, reserved))
    positions = speed.chunk(seconds, _delay(settings)).positions
    # vLLM's default of max_num_batched_tokens on the GPUs of GPU_SPECS (engine/arg_utils.py)
    default = 16_384 if GPU_SPECS[name].total_bytes > 70 * 2**30 and "A100" not in name else 8_192
    step = settings.max_num_batched_tokens or default
    count = Realtime.footprint(params, settings, prefilled).running(positions, planned - memory.step_bytes(step))
    if not settings.lift_encoder_cache:
        count = min(count, step // positions)
    return max(1, min(count, settings.max_num_seqs or memory.MAX_REQUESTS))


def _delay(settings: VllmSettings) -> int:
    """Return the transcription delay in tokens."""
    return realtime_limits.delay_tokens(settings.delay_ms or DEFAULT_DELAY_MS)


# -- vLLM's arguments --------------------------------------------------------------------------------------------------


def preview_arguments(model: str | None, options: Mapping[str, str]) -> dict[str, Any]:
    """Return the keyword arguments of vLLM's `LLM`, and the longest chunk in seconds of a model that transcribes.

    Values that depend on the GPU or the model are described in words.

    Args:
        model: the value of --model; None means the default model of the task.
        options: engine options by name, unparsed; see VllmSettings.

    Raises:
        ConfigError: an option makes no sense.
    """
    task = options.get("task", TRANSCRIBE)
    name = model_for(task, model) or DEFAULT_MODEL
    if (family := published_family(name, task)) is None:
        return {"engine_arguments": f"known when {name} is read"}
    settings = resolve(family.name, options)
    requests = "as many as the GPU's memory admits" if family.fills_memory else OTHER_REQUESTS
    memory = f"{settings.gpu_memory_gb:g} GB" if settings.gpu_memory_gb else f"{settings.gpu_memory_utilization:g}"
    arguments = {
        "model": name,
        **family.arguments(settings),
        "max_num_seqs": settings.max_num_seqs or requests,
        "scheduler_cls": settings.scheduler_cls or family.scheduler(settings, on_cpu=False),
        "gpu_memory_utilization": f"{memory} of the GPU, less what vLLM does not count",
        "compilation_config": {"cudagraph_mode": graph_mode(settings), **compiler_passes(settings)},
    }
    if family.plugin_by_default and prefill.is_expected(settings) and prefill.brings_attention(settings):
        arguments["attention_backend"] = (
            f"{vllm_plugin.ATTENTION_BACKEND} with vLLM {vllm_version.VERSION}, where the GPU supports it"
        )
    longest_chunk_s = family.longest_chunk_s(settings)
    chunk = {} if longest_chunk_s is None else {"longest_chunk_s": longest_chunk_s}
    return {"engine_arguments": arguments, **chunk}
