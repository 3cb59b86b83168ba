"""Preview the arguments of vLLM's `LLM` from the settings alone, without the files of the model, a GPU, or vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from voxbatch import vllm_plugin
from voxbatch.engines.vllm import compat, prefill, realtime_limits
from voxbatch.engines.vllm.arguments import WHISPER_REQUESTS, lifts, passes, stated
from voxbatch.engines.vllm.default_model import DEFAULT_DELAY_MS
from voxbatch.engines.vllm.families import instruct, whisper
from voxbatch.engines.vllm.model import DEFAULT_MODEL, FAMILIES_OF, REALTIME, WHISPER
from voxbatch.engines.vllm.settings import VllmSettings, resolve
from voxbatch.records import SAMPLING_RATE


def preview(model: str | None, options: Mapping[str, str]) -> dict[str, Any]:
    """Return the keyword arguments of vLLM's `LLM`, and the longest chunk in seconds.

    Values that depend on the GPU, the model or the version of vLLM are described in words.

    Args:
        model: the value of --model; None means DEFAULT_MODEL.
        options: engine options by name, unparsed; see VllmSettings.

    Raises:
        ConfigError: an option makes no sense.
    """
    name = model or DEFAULT_MODEL
    family = FAMILIES_OF.get(name)
    if family is None:
        return {"engine_arguments": f"known when {name} is read"}
    settings = resolve(family, options)
    return {"engine_arguments": _arguments(name, family, settings), "longest_chunk_s": _longest_s(family, settings)}


def _arguments(name: str, family: str, settings: VllmSettings) -> dict[str, Any]:
    return {
        "model": name,
        **stated(family, family != WHISPER, settings),
        "max_num_seqs": settings.max_num_seqs or _admitted(family),
        "scheduler_cls": settings.scheduler_cls or compat.scheduler(lifts(family, settings), on_cpu=False),
        "gpu_memory_utilization": _share(settings),
        "compilation_config": {"cudagraph_mode": _mode(family, settings), **passes(settings)},
        **_attention(family, settings),
    }


def _admitted(family: str) -> int | str:
    return WHISPER_REQUESTS if family == WHISPER else "as many as the card's memory admits"


def _share(settings: VllmSettings) -> str:
    limit = f"{settings.gpu_memory_gb:g} GB" if settings.gpu_memory_gb else f"{settings.gpu_memory_utilization:g}"
    return f"{limit} of the card, less what vLLM does not count"


def _attention(family: str, settings: VllmSettings) -> dict[str, str]:
    by = [version for version in prefill.versions(settings) if _once(family, settings, version)]
    if not by or not prefill.brings_attention(settings):
        return {}
    return {"attention_backend": f"{vllm_plugin.ATTENTION_BACKEND} with vLLM {', '.join(by)}, where the card can"}


def _once(family: str, settings: VllmSettings, version: str) -> bool:
    """Return whether the encoder runs once per chunk on a GPU, with a version of vLLM."""
    return family == REALTIME and prefill.is_taken(settings, version)


def _mode(family: str, settings: VllmSettings) -> str:
    if settings.cudagraph_mode != "auto":
        return settings.cudagraph_mode
    versions = prefill.versions(settings)
    by = {version: compat.cudagraph_mode(family, version, _once(family, settings, version)) for version in versions}
    newest = by[compat.LAST]
    others = [version for version, mode in by.items() if mode != newest]
    return f"{newest}, or {by[others[0]]} with vLLM {', '.join(others)}" if others else newest


def _longest_s(family: str, settings: VllmSettings) -> float:
    if family == REALTIME:
        delay = realtime_limits.delay_tokens(settings.delay_ms or DEFAULT_DELAY_MS)
        return realtime_limits.longest_chunk(settings.max_model_len, delay) / SAMPLING_RATE
    return float(whisper.WINDOW_S if family == WHISPER else instruct.WINDOW_S)
