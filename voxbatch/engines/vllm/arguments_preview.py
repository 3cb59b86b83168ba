"""Preview the arguments of vLLM's `LLM` from the settings alone, without the files of the model, a GPU, or vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from voxbatch import vllm_plugin
from voxbatch.engines.vllm import compat, prefill, realtime_limits
from voxbatch.engines.vllm.arguments import (
    WHISPER_REQUESTS,
    arguments_from_settings,
    compiler_passes,
    scheduler,
)
from voxbatch.engines.vllm.checks import question_model
from voxbatch.engines.vllm.default_model import DEFAULT_DELAY_MS
from voxbatch.engines.vllm.families import instruct, questions, whisper
from voxbatch.engines.vllm.model import DEFAULT_MODEL, FAMILIES_OF, REALTIME, WHISPER
from voxbatch.engines.vllm.settings import ASK, VllmSettings, resolve
from voxbatch.records import SAMPLING_RATE


def preview_arguments(model: str | None, options: Mapping[str, str]) -> dict[str, Any]:
    """Return the keyword arguments of vLLM's `LLM`, and the longest chunk in seconds.

    Values that depend on the GPU, the model or the version of vLLM are described in words.

    Args:
        model: the value of --model; None means the default model of the task.
        options: engine options by name, unparsed; see VllmSettings.

    Raises:
        ConfigError: an option makes no sense.
    """
    asks = options.get("task") == ASK
    name = question_model(model) if asks else model or DEFAULT_MODEL
    family = FAMILIES_OF.get(name)
    if family is None:
        return {"engine_arguments": f"known when {name} is read"}
    settings = resolve(family, options)
    if family == REALTIME:
        delay = realtime_limits.delay_tokens(settings.delay_ms or DEFAULT_DELAY_MS)
        longest_chunk_s = realtime_limits.longest_chunk(settings.max_model_len, delay) / SAMPLING_RATE
    elif asks:
        longest_chunk_s = questions.LONGEST_RECORDING / SAMPLING_RATE
    else:
        longest_chunk_s = float(whisper.WINDOW_S if family == WHISPER else instruct.WINDOW_S)
    requests = WHISPER_REQUESTS if family == WHISPER else "as many as the GPU's memory admits"
    memory = f"{settings.gpu_memory_gb:g} GB" if settings.gpu_memory_gb else f"{settings.gpu_memory_utilization:g}"
    arguments = {
        "model": name,
        **arguments_from_settings(family, family != WHISPER, settings),
        "max_num_seqs": settings.max_num_seqs or requests,
        "scheduler_cls": settings.scheduler_cls or scheduler(family, settings, on_cpu=False),
        "gpu_memory_utilization": f"{memory} of the GPU, less what vLLM does not count",
        "compilation_config": {"cudagraph_mode": _cudagraph_mode(family, settings), **compiler_passes(settings)},
    }
    with_plugin = [version for version in prefill.versions(settings) if _is_prefilled(family, settings, version)]
    if with_plugin and prefill.brings_attention(settings):
        versions = ", ".join(with_plugin)
        arguments["attention_backend"] = (
            f"{vllm_plugin.ATTENTION_BACKEND} with vLLM {versions}, where the GPU supports it"
        )
    return {"engine_arguments": arguments, "longest_chunk_s": longest_chunk_s}


def _is_prefilled(family: str, settings: VllmSettings, version: str) -> bool:
    """Return whether the encoder runs once per chunk on a GPU, with a version of vLLM."""
    return family == REALTIME and prefill.is_taken(settings, version)


def _cudagraph_mode(family: str, settings: VllmSettings) -> str:
    """Return the mode, or the modes by version of vLLM."""
    if settings.cudagraph_mode != "auto":
        return settings.cudagraph_mode
    modes = {
        version: compat.cudagraph_mode(family, version, _is_prefilled(family, settings, version))
        for version in prefill.versions(settings)
    }
    newest = modes[compat.LAST]
    others = [version for version, mode in modes.items() if mode != newest]
    return f"{newest}, or {modes[others[0]]} with vLLM {', '.join(others)}" if others else newest
