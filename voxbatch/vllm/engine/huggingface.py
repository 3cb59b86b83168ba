"""Translate the config.json of Voxtral Realtime, as transformers writes it, into Mistral's params.json.

`memory`, `speed`, `checks` and vLLM itself read the params.json of a Voxtral, so a model in Hugging Face's format gets
a params.json. The names of the tensors are translated while they are loaded (voxbatch.vllm.plugin.weights).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from voxbatch.errors import ConfigError

ARCHITECTURE = "VoxtralRealtimeForConditionalGeneration"
TEXT: dict[str, Any] = {
    "hidden_size": 3072, "num_hidden_layers": 26, "head_dim": 128, "intermediate_size": 9216,
    "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "vocab_size": 131_072,
    "sliding_window": 8192, "max_position_embeddings": 131_072, "rope_theta": 1e6,
}  # fmt: skip
AUDIO: dict[str, Any] = {
    "hidden_size": 1280, "num_hidden_layers": 32, "head_dim": 64, "intermediate_size": 5120, "num_attention_heads": 32,
    "rms_norm_eps": 1e-5, "vocab_size": 131_072, "sliding_window": 750, "num_mel_bins": 128, "rope_theta": 1e4,
}  # fmt: skip
"""The values that transformers takes if text_config and audio_config in config.json give none."""
FIXED = {"rope_theta": 1e6, "rms_norm_eps": 1e-5}
"""The only values that vLLM's encoder computes with (model_executor/models/whisper_causal.py)."""
MEL = {"sampling_rate": 16_000, "frame_rate": 12.5, "hop_length": 160, "window_size": 400, "global_log_mel_max": 1.5}
"""Settings of the mel spectrogram: the defaults of transformers' VoxtralRealtimeFeatureExtractor."""
CONDITION_DIM = 32
"""The inner width of the norm that is conditioned on the delay. The model in transformers has no other width."""


def params(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the content of params.json.

    Raises:
        ConfigError: the model is quantised, or vLLM's encoder would compute with other values than the model has.
    """
    if config.get("quantization_config"):
        raise ConfigError(
            f"{path} has a quantization_config, and voxbatch loads Voxtral in Hugging Face's format in bfloat16, "
            "float16 or float32 only: take the model that it was made from"
        )
    text, audio = _part(config, "text_config", TEXT), _part(config, "audio_config", AUDIO)
    for name, value in FIXED.items():
        if audio[name] != value:
            raise ConfigError(f"{path}: audio_config.{name} is {audio[name]}, and vLLM's encoder computes with {value}")
    encoder = {
        **_sizes(audio),
        "n_kv_heads": audio["num_attention_heads"],
        "use_biases": True,
        "causal": True,
        "pos_embed": "rope",
        "ffn_type": "swiglu",
        "norm_type": "rms_norm",
        "max_source_positions": None,
        "audio_encoding_args": {
            **MEL,
            "num_mel_bins": audio["num_mel_bins"],
            "chunk_length_s": None,
            "transcription_format": "streaming",
        },
    }
    downsample = {"downsample_factor": config.get("downsample_factor", 4)}
    return {
        **_sizes(text),
        "n_kv_heads": text["num_key_value_heads"] or text["num_attention_heads"],
        "use_biases": False,
        "causal": True,
        "tied_embeddings": config.get("tie_word_embeddings", True),
        "max_position_embeddings": text["max_position_embeddings"],
        "multimodal": {"whisper_model_args": {"encoder_args": encoder, "downsample_args": downsample}},
        "ada_rms_norm_t_cond": True,
        "ada_rms_norm_t_cond_dim": CONDITION_DIM,
    }


def _part(config: Mapping[str, Any], name: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return text_config or audio_config, completed with the defaults.

    rope_theta is a key of the result itself, as in transformers 4, and not of rope_parameters.
    """
    values = config.get(name) or {}
    rope = values.get("rope_parameters") or {}
    part = {**defaults, **values, **({"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {})}
    return {**part, "head_dim": part["head_dim"] or part["hidden_size"] // part["num_attention_heads"]}


def _sizes(part: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "dim": part["hidden_size"],
        "n_layers": part["num_hidden_layers"],
        "head_dim": part["head_dim"],
        "hidden_dim": part["intermediate_size"],
        "n_heads": part["num_attention_heads"],
        "norm_eps": part["rms_norm_eps"],
        "vocab_size": part["vocab_size"],
        "sliding_window": part["sliding_window"],
        "rope_theta": part["rope_theta"],
    }
