"""Refuse settings that contradict the model or the GPUs, before a GPU is used.

All sources of settings are checked alike. `settings` refuses values that make no sense with any model. The families
refuse what contradicts them alone, and a context that is too short for one request.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any

from voxbatch.engines import gpu
from voxbatch.errors import ConfigError, EngineError
from voxbatch.vllm import plugin as vllm_plugin
from voxbatch.vllm.engine import fp8, prefill
from voxbatch.vllm.engine.families import Family
from voxbatch.vllm.engine.families.choice import family_of
from voxbatch.vllm.engine.model import Model
from voxbatch.vllm.engine.settings import DECODER, ENCODER, KV, VllmSettings

MISTRAL_FORMATS = {
    "tokenizer_mode": ("mistral",), "config_format": ("mistral",), "load_format": ("mistral", "dummy"),
}  # fmt: skip
READERS = {
    "fastsafetensors": ("fastsafetensors", "fastsafetensors"),
    "runai_streamer": ("runai_model_streamer", "runai"),
}
"""load_format → the package with which vLLM reads the weights, and vLLM's extra that installs it."""
HF_FORMATS = {
    "tokenizer_mode": ("auto", "hf"),
    "config_format": ("auto", "hf"),
    "load_format": ("auto", "hf", "safetensors", "fastsafetensors", "runai_streamer", "dummy"),
}
HF_VOXTRAL_FORMATS = {
    "tokenizer_mode": ("auto", "mistral"),
    "config_format": ("auto", "hf"),
    "load_format": ("auto", "hf", "safetensors", "dummy"),
}
"""Formats that a user may give for a Voxtral in Hugging Face's format, because they describe its files. vLLM gets other
values (see Voxtral.formats)."""


def check(model: Model, settings: VllmSettings, plugin: prefill.Decision) -> None:
    """Check the settings against the model and the visible GPUs.

    Args:
        plugin: the result of prefill.decide for the model and the settings.

    Raises:
        ConfigError: a setting contradicts the model or the GPUs.
    """
    _check_formats(model, settings)
    longest = longest_context(model.shape())
    if longest is not None and settings.max_model_len > longest:
        raise ConfigError(
            f"engine option max_model_len={settings.max_model_len}: {model.name} has {longest} positions; give at most "
            f"{longest}"
        )
    _check_heads(model, settings)
    gpus = gpu.visible_gpus()
    if gpus and len(gpus) < settings.tensor_parallel_size:
        raise ConfigError(
            f"engine option tensor_parallel_size={settings.tensor_parallel_size}: the visible GPUs are "
            f"{', '.join(info.device for info in gpus)}; give at most {len(gpus)}, or name more GPUs in devices and "
            "CUDA_VISIBLE_DEVICES"
        )
    family_of(model.family, settings.task).check(model, settings, plugin.on)
    check_fp8(model, settings, plugin, gpus)
    if settings.reproducible and (reason := _why_not_reproducible(model, settings, plugin, gpus)):
        raise ConfigError(f"engine option reproducible=true: {reason}")


def _why_not_reproducible(
    model: Model, settings: VllmSettings, plugin: prefill.Decision, gpus: Sequence[gpu.GpuInfo]
) -> str:
    """Return why the results could depend on the other requests, or an empty string.

    Only what was compared is allowed (benchmarks/RESULTS.md).
    """
    family = family_of(model.family, settings.task)
    if not family.reproducible_dtype:
        return (
            f"this holds for transcripts of Voxtral and Whisper, and not for {model.name}: "
            f"{family.why_not_reproducible}"
        )
    if family.plugin_by_default and not plugin.on:
        return "this holds for the encoder once per chunk alone, and the plugin that runs it so is off"
    if plugin.on and not (family.plugin_by_default or family.runs_in_plugin_alone):
        return f"this was not compared for {model.name} with prefill_encoder=true; leave one of the two options out"
    if settings.tensor_parallel_size > 1:
        return f"this was not compared with tensor_parallel_size={settings.tensor_parallel_size}; give 1"
    if gpus and settings.dtype != family.reproducible_dtype:
        return f"this was not compared with dtype={settings.dtype}; give {family.reproducible_dtype}"
    for name in ("fp8", "quantization", "attention_backend"):
        if (value := getattr(settings, name)) and not (name == "fp8" and family.is_reproducible_in_8_bits):
            return f"this was not compared with {name}={value}; leave one of the two options out"
    if model.shape().get("quantization"):
        return f"this was not compared with weights in 8 bits, which {model.name} has"
    return ""


def check_fp8(model: Model, settings: VllmSettings, plugin: prefill.Decision, gpus: Sequence[gpu.GpuInfo]) -> None:
    """Check that the parts can compute in 8 bits with this model, the other settings and these GPUs.

    Args:
        plugin: the result of prefill.decide for the model and the settings.

    Raises:
        ConfigError: they cannot.
    """
    parts = settings.fp8_parts
    if parts and (reason := _why_model_has_no_fp8(model, settings, plugin) or _why_gpus_have_no_fp8(settings, gpus)):
        raise ConfigError(f"engine option fp8={settings.fp8}: {reason}")


def _why_model_has_no_fp8(model: Model, settings: VllmSettings, plugin: prefill.Decision) -> str:
    """Return why the model or the other settings do not allow 8 bits, or an empty string."""
    parts, family = settings.fp8_parts, family_of(model.family, settings.task)
    if not family.takes_fp8:
        return f"this option knows the parts of Voxtral only, and {model.name} is none; leave the option out"
    if settings.dtype == "float32":
        return "vLLM has no such kernels with dtype=float32; give dtype=bfloat16, or leave one of the two options out"
    if settings.quantization and parts & {*fp8.NAMES}:
        return f"quantization={settings.quantization} is given too; give one of the two"
    if parts & {*fp8.NAMES} and model.shape().get("quantization"):
        return (
            f"the params.json of {model.name} has `quantization`, so that its weights are quantised already, and vLLM "
            f"loads them so without an option; leave {DECODER} and {ENCODER} out"
        )
    if KV in parts and family.encoder_has_kv and not plugin.on:
        reason = plugin.reason or f"prefill_encoder={settings.prefill_encoder}"
        return (
            "kv needs the plugin, because without it the encoder has a K/V cache too, which was never tried in 8 bits; "
            f"the plugin is off: {reason}"
        )
    return ""


def _why_gpus_have_no_fp8(settings: VllmSettings, gpus: Sequence[gpu.GpuInfo]) -> str:
    """Return why the GPUs do not allow 8 bits, or an empty string."""
    parts = settings.fp8_parts
    if not gpus:
        return "no NVIDIA GPU is visible, and only GPUs compute in 8 bits here; leave the option out"
    oldest = min(gpus, key=lambda info: info.capability)
    if oldest.capability < fp8.HAS_FP8:
        capability = ".".join(map(str, oldest.capability))
        return (
            f"{oldest.name} has compute capability {capability}, and 8 bits need 8.9 (L4, L40S) or 9.0 (H100, H200); "
            "leave the option out"
        )
    if KV in parts and settings.attention_backend.upper() == fp8.FLASH and oldest.capability[0] != fp8.HOPPER:
        return (
            f"{fp8.FLASH} reads a K/V cache in 8 bits on H100 and H200 only, and the GPU is {oldest.name}; give "
            f"attention_backend={fp8.TRITON}, or leave attention_backend out"
        )
    return ""


def check_step(model: Model, family: Family, settings: VllmSettings, requests: int) -> None:
    """Check that one step of the engine holds a prompt, and one position of each request.

    Raises:
        ConfigError: max_num_batched_tokens is too small.
    """
    step_tokens = settings.max_num_batched_tokens
    needed = max(family.prompt_tokens, requests)
    if 0 < step_tokens < needed:
        raise ConfigError(
            f"engine option max_num_batched_tokens={step_tokens}: a prompt of {model.name} takes "
            f"{family.prompt_tokens} positions, and {requests} requests at a time take one each; give at least "
            f"{needed}, or 0 for vLLM's own value"
        )


def check_installed(model: Model, settings: VllmSettings) -> None:
    """Check that vLLM will find the plugin that translates the weights, if the model needs the plugin, and the package
    that reads them.

    Raises:
        EngineError: vLLM would not find the plugin or the package.
    """
    package, extra = READERS.get(settings.load_format, ("", ""))
    if package and importlib.util.find_spec(package) is None:
        raise EngineError(
            f"engine option load_format={settings.load_format}: vLLM reads the weights with the package {package}, "
            f"which is not installed: pip install 'vllm[{extra}]', or leave the option out"
        )
    if model.is_translated and settings.load_format != "dummy" and not vllm_plugin.is_installed():
        raise EngineError(
            f"{model.name} is in Hugging Face's format, which voxbatch's plugin translates for vLLM. vLLM finds only "
            "the plugins of installed packages, and either voxbatch is not installed as a package or VLLM_PLUGINS does "
            "not name it: pip install voxbatch, or add voxbatch to VLLM_PLUGINS"
        )


def _check_formats(model: Model, settings: VllmSettings) -> None:
    allowed = HF_VOXTRAL_FORMATS if model.is_translated else MISTRAL_FORMATS if model.is_mistral else HF_FORMATS
    owner = "Mistral's" if model.is_mistral else "Hugging Face's"
    for name, values in allowed.items():
        value = getattr(settings, name)
        if value and value not in values:
            raise ConfigError(
                f"engine option {name}={value}: {model.name} is in {owner} format, which allows "
                f"{_either(values)}; leave the option out"
            )


def _either(values: tuple[Any, ...]) -> str:
    *first, last = map(str, values)
    return f"{', '.join(first)} or {last}" if first else last


def longest_context(shape: dict[str, Any]) -> int | None:
    """Return the number of positions for which the text decoder was made, or None if the model does not state it."""
    names = ("model_max_length", "max_position_embeddings", "max_target_positions")
    return min((int(shape[name]) for name in names if shape.get(name)), default=None)


def _check_heads(model: Model, settings: VllmSettings) -> None:
    size, shape = settings.tensor_parallel_size, model.shape()
    if not divides(shape, size):
        sizes = tuple(parallel_size for parallel_size in range(1, size) if divides(shape, parallel_size))
        heads = ", ".join(f"{count} {of}" for of, count in _heads(shape))
        raise ConfigError(
            f"engine option tensor_parallel_size={size}: {model.name} has {heads}, which {size} GPUs cannot share "
            f"evenly; give {_either(sizes)}"
        )


def divides(shape: dict[str, Any], size: int) -> bool:
    """Return whether `size` GPUs can share the heads of the model.

    Each GPU must get the same number of attention heads. The key-value heads must be shared out equally too, or each of
    them must have copies on the same number of GPUs (vLLM, model_executor/models/llama.py).
    """
    kv_heads = shape.get("n_kv_heads") or size
    return all(count % size == 0 for _, count in _heads(shape)) and not max(kv_heads, size) % min(kv_heads, size)


def _heads(shape: dict[str, Any]) -> Iterator[tuple[str, int]]:
    encoder = ((shape.get("multimodal") or {}).get("whisper_model_args") or {}).get("encoder_args") or {}
    for of, part, name in (
        ("attention heads", shape, "n_heads"),
        ("in the audio encoder", encoder, "n_heads"),
        ("attention heads", shape, "decoder_attention_heads"),
        ("in the audio encoder", shape, "encoder_attention_heads"),
    ):
        if part.get(name):
            yield of, int(part[name])
