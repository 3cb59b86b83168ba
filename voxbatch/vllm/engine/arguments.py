"""Make the keyword arguments of vLLM's `LLM` from the settings and the model, according to the memory of the GPU."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from voxbatch.engines import gpu
from voxbatch.engines.feed import Feed
from voxbatch.vllm import plugin as vllm_plugin
from voxbatch.vllm.engine import compat, fp8, prefill
from voxbatch.vllm.engine.families import Family
from voxbatch.vllm.engine.families.choice import family_of
from voxbatch.vllm.engine.model import Model
from voxbatch.vllm.engine.planned_memory import planned_bytes, room
from voxbatch.vllm.engine.settings import AUTO, VllmSettings

AMPERE = (8, 0)
"""Compute capability of the oldest GPUs that run the plugin's attention."""
CPU_REQUESTS = 16
"""Number of requests at a time on a CPU. Far fewer keep its cores busy. VLLM_CPU_KVCACHE_SPACE sets the size of the K/V
cache."""
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
UNCOMPILED = {"mode": "NONE"}
"""Part of compilation_config without compiled code."""
DECODE_GRAPHS = "FULL_DECODE_ONLY"
"""vLLM's mode of CUDA graphs that needs no compiled code."""


def concurrency(model: Model, settings: VllmSettings, prefilled: bool, request_bytes: int = 0) -> int:
    """Return the number of requests at a time: the setting, or else the number that the memory admits.

    Args:
        prefilled: the encoder runs once per chunk (see prefill.decide).
        request_bytes: the K/V cache of a typical request, for a model other than Voxtral. 0 means that it is unknown.

    Raises:
        ConfigError: a visible GPU does not have the memory that the settings require; see planned_bytes.
    """
    planned = room(settings)
    if settings.max_num_seqs:
        return settings.max_num_seqs
    if planned is None:
        return CPU_REQUESTS
    family = family_of(model.family, settings.task)
    return family.requests(model, settings, prefilled, planned, request_bytes)


def memory_share(model: Model, settings: VllmSettings, prefilled: bool, gpu_info: gpu.GpuInfo, requests: int) -> float:
    """Return vLLM's gpu_memory_utilization: the share of the memory visible to CUDA with which vLLM plans.

    Args:
        gpu_info: one of the GPUs that the engine uses.
    """
    planned = planned_bytes(settings, gpu_info)
    family = family_of(model.family, settings.task)
    planned -= family.unplanned_bytes(model, settings, prefilled, planned, requests)
    return planned / (gpu_info.total_bytes - gpu_info.reserved_bytes)


def llm_arguments(
    model: Model, settings: VllmSettings, prefilled: bool, folder: Path, requests: int, small_job: int = 0
) -> dict[str, Any]:
    """Return the keyword arguments of vLLM's `LLM`.

    Args:
        small_job: number of chunks of a small job, whose few steps do not pay for compiled code (see small_job_chunks).
            0 for any other job.
    """
    distribution, _ = compat.installed()
    on_cpu, family = distribution == compat.CPU_BUILD, family_of(model.family, settings.task)
    is_compiled = family.compiles_reproducibly or not settings.reproducible
    mode = graph_mode(settings, is_compiled)
    if small_job and mode == "PIECEWISE" and not on_cpu:  # these graphs lie between pieces of compiled code
        settings = replace(settings, enforce_eager=True)
    arguments = {
        "model": str(folder),
        **family.arguments(settings, model.is_translated),
        "max_num_seqs": requests,
        "scheduler_cls": settings.scheduler_cls or family.scheduler(settings, on_cpu),
    }
    if step := family.step_tokens(requests, prefilled, on_cpu):
        arguments.setdefault("max_num_batched_tokens", step)
    if settings.tensor_parallel_size == 1 and (executor := compat.executor(on_cpu, os.environ)):
        arguments["distributed_executor_backend"] = executor
    if on_cpu:
        return arguments if is_compiled else {**arguments, "compilation_config": UNCOMPILED}
    gpu_info = gpu.visible_gpus()[0]
    arguments["gpu_memory_utilization"] = round(memory_share(model, settings, prefilled, gpu_info, requests), 4)
    if backend := attention_backend(prefilled and family.has_plugin_attention, settings, gpu_info):
        arguments.setdefault("attention_backend", backend)
    compilation, sizes = {"cudagraph_mode": mode, **compiler_passes(settings)}, capture_sizes(requests)
    compilation |= {} if is_compiled else UNCOMPILED
    if small_job and mode != "PIECEWISE":
        compilation |= {**UNCOMPILED, "cudagraph_mode": DECODE_GRAPHS}
        rows = min(requests, 2 * small_job)  # a suspect chunk is decoded again in two halves
        sizes, planned = few_capture_sizes(rows), room(settings)
        assert planned is not None
        arguments["kv_cache_memory_bytes"] = family.small_kv_bytes(model, settings, prefilled, planned, rows)
    if mode != "NONE":
        largest_step = settings.max_num_batched_tokens or math.inf
        compilation["cudagraph_capture_sizes"] = [size for size in sizes if size <= largest_step]
    if not settings.fp8_parts and not settings.quantization:
        arguments["kernel_config"] = {"enable_flashinfer_autotune": False}  # nothing here runs FlashInfer's kernels
    return {**arguments, "compilation_config": compilation}


def attention_backend(with_plugin: bool, settings: VllmSettings, gpu_info: gpu.GpuInfo) -> str:
    """Return the attention backend if the settings give none, or an empty string if vLLM chooses.

    Args:
        with_plugin: the plugin has attention for the model (vllm.plugin.decode_attention), for GPUs that FlashAttention
            supports.
    """
    if with_plugin and gpu_info.capability >= AMPERE and prefill.brings_attention(settings):
        return vllm_plugin.ATTENTION_BACKEND
    return fp8.attention_backend(settings.fp8_parts, gpu_info)


def graph_mode(settings: VllmSettings, is_compiled: bool = True) -> str:
    """Return vLLM's mode of CUDA graphs; by default the fullest one that vLLM can capture for each family. Without
    compiled code these are the graphs of steps that only decode, which have the bits of such steps without graphs."""
    if settings.cudagraph_mode != AUTO:
        return settings.cudagraph_mode
    return "FULL_AND_PIECEWISE" if is_compiled else DECODE_GRAPHS


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


def small_job_chunks(family: type[Family] | Family, settings: VllmSettings, feed: Feed) -> int:
    """Return the number of chunks of a small job, for which compiled code does not pay, or 0 if it pays.

    All chunks of a complete feed run at a time, in some 450 steps. Almost all of these steps only decode. Each is one
    CUDA graph, so the host launches no kernels one by one. By arithmetic, only the kernels that the compiler would fuse
    cost time: 2 ms of a step at most on an H200, 1 s for the job. The start takes 15 s less there, and 40 s if the
    caches are empty, where the code must be compiled. The text does not change, except for near ties in bfloat16: so a
    reproducible run has no small jobs.

    Args:
        feed: the feed at the time when vLLM is started. A small job is decoded by then.
    """
    if not family.has_small_jobs or not feed.is_complete or settings.cudagraph_mode != "auto" or settings.reproducible:
        return 0
    return max(1, feed.num_waiting() + feed.held_by_engine()[0])  # the engine that died held some


def compiler_passes(settings: VllmSettings) -> dict[str, Any]:
    """Return the part of compilation_config that sets vLLM's compiler passes."""
    return UNFUSED if settings.tensor_parallel_size > 1 else {}
