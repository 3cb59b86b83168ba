"""Calculate the speed of Voxtral Realtime on a GPU: the seconds of a step follow from FLOPs, bytes and kernel launches.

    audio seconds per second = requests x seconds of a chunk / (steps of a chunk x seconds of a step)

A chunk takes one step for each 80 ms and for its pads (`realtime_limits`). In stock vLLM a step computes, for each
request, four frames of the encoder and one position of the decoder. With voxbatch's plugin a step computes the decoder
alone. The encoder then runs once for the whole chunk, except for the silence at its beginning (`vllm.plugin.silence`).

The few constants were fitted to profiles of single steps and of the encoder alone, *with the plugin*, on one H200 with
vLLM 0.26 (benchmarks/RESULTS.md, 2026-11-21 and 22). They were not fitted anew to vLLM 0.32, whose whole runs have 0.98
of that speed. The docstrings quote the milliseconds. No speed of a whole run and no measurement of stock vLLM was used
for the fit. tests/without_vllm/test_vllm_speed.py compares the formulas with these measurements: all agree within 20 %.

The formulas do not cover the processors of other hosts, the kernels of other versions, quantization, or several GPUs
for one engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from voxbatch.engines.gpu_specs import GpuSpec
from voxbatch.records import SAMPLING_RATE
from voxbatch.vllm.engine import memory, realtime_limits
from voxbatch.vllm.plugin.scheduler.admission import BURSTS, MAX_BURST, burst_size

MATRIX = 0.95
"""Share of GpuSpec.flops that the model's matrix products reach. The decoder with 512 requests: 2 x 3.43e9 x 512 FLOP
in 4.68 ms, 750e12 per second. The encoder: 3.29e12 FLOP per chunk in 4.33 to 4.47 ms, 740e12 to 760e12 per second; in a
later measurement 3.05e12 FLOP in 3.86 ms."""
STREAM = 0.9
"""Share of GpuSpec.bytes_per_s that is reached if the memory is the limit: 4.3 of 4.8 TB/s."""
PRODUCT_S = 5.3e-6
"""Seconds to start and finish one matrix product that only streams its weights. With 1 request, 6.86 GB take 2.295 ms.
Of these, 1.59 ms are the reading at 4.3 TB/s. The rest is shared by the 131 products of a step."""
SHARPNESS = 3
"""Sharpness of the transition from the limit by memory to the limit by arithmetic. With 256 requests the products take
2.98 ms, while each limit alone gives 2.3 ms."""
TILE_S = 3.35e-6
"""Seconds that one tile of attention takes on a multiprocessor besides its scores."""
SCORE_FLOP = 483
"""Cost of one score in a tile of attention (a query times a key, needed or not), in FLOP of the multiprocessor's share
of GpuSpec.flops. 512 requests with 128 keys take 4.0 ms; the mixture of a running engine, with 216 positions, takes
5.2 ms; the encoder takes 1.19 ms per chunk."""
KEYS_ROUNDED = 64
"""Number of keys per tile that are computed without need: keys come in blocks of 128, and on average half of the last
block is not needed."""
ATTENTION_S = 13.3e-6
"""Seconds of a layer's attention with almost no work: with 1 request, 26 layers take 0.345 ms."""
WALK_S = 16.5e-6
"""Seconds that a layer's attention by voxbatch's own kernel (vllm.plugin.decode_kernel) takes besides reading the K/V
cache. In 26 layers, 512 requests of 220 positions read 12.0 GB in 3.26 ms; 512 requests of 100 positions take 1.72 ms;
221 requests of 220 positions take 1.64 ms."""
REST_S, REST_BYTES = 0.26e-3, 5.6e6
"""Cost of norms, activations, copies and the choice of a token: seconds per step, and bytes moved per request. Measured
were 0.259 ms for 1 request and 0.922 ms for 512."""
FRAME_BYTES = 92e3
"""Bytes moved by the same operations per layer and frame of the encoder: a chunk of 1,572 frames takes 1.08 ms in 32
layers."""
BUSY = 0.93
"""Share of the wall time in which the GPU works, if the GPU is the limit: 4.09 of 4.38 ms with 128 requests, 5.72 of
6.06 ms with 256, 6.81 of 7.38 ms for the encoding of a chunk."""
HOST_REQUEST_S = 15e-6
"""Largest number of seconds that the host needs for a request in a step, while the GPU works. With all of vLLM in one
process, a step of 512 requests takes 7.7 ms, and the GPU never waits (2026-11-22). It took 12.7 ms before the scheduler
fast path and vllm.plugin.patches."""
PREPARE_S = 0.66e-3
"""Seconds that the host needs to prepare an admitted chunk before the GPU gets it. Meanwhile the GPU finishes the step
before. 36 chunks took 14 ms more than a step of 9.5 ms; 54 chunks took 23 ms more than a step of 13 ms."""
LAYER_LAUNCH_S = 0.4e-3
"""Seconds that the host needs to launch a layer kernel by kernel: 12.7 ms for the 32 layers of the encoder (25.6 ms on
a slower host)."""
ENCODED_TOGETHER = 4
"""Number of chunks that are encoded together; see vllm.plugin.GROUP_FRAMES."""
SHARED = realtime_limits.LEFT_PAD - 1
"""Number of positions of silence that are not computed for each chunk, if the encoder runs once per chunk."""


@dataclass(frozen=True, slots=True)
class LayerStack:
    """The layers of the encoder or of the decoder."""

    layers: int
    weights: float
    """Number of parameters in the matrices, with the adapter (encoder) or the embedding (decoder)."""
    heads: int
    queries: int
    """Number of query heads per key-value head."""
    head_dim: int
    position_bytes: float
    """Bytes of K/V cache per position, in all layers."""


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """The sizes of a model that determine its speed."""

    encoder: LayerStack
    decoder: LayerStack
    window: int
    """Number of frames that the encoder looks back."""


@dataclass(frozen=True, slots=True)
class RunMode:
    """The way in which the engine runs the model."""

    requests: int
    delay: int
    """Transcription delay in tokens."""
    prefilled: bool = False
    eager: bool = False
    """True if there are no CUDA graphs."""
    own_attention: bool = False
    """True if voxbatch's own kernel computes the attention of the decoder."""


@dataclass(frozen=True, slots=True)
class TypicalChunk:
    """A typical chunk."""

    seconds: float
    prompt: int
    """Number of tokens of the prompt."""
    positions: int
    """Number of positions of prompt and text together."""

    @property
    def steps(self) -> int:
        """Return the number of steps after the prompt."""
        return self.positions - self.prompt

    @property
    def context(self) -> float:
        """Return the average number of positions before the position of a step."""
        return (self.prompt + self.positions) / 2


def model_sizes(params: Mapping[str, Any]) -> ModelSizes:
    """Return the sizes of a model from the content of its params.json."""
    encoder = params["multimodal"]["whisper_model_args"]["encoder_args"]
    pooled = encoder["dim"] * memory.FRAMES_PER_TOKEN
    adapter = (pooled + params["dim"]) * params["dim"] / memory.FRAMES_PER_TOKEN  # it runs once per four frames
    embedding = params["vocab_size"] * params["dim"]
    return ModelSizes(_part(encoder, adapter), _part(params, embedding), encoder["sliding_window"])


def _part(args: Mapping[str, Any], other_weights: float) -> LayerStack:
    weights = memory.layer_weights(args, gated=True) + other_weights
    heads = memory.kv_heads(args)
    kv_bytes = memory.BYTES * memory.kv_numbers(args)
    return LayerStack(args["n_layers"], weights, heads, args["n_heads"] // heads, args["head_dim"], kv_bytes)


def chunk(seconds: float, delay: int) -> TypicalChunk:
    """Return a chunk of so many seconds, at a transcription delay in tokens."""
    return TypicalChunk(
        seconds, realtime_limits.prompt_tokens(delay), realtime_limits.positions(round(seconds * SAMPLING_RATE), delay)
    )


def rtfx(spec: GpuSpec, model: ModelSizes, mode: RunMode, seconds: float, chunks: float = math.inf) -> float:
    """Return the seconds of audio per second.

    At the end of a run no new request replaces a request that has ended, until the last one has ended: for half the
    steps of a chunk, because the requests are of random age.

    Args:
        seconds: average length of a chunk.
        chunks: number of chunks. Infinity gives the speed while chunks are available.
    """
    at_once = min(mode.requests, chunks)
    mean_chunk = chunk(seconds, mode.delay)
    full = step_s(spec, model, mode, mean_chunk, at_once)
    if chunks == math.inf:
        return at_once * seconds / (mean_chunk.steps * full)
    rounds = chunks / at_once
    tail = min(0.5, rounds - 1) * (1 - 1 / at_once)
    return chunks * seconds / (mean_chunk.steps * (rounds * full + tail * step_s(spec, model, mode, mean_chunk, 1)))


def step_s(spec: GpuSpec, model: ModelSizes, mode: RunMode, mean_chunk: TypicalChunk, requests: float) -> float:
    """Return the seconds of a step with a number of requests, with the step's share of the admissions."""
    layers = model.decoder.layers + (0 if mode.prefilled else model.encoder.layers)
    host = requests * HOST_REQUEST_S + (layers * LAYER_LAUNCH_S if mode.eager else 0.0)
    gpu = decoder_s(spec, model.decoder, requests, mean_chunk.context, mode.own_attention)
    if not mode.prefilled:
        gpu += frames_s(spec, model, requests, mean_chunk)
    step = max(gpu / BUSY, host)
    waiting = 0.0
    if (
        mode.prefilled
    ):  # the GPU waits until the host has prepared a burst, whose size is admission.burst_size, not rounded
        size = max(1.0, min(MAX_BURST, mode.requests / BURSTS))
        waiting = max(0.0, size * PREPARE_S - step) / size
    return step + requests / mean_chunk.steps * (admission_s(spec, model, mode, mean_chunk) + waiting)


def admission_s(spec: GpuSpec, model: ModelSizes, mode: RunMode, mean_chunk: TypicalChunk) -> float:
    """Return the seconds that the admission of a request takes.

    In stock vLLM the prompt passes through the encoder and the decoder. With the plugin the prompt passes through the
    decoder, and the whole chunk through the encoder.
    """
    prompt = 2 * model.decoder.weights * mean_chunk.prompt / (MATRIX * spec.flops)
    if not mode.prefilled:
        return (prompt + encoding_s(spec, model, mean_chunk.prompt)) / BUSY
    together = min(ENCODED_TOGETHER, burst_size(mode.requests))
    launching = model.encoder.layers * LAYER_LAUNCH_S / together
    return max((prompt + encoding_s(spec, model, mean_chunk.positions, SHARED)) / BUSY, launching)


def decoder_s(spec: GpuSpec, part: LayerStack, requests: float, context: float, own_attention: bool = False) -> float:
    """Return the seconds that the GPU needs to decode one position of each request.

    Args:
        context: average number of positions in the K/V cache of a request.
    """
    attention = (
        own_attention_s(spec, part, requests, context)
        if own_attention
        else attention_s(spec, part, requests, 1, context)
    )
    return products_s(spec, part, requests) + attention + REST_S + requests * REST_BYTES / (STREAM * spec.bytes_per_s)


def frames_s(spec: GpuSpec, model: ModelSizes, requests: float, mean_chunk: TypicalChunk) -> float:
    """Return the seconds that stock vLLM's encoder takes in a step, for four frames of each request."""
    part, frames = model.encoder, memory.FRAMES_PER_TOKEN
    behind = (
        sum(min(frames * at, model.window) for at in range(mean_chunk.prompt, mean_chunk.positions)) / mean_chunk.steps
    )
    return (
        products_s(spec, part, frames * requests)
        + attention_s(spec, part, requests, frames, behind)
        + REST_S
        + requests * frames * part.layers * FRAME_BYTES / (STREAM * spec.bytes_per_s)
    )


def encoding_s(spec: GpuSpec, model: ModelSizes, positions: int, shared: int = 0) -> float:
    """Return the seconds that the GPU needs to encode a whole chunk, together with other chunks.

    Args:
        shared: number of positions at the beginning whose keys and values are already known.
    """
    part, known_frames = model.encoder, shared * memory.FRAMES_PER_TOKEN
    frames = positions * memory.FRAMES_PER_TOKEN - known_frames
    rows = _tile_rows(spec, part)
    tiles = math.ceil(frames / rows)
    keys = sum(min(model.window + rows, known_frames + end) for end in range(rows, frames + rows, rows)) / tiles
    return (
        2 * part.weights * frames / (MATRIX * spec.flops)
        + _tiles_s(spec, part, tiles, keys)
        + frames * part.layers * FRAME_BYTES / (STREAM * spec.bytes_per_s)
    )


def products_s(spec: GpuSpec, part: LayerStack, rows: float) -> float:
    """Return the seconds of all matrix products for a number of rows.

    The slower one of two counts, with a smooth transition: reading the weights, or computing.
    """
    kernels = 5 * part.layers + 1  # QKV, output, gate with up, down, joining partial results; the logits
    reading = memory.BYTES * part.weights / (STREAM * spec.bytes_per_s) + kernels * PRODUCT_S
    computing = 2 * part.weights * rows / (MATRIX * spec.flops)
    return float((reading**SHARPNESS + computing**SHARPNESS) ** (1 / SHARPNESS))


def attention_s(spec: GpuSpec, part: LayerStack, requests: float, queries: int, keys: float) -> float:
    """Return the seconds of attention for a few new queries of each request over its K/V cache.

    The slower one of two counts: reading the cache, or computing whole tiles of scores.

    Args:
        queries: number of new positions per request.
        keys: number of positions in the K/V cache of a request.
    """
    tiles = math.ceil(queries * part.queries / _tile_rows(spec, part))
    reading = requests * keys * part.position_bytes / (STREAM * spec.bytes_per_s)
    return part.layers * ATTENTION_S + max(reading, _tiles_s(spec, part, requests * tiles, keys))


def own_attention_s(spec: GpuSpec, part: LayerStack, requests: float, keys: float) -> float:
    """Return the seconds of attention for one new query of each request, by voxbatch's own kernel.

    Only reading the K/V cache counts.
    """
    return part.layers * WALK_S + requests * keys * part.position_bytes / (STREAM * spec.bytes_per_s)


def _tiles_s(spec: GpuSpec, part: LayerStack, tiles: float, keys: float) -> float:
    """Return the seconds of attention tiles that are spread over the GPU.

    Args:
        tiles: number of tiles for each key-value head in each layer.
        keys: number of keys per tile.
    """
    scores = _tile_rows(spec, part) * (keys + KEYS_ROUNDED)
    busy = TILE_S + scores * SCORE_FLOP * spec.multiprocessors / spec.flops
    return tiles * part.heads * part.layers * busy / spec.multiprocessors


def _tile_rows(spec: GpuSpec, part: LayerStack) -> int:
    return spec.tile_rows[part.head_dim > 64]
