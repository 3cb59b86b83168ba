"""The engine option `fp8`, which lets parts of the model compute in 8 bits: arguments for vLLM, checks, and a warning.

The matrices of the decoder and of the encoder are quantised while they load, from weights of 16 bits. There is a scale
for each output channel, and one for each row of the input, which is computed at run time (vLLM's fp8_per_channel). The
embedding, which also gives the logits, stays in 16 bits, and so do the convolutions, the adapter and the norms. The K/V
cache is stored in e4m3. Its scales are 1, because nothing was calibrated; queries are rounded in the same way. No files
are needed besides those of the model.

The option is off by default: without the real weights nobody has measured its effect on the word error rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from voxbatch.engines import gpu
from voxbatch.errors import ConfigError
from voxbatch.vllm.engine import prefill
from voxbatch.vllm.engine.model import REALTIME, VOXTRAL, Model
from voxbatch.vllm.engine.settings import DECODER, ENCODER, KV, VllmSettings

METHOD = "fp8_per_channel"
NAMES = {DECODER: "re:.*language_model", ENCODER: "re:.*whisper_encoder"}
"""Patterns for the modules of the parts in vLLM's Voxtral models. vLLM's lists of modules that are not quantised take
such patterns."""
HAS_FP8, HOPPER = (8, 9), 9
"""The lowest compute capability that computes in 8 bits, and the major version of Hopper's."""
FLASH, TRITON = "FLASH_ATTN", "TRITON_ATTN"


def arguments(parts: frozenset[str]) -> dict[str, Any]:
    """Return the arguments of vLLM's `LLM` for the parts that compute in 8 bits."""
    vllm_arguments: dict[str, Any] = {"kv_cache_dtype": "fp8"} if KV in parts else {}
    if quantised := parts & {*NAMES}:
        vllm_arguments["quantization"] = METHOD
        if unquantised := [name for part, name in NAMES.items() if part not in quantised]:
            vllm_arguments["quantization_config"] = {"ignore": unquantised}
    return vllm_arguments


def attention_backend(parts: frozenset[str], gpu_info: gpu.GpuInfo) -> str:
    """Return the attention backend that the parts need on a GPU, or an empty string if vLLM chooses the right one.

    With the plugin its own attention reads K/V in 8 bits (see prefill.brings_attention), and this function is not
    asked. Without it FlashAttention reads them on Hopper, and vLLM's Triton kernels on other GPUs.
    """
    return TRITON if KV in parts and gpu_info.capability[0] != HOPPER else ""


def warning(parts: frozenset[str]) -> str:
    """Return the warning for the user that the effect of 8 bits was never measured."""
    return (
        f"fp8={parts_as_text(parts)}: the effect of 8 bits on the text was never measured; before you rely on it, "
        "compare the word error rate of some hours with and without"
    )


def parts_as_text(parts: frozenset[str]) -> str:
    """Return the parts as text, in the same order for every order of the option."""
    return ",".join(sorted(parts))


def check(model: Model, settings: VllmSettings, plugin: prefill.Decision, gpus: Sequence[gpu.GpuInfo]) -> None:
    """Check that the parts can compute in 8 bits with this model, the other settings and these GPUs.

    Args:
        plugin: the result of prefill.decide for the model and the settings.

    Raises:
        ConfigError: they cannot.
    """
    parts = settings.fp8_parts
    if parts and (reason := _model_reason(model, settings, plugin) or _gpu_reason(settings, gpus)):
        raise ConfigError(f"engine option fp8={settings.fp8}: {reason}")


def _model_reason(model: Model, settings: VllmSettings, plugin: prefill.Decision) -> str:
    """Return why the model or the other settings do not allow 8 bits, or an empty string."""
    parts = settings.fp8_parts
    if model.family not in VOXTRAL:
        return f"this option knows the parts of Voxtral only, and {model.name} is none; leave the option out"
    if settings.dtype == "float32":
        return "vLLM has no such kernels with dtype=float32; give dtype=bfloat16, or leave one of the two options out"
    if settings.quantization and parts & {*NAMES}:
        return f"quantization={settings.quantization} is given too; give one of the two"
    if parts & {*NAMES} and model.shape().get("quantization"):
        return (
            f"the params.json of {model.name} has `quantization`, so that its weights are quantised already, and vLLM "
            f"loads them so without an option; leave {DECODER} and {ENCODER} out"
        )
    if KV in parts and model.family == REALTIME and not plugin.on:
        reason = plugin.reason or f"prefill_encoder={settings.prefill_encoder}"
        return (
            "kv needs the plugin, because without it the encoder has a K/V cache too, which was never tried in 8 bits; "
            f"the plugin is off: {reason}"
        )
    return ""


def _gpu_reason(settings: VllmSettings, gpus: Sequence[gpu.GpuInfo]) -> str:
    """Return why the GPUs do not allow 8 bits, or an empty string."""
    parts = settings.fp8_parts
    if not gpus:
        return "no NVIDIA GPU is visible, and only GPUs compute in 8 bits here; leave the option out"
    oldest = min(gpus, key=lambda info: info.capability)
    if oldest.capability < HAS_FP8:
        capability = ".".join(map(str, oldest.capability))
        return (
            f"{oldest.name} has compute capability {capability}, and 8 bits need 8.9 (L4, L40S) or 9.0 (H100, H200); "
            "leave the option out"
        )
    if KV in parts and settings.attention_backend.upper() == FLASH and oldest.capability[0] != HOPPER:
        return (
            f"{FLASH} reads a K/V cache in 8 bits on H100 and H200 only, and the GPU is {oldest.name}; give "
            f"attention_backend={TRITON}, or leave attention_backend out"
        )
    return ""
