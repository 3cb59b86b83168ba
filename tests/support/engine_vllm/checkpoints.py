"""Write tiny random checkpoints of the two Voxtral architectures, in Mistral's own format.

They have the structure, tensor names, prompt and special tokens of the real models, at a few megabytes. Their output
means nothing, but it depends on the audio at every position, so that one wrong frame changes the tokens. `generate.py`
runs them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from huggingface import write_huggingface
from safetensors.numpy import save_file
from shapes import full_size

Weights = dict[str, np.ndarray]

REALTIME, INSTRUCT = "mini-4b-realtime", "mini-3b"
VOCAB_SIZE = 8_192  # the real vocabulary, cut: the first 1000 ids are special, text begins after them
NUM_SPECIAL = 1_000
EOS, TOOL_CALLS, PAD, WORD = 2, 9, 32, 33
# Other sizes than the published ones. vLLM's attention for CPUs supports heads of 32 numbers and more.
DECODER = {
    "dim": 64, "n_layers": 2, "head_dim": 64, "hidden_dim": 128, "n_heads": 2, "n_kv_heads": 1,
    "vocab_size": VOCAB_SIZE,
}  # fmt: skip
ENCODER = {"dim": 64, "n_layers": 2, "head_dim": 64, "hidden_dim": 128, "n_heads": 1, "vocab_size": VOCAB_SIZE}
MELS, DOWNSAMPLE = 128, 4
FOCUS = 1.7  # gain of queries and keys: at 1 attention is near the mean, and order and windows hardly matter
CONDITION_DIM = 32  # width of the norm that depends on the delay; transformers supports no other


def write_realtime(path: Path, delay_ms: int = 480, seed: int = 0, hf: bool = False) -> None:
    """Write a tiny Voxtral Realtime to the new folder `path`. With `hf`, add the same model in transformers' format.

    Greedy output mixes [STREAMING_PAD], [STREAMING_WORD] and text, and never ends by itself. `delay_ms` is a multiple
    of 80. With the same seed, two delays share all weights.
    """
    weights = _realtime_weights(np.random.default_rng(seed))
    _write(path, params(REALTIME), weights)
    write_tekken(path, delay_ms)
    if hf:
        write_huggingface(path, params(REALTIME), weights, delay_tokens=delay_ms // 80)


def quantise_decoder(path: Path) -> None:
    """Round the decoder's matrices of a Voxtral Realtime in the folder `path` to 8 bits, as published checkpoints do.

    Mistral's format with the configuration of compressed-tensors: e4m3, a scale for each output channel, and one for
    each row of the input at run time.
    """
    import torch
    from safetensors.torch import load_file
    from safetensors.torch import save_file as save

    (file,) = path.glob("consolidated*.safetensors")
    tensors = load_file(file)
    for name in [each for each in tensors if re.match(r"layers.*\.(attention|feed_forward)\.w", each)]:
        scale = tensors[name].float().abs().amax(1, keepdim=True) / 448
        tensors[name] = (tensors[name].float() / scale).to(torch.float8_e4m3fn)
        tensors[name.replace(".weight", ".qscale_weight")] = scale
    save(tensors, file)
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False, "strategy": "channel"}
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": {**weights, "dynamic": True, "strategy": "token"},
    }
    params = json.loads((path / "params.json").read_text())
    params["quantization"] = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["re:.*whisper_encoder.*", "re:.*audio_language.*", "re:.*lm_head", "re:.*ada_rms_norm.*"],
    }
    (path / "params.json").write_text(json.dumps(params))


def write_tekken(path: Path, delay_ms: int = 480) -> None:
    """Write a Voxtral Realtime's tekken.json to the folder `path`. The tokenizer is made from this file alone."""
    (path / "tekken.json").write_text(json.dumps(tekken(REALTIME, transcription_delay_ms=delay_ms)))


def write_voxtral(path: Path, seed: int = 0, version: str = "v11", calls: float = 0.1) -> None:
    """Write a tiny Voxtral of the instruct kind (like Voxtral-Mini-3B-2507) to the new folder `path`.

    The model takes windows of 30 s, 375 tokens each. Greedy output is text that ends now and then.

    Args:
        version: version of the tokenizer. Public programs found "v7" in that of the published Mini 3B.
        calls: length of the row of [TOOL_CALLS], in units of a text token's. With 4, every second answer is a call if
            it is allowed to be one.
    """
    weights = _voxtral_weights(np.random.default_rng(seed))
    weights["output.weight"][TOOL_CALLS] *= calls / 0.1
    _write(path, params(INSTRUCT), weights)
    (path / "tekken.json").write_text(json.dumps(tekken(INSTRUCT, version)))


def params(shape: str) -> dict[str, Any]:
    """Return the published params.json of REALTIME or INSTRUCT with small sizes."""
    published: dict[str, Any] = full_size().params(shape)
    whisper = published["multimodal"]["whisper_model_args"]
    heads = {"n_kv_heads": 1} if "n_kv_heads" in whisper["encoder_args"] else {}
    encoder = {**whisper["encoder_args"], **ENCODER, **heads}
    return {**published, **DECODER, "multimodal": {"whisper_model_args": {**whisper, "encoder_args": encoder}}}


def _write(path: Path, params: dict[str, Any], weights: Weights) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "params.json").write_text(json.dumps(params, indent=1))
    save_file(weights, path / "consolidated.safetensors")


def tekken(shape: str, version: str = "v11", **audio: Any) -> dict[str, Any]:
    """Return the tokenizer of a shape of full_size.py with the beginning of its vocabulary, and changes of `audio`."""
    real = full_size().tokenizer(shape)
    sizes = {"default_vocab_size": VOCAB_SIZE, "num_vocab_tokens": VOCAB_SIZE - NUM_SPECIAL}
    config = {**real["config"], **sizes, "default_num_special_tokens": NUM_SPECIAL, "version": version}
    vocabulary = real["vocab"][: VOCAB_SIZE - NUM_SPECIAL]
    return {**real, "config": config, "vocab": vocabulary, "audio": {**real["audio"], **audio}}


# ── weights ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _realtime_weights(rng: np.random.Generator) -> Weights:
    root = "mm_streams_embeddings.embedding_module"
    weights = {
        f"{root}.tok_embeddings.weight": _rows(rng, 0.2, {PAD: 6.5, WORD: 5.7}),
        **_decoder(rng),
        **_conv(rng, f"{root}.whisper_encoder.conv_layers.{{}}.conv"),
        **_projection(rng, root),
        f"{root}.whisper_encoder.transformer.norm.weight": _norm(rng, ENCODER["dim"]),
    }
    for i in range(ENCODER["n_layers"]):
        weights |= _layer(rng, f"{root}.whisper_encoder.transformer.layers.{i}", ENCODER, gated=True, biased=True)
    for i in range(DECODER["n_layers"]):
        weights[f"layers.{i}.ada_rms_norm_t_cond.0.weight"] = _matrix(rng, CONDITION_DIM, DECODER["dim"])
        weights[f"layers.{i}.ada_rms_norm_t_cond.2.weight"] = _matrix(rng, DECODER["dim"], CONDITION_DIM)
    return weights


def _voxtral_weights(rng: np.random.Generator) -> Weights:
    root = "mm_whisper_embeddings"
    weights = {
        f"{root}.tok_embeddings.weight": _rows(rng, 0.3, {}),
        "output.weight": _rows(rng, 0.3, {EOS: 0.0}),
        **_decoder(rng),
        **_conv(rng, f"{root}.whisper_encoder.conv_layers.{{}}"),
        **_projection(rng, root),
        f"{root}.whisper_encoder.transformer.norm.weight": _norm(rng, ENCODER["dim"]),
        f"{root}.whisper_encoder.transformer.norm.bias": _bias(rng, ENCODER["dim"]),
    }
    weights["output.weight"][EOS] *= 1.8  # makes EOS appear now and then
    for i in range(ENCODER["n_layers"]):
        layer = f"{root}.whisper_encoder.transformer.layers.{i}"
        weights |= _layer(rng, layer, ENCODER, gated=False, biased=True)
        for norm in ("attention_norm", "ffn_norm"):
            weights[f"{layer}.{norm}.bias"] = _bias(rng, ENCODER["dim"])
    return weights


def _decoder(rng: np.random.Generator) -> Weights:
    weights = {"norm.weight": _norm(rng, DECODER["dim"])}
    for i in range(DECODER["n_layers"]):
        weights |= _layer(rng, f"layers.{i}", DECODER, gated=True, biased=False)
    return weights


def _layer(rng: np.random.Generator, name: str, size: dict[str, Any], *, gated: bool, biased: bool) -> Weights:
    """Return one transformer layer: attention and a feed-forward network. Whisper's network has no gate (`w3`)."""
    dim, hidden = size["dim"], size["hidden_dim"]
    query = size["n_heads"] * size["head_dim"]
    key = size.get("n_kv_heads", size["n_heads"]) * size["head_dim"]
    weights = {
        f"{name}.attention.wq.weight": _matrix(rng, query, dim, FOCUS),
        f"{name}.attention.wk.weight": _matrix(rng, key, dim, FOCUS),
        f"{name}.attention.wv.weight": _matrix(rng, key, dim),
        f"{name}.attention.wo.weight": _matrix(rng, dim, query),
        f"{name}.attention_norm.weight": _norm(rng, dim),
        f"{name}.ffn_norm.weight": _norm(rng, dim),
        f"{name}.feed_forward.w1.weight": _matrix(rng, hidden, dim),
        f"{name}.feed_forward.w2.weight": _matrix(rng, dim, hidden),
    }
    if gated:
        weights[f"{name}.feed_forward.w3.weight"] = _matrix(rng, hidden, dim)
    if biased:  # the key has no bias, as in Whisper
        biases = {"attention.wq": query, "attention.wv": key, "attention.wo": dim, "feed_forward.w2": dim}
        biases |= {} if gated else {"feed_forward.w1": hidden}
        weights |= {f"{name}.{part}.bias": _bias(rng, length) for part, length in biases.items()}
    return weights


def _conv(rng: np.random.Generator, name: str) -> Weights:
    """Return two convolutions over 3 frames. `name` has a placeholder for the number."""
    first = rng.standard_normal((ENCODER["dim"], MELS, 3)) * 0.3
    second = rng.standard_normal((ENCODER["dim"], ENCODER["dim"], 3)) * 0.2
    weights = {f"{name.format(i)}.weight": _balanced(each) for i, each in enumerate((first, second))}
    return weights | {f"{name.format(i)}.bias": _bias(rng, ENCODER["dim"]) for i in (0, 1)}


def _projection(rng: np.random.Generator, root: str) -> Weights:
    """Return the projection of 4 encoder frames to one embedding, large enough to make the decoder follow the sound.

    Coordinate 0 of the embedding is positive for every sound. So the value that a row of the vocabulary has there
    always counts for that row.
    """
    inner = _matrix(rng, DECODER["dim"], DOWNSAMPLE * ENCODER["dim"], 2.0)
    outer = _balanced(_matrix(rng, DECODER["dim"], DECODER["dim"], 2.0))
    outer[0] = 0.25
    return {
        f"{root}.audio_language_projection.0.weight": inner,
        f"{root}.audio_language_projection.2.weight": outer,
    }


def _balanced(filters: np.ndarray) -> np.ndarray:
    """Return filters ([outputs, …]) that sum to zero, for inputs that are mostly positive (log-mel, GELU).

    Otherwise the part that all sounds share would hide their differences, and the model would repeat itself.
    """
    axes = tuple(range(1, filters.ndim))
    balanced: np.ndarray = filters - filters.mean(axis=axes, keepdims=True)
    return balanced.astype(np.float32)


def _rows(rng: np.random.Generator, scale: float, favoured: dict[int, float]) -> np.ndarray:
    """Return an embedding, [vocabulary, dim], of random rows. The rows of special tokens are small, except the
    `favoured`.

    Text rows are 0 in coordinate 0. The value of a favoured row there (in units of `scale`) sets how often that row
    wins against thousands of text rows. A longer row would win as well, but a tied embedding would then feed its own
    repetition.
    """
    rows: np.ndarray = rng.standard_normal((VOCAB_SIZE, DECODER["dim"]))
    special = np.arange(VOCAB_SIZE) < NUM_SPECIAL
    special[list(favoured)] = False
    rows[special] *= 0.1
    rows[:, 0] = 0
    rows[list(favoured), 0] = list(favoured.values())
    return (rows * scale).astype(np.float32)


def _matrix(rng: np.random.Generator, outputs: int, inputs: int, gain: float = 1.0) -> np.ndarray:
    """Return [outputs, inputs] that keeps the variance of an input, times gain²."""
    matrix: np.ndarray = rng.standard_normal((outputs, inputs)) * gain / np.sqrt(inputs)
    return matrix.astype(np.float32)


def _norm(rng: np.random.Generator, length: int) -> np.ndarray:
    return rng.uniform(0.8, 1.2, length).astype(np.float32)


def _bias(rng: np.random.Generator, length: int) -> np.ndarray:
    return (rng.standard_normal(length) * 0.1).astype(np.float32)
