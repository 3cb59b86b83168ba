"""The memory that a run takes on a GPU, and the number of requests that it therefore admits at a time.

Three things take the memory of a GPU:

- the memory that vLLM plans: the weights, the working memory that it measures, and an estimate of its CUDA graphs. All
  that is left of the plan becomes K/V blocks. vLLM takes a share of the memory as an option; this is what the share
  means;
- the memory that vLLM fills beyond its plan: UNCOUNTED_BYTES, and without the plugin the encoded audio
  (`encoded_bytes`);
- the memory that the driver keeps for itself: NVML counts it as used, and CUDA does not show it at all
  (gpu.GpuInfo.reserved_bytes).

An engine option gives the maximum for all three together, and `planned_memory` subtracts the last two. The default is
95 %. On an L4 with 24.15 GB (10^9 bytes) that is 22.94 GB. Minus 0.64 GB of the driver (measured on an H200) and 1.2 GB
of UNCOUNTED_BYTES, vLLM plans with 21.1 GB. Minus 8.8 GB of weights and 1.4 GB of working memory and graphs, 10.9 GB
are left: 189 requests of 512 tokens if the encoder runs once per chunk. The last 1.2 GB of the GPU stay free.

The number of requests is an upper bound. The scheduler admits requests by the number of K/V blocks that vLLM has
measured and by the length of each request (`vllm.plugin.scheduler.admission`). Buffers and CUDA graphs are made for
this number. For Voxtral Realtime it counts requests of maximum length: an eighth more, which fit because most chunks
are shorter, made an H200 within an L4's memory slower by 7 % in 8 bits, and not faster in bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from voxbatch.vllm.plugin import FRAME_BYTES
from voxbatch.vllm.plugin.scheduler.admission import EXPECTED_TEXT

BYTES, FP8_BYTES = 2, 1
"""Size of a number in bfloat16 or float16, and of a number in FP8."""
MAX_REQUESTS = 1_024
"""Maximum number of requests at a time.

With 512 requests, an H200 needs hardly longer for a step than the host needs to prepare the next step, so the GPU used
to wait. Above 512, both times grow with the number of requests, and the GPU's time grows faster. With 1,408 or 2,048
requests a run is not faster, because the power of the GPU is then the limit."""
INSTRUCT_PROMPT = 384
"""Number of positions of an instruct model's prompt, with its window of 30 s; see families.instruct."""
FRAMES_PER_TOKEN = 4
"""Number of encoder frames that are pooled into one token of audio."""
BLOCK = 16
"""Number of positions in a K/V block if vLLM chooses the block size."""
WORKING_BYTES = 1_400_000_000
"""Memory that vLLM measures in addition to the weights.

On an H200 with vLLM 0.26 and steps of 4,096 tokens, vLLM measured 1.6 GB for 221 running requests and 1.8 GB for 512:
0.9 to 1.1 GB of activations, 0.27 GB of libraries and 0.4 GB of graphs. The value here is lower, because a few buffers
too many cost less than one request too few. It also agrees with runs that had the encoder in each step: 22 GB left 698
blocks of 16 MiB, and 135.7 GB left 7,445. With vLLM 0.32 only the peak of a whole run was measured: it was the same."""
STEP, STEP_BYTES = 4_096, 150_000
"""Number of positions in the step for which WORKING_BYTES holds, and the memory that vLLM measures for each additional
position. On an H200, stock vLLM had 105 K/V blocks of 16 MiB fewer with 16,384 positions than with 4,096, and 573 fewer
with 65,536."""
UNCOUNTED_BYTES = 1_200_000_000
"""Memory that vLLM fills beyond its plan.

On an H200 this is 0.55 GB for the CUDA context and NCCL, which exist before vLLM's first measurement, and 0.21 GB for
graphs beyond the estimate (0.60 GiB instead of 0.40 GiB). The rest is for kernels that are loaded at their first use
and for fragments in PyTorch's allocator. The value comes from two runs on that GPU: a plan of 135.1 GB filled 136.7 GB,
and a plan of 21.9 GB filled 24.2 GB. Of these, the driver had 0.64 GB, and the audio and rows of a burst of 100 chunks
had 0.46 GB, which the plan contains today."""
SPEECH_BYTES = 1_500_000_000
"""Memory that Voxtral TTS fills beyond vLLM's plan, by calculation: the CUDA graphs of 512 rows, and 16 windows in the
codec."""
MAX_QUESTIONS = 256


def admitted(free_bytes: float, request_bytes: int) -> int:
    """Return how many requests of a model other than Voxtral fit at a time, from 1 to MAX_REQUESTS.

    Args:
        free_bytes: the memory that vLLM may plan with, without the weights.
        request_bytes: the K/V cache of a typical request.
    """
    return max(1, min(MAX_REQUESTS, int((free_bytes - WORKING_BYTES) // request_bytes)))


def step_bytes(positions: int) -> int:
    """Return the memory that steps of this many positions take beyond WORKING_BYTES."""
    return STEP_BYTES * max(0, positions - STEP)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory of a model with a given context and precision, in bytes, on all its GPUs together.

    The model is one of whole windows, whose encoder runs once for each prompt; see StreamingFootprint for the other.
    """

    params: dict[str, Any]
    """Parameters of a Voxtral model; see Model.shape."""
    max_model_len: int
    prefilled: bool = False
    """True if the encoder runs once per chunk."""
    fp8: frozenset[str] = frozenset()
    """Parts of the model in FP8; see settings.FP8_PARTS."""
    block_size: int = BLOCK

    def admitted(self, planned_bytes: float) -> int:
        """Return the number of requests at a time if the user gives none, from 1 to MAX_REQUESTS.

        Args:
            planned_bytes: the memory that vLLM may plan with.
        """
        share = min(1.0, self.typical_positions / self.max_model_len)
        typical_bytes = self.request_bytes - (1 - share) * self.decoder_kv_bytes
        return max(1, min(MAX_REQUESTS, int(self._left(planned_bytes) // typical_bytes)))

    def fitting(self, planned_bytes: float) -> int:
        """Return how many requests of maximum length fit at a time, at least 1."""
        return max(1, int(self._left(planned_bytes) // self.request_bytes))

    def question_context(self, planned_bytes: float, num_gpus: int) -> int:
        """Return how many positions of one question fit: its K/V cache, and on each GPU the audio that is encoded.

        Args:
            planned_bytes: the memory that vLLM may plan with, on all GPUs together.
        """
        free_bytes = self._left(planned_bytes) - (num_gpus - 1) * WORKING_BYTES
        position_bytes = self._position_bytes + num_gpus * self._audio_bytes
        return int(max(0.0, free_bytes) // position_bytes // BLOCK * BLOCK)

    def questions(self, planned_bytes: float, num_gpus: int, positions: int) -> int:
        """Return how many questions of this many positions fit at a time, from 1 to MAX_QUESTIONS.

        The other arguments are those of `question_context`.
        """
        free_bytes = self._left(planned_bytes) - (num_gpus - 1) * WORKING_BYTES
        free_bytes -= num_gpus * self._audio_bytes * self.max_model_len
        return max(1, min(MAX_QUESTIONS, int(free_bytes // (self._position_bytes * positions))))

    @property
    def _position_bytes(self) -> int:
        return self._bytes("kv") * kv_numbers(self.params)

    @property
    def _audio_bytes(self) -> int:
        """Return the memory of one token of audio while it is encoded and in the encoder cache.

        vLLM encodes a whole recording at once, and measures that memory for a recording that fills the context.
        """
        return FRAMES_PER_TOKEN * FRAME_BYTES + BYTES * int(self.params["dim"])

    def _left(self, planned_bytes: float) -> float:
        return planned_bytes - self.weights_bytes - WORKING_BYTES

    def running(self, positions: int, planned_bytes: float) -> int:
        """Return how many requests of this many positions run at a time if all that fit are admitted; for forecasts.

        The number is at most `fitting`.
        """
        return self.fitting(planned_bytes)

    @property
    def weights_bytes(self) -> int:
        """Return the memory of the weights of the decoder, its embedding and the encoder.

        Norms and biases are left out: they are a thousandth of all weights. The embedding, which also computes the
        logits, keeps its format if other parts are in FP8.
        """
        params, encoder = self.params, self._encoder
        embedding = BYTES * params["vocab_size"] * params["dim"] * (1 if params.get("tied_embeddings", True) else 2)
        decoding = self._bytes("decoder") * layer_weights(params, gated=True)
        encoding = self._bytes("encoder") * layer_weights(encoder, gated=encoder.get("ffn_type") == "swiglu")
        return int(embedding + decoding + encoding)

    @property
    def request_bytes(self) -> int:
        """Return the memory of one request of maximum length: its K/V cache, in whole blocks, and its encoded audio."""
        return int(self.decoder_kv_bytes + self.encoder_kv_bytes + self.encoded_bytes)

    @property
    def typical_positions(self) -> int:
        """Return the number of positions with which a request counts: its prompt and EXPECTED_TEXT."""
        return INSTRUCT_PROMPT + EXPECTED_TEXT

    @property
    def encoder_kv_bytes(self) -> int:
        """Return the memory of the encoder's K/V cache of one request."""
        return 0

    @property
    def encoded_bytes(self) -> int:
        """Return the memory of the encoded audio of one request of maximum length.

        The audio lies within the prompt, and the plugin frees it when the prompt is computed, so that only a burst has
        any.
        """
        return 0 if self.prefilled else self._frames_bytes

    @property
    def _frames_bytes(self) -> int:
        return int(self._encoder["dim"] * FRAMES_PER_TOKEN * BYTES * self.max_model_len)

    @property
    def decoder_kv_bytes(self) -> int:
        """Return the memory of the decoder's K/V cache of one request of maximum length, in whole blocks."""
        blocks = -(-self.max_model_len // self.block_size)
        return self._position_bytes * blocks * self.block_size

    @property
    def _encoder(self) -> dict[str, Any]:
        encoder: dict[str, Any] = self.params["multimodal"]["whisper_model_args"]["encoder_args"]
        return encoder

    def _bytes(self, part: str) -> int:
        return FP8_BYTES if part in self.fp8 else BYTES


@dataclass(frozen=True, slots=True)
class StreamingFootprint(Footprint):
    """Memory of Voxtral Realtime.

    It runs its encoder token by token, so the encoder has a K/V cache too, which reaches as far back as the encoder's
    window. For 512 positions of the 4B model a request takes 104 KiB × 512 for the decoder, 1 MiB × 189 for the encoder
    (a window of 750 frames) and 10 KiB × 512 for the encoded audio: 246 MiB. If the encoder runs once per chunk, it has
    no K/V cache, and its output is as wide as the decoder, 6 KiB × 512. The sum is then 55 MiB, or 29 MiB with the K/V
    cache in FP8.
    """

    @property
    def typical_positions(self) -> int:
        """Return the maximum length of a request."""
        return self.max_model_len

    @property
    def encoder_kv_bytes(self) -> int:
        """Return the memory of the encoder's K/V cache of one request."""
        positions = FRAMES_PER_TOKEN * min(self._window, self.max_model_len)
        return 0 if self.prefilled else BYTES * kv_numbers(self._encoder) * positions

    @property
    def encoded_bytes(self) -> int:
        """Return the memory of the encoded audio of one request of maximum length.

        vLLM counts this memory only if the encoder runs once per chunk, as part of the model
        (vllm.plugin.encoder_output_pool).
        """
        return int(self.params["dim"] * BYTES * self.max_model_len) if self.prefilled else self._frames_bytes

    def running(self, positions: int, planned_bytes: float) -> int:
        """Return how many requests run at a time; see Footprint.

        The number can be lower than `fitting` in stock vLLM, which divides both K/V caches into blocks of 16 MiB, the
        size of BLOCK positions of the encoder. For 448 positions (30 s) the encoder takes 13 blocks and the decoder 4.
        """
        limit = self.fitting(planned_bytes)
        if self.prefilled:
            return limit
        encoder, params = self._encoder, self.params
        held = -(-self._window // BLOCK) + 1
        block_bytes = BYTES * BLOCK * FRAMES_PER_TOKEN * kv_numbers(encoder)
        a_layers = block_bytes / encoder["n_layers"]  # each layer of the decoder gets as much
        decoded = -(-positions // int(a_layers // (BYTES * kv_numbers(params) / params["n_layers"])))
        blocks = self._left(planned_bytes) // block_bytes
        return max(1, min(limit, int(blocks // (held + decoded))))

    @property
    def _window(self) -> int:
        """Return the number of tokens that the encoder looks back, including the current token."""
        return int(-(-self._encoder["sliding_window"] // FRAMES_PER_TOKEN) + 1)


def kv_heads(part: Mapping[str, Any]) -> int:
    """Return the number of key-value heads. The encoder of the instruct models states no `n_kv_heads`: each of its
    attention heads has keys and values of its own."""
    return int(part.get("n_kv_heads") or part["n_heads"])


def kv_numbers(part: Mapping[str, Any]) -> int:
    """Return how many numbers the K/V cache holds for one position in all layers."""
    return int(2 * part["n_layers"] * kv_heads(part) * part["head_dim"])


def layer_weights(part: Mapping[str, Any], gated: bool) -> int:
    """Return the number of parameters in the matrices of all layers."""
    attention = part["dim"] * part["head_dim"] * 2 * (part["n_heads"] + kv_heads(part))
    feed_forward = part["dim"] * part["hidden_dim"] * (3 if gated else 2)
    return int(part["n_layers"] * (attention + feed_forward))
