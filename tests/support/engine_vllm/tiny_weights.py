"""Make tiny random Parakeet models: configurations, weights under transformers' names, and inputs for them.

All numbers come from numpy and a seed, so no weights are committed, and another environment (NeMo) makes the same
model: `nemo_reference.py`. The biases of the last layer are chosen so that the decoder meets each rule of greedy
decoding within a few frames: tokens of duration 0, blanks of duration 0, and frames at the limit of symbols.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Architecture = Literal["tdt", "rnnt", "ctc"]
Array = NDArray[np.float32]

PIECES = ("<unk>", "▁", "▁the", "▁ver", "y", "▁a", "s", "ing", "e", "t", ".", ",", "?", "¿", "▁Hola", "!")
"""The pieces of the vocabulary, in the order of their ids. As in Parakeet v2, none is <pad>."""
BLANK = len(PIECES)
DURATIONS = (0, 1, 2, 3, 4)
HIDDEN, DECODER_HIDDEN, NUM_LAYERS, NUM_HEADS, MELS, CHANNELS, KERNEL = 32, 24, 2, 4, 80, 8, 9
SEEDS: dict[Architecture, int] = {"tdt": 6, "rnnt": 1, "ctc": 1}
"""The seeds with which the recorded table has all cases, and no two best scores of a step are nearly equal."""
CLIP_FRAMES = (37, 1, 24, 5, 60, 12, 2, 33, 48, 19, 3, 41)
"""Lengths of the clips of `encoder_outputs`, in frames."""
AUDIO_SAMPLES = (48_000, 16_000, 31_999, 20_321, 8_161, 1_600, 800)
"""Lengths of the clips of `audio`, in samples. The shortest one has one frame."""

_GAINS = {
    "subsampling.linear": 6.0,
    "subsampling.layers": 2.0,
    "lstm.weight": 3.0,
    "embedding": 3.0,
    "joint.head.weight": 6.0,
    "ctc_head.weight": 3.0,
}
_BLANK_BIAS = {"tdt": 4.0, "rnnt": 18.0, "ctc": 1.0}
_DURATION_BIASES = (1.0, 1.0, 0.5, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A random model: values of transformers' configuration, and weights under transformers' names."""

    architecture: Architecture
    config: dict[str, Any]
    weights: dict[str, NDArray[Any]]


def tiny_model(
    architecture: Architecture, seed: int | None = None, has_biases: bool = False, scale_input: bool = False
) -> TinyModel:
    """Return the model of a seed: by default, that of the recorded table."""
    encoder = {
        "model_type": "parakeet_encoder",
        "hidden_size": HIDDEN,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "intermediate_size": 4 * HIDDEN,
        "hidden_act": "silu",
        "attention_bias": has_biases,
        "convolution_bias": has_biases,
        "conv_kernel_size": KERNEL,
        "subsampling_factor": 8,
        "subsampling_conv_channels": CHANNELS,
        "subsampling_conv_kernel_size": 3,
        "subsampling_conv_stride": 2,
        "num_mel_bins": MELS,
        "max_position_embeddings": 5000,
        "scale_input": scale_input,
    }
    config: dict[str, Any] = {
        "model_type": f"parakeet_{architecture}",
        "vocab_size": BLANK + 1,
        "pad_token_id": BLANK,
        "encoder_config": encoder,
    }
    if architecture != "ctc":
        config |= {
            "blank_token_id": BLANK,
            "decoder_hidden_size": DECODER_HIDDEN,
            "num_decoder_layers": 2,
            "hidden_act": "relu",
            "max_symbols_per_step": 10,
        }
    if architecture == "tdt":
        config["durations"] = list(DURATIONS)
    seed = SEEDS[architecture] if seed is None else seed
    shapes = _encoder_shapes(has_biases) | _head_shapes(architecture)
    weights = {name: _weight(name, shape, seed) for name, shape in shapes.items()}
    _set_biases(architecture, weights)
    return TinyModel(architecture, config, weights)


def encoder_outputs(seed: int = 0, lengths: Sequence[int] = CLIP_FRAMES) -> list[Array]:
    """Return random outputs of an encoder, one (frames, HIDDEN) for each length."""
    return [1.5 * _uniform((length, HIDDEN), seed, f"clip {place}") for place, length in enumerate(lengths)]


def audio(seed: int = 0, lengths: Sequence[int] = AUDIO_SAMPLES) -> list[Array]:
    """Return sounds at 16 kHz: three tones whose pitch and level change every 0.1 s, and noise."""
    clips = []
    for place, length in enumerate(lengths):
        steps = -(-length // 1_600)
        tones = 2_000 + 1_000 * _uniform((3, steps), seed, f"pitch {place}").astype(np.float64)
        levels = _uniform((3, steps), seed, f"level {place}").astype(np.float64)
        phase = np.cumsum(np.repeat(tones, 1_600, axis=1)[:, :length], axis=1) * (2 * np.pi / 16_000)
        sound = (np.repeat(levels, 1_600, axis=1)[:, :length] * np.sin(phase)).sum(axis=0)
        clips.append((0.1 * sound).astype(np.float32) + 0.01 * _uniform((length,), seed, f"noise {place}"))
    return clips


def _uniform(shape: tuple[int, ...], seed: int, name: str) -> Array:
    """Return uniform random numbers of variance 1, which depend on the seed and the name only."""
    random = np.random.default_rng([seed, zlib.crc32(name.encode())])
    values: Array = ((2 * random.random(shape) - 1) * np.sqrt(3)).astype(np.float32)
    return values


def _weight(name: str, shape: tuple[int, ...], seed: int) -> NDArray[Any]:
    """Return a weight: of variance gain² / inputs, near 1 for the weights of norms, small for biases."""
    if name.endswith("num_batches_tracked"):
        return np.array(1_000, np.int64)
    values = _uniform(shape, seed, name)
    if ".norm" in name or ".conv.norm." in name:
        centre = 2.0 if name.endswith(f"{NUM_LAYERS - 1}.norm_out.weight") else 1.0
        return np.float32(centre * name.endswith(("weight", "running_var"))) + np.float32(0.1) * values
    if len(shape) == 1 or "self_attn.bias_" in name:
        return np.float32(0.1) * values
    gain = next((gain for part, gain in _GAINS.items() if part in name), 1.0)
    inputs = 1 if "embedding" in name else int(np.prod(shape[1:]))
    return np.float32(gain / np.sqrt(inputs)) * values


def _set_biases(architecture: Architecture, weights: dict[str, NDArray[Any]]) -> None:
    """Set the biases of the last layer, and the embedding of the blank to zeros, as NeMo does."""
    head = weights["ctc_head.bias" if architecture == "ctc" else "joint.head.bias"]
    head[BLANK] = _BLANK_BIAS[architecture]
    if architecture == "tdt":
        head[BLANK + 1 :] = _DURATION_BIASES
    if architecture != "ctc":
        weights["decoder.embedding.weight"][BLANK] = 0


def _encoder_shapes(has_biases: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the encoder's weights."""
    shapes: dict[str, tuple[int, ...]] = {
        "encoder.subsampling.layers.0.weight": (CHANNELS, 1, 3, 3),
        "encoder.subsampling.layers.0.bias": (CHANNELS,),
    }
    for place in (2, 5):
        shapes[f"encoder.subsampling.layers.{place}.weight"] = (CHANNELS, 1, 3, 3)
        shapes[f"encoder.subsampling.layers.{place}.bias"] = (CHANNELS,)
        shapes[f"encoder.subsampling.layers.{place + 1}.weight"] = (CHANNELS, CHANNELS, 1, 1)
        shapes[f"encoder.subsampling.layers.{place + 1}.bias"] = (CHANNELS,)
    shapes |= _linear("encoder.subsampling.linear", HIDDEN, CHANNELS * MELS // 8)
    for layer in range(NUM_LAYERS):
        for name, shape in _layer_shapes(has_biases).items():
            shapes[f"encoder.layers.{layer}.{name}"] = shape
    return shapes


def _layer_shapes(has_biases: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights of one conformer layer."""
    shapes: dict[str, tuple[int, ...]] = {}
    for place in (1, 2):
        shapes |= _linear(f"feed_forward{place}.linear1", 4 * HIDDEN, HIDDEN, has_bias=has_biases)
        shapes |= _linear(f"feed_forward{place}.linear2", HIDDEN, 4 * HIDDEN, has_bias=has_biases)
    for name in "qkvo":
        shapes |= _linear(f"self_attn.{name}_proj", HIDDEN, HIDDEN, has_bias=has_biases)
    shapes |= _linear("self_attn.relative_k_proj", HIDDEN, HIDDEN, has_bias=False)
    shapes |= {f"self_attn.bias_{name}": (NUM_HEADS, HIDDEN // NUM_HEADS) for name in "uv"}
    shapes |= _linear("conv.pointwise_conv1", 2 * HIDDEN, HIDDEN, 1, has_bias=has_biases)
    shapes |= _linear("conv.depthwise_conv", HIDDEN, 1, KERNEL, has_bias=has_biases)
    shapes |= _linear("conv.pointwise_conv2", HIDDEN, HIDDEN, 1, has_bias=has_biases)
    norms = ("feed_forward1", "self_att", "conv", "feed_forward2", "out")
    for name in ("conv.norm", *(f"norm_{norm}" for norm in norms)):
        shapes |= _linear(name, HIDDEN)
    return shapes | {
        "conv.norm.running_mean": (HIDDEN,),
        "conv.norm.running_var": (HIDDEN,),
        "conv.norm.num_batches_tracked": (),
    }


def _head_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all weights after the encoder."""
    if architecture == "ctc":
        return _linear("ctc_head", BLANK + 1, HIDDEN, 1)
    size = DECODER_HIDDEN
    shapes = _linear("encoder_projector", size, HIDDEN) | _linear("decoder.decoder_projector", size, size)
    shapes["decoder.embedding.weight"] = (BLANK + 1, size)
    for layer in range(2):
        for part in ("ih", "hh"):
            shapes[f"decoder.lstm.weight_{part}_l{layer}"] = (4 * size, size)
            shapes[f"decoder.lstm.bias_{part}_l{layer}"] = (4 * size,)
    num_durations = len(DURATIONS) if architecture == "tdt" else 0
    return shapes | _linear("joint.head", BLANK + 1 + num_durations, size)


def _linear(name: str, *shape: int, has_bias: bool = True) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a layer's weight and bias."""
    return {f"{name}.weight": shape} | ({f"{name}.bias": shape[:1]} if has_bias else {})
