"""What can be set of this engine: `--engine-option NAME=VALUE`, a profile's engine_options, or serving.properties.

A value that nobody gives comes from the profile that is made for the model's family, so the reason for each stands in
one place, `profiles/*.yaml`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from voxbatch.config import load_profile
from voxbatch.engines.options import parse
from voxbatch.engines.vllm import gpu
from voxbatch.engines.vllm.model import INSTRUCT, REALTIME, WHISPER
from voxbatch.errors import ConfigError

PROFILES = {REALTIME: "ctx512-batch", INSTRUCT: "mini-3b", WHISPER: "whisper"}
"""Whose engine options are a family's defaults."""
ALL_CARDS = "max"
"""As a tensor_parallel_size: one engine over all visible GPUs."""
DTYPES = ("auto", "bfloat16", "float16", "float32")
CUDAGRAPH_MODES = ("auto", "NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
"""vLLM's CUDAGraphMode, and our auto."""
AUTO, TRUE, FALSE = "auto", "true", "false"
DECODER, ENCODER, KV = "decoder", "encoder", "kv"
FP8_PARTS = (DECODER, ENCODER, KV)
LEAST = {
    "max_model_len": 1, "max_num_seqs": 0, "tensor_parallel_size": 1, "restarts": 0, "block_size": 0,
    "attention_splits": 0,
}  # fmt: skip
TRAINED_DELAYS_MS = (*range(80, 1201, 80), 2400)
"""The transcription delays that Voxtral Realtime was trained with, says its card."""


@dataclass(frozen=True, slots=True)
class Settings:
    max_model_len: int = 512
    """Context positions of one request."""
    dtype: str = "bfloat16"
    """One of DTYPES."""
    gpu_memory_utilization: float = 0.95
    """Share of the card's memory that may be in use at most, all that is on it included: not what vLLM means by it …"""
    gpu_memory_gb: float = 0.0
    """… or so many GB (10^9 bytes) of it; 0 means the share. See memory for the arithmetic."""
    max_num_seqs: int = 0
    """Requests at a time; 0 means as many as the memory admits."""
    max_num_batched_tokens: int = 0
    """Positions in one step; 0 leaves it to vLLM."""
    enforce_eager: bool = False
    cudagraph_mode: str = "auto"
    """One of CUDAGRAPH_MODES; auto: the fullest that this vLLM can do with the model."""
    lift_encoder_cache: bool = True
    """Let every running request keep its audio in the encoder cache, which vLLM sizes by max_num_batched_tokens."""
    prefill_encoder: str = AUTO
    """Run Voxtral Realtime's encoder once a chunk, in place of inside every step: true, false, or auto, which is true
    where that was proven (see prefill)."""
    block_size: int = 0
    """Positions in a K/V block, a multiple of 16; 0 leaves it to vLLM, whose blocks are 16 on GPUs. Requests are given
    blocks for their whole length, so that larger ones cost no memory and spare the scheduler work."""
    attention_backend: str = ""
    """vLLM's name of one, e.g. FLASH_ATTN or TRITON_ATTN; empty means voxbatch's own where the encoder runs once a
    chunk, and else leaves it to vLLM."""
    attention_splits: int = 0
    """Into how many parts at most FlashAttention 3 splits a request's K/V within CUDA graphs; 0 leaves it to vLLM (32).
    Many short requests fill the GPU by themselves, and 1 saves adding up the parts. Our own attention has none."""
    delay_ms: int = 0
    """Voxtral Realtime's transcription delay, one of TRAINED_DELAYS_MS; 0 means the model's own."""
    ignore_eos: bool = False
    """Listen to the end of the audio, whatever the model says."""
    watch: bool = True
    """Decode a suspect chunk once more."""
    tensor_parallel_size: int = 1
    """GPUs that one engine takes; ALL_CARDS is resolved before."""
    devices: str = ""
    """GPUs to use, such as 0,1; empty means all that are visible."""
    limit_mm_per_prompt: str = "audio=1"
    """A ceiling: a request here holds one recording. It is an option because serving.properties may say it."""
    config_format: str = ""
    load_format: str = ""
    tokenizer_mode: str = ""
    """These three: empty means what the model's files call for. `load_format=dummy` makes up weights, for
    benchmarks."""
    quantization: str = ""
    """A method of vLLM's own, for all it applies to; most want weights that were made for it."""
    fp8: str = ""
    """Parts that compute in 8 bits, of FP8_PARTS with commas: the matrices of the decoder and of the encoder, made from
    the weights while they load, and the decoder's K/V cache. What that does to the words was never measured."""
    revision: str = ""
    """Of a hub's model: branch, tag or commit."""
    restarts: int = 6
    """How often the engine may die without one result in between."""
    scheduler_cls: str = ""
    """module.Class in place of voxbatch's own; for tests and experiments."""

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise ConfigError(f"engine option {name}={getattr(self, name)}: it must be at least {least}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(f"engine option gpu_memory_utilization={self.gpu_memory_utilization}: above 0, at most 1")
        for name, allowed in (
            ("dtype", DTYPES),
            ("cudagraph_mode", CUDAGRAPH_MODES),
            ("prefill_encoder", (AUTO, TRUE, FALSE)),
        ):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"engine option {name}={getattr(self, name)}: it must be one of {', '.join(allowed)}")
        if self.delay_ms not in (0, *TRAINED_DELAYS_MS):
            raise ConfigError(
                f"engine option delay_ms={self.delay_ms}: it must be a multiple of 80 from 80 to 1200, or 2400; or 0 "
                "for the model's own"
            )
        if self.block_size % 16:
            raise ConfigError(f"engine option block_size={self.block_size}: a multiple of 16, or 0 for vLLM's own")
        if bad := sorted(self.fp8_parts - {*FP8_PARTS}):
            raise ConfigError(
                f"engine option fp8={self.fp8}: {bad[0]!r} is no part; give some of {', '.join(FP8_PARTS)} with commas"
            )
        _require_one_audio(self.limit_mm_per_prompt)

    @property
    def fp8_parts(self) -> frozenset[str]:
        return frozenset(part for each in self.fp8.split(",") if (part := each.strip()))


def _require_one_audio(text: str) -> None:
    try:
        check_mm_limits(text)
    except ValueError as e:
        raise ConfigError(
            f"engine option limit_mm_per_prompt={text}: a request holds one recording; give audio=1 or more, or leave "
            "the option out"
        ) from e


def check_mm_limits(text: str) -> None:
    """Check limits such as 'audio=1,image=0', 'audio:8' or '{"audio": 1}'.

    Raises:
        ValueError: the text has another form, or admits no audio.
    """
    if text.startswith("{"):
        limits = json.loads(text)
    else:
        pairs = [re.split("[=:]", pair, maxsplit=1) for pair in text.split(",")]
        limits = {name.strip(): int(count) for name, count in pairs}
    if not all(type(count) is int for count in limits.values()):
        raise ValueError(f"{text}: a number each")
    if limits.get("audio", 0) < 1:
        raise ValueError(f"{text}: no audio")


def resolve(family: str, given: Mapping[str, str]) -> Settings:
    """What was given, completed by the family's profile.

    Raises:
        ConfigError: an unknown name, or a value of the wrong type or size.
    """
    defaults = load_profile(PROFILES[family])["engine_options"]
    values = {**{name: str(value) for name, value in defaults.items()}, **given}
    if values.get("tensor_parallel_size") == ALL_CARDS:
        values["tensor_parallel_size"] = str(len(gpu.cards()) or 1)
    return parse(Settings, "vllm", values)
