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

from voxbatch.engines.vllm import gpu, prefill
from voxbatch.engines.vllm.model import REALTIME, WHISPER, Model
from voxbatch.engines.vllm.settings import DECODER, ENCODER, KV, VllmSettings
from voxbatch.errors import ConfigError

METHOD = "fp8_per_channel"
NAMES = {DECODER: "re:.*language_model", ENCODER: "re:.*whisper_encoder"}
"""Patterns for the modules of the parts in vLLM's Voxtral models. vLLM's lists of modules that are not quantised take
such patterns."""
HAS_FP8, HOPPER = (8, 9), 9
"""The lowest compute capability that computes in 8 bits, and the major version of Hopper's."""
FLASH, TRITON = "FLASH_ATTN", "TRITON_ATTN"


def arguments(parts: frozenset[str]) -> dict[str, Any]:
    """Return the arguments of vLLM's `LLM` for the parts that compute in 8 bits."""
    found: dict[str, Any] = {"kv_cache_dtype": "fp8"} if KV in parts else {}
    if quantised := parts & {*NAMES}:
        found["quantization"] = METHOD
        if left := [name for part, name in NAMES.items() if part not in quantised]:
            found["quantization_config"] = {"ignore": left}
    return found


def attention_backend(parts: frozenset[str], card: gpu.GpuInfo) -> str:
    """Return the attention backend that the parts need on a GPU, or an empty string if vLLM chooses the right one.

    FlashAttention reads K/V in 8 bits on Hopper only. On other GPUs vLLM would choose FlashInfer, and the encoder of
    Voxtral Realtime cannot be built on FlashInfer.
    """
    return TRITON if KV in parts and card.capability[0] != HOPPER else ""


def notice(parts: frozenset[str]) -> str:
    """Return the warning for the user that the effect of 8 bits was never measured."""
    return (
        f"fp8={shown(parts)}: what 8 bits do to the words was never measured; before you rely on it, compare the word "
        "error rate of some hours with and without"
    )


def shown(parts: frozenset[str]) -> str:
    """Return the parts as text, in the same order for every order of the option."""
    return ",".join(sorted(parts))


def check(model: Model, settings: VllmSettings, cards: Sequence[gpu.GpuInfo]) -> None:
    """Check that the parts can compute in 8 bits with this model, the other settings and these GPUs.

    Raises:
        ConfigError: they cannot.
    """
    parts = settings.fp8_parts
    if parts and (reason := _of_model(model, parts, settings) or _of_cards(parts, settings, cards)):
        raise ConfigError(f"engine option fp8={settings.fp8}: {reason}")


def _of_model(model: Model, parts: frozenset[str], settings: VllmSettings) -> str:
    if model.family == WHISPER:
        return f"{model.name} is Whisper, and only Voxtral's parts are known by name; leave the option out"
    if settings.dtype == "float32":
        return "with dtype=float32 vLLM has no such kernels; give bfloat16, or leave one of the two out"
    if settings.quantization and parts & {*NAMES}:
        return f"quantization={settings.quantization} is asked for too; give one of the two"
    if KV in parts and model.family == REALTIME and not (plugin := prefill.decide(model.family, settings)).on:
        reason = plugin.reason or f"prefill_encoder={settings.prefill_encoder}"
        return f"kv takes the plugin, or the encoder has a K/V cache too, which nobody tried in 8 bits; {reason}"
    return ""


def _of_cards(parts: frozenset[str], settings: VllmSettings, cards: Sequence[gpu.GpuInfo]) -> str:
    if not cards:
        return "no NVIDIA GPU is visible, and only they compute in 8 bits here; leave the option out"
    card = min(cards, key=lambda each: each.capability)
    if card.capability < HAS_FP8:
        capability = ".".join(map(str, card.capability))
        return (
            f"{card.name} has compute capability {capability}, and 8 bits take 8.9 (L4, L40S) or 9.0 (H100, H200); "
            "leave the option out"
        )
    if KV in parts and settings.attention_backend.upper() == FLASH and card.capability[0] != HOPPER:
        return f"{FLASH} reads K/V in 8 bits on H100 and H200 only, and here is {card.name}; give {TRITON} or nothing"
    return ""
