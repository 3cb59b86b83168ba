"""Write a random Voxtral TTS in the published layout: params.json, tekken.json, consolidated.safetensors and the rows
of its voices. The speeches of the tiny one mean nothing, have 1 to some hundred frames, and end by themselves.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import torch
from safetensors.torch import save_file

WIDTH, LEVELS, ACOUSTIC, SEMANTIC = 64, 21, 36, 128
VOICES = {"ann": 11, "bob": 14}
_SIZES: dict[str, Any] = {"head_dim": 32, "hidden_dim": 96, "n_heads": 4, "n_kv_heads": 2, "use_biases": False}
_CODEC: dict[str, Any] = {
    **_SIZES, "n_kv_heads": 4, "dim": 48, "semantic_dim": 12, "acoustic_dim": ACOUSTIC, "norm_eps": 0.01,
    "qk_norm_eps": 1e-6, "qk_norm": True, "layer_scale": True, "layer_scale_init": 0.01, "causal": True,
    "semantic_codebook_size": SEMANTIC, "acoustic_codebook_size": LEVELS, "attn_sliding_window_size": 16,
    "half_attn_window_upon_downsampling": True, "channels": 1, "sampling_rate": 24_000, "conv_weight_norm": True,
    "pretransform_patch_size": 240, "patch_proj_kernel_size": 7, "decoder_transformer_lengths_str": "2,2,2,2",
    "decoder_convs_kernels_str": "3,4,4,4", "decoder_convs_strides_str": "1,2,2,2", "voice": dict.fromkeys(VOICES, 0),
}  # fmt: skip
PARAMS: dict[str, Any] = {
    **_SIZES, "dim": WIDTH, "n_layers": 2, "vocab_size": checkpoints.VOCAB_SIZE, "norm_eps": 1e-5, "rope_theta": 1e6,
    "tied_embeddings": True, "max_position_embeddings": 128_000, "model_type": "voxtral_tts",
    "multimodal": {
        "bos_token_id": 1,
        "audio_model_args": {
            "semantic_codebook_size": SEMANTIC, "acoustic_codebook_size": LEVELS, "n_acoustic_codebook": ACOUSTIC,
            "audio_encoding_args": {"num_codebooks": 1 + ACOUSTIC, "sampling_rate": 24_000, "frame_rate": 12.5},
            "acoustic_transformer_args": {**_SIZES, "input_dim": WIDTH, "dim": WIDTH, "n_layers": 2},
        },
        "audio_tokenizer_args": _CODEC,
    },
}  # fmt: skip
END_GAIN = 1.3
"""Length of the row of the end, in units of the other codes' rows: some frames in a hundred are the end."""


def write_speaker(path: Path, seed: int = 0, license_: str = "", end_gain: float = END_GAIN) -> None:
    """Write the model to the new folder `path`; with a model card if a licence is given. See write_weights."""
    (path / "voice_embedding").mkdir(parents=True)
    (path / "params.json").write_text(json.dumps(PARAMS, indent=1))
    tekken = checkpoints.tekken("voxtral-4b-tts", "v7", voice_num_audio_tokens=VOICES)
    (path / "tekken.json").write_text(json.dumps(tekken))
    write_weights(path, PARAMS, VOICES, end_gain, torch.Generator().manual_seed(seed))
    if license_:
        (path / "README.md").write_text(f"---\nlicense: {license_}\n---\n")


def write_weights(
    path: Path, params: dict[str, Any], voices: dict[str, int], end_gain: float, random: torch.Generator
) -> None:
    """Write the weights and the rows of the voices: float32, or bfloat16 if a GPU makes the random numbers.

    Args:
        path: the folder, with its folder voice_embedding.
        params: the content of params.json.
        voices: number of rows by the name of the voice.
        end_gain: see END_GAIN. With 0 no speech ends.
        random: the random numbers.
    """
    rows = _Weights(random)
    for name, count in voices.items():
        rows[name] = torch.randn(count, params["dim"], generator=random, device=random.device) * 0.3
        torch.save(rows[name], path / "voice_embedding" / f"{name}.pt")
    save_file(_weights(params, end_gain, random), path / "consolidated.safetensors")


class _Weights(dict[str, torch.Tensor]):
    """Random weights, by their names."""

    def __init__(self, random: torch.Generator) -> None:
        super().__init__()
        self._random = random
        self._dtype = torch.float32 if random.device.type == "cpu" else torch.bfloat16

    def __setitem__(self, name: str, values: torch.Tensor) -> None:
        super().__setitem__(name, values.to(self._dtype).cpu())

    def matrix(self, name: str, *shape: int, gain: float = 1.0) -> None:
        values = torch.randn(shape, generator=self._random, device=self._random.device)
        self[name] = values * gain * float(np.prod(shape[1:])) ** -0.5

    def vector(self, name: str, width: int, middle: float = 1.0) -> None:
        self[name] = middle + 0.1 * torch.randn(width, generator=self._random, device=self._random.device)

    def convolution(self, name: str, *shape: int) -> None:
        self.matrix(f"{name}.conv.parametrizations.weight.original1", *shape)
        length = f"{name}.conv.parametrizations.weight.original0"
        self.vector(length, shape[0])
        self[length] = self[length][:, None, None]

    def layers(self, name: str, count: int, sizes: dict[str, Any]) -> None:
        dim, hidden, read = sizes["dim"], sizes["hidden_dim"], sizes["n_heads"] * sizes["head_dim"]
        shared = sizes["n_kv_heads"] * sizes["head_dim"]
        for layer in (f"{name}.{number}" for number in range(count)):
            for part, rows in (("wq", read), ("wk", shared), ("wv", shared)):
                self.matrix(f"{layer}.attention.{part}.weight", rows, dim, gain=1.5)
            self.matrix(f"{layer}.attention.wo.weight", dim, read)
            for part, shape in (("w1", (hidden, dim)), ("w2", (dim, hidden)), ("w3", (hidden, dim))):
                self.matrix(f"{layer}.feed_forward.{part}.weight", *shape)
            self.vector(f"{layer}.attention_norm.weight", dim)
            self.vector(f"{layer}.ffn_norm.weight", dim)
            if "qk_norm" in sizes:
                self.vector(f"{layer}.attention.q_norm.weight", read)
                self.vector(f"{layer}.attention.k_norm.weight", shared)
                self.vector(f"{layer}.attention_scale", dim, middle=0.3)
                self.vector(f"{layer}.ffn_scale", dim, middle=0.3)


def _weights(params: dict[str, Any], end_gain: float, random: torch.Generator) -> _Weights:
    weights, embeddings, width = _Weights(random), "mm_audio_embeddings", params["dim"]
    audio, sizes = params["multimodal"]["audio_model_args"], params["multimodal"]["audio_tokenizer_args"]
    semantic, acoustic = audio["semantic_codebook_size"], audio["n_acoustic_codebook"]
    weights.matrix(f"{embeddings}.tok_embeddings.weight", params["vocab_size"], width, gain=3)
    rows = _padded(semantic + 2 + acoustic * (audio["acoustic_codebook_size"] + 2))
    weights.matrix(f"{embeddings}.audio_codebook_embeddings.embeddings.weight", rows, width, gain=2)
    weights.layers("layers", params["n_layers"], params)
    weights.vector("norm.weight", width)

    flow, transformer = "acoustic_transformer", audio["acoustic_transformer_args"]
    weights.matrix(f"{flow}.input_projection.weight", transformer["dim"], acoustic)
    weights.matrix(f"{flow}.time_projection.weight", transformer["dim"], transformer["dim"])
    weights.matrix(f"{flow}.llm_projection.weight", transformer["dim"], width)
    weights.matrix(f"{flow}.semantic_codebook_output.weight", _padded(semantic + 2), transformer["dim"])
    weights[f"{flow}.semantic_codebook_output.weight"][1] *= end_gain
    weights.matrix(f"{flow}.acoustic_codebook_output.weight", acoustic, transformer["dim"])
    weights.layers(f"{flow}.layers", transformer["n_layers"], transformer)
    weights.vector(f"{flow}.norm.weight", transformer["dim"])

    codec, dim = "audio_tokenizer", sizes["dim"]
    weights[f"{codec}.quantizer.semantic_codebook.cluster_usage"] = torch.ones(semantic)
    weights.matrix(f"{codec}.quantizer.semantic_codebook.embedding_sum", semantic, sizes["semantic_dim"], gain=3)
    for stage, channels in enumerate((sizes["semantic_dim"] + acoustic, dim, dim, dim)):
        weights.convolution(f"{codec}.decoder_blocks.{2 * stage}", dim, channels, 4 if stage else 3)
        weights.layers(f"{codec}.decoder_blocks.{2 * stage + 1}.layers", 2, sizes)
    weights.convolution(f"{codec}.output_proj", 240, dim, 7)
    return weights


def _padded(rows: int) -> int:
    return -(-rows // 128) * 128
