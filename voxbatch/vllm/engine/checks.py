"""Refuse settings that contradict the model or the GPUs, before a GPU is used.

All sources of settings are checked alike. `settings` refuses values that make no sense with any model. The families
refuse a context that is too short for one request.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

from voxbatch.engines import gpu
from voxbatch.errors import ConfigError, EngineError
from voxbatch.vllm import plugin as vllm_plugin
from voxbatch.vllm.engine import fp8, prefill
from voxbatch.vllm.engine.families import Family
from voxbatch.vllm.engine.model import DEFAULT_QUESTION_MODEL, FAMILIES_OF, INSTRUCT, REALTIME, SPEECH, Model
from voxbatch.vllm.engine.settings import VllmSettings

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
values (see arguments.arguments_from_settings)."""


def question_model(name: str | None) -> str:
    """Return the name of the model that answers questions, before its files are there.

    Args:
        name: the value of --model; None means the default model.

    Raises:
        ConfigError: the model is known, and cannot answer questions.
    """
    if name is not None:
        require_answers(name, FAMILIES_OF.get(name, INSTRUCT))
    return name or DEFAULT_QUESTION_MODEL


def require_answers(name: str, family: str) -> None:
    """Check that a model can answer questions.

    Raises:
        ConfigError: it cannot.
    """
    if family != INSTRUCT:
        able = " or ".join(model_type for model_type, kind in FAMILIES_OF.items() if kind == INSTRUCT)
        raise ConfigError(
            f"--model {name} transcribes and cannot answer questions; take {able} (--profile mini-3b or small-24b)"
        )


def require_speech(model: Model, speaks: bool) -> None:
    """Check that a model speaks, or that it transcribes.

    Raises:
        ConfigError: it does the other.
    """
    if speaks != (model.family == SPEECH):
        is_for = (
            "transcribes, and cannot speak" if speaks else "speaks, and cannot transcribe: it is for voxbatch speak"
        )
        raise ConfigError(f"--model {model.name} {is_for}; take another one, or leave it out")


def check(model: Model, settings: VllmSettings, plugin: prefill.Decision) -> None:
    """Check the settings against the model and the visible GPUs.

    Args:
        plugin: the result of prefill.decide for the model and the settings.

    Raises:
        ConfigError: a setting contradicts the model or the GPUs.
    """
    _check_formats(model, settings)
    if settings.delay_ms and model.family != REALTIME:
        raise ConfigError(
            f"engine option delay_ms={settings.delay_ms}: {model.name} has no delay, only Voxtral Realtime has one; "
            "leave the option out"
        )
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
    # vLLM can build the encoder on three attention backends (model_executor/models/whisper_causal.py). One of them is
    # for AMD GPUs. vLLM itself refuses unknown names.
    if model.family == REALTIME and settings.attention_backend.upper() == "FLASHINFER":
        raise ConfigError(
            f"engine option attention_backend=FLASHINFER: vLLM cannot build the encoder of {model.name} on it; give "
            "FLASH_ATTN or TRITON_ATTN, or leave the option out"
        )
    if model.family == REALTIME and settings.cudagraph_mode == "FULL" and not plugin.on:
        raise ConfigError(
            f"engine option cudagraph_mode=FULL: vLLM cannot capture full CUDA graphs of {model.name}, because its "
            "forward pass contains the encoder; give FULL_AND_PIECEWISE or NONE, or leave the option out"
        )
    fp8.check(model, settings, plugin, gpus)


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
