"""How fast Voxtral Realtime ought to be on a card: seconds of a step from FLOPs, bytes and launches.

    audio seconds a second = requests x seconds of a chunk / (steps of a chunk x seconds of a step)

A chunk takes a step for each 80 ms and for its pads (`limits`). In stock vLLM a step holds, for each request, four
frames of the encoder and one position of the decoder; with voxbatch's plugin the decoder alone, and the encoder runs
once for the whole chunk but for the silence that it begins with (`vllm_plugin.silence`, `beginning`).

The few constants were fitted to profiles of single steps and of the encoder alone, *with the plugin*, on one H200 with
vLLM 0.26 (`bench_plugin.py --profile` and `--idle`, 2026-11-21 and 22; milliseconds are quoted). No whole run's speed
and nothing of stock vLLM was used, so benchmarks/gpu/model.py holds this against them: all are met within 20 %. What
the model does not know: other hosts' processors, other versions' kernels, quantization, several cards for one engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from voxbatch.engines.vllm import bursts, limits, memory
from voxbatch.engines.vllm.cards import Capacity
from voxbatch.records import SAMPLING_RATE

MATRIX = 0.95
"""Of Capacity.flops, in the model's own products: 512 requests, 2 x 3.43e9 x 512 FLOP in 4.68 ms, 750e12 a second; the
encoder, 3.29e12 FLOP a chunk in 4.33 to 4.47 ms, 740 to 760e12; 3.05e12 in 3.86 later."""
STREAM = 0.9
"""Of Capacity.bytes_per_s, when memory is the limit: 4.3 of 4.8 TB/s."""
PRODUCT_S = 5.3e-6
"""To fill and drain one matrix product that only streams its weights: 1 request, 6.86 GB in 2.295 ms, of which 1.59 at
4.3 TB/s, over the 131 products of a step."""
SHARPNESS = 3
"""How sharply what is limited by memory turns into what is limited by arithmetic: 256 requests 2.98 ms, where either
alone is 2.3."""
TILE_S = 3.35e-6
"""Before and after the first key, for one tile of attention on a multiprocessor …"""
SCORE_FLOP = 483
"""… and what one score in it (a query times a key, needed or not) takes from the multiprocessor's share of
Capacity.flops: 512 requests, 128 keys, 4.0 ms; the running mixture, 216 positions, 5.2; the encoder, 1.19 a chunk."""
WINDOW = 0.36
"""Of Capacity.flops, in the encoder's attention by our own kernel (vllm_plugin.window_kernel), scores that are needed
counted alone: 282e12 a second, 0.86 ms for a chunk of 30 s."""
KEYS_ROUNDED = 64
"""Keys come in blocks of 128: on average half a block is computed for nothing."""
ATTENTION_S = 13.3e-6
"""A layer's attention with hardly any work in it: 0.345 ms in 26 layers, 1 request."""
WALK_S = 16.5e-6
"""A layer's attention by our own kernel (vllm_plugin.decode_kernel) beside what it takes to read the K/V cache: 512
requests of 220 positions, 12.0 GB in 3.26 ms in 26 layers; of 100, 1.72; 221 of 220, 1.64."""
REST_S, REST_BYTES = 0.26e-3, 5.6e6
"""Norms, activations, copies and the choice of a token: 0.259 ms for 1 request, 0.922 for 512, as bytes moved for
each."""
FRAME_BYTES = 92e3
"""Likewise a layer and frame of the encoder: 1.08 ms a chunk of 1,572 frames, 32 layers."""
BUSY = 0.93
"""Share of the wall in which the GPU works while it is the limit: 4.09 of 4.38 ms with 128 requests, 5.72 of 6.06 with
256, 6.81 of 7.38 for a chunk encoded."""
HOST_REQUEST_S = 15e-6
"""Of the host for a request in a step, beside the GPU, at most: a step of 512 takes 7.7 ms with all of vLLM in one
process, in which the GPU never waits (2026-11-22; 12.7 before `steady` and vllm_plugin.books)."""
PREPARE_S = 0.66e-3
"""Of the host for a chunk that is let in, before the GPU hears of it, which meanwhile does what is left of the step
before: 36 chunks 14 ms beyond a step of 9.5, 54 chunks 23 beyond 13 (`bench_plugin.py --idle`)."""
LAYER_LAUNCH_S = 0.4e-3
"""Of the host to launch a layer kernel by kernel: 12.7 ms for the encoder's 32 (25.6 on a slower host)."""
ENCODED_TOGETHER = 4
"""Chunks; see vllm_plugin.GROUP_FRAMES."""
SHARED = limits.LEFT_PAD - 1
"""Positions of silence that are not computed for each chunk anew, where the encoder runs once a chunk."""


@dataclass(frozen=True, slots=True)
class Part:
    """The encoder's or the decoder's layers."""

    layers: int
    weights: float
    """Numbers in its matrices, embedding or adapter included."""
    heads: int
    """Of keys and values."""
    queries: int
    """Heads of queries for each of these."""
    head_dim: int
    position_bytes: float
    """Of K/V cache."""


@dataclass(frozen=True, slots=True)
class Shape:
    encoder: Part
    decoder: Part
    window: int
    """Frames that the encoder looks back."""


@dataclass(frozen=True, slots=True)
class Way:
    """How the engine runs the model."""

    requests: int
    """At a time."""
    delay: int
    """In tokens."""
    prefilled: bool = False
    """The encoder runs once a chunk."""
    eager: bool = False
    """Without CUDA graphs."""
    walks: bool = False
    """Attention is our own kernels', the decoder's and the encoder's."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A typical one."""

    seconds: float
    prompt: int
    positions: int

    @property
    def steps(self) -> int:
        return self.positions - self.prompt

    @property
    def context(self) -> float:
        """Positions behind a step's own, on average."""
        return (self.prompt + self.positions) / 2


def shape(params: Mapping[str, Any]) -> Shape:
    """Of a params.json."""
    encoder = params["multimodal"]["whisper_model_args"]["encoder_args"]
    pooled = encoder["dim"] * memory.FRAMES_PER_TOKEN
    adapter = (pooled + params["dim"]) * params["dim"] / memory.FRAMES_PER_TOKEN  # it runs once in four frames
    embedding = params["vocab_size"] * params["dim"]
    return Shape(_part(encoder, adapter), _part(params, embedding), encoder["sliding_window"])


def _part(args: Mapping[str, Any], more: float) -> Part:
    weights = memory.layer_weights(args, gated=True) + more
    heads = memory.kv_heads(args)
    kv_bytes = memory.BYTES * memory.kv_numbers(args)
    return Part(args["n_layers"], weights, heads, args["n_heads"] // heads, args["head_dim"], kv_bytes)


def chunk(seconds: float, delay: int) -> Chunk:
    return Chunk(seconds, limits.prompt_tokens(delay), limits.positions(round(seconds * SAMPLING_RATE), delay))


def rtfx(
    card: Capacity, model: Shape, way: Way, seconds: float, chunks: float = math.inf,
    between: tuple[float, float] | None = None,
) -> float:  # fmt: skip
    """Audio seconds a second, for so many chunks of so many seconds on average; of endlessly many, while they last.

    At a run's end fewer and fewer requests are left, until the longest is through.

    Args:
        between: the seconds of the shortest chunk and of the longest, where they are evenly spread; else all are alike.
    """
    at_once = min(way.requests, chunks)
    each = chunk(seconds, way.delay)
    full = step_s(card, model, way, each, at_once)
    if chunks == math.inf:
        return at_once * seconds / (each.steps * full)
    rounds = chunks / at_once
    thinning = min(_thinning(each, between or (seconds, seconds), way.delay), rounds - 1) * (1 - 1 / at_once)
    return chunks * seconds / (each.steps * (rounds * full + thinning * step_s(card, model, way, each, 1)))


def _thinning(each: Chunk, between: tuple[float, float], delay: int) -> float:
    """Chunks' worth of steps at a run's end, in which nobody takes the place of those that have ended: the longest's,
    less those that requests of random age have left (a mean of E[s²] / 2 E[s]). Where all are alike and did not begin
    together, half a chunk's."""
    short, long = (chunk(seconds, delay).steps / each.steps for seconds in between)
    return long - (1 + (long - short) ** 2 / 12) / 2


def step_s(card: Capacity, model: Shape, way: Way, each: Chunk, requests: float) -> float:
    """Seconds of a step in which so many requests run, its share of admissions included."""
    layers = model.decoder.layers + (0 if way.prefilled else model.encoder.layers)
    host = requests * HOST_REQUEST_S + (layers * LAYER_LAUNCH_S if way.eager else 0.0)
    gpu = decoder_s(card, model.decoder, requests, each.context, way.walks)
    if not way.prefilled:
        gpu += frames_s(card, model, requests, each)
    step = max(gpu / BUSY, host)
    return step + requests / each.steps * (admission_s(card, model, way, each) + _waiting_s(way, step))


def _waiting_s(way: Way, step: float) -> float:
    """For each request that is let in, in which the GPU waits for the host to prepare its burst (of bursts.size, in
    fractions)."""
    size = max(1.0, min(bursts.LARGEST, way.requests / bursts.BURSTS))
    return max(0.0, size * PREPARE_S - step) / size if way.prefilled else 0.0


def admission_s(card: Capacity, model: Shape, way: Way, each: Chunk) -> float:
    """What a new request takes besides: its prompt, in stock vLLM through both parts, or its whole chunk's encoding."""
    shared = SHARED if way.prefilled else 0
    prompt = 2 * model.decoder.weights * (each.prompt - shared) / (MATRIX * card.flops)
    if not way.prefilled:
        return (prompt + encoding_s(card, model, each.prompt)) / BUSY
    together = min(ENCODED_TOGETHER, bursts.size(way.requests))
    launching = model.encoder.layers * LAYER_LAUNCH_S / together
    return max((prompt + encoding_s(card, model, each.positions, SHARED, way.walks)) / BUSY, launching)


def decoder_s(card: Capacity, part: Part, requests: float, context: float, walks: bool = False) -> float:
    """A position of each request, on the GPU."""
    attention = walk_s(card, part, requests, context) if walks else attention_s(card, part, requests, 1, context)
    return products_s(card, part, requests) + attention + REST_S + requests * REST_BYTES / (STREAM * card.bytes_per_s)


def frames_s(card: Capacity, model: Shape, requests: float, each: Chunk) -> float:
    """Stock's encoder in a step: four frames of each request."""
    part, frames = model.encoder, memory.FRAMES_PER_TOKEN
    behind = sum(min(frames * at, model.window) for at in range(each.prompt, each.positions)) / each.steps
    return (
        products_s(card, part, frames * requests)
        + attention_s(card, part, requests, frames, behind)
        + REST_S
        + requests * frames * part.layers * FRAME_BYTES / (STREAM * card.bytes_per_s)
    )


def encoding_s(card: Capacity, model: Shape, positions: int, shared: int = 0, walks: bool = False) -> float:
    """A whole chunk through the encoder, on the GPU, with others beside it.

    Args:
        shared: positions at its beginning whose keys and values are there already.
        walks: see Way.
    """
    part, known = model.encoder, shared * memory.FRAMES_PER_TOKEN
    frames = positions * memory.FRAMES_PER_TOKEN - known
    seen = _own_window_s(card, model, frames, known) if walks else _flash_window_s(card, model, frames, known)
    return (
        2 * part.weights * frames / (MATRIX * card.flops)
        + seen
        + frames * part.layers * FRAME_BYTES / (STREAM * card.bytes_per_s)
    )


def _flash_window_s(card: Capacity, model: Shape, frames: int, known: int) -> float:
    """The encoder's attention over frames behind `known` ones, by FlashAttention."""
    rows = _tile_rows(card, model.encoder)
    tiles = math.ceil(frames / rows)
    keys = sum(min(model.window + rows, known + end) for end in range(rows, frames + rows, rows)) / tiles
    return _tiles_s(card, model.encoder, tiles, keys)


def _own_window_s(card: Capacity, model: Shape, frames: int, known: int) -> float:
    """Likewise, by our own kernel."""
    part = model.encoder
    grown = max(0, min(frames, model.window - known))  # frames that see all before them
    scores = grown * (known + (grown + 1) / 2) + (frames - grown) * model.window
    return part.layers * part.heads * scores * 4 * part.head_dim / (WINDOW * card.flops)


def products_s(card: Capacity, part: Part, rows: float) -> float:
    """All matrix products of so many rows: to read the weights, or to compute, whichever is slower."""
    kernels = 5 * part.layers + 1  # queries with keys and values, out, gate with up, down; what pieces them together
    reading = memory.BYTES * part.weights / (STREAM * card.bytes_per_s) + kernels * PRODUCT_S
    computing = 2 * part.weights * rows / (MATRIX * card.flops)
    return float((reading**SHARPNESS + computing**SHARPNESS) ** (1 / SHARPNESS))


def attention_s(card: Capacity, part: Part, requests: float, queries: int, keys: float) -> float:
    """A few new queries of each request over its K/V cache: to read that, or to compute whole tiles of it."""
    tiles = math.ceil(queries * part.queries / _tile_rows(card, part))
    reading = requests * keys * part.position_bytes / (STREAM * card.bytes_per_s)
    return part.layers * ATTENTION_S + max(reading, _tiles_s(card, part, requests * tiles, keys))


def walk_s(card: Capacity, part: Part, requests: float, keys: float) -> float:
    """One new query of each request over its K/V cache, by our own kernel: to read that."""
    return part.layers * WALK_S + requests * keys * part.position_bytes / (STREAM * card.bytes_per_s)


def _tiles_s(card: Capacity, part: Part, tiles: float, keys: float) -> float:
    """So many tiles for each head of keys in each layer, spread over the card."""
    scores = _tile_rows(card, part) * (keys + KEYS_ROUNDED)
    busy = TILE_S + scores * SCORE_FLOP * card.multiprocessors / card.flops
    return tiles * part.heads * part.layers * busy / card.multiprocessors


def _tile_rows(card: Capacity, part: Part) -> int:
    return card.tile_rows[part.head_dim > 64]
