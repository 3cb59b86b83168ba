"""Voxtral Realtime in transformers: the same weights in transformers' names and layout, and its logits.

transformers shares no code with vLLM's model. So a result that both give is a property of the architecture. Prompts and
padding come from `generate.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from voxbatch.vllm.plugin.weights import mistral_name

FRAMES_PER_TOKEN = 8  # frames of 10 ms
ROOT = "mm_streams_embeddings.embedding_module."


def write_huggingface(path: Path, params: dict[str, Any], weights: dict[str, np.ndarray], delay_tokens: int) -> None:
    """Write config.json and model.safetensors to the folder `path`, from params.json's content and Mistral's tensors,
    by the names of transformers' model. test_huggingface.py compares the logits of both."""
    import torch
    from transformers import VoxtralRealtimeConfig, VoxtralRealtimeForConditionalGeneration

    encoder = params["multimodal"]["whisper_model_args"]["encoder_args"]
    (path / "config.json").write_text(json.dumps(_config(params, encoder, delay_tokens), indent=1))
    with torch.device("meta"):
        model = VoxtralRealtimeForConditionalGeneration(VoxtralRealtimeConfig.from_pretrained(path))
    names = {mistral_name(name): name for name in model.state_dict()}
    renamed = {}
    for name, weight in weights.items():
        size = encoder if name.startswith(ROOT) else params
        renamed[names[name]] = _halves(name, weight, size["head_dim"])
    save_file(renamed, path / "model.safetensors", metadata={"format": "pt"})


def _halves(name: str, weight: np.ndarray, head_dim: int) -> np.ndarray:
    """Return queries and keys with the even coordinates of each head first, then the odd ones. Other tensors stay the
    same.

    Mistral rotates neighbours (0 with 1), transformers the two halves (0 with head_dim / 2), by the same angles.
    """
    if ".attention.wq." not in name and ".attention.wk." not in name:
        return weight
    paired = weight.reshape(-1, head_dim // 2, 2, *weight.shape[1:])
    return np.ascontiguousarray(paired.swapaxes(1, 2).reshape(weight.shape))


def _config(params: dict[str, Any], encoder: dict[str, Any], delay_tokens: int) -> dict[str, Any]:
    audio = {
        **_sizes(encoder),
        "num_mel_bins": encoder["audio_encoding_args"]["num_mel_bins"],
        "max_position_embeddings": 4 * params["max_position_embeddings"],
    }
    text = {
        **_sizes(params),
        "num_key_value_heads": params["n_kv_heads"],
        "max_position_embeddings": params["max_position_embeddings"],
        "tie_word_embeddings": params["tied_embeddings"],
    }
    return {
        "architectures": ["VoxtralRealtimeForConditionalGeneration"],
        "model_type": "voxtral_realtime",
        "dtype": "float32",
        "tie_word_embeddings": params["tied_embeddings"],
        "default_num_delay_tokens": delay_tokens,
        "audio_config": {"model_type": "voxtral_realtime_encoder", **audio},
        "text_config": {"model_type": "voxtral_realtime_text", **text},
    }


def _sizes(size: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that encoder and decoder have in common, by transformers' names."""
    return {
        "vocab_size": size["vocab_size"],
        "hidden_size": size["dim"],
        "intermediate_size": size["hidden_dim"],
        "num_hidden_layers": size["n_layers"],
        "num_attention_heads": size["n_heads"],
        "head_dim": size["head_dim"],
        "rms_norm_eps": size["norm_eps"],
        "sliding_window": size["sliding_window"],
        "rope_parameters": {"rope_type": "default", "rope_theta": size["rope_theta"]},
    }


class Reference:
    """Model in `path` (written with `hf=True`) in float32, which gives its logits at each position."""

    def __init__(self, path: Path) -> None:
        import torch
        from transformers import VoxtralRealtimeFeatureExtractor, VoxtralRealtimeForConditionalGeneration

        torch.set_num_threads(1)  # for products this small, threads cost more than they gain
        self._features = VoxtralRealtimeFeatureExtractor()
        self.model = VoxtralRealtimeForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()

    def logits(self, prompt: list[int], audio: np.ndarray, tokens: list[int], delay_tokens: int) -> np.ndarray:
        """Return the logits before each of `tokens`, given the tokens before it: [tokens, vocabulary], float32.

        `audio` ([samples], 16 kHz) is padded already. The audio after the last token is cut off: the model does not
        look ahead, and transformers wants as many frames as tokens.
        """
        import torch

        ids = [*prompt, *tokens[:-1]]
        features = self._features(audio, sampling_rate=16_000, return_tensors="pt").input_features
        with torch.inference_mode():
            logits = self.model(
                input_ids=torch.tensor([ids]),
                input_features=features[..., : FRAMES_PER_TOKEN * len(ids)],
                num_delay_tokens=delay_tokens,
                use_cache=False,
            ).logits
        found: np.ndarray = logits[0, len(prompt) - 1 :].numpy()
        return found

    def rows(self, audio: np.ndarray) -> np.ndarray:
        """Return the decoder's input for `audio` ([samples], 16 kHz, padded already): [tokens, width], float32."""
        import torch

        features = self._features(audio, sampling_rate=16_000, return_tensors="pt").input_features
        with torch.inference_mode():
            output = self.model.get_audio_features(features).pooler_output
        found: np.ndarray = output.reshape(-1, output.shape[-1]).numpy()
        return found
