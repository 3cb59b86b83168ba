"""What a run takes of a card's memory, and so how many requests it admits at a time.

A card is filled with four things:

- what vLLM plans: weights, the working memory that it measures, an estimate of its CUDA graphs, and in all that is left
  K/V blocks. It is told a share of the memory, and this is what the share is of;
- what it fills without planning: UNCOUNTED_BYTES, and without the plugin what encoded audio takes (`encoded_bytes`);
- what the driver keeps for itself: NVML counts it as used, CUDA does not even show it (gpu.Card.reserved_bytes).

An engine option says what the card may hold at most, all of these together: `arguments` subtracts the last two. By
default that is 95 %. Of an L4's 24.15 GB (10^9 bytes) it is 22.94; less 0.64 of the driver's (an H200's) and 1.2, vLLM
plans with 21.1; less weights of 8.8 and 1.4 of working memory and graphs, 10.9 are left, or 189 requests of 512 tokens
with the encoder once a chunk. The last 1.2 GB stay free.

The number of requests is an upper bound: the scheduler admits by the K/V blocks that vLLM has measured and by each
request's own length (`admission`). The bound counts requests of TYPICAL length, 214 on that L4. Buffers and CUDA graphs
are made for so many, so it is not much larger than the number that will run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BYTES, FP8_BYTES = 2, 1
"""Of a number in bfloat16 or float16, and of one in FP8."""
MOST = 1_024
"""On an H200 a step of 512 takes the GPU hardly longer than the host needs for the next, which made it wait; from there
on either grows with its batch, the GPU's part faster. With 1,408 or 2,048 a run is no faster: the card's power is what
limits it by then."""
TYPICAL = 7 / 8
"""Share of its context that a request takes of the K/V cache on average: with 30 s of audio 448 of 512 positions. A
place for one request more costs 3 MB of encoded audio and saves up to 54 MB of K/V cache from lying idle."""
FRAMES_PER_TOKEN = 4
"""Encoder frames that one token of audio pools."""
BLOCK = 16
"""Positions in a K/V block, where vLLM chooses."""
WORKING_BYTES = 1_400_000_000
"""What vLLM measures beside the weights. On an H200 with vLLM 0.26 and steps of 4,096 tokens that was 1.6 GB where 221
requests run, and 1.8 with 512: 0.9 to 1.1 of activations, 0.27 of libraries, 0.4 of graphs. Less than that here, for a
few buffers too many cost less than a request too few; and with the encoder in each step 22 GB left 698 blocks of 16
MiB, 135.7 GB 7,445."""
STEP, STEP_BYTES = 4_096, 150_000
"""Positions in a step, of which WORKING_BYTES is, and what vLLM measures for each one more: on an H200, stock vLLM had
105 K/V blocks of 16 MiB less with 16,384 than with 4,096, and 573 less with 65,536."""
UNCOUNTED_BYTES = 1_200_000_000
"""What vLLM fills beyond its plan. On an H200: 0.55 GB of CUDA context and NCCL, there before it first looks; 0.21 of
graphs beyond its estimate (0.60 GiB in place of 0.40); the rest is kernels that are loaded when first used, and what
PyTorch's allocator holds in pieces. Read from two runs there: a plan of 135.1 filled 136.7, one of 21.9 filled 24.2, of
which the driver has 0.64, and audio and rows of a burst of 100 chunks had 0.46, which is planned by now."""


def step_bytes(positions: int) -> int:
    """What steps of so many positions take beyond WORKING_BYTES."""
    return STEP_BYTES * max(0, positions - STEP)


@dataclass(frozen=True, slots=True)
class Footprint:
    """A model with context and precision: bytes, of all its cards together."""

    params: dict[str, Any]
    """Of a Voxtral: see Model.shape."""
    is_realtime: bool
    max_model_len: int
    prefilled: bool = False
    """The encoder runs once a chunk."""
    fp8: frozenset[str] = frozenset()
    """See settings.FP8_PARTS."""
    block_size: int = BLOCK

    def admitted(self, planned_bytes: float) -> int:
        """Return how many requests of TYPICAL length have room at a time, from 1 to MOST: for where nobody said how
        many.

        Args:
            planned_bytes: what vLLM may plan with.
        """
        typical_bytes = self.request_bytes - (1 - TYPICAL) * self._decoder_kv_bytes
        return max(1, min(MOST, int(self._left(planned_bytes) // typical_bytes)))

    def fitting(self, planned_bytes: float) -> int:
        """Requests that have room at a time at their longest, from 1.

        Args:
            planned_bytes: what vLLM may plan with.
        """
        return max(1, int(self._left(planned_bytes) // self.request_bytes))

    def _left(self, planned_bytes: float) -> float:
        return planned_bytes - self.weights_bytes - WORKING_BYTES

    def running(self, positions: int, planned_bytes: float) -> int:
        """Requests that do run at a time where as many as have room may, all of so many positions; for forecasts.

        `fitting`, or less: in stock vLLM both K/V caches of Voxtral Realtime are cut into blocks as large as BLOCK
        positions of the encoder's are, 16 MiB; of 448 positions (30 s) the encoder's take 13 and the decoder's 4.
        """
        most = self.fitting(planned_bytes)
        if self.prefilled or not self.is_realtime:
            return most
        encoder, params = self._encoder, self.params
        held = -(-self._window // BLOCK) + 1
        block_bytes = BYTES * BLOCK * FRAMES_PER_TOKEN * kv_numbers(encoder)
        a_layers = block_bytes / encoder["n_layers"]  # each layer of the decoder is given as much
        decoded = -(-positions // int(a_layers // (BYTES * kv_numbers(params) / params["n_layers"])))
        blocks = self._left(planned_bytes) // block_bytes
        return max(1, min(most, int(blocks // (held + decoded))))

    @property
    def weights_bytes(self) -> int:
        """Of the decoder, its embedding and the encoder, norms and biases left out: they are a thousandth. The
        embedding, which also gives the logits, stays as it is in FP8."""
        params, encoder = self.params, self._encoder
        embedding = BYTES * params["vocab_size"] * params["dim"] * (1 if params.get("tied_embeddings", True) else 2)
        decoding = self._bytes("decoder") * layer_weights(params, gated=True)
        encoding = self._bytes("encoder") * layer_weights(encoder, gated=encoder.get("ffn_type") == "swiglu")
        return int(embedding + decoding + encoding)

    @property
    def request_bytes(self) -> int:
        """K/V cache of one request at its longest, in whole blocks, and its encoded audio.

        Voxtral Realtime runs its encoder token by token, so that has a cache too: as far back as its window reaches.
        At 512 positions of the 4B model that is 104 KiB × 512 for the decoder, 1 MiB × 189 for the encoder (a window
        of 750 frames), and 10 KiB × 512 of encoded audio: 246 MiB. When the encoder runs once a chunk, it has no K/V
        cache, and what it leaves is as wide as the decoder, 6 KiB × 512: 55 MiB; with K/V in FP8 29 MiB.
        """
        return int(self._decoder_kv_bytes + self._encoder_kv_bytes + self.encoded_bytes)

    @property
    def encoded_bytes(self) -> int:
        """Encoded audio of one request at its longest. Only where the encoder runs once a chunk does vLLM count it, as
        part of the model (vllm_plugin.shelf)."""
        width = self.params["dim"] if self.prefilled else self._encoder["dim"] * FRAMES_PER_TOKEN
        return int(width * BYTES * self.max_model_len)

    @property
    def _decoder_kv_bytes(self) -> int:
        blocks = -(-self.max_model_len // self.block_size)
        return self._bytes("kv") * kv_numbers(self.params) * blocks * self.block_size

    @property
    def _encoder_kv_bytes(self) -> int:
        encoder = self._encoder
        if self.prefilled or not self.is_realtime:
            return 0
        return int(BYTES * kv_numbers(encoder) * FRAMES_PER_TOKEN * min(self._window, self.max_model_len))

    @property
    def _window(self) -> int:
        """Tokens that the encoder looks back, the present one included."""
        return int(-(-self._encoder["sliding_window"] // FRAMES_PER_TOKEN) + 1)

    @property
    def _encoder(self) -> dict[str, Any]:
        encoder: dict[str, Any] = self.params["multimodal"]["whisper_model_args"]["encoder_args"]
        return encoder

    def _bytes(self, part: str) -> int:
        return FP8_BYTES if part in self.fp8 else BYTES


def kv_heads(part: Mapping[str, Any]) -> int:
    """Return the number of key-value heads. The encoder of the instruct models states no `n_kv_heads`: each of its
    attention heads has keys and values of its own."""
    return int(part.get("n_kv_heads") or part["n_heads"])


def kv_numbers(part: Mapping[str, Any]) -> int:
    """Of one position in all layers."""
    return int(2 * part["n_layers"] * kv_heads(part) * part["head_dim"])


def layer_weights(part: Mapping[str, Any], gated: bool) -> int:
    """Parameters of all layers' matrices."""
    attention = part["dim"] * part["head_dim"] * 2 * (part["n_heads"] + kv_heads(part))
    feed_forward = part["dim"] * part["hidden_dim"] * (3 if gated else 2)
    return int(part["n_layers"] * (attention + feed_forward))
