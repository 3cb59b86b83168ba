"""How many requests a card's memory admits at a time: an upper bound from the model's shape.

The scheduler counts again, exactly, once vLLM has measured what is left for K/V blocks; this bound only has to be near
it, because buffers and CUDA graphs are made for so many.
"""

from __future__ import annotations

from typing import Any

from voxbatch.vllm_plugin import GROUP_FRAMES

BYTES = 2
"""Of a number in bfloat16 or float16, weights and K/V cache alike."""
MOST = 512
"""CUDA graphs are captured up to this batch; beyond it a GPU step grows as fast as its batch."""
FRAMES_PER_TOKEN = 4
"""Encoder frames that one token of audio pools."""


def admitted(
    params: dict[str, Any], is_realtime: bool, max_model_len: int, budget_bytes: float, prefilled: bool = False
) -> int:
    """Requests at a time, from 1 to MOST.

    Args:
        params: the model's params.json.
        budget_bytes: what the engine may fill of the card, weights included; of all its cards together.
        prefilled: the encoder runs once a chunk.
    """
    left = budget_bytes - weights_bytes(params) - (burst_bytes(params) if prefilled else 0)
    return min(MOST, max(1, int(left // request_bytes(params, is_realtime, max_model_len, prefilled))))


def weights_bytes(params: dict[str, Any]) -> int:
    """Of the decoder, its embedding and the encoder, norms and biases left out: they are a thousandth."""
    encoder = _encoder(params)
    embedding = params["vocab_size"] * params["dim"] * (1 if params.get("tied_embeddings", True) else 2)
    gated = encoder.get("ffn_type") == "swiglu"
    return int(BYTES * (embedding + _layers(params, gated=True) + _layers(encoder, gated)))


def request_bytes(params: dict[str, Any], is_realtime: bool, max_model_len: int, prefilled: bool = False) -> int:
    """K/V cache of one request at its longest, and its slots in the encoder cache.

    Voxtral Realtime runs its encoder token by token, so that has a cache too: as far back as its window reaches. At
    512 positions of the 4B model that is 104 KiB × 512 for the decoder, 1 MiB × 189 for the encoder (a window of 750
    frames), and 10 KiB × 512 of encoder cache: 246 MiB. When the encoder runs once a chunk, it has no K/V cache, and
    what it leaves is as wide as the decoder, 6 KiB × 512: 55 MiB.
    """
    encoder = _encoder(params)
    decoder_bytes = _kv_bytes(params) * max_model_len
    if prefilled:
        return int(decoder_bytes + params["dim"] * BYTES * max_model_len)
    pooled_bytes = encoder["dim"] * FRAMES_PER_TOKEN * BYTES * max_model_len
    if not is_realtime:
        return int(decoder_bytes + pooled_bytes)
    window = -(-encoder["sliding_window"] // FRAMES_PER_TOKEN) + 1
    return int(decoder_bytes + pooled_bytes + _kv_bytes(encoder) * FRAMES_PER_TOKEN * min(window, max_model_len))


def burst_bytes(params: dict[str, Any]) -> int:
    """Working memory of the encoder when it runs once a chunk: what its widest layer holds of GROUP_FRAMES frames,
    queries, keys and values, the gated product and its result, and the frames themselves, three times. vLLM measures
    it; 0.4 GB in the 4B model."""
    encoder = _encoder(params)
    attention = (encoder["n_heads"] + 2 * encoder["n_kv_heads"]) * encoder["head_dim"]
    return int(GROUP_FRAMES * BYTES * (attention + 3 * encoder["hidden_dim"] + 3 * encoder["dim"]))


def _encoder(params: dict[str, Any]) -> dict[str, Any]:
    encoder: dict[str, Any] = params["multimodal"]["whisper_model_args"]["encoder_args"]
    return encoder


def _kv_bytes(part: dict[str, Any]) -> int:
    """Of one position in all layers."""
    return int(2 * part["n_layers"] * part["n_kv_heads"] * part["head_dim"] * BYTES)


def _layers(part: dict[str, Any], gated: bool) -> int:
    """Parameters of all layers' matrices."""
    heads, kv_heads = part["n_heads"] * part["head_dim"], part["n_kv_heads"] * part["head_dim"]
    attention = part["dim"] * (2 * heads + 2 * kv_heads)
    feed_forward = part["dim"] * part["hidden_dim"] * (3 if gated else 2)
    return int(part["n_layers"] * (attention + feed_forward))
