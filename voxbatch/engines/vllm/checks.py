"""What contradicts the model is refused here, before a GPU is touched, whatever source the setting came from.

Settings that make no sense with any model are refused in `settings`; a context that is too short for one request, in
the families.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from voxbatch import vllm_plugin
from voxbatch.engines.vllm import compat, fp8, gpu
from voxbatch.engines.vllm.families import Family
from voxbatch.engines.vllm.model import REALTIME, Model
from voxbatch.engines.vllm.settings import Settings
from voxbatch.errors import ConfigError, EngineError

MISTRAL_FORMATS = {
    "tokenizer_mode": ("mistral",), "config_format": ("mistral",), "load_format": ("mistral", "dummy"),
}  # fmt: skip
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
"""Those that say what the files are. vLLM is told others (see arguments.stated)."""


def check(model: Model, settings: Settings) -> None:
    """Raises ConfigError where the settings contradict the model, or the GPUs that are visible."""
    _check_formats(model, settings)
    _check_delay(model, settings)
    _check_length(model, settings)
    _check_heads(model, settings)
    _check_cards(settings)
    _check_attention(model, settings)
    fp8.check(model, settings, gpu.cards())


def check_step(model: Model, family: Family, settings: Settings, requests: int) -> None:
    """Raises ConfigError where one step of the engine has no room for a prompt, or for all requests at a time."""
    room = settings.max_num_batched_tokens
    least = max(family.prompt_tokens, requests)
    if 0 < room < least:
        raise ConfigError(
            f"engine option max_num_batched_tokens={room}: a prompt of {model.name} takes {family.prompt_tokens} "
            f"positions, and {requests} requests at a time one each; give at least {least}, or 0 for vLLM's own"
        )


def check_installed(model: Model, settings: Settings) -> None:
    """Raises EngineError where vLLM would not find the plugin that translates the model's weights."""
    if model.is_translated and settings.load_format != "dummy" and not vllm_plugin.is_installed():
        raise EngineError(
            f"{model.name} is in Hugging Face's format, which voxbatch's plugin translates for vLLM. vLLM finds the "
            "plugins of installed packages only, and voxbatch is not installed, or VLLM_PLUGINS does not name it: pip "
            "install voxbatch, or add voxbatch to VLLM_PLUGINS"
        )


def check_graphs(model: Model, settings: Settings, version: str, prefilled: bool) -> None:
    """Raises ConfigError where this vLLM cannot capture the CUDA graphs that were asked for.

    Args:
        prefilled: see prefill.Decision.
    """
    fullest = compat.cudagraph_mode(model.family, version, prefilled)
    if "FULL" in settings.cudagraph_mode and "FULL" not in fullest:
        raise ConfigError(
            f"engine option cudagraph_mode={settings.cudagraph_mode}: vLLM {version} cannot capture {model.name} "
            f"whole, for its forward holds the encoder; give {fullest} or NONE, or leave the option out"
        )


def _check_formats(model: Model, settings: Settings) -> None:
    allowed = HF_VOXTRAL_FORMATS if model.is_translated else MISTRAL_FORMATS if model.is_mistral else HF_FORMATS
    owner = "Mistral's" if model.is_mistral else "Hugging Face's"
    for name, values in allowed.items():
        given = getattr(settings, name)
        if given and given not in values:
            raise ConfigError(
                f"engine option {name}={given}: {model.name} is in {owner} format, which takes "
                f"{_either(values)}; leave the option out"
            )


def _either(values: tuple[Any, ...]) -> str:
    *first, last = map(str, values)
    return f"{', '.join(first)} or {last}" if first else last


def _check_delay(model: Model, settings: Settings) -> None:
    if settings.delay_ms and model.family != REALTIME:
        raise ConfigError(
            f"engine option delay_ms={settings.delay_ms}: {model.name} has no delay, only Voxtral Realtime has one; "
            "leave the option out"
        )


def _check_length(model: Model, settings: Settings) -> None:
    longest = longest_context(model.shape())
    if longest is not None and settings.max_model_len > longest:
        raise ConfigError(
            f"engine option max_model_len={settings.max_model_len}: {model.name} has {longest} positions; give at most "
            "so many"
        )


def longest_context(shape: dict[str, Any]) -> int | None:
    """Positions that the text decoder was made for, as far as the model says.

    Args:
        shape: see Model.shape.
    """
    names = ("model_max_length", "max_position_embeddings", "max_target_positions")
    return min((int(shape[name]) for name in names if shape.get(name)), default=None)


def _check_heads(model: Model, settings: Settings) -> None:
    size, shape = settings.tensor_parallel_size, model.shape()
    if not divides(shape, size):
        sizes = tuple(each for each in range(1, size) if divides(shape, each))
        heads = ", ".join(f"{count} {of}" for of, count in _heads(shape))
        raise ConfigError(
            f"engine option tensor_parallel_size={size}: {model.name} has {heads}, which so many GPUs cannot share "
            f"evenly; give {_either(sizes)}"
        )


def divides(shape: dict[str, Any], size: int) -> bool:
    """Whether `size` GPUs can share the model's heads: equal numbers each, and of key-value heads at least one, which
    several GPUs may hold alike (vLLM, model_executor/models/llama.py).

    Args:
        shape: see Model.shape.
    """
    kv_heads = shape.get("n_kv_heads") or size
    return all(count % size == 0 for _, count in _heads(shape)) and not max(kv_heads, size) % min(kv_heads, size)


def _heads(shape: dict[str, Any]) -> Iterator[tuple[str, int]]:
    encoder = ((shape.get("multimodal") or {}).get("whisper_model_args") or {}).get("encoder_args") or {}
    for of, where, name in (
        ("attention heads", shape, "n_heads"),
        ("in the audio encoder", encoder, "n_heads"),
        ("attention heads", shape, "decoder_attention_heads"),
        ("in the audio encoder", shape, "encoder_attention_heads"),
    ):
        if where.get(name):
            yield of, int(where[name])


def _check_cards(settings: Settings) -> None:
    visible = [card.device for card in gpu.cards()]
    if visible and len(visible) < settings.tensor_parallel_size:
        raise ConfigError(
            f"engine option tensor_parallel_size={settings.tensor_parallel_size}: the visible GPUs are "
            f"{', '.join(visible)}; give at most {len(visible)}, or more in devices and CUDA_VISIBLE_DEVICES"
        )


def _check_attention(model: Model, settings: Settings) -> None:
    """vLLM builds Voxtral Realtime's encoder on three backends (model_executor/models/whisper_causal.py), one of them
    AMD's. Any other name is vLLM's to refuse."""
    if model.family == REALTIME and settings.attention_backend.upper() == "FLASHINFER":
        raise ConfigError(
            f"engine option attention_backend=FLASHINFER: vLLM cannot build the encoder of {model.name} on it; give "
            "FLASH_ATTN or TRITON_ATTN, or leave the option out"
        )
