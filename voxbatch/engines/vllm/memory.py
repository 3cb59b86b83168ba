"""How many requests a card's memory admits at a time: an upper bound from the model's shape.

The scheduler counts again, exactly, once vLLM has measured what is left for K/V blocks; this bound only has to be near
it, because buffers and CUDA graphs are made for so many.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from voxbatch.vllm_plugin import GROUP_FRAMES

BYTES = 2
"""Of a number in bfloat16 or float16, weights and K/V cache alike."""
MOST = 512
"""CUDA graphs are captured up to this batch; beyond it a GPU step grows as fast as its batch."""
FRAMES_PER_TOKEN = 4
"""Encoder frames that one token of audio pools."""
BLOCK = 16
"""Positions of one block of K/V cache."""
WORKING_BYTES = 1.4e9
"""What vLLM keeps of its budget for a step's own work when the encoder is in it: of 22 GB, 698 blocks of 16 MiB are
left, and 7,445 of an H200's 135.7 (benchmarks/RESULTS.md)."""


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


def running(
    params: dict[str, Any], max_model_len: int, positions: int, budget_bytes: float, prefilled: bool = False
) -> int:
    """Requests of Voxtral Realtime that do run at a time, all of so many positions; for forecasts.

    `admitted`, or less: in stock vLLM both K/V caches are cut into blocks as large as BLOCK positions of the encoder's
    are, 16 MiB; of 448 positions (30 s) the encoder's take 13 and the decoder's 4.
    """
    most = admitted(params, True, max_model_len, budget_bytes, prefilled)
    if prefilled:
        return most
    encoder = _encoder(params)
    held = -(-_window(encoder) // BLOCK) + 1
    block_bytes = BLOCK * FRAMES_PER_TOKEN * kv_bytes(encoder)
    a_layers = block_bytes / encoder["n_layers"]  # each layer of the decoder is given as much
    decoded = -(-positions // int(a_layers // (kv_bytes(params) / params["n_layers"])))
    blocks = (budget_bytes - weights_bytes(params) - WORKING_BYTES) // block_bytes
    return max(1, min(most, int(blocks // (held + decoded))))


def weights_bytes(params: dict[str, Any]) -> int:
    """Of the decoder, its embedding and the encoder, norms and biases left out: they are a thousandth."""
    encoder = _encoder(params)
    embedding = params["vocab_size"] * params["dim"] * (1 if params.get("tied_embeddings", True) else 2)
    gated = encoder.get("ffn_type") == "swiglu"
    return int(BYTES * (embedding + layer_weights(params, gated=True) + layer_weights(encoder, gated)))


def request_bytes(params: dict[str, Any], is_realtime: bool, max_model_len: int, prefilled: bool = False) -> int:
    """K/V cache of one request at its longest, and its slots in the encoder cache.

    Voxtral Realtime runs its encoder token by token, so that has a cache too: as far back as its window reaches. At
    512 positions of the 4B model that is 104 KiB × 512 for the decoder, 1 MiB × 189 for the encoder (a window of 750
    frames), and 10 KiB × 512 of encoder cache: 246 MiB. When the encoder runs once a chunk, it has no K/V cache, and
    what it leaves is as wide as the decoder, 6 KiB × 512: 55 MiB.
    """
    encoder = _encoder(params)
    decoder_bytes = kv_bytes(params) * max_model_len
    if prefilled:
        return int(decoder_bytes + params["dim"] * BYTES * max_model_len)
    pooled_bytes = encoder["dim"] * FRAMES_PER_TOKEN * BYTES * max_model_len
    if not is_realtime:
        return int(decoder_bytes + pooled_bytes)
    seen = min(_window(encoder), max_model_len)
    return int(decoder_bytes + pooled_bytes + kv_bytes(encoder) * FRAMES_PER_TOKEN * seen)


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


def _window(encoder: dict[str, Any]) -> int:
    """Tokens that the encoder looks back, the present one included."""
    return int(-(-encoder["sliding_window"] // FRAMES_PER_TOKEN) + 1)


def kv_bytes(part: Mapping[str, Any]) -> int:
    """Of one position in all layers."""
    return int(2 * part["n_layers"] * part["n_kv_heads"] * part["head_dim"] * BYTES)


def layer_weights(part: Mapping[str, Any], gated: bool) -> int:
    """Parameters of all layers' matrices."""
    heads, kv_heads = part["n_heads"] * part["head_dim"], part["n_kv_heads"] * part["head_dim"]
    attention = part["dim"] * (2 * heads + 2 * kv_heads)
    feed_forward = part["dim"] * part["hidden_dim"] * (3 if gated else 2)
    return int(part["n_layers"] * (attention + feed_forward))
