"""The options of this engine. They come from `--engine-option NAME=VALUE`, from the engine_options of a profile, or
from a file for vLLM (`serving_properties`, `vllm_config`).

An option that is not given gets its value from the profile for the model's family. So the reason for each value is in
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
"""The profile of each family. Its engine options are the defaults of the family."""
TRANSCRIBE, ASK = "transcribe", "ask"
QUESTION_CONTEXT = 32_768
"""Default of max_model_len for questions: the context of Voxtral Mini 3B and Small 24B according to their model cards.
It holds 41 minutes of audio beside the question and an answer of 1,024 tokens."""
ALL_GPUS = "max"
"""The value of tensor_parallel_size for one engine over all visible GPUs."""
DTYPES = ("auto", "bfloat16", "float16", "float32")
CUDAGRAPH_MODES = ("auto", "NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
"""The values of vLLM's CUDAGraphMode, and "auto" of voxbatch."""
AUTO, TRUE, FALSE = "auto", "true", "false"
DECODER, ENCODER, KV = "decoder", "encoder", "kv"
FP8_PARTS = (DECODER, ENCODER, KV)
MINIMUMS = {
    "max_model_len": 1, "max_num_seqs": 0, "tensor_parallel_size": 1, "restarts": 0, "block_size": 0,
    "attention_splits": 0, "max_answer_tokens": 1,
}  # fmt: skip
"""Smallest allowed values."""
TRAINED_DELAYS_MS = (*range(80, 1201, 80), 2400)
"""The transcription delays with which Voxtral Realtime was trained, according to its model card."""


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """The options of this engine.

    Raises:
        ConfigError: a value makes no sense with any model.
    """

    task: str = TRANSCRIBE
    """TRANSCRIBE, or ASK to answer questions about recordings. Set by `voxbatch ask`."""
    max_answer_tokens: int = 1_024
    """Largest number of tokens of an answer. Set by --max-tokens of `voxbatch ask`."""
    max_model_len: int = 512
    """Number of context positions of one request."""
    dtype: str = "bfloat16"
    """One of DTYPES."""
    gpu_memory_utilization: float = 0.95
    """Largest share of the GPU's memory that may be in use, by everything on the GPU together. vLLM's option of the
    same name means something else."""
    gpu_memory_gb: float = 0.0
    """Largest amount of the GPU's memory that may be in use, in GB (10^9 bytes). 0 means that gpu_memory_utilization
    applies. See `memory` for the arithmetic."""
    max_num_seqs: int = 0
    """Number of requests at a time. 0 means as many as the memory admits."""
    max_num_batched_tokens: int = 0
    """Number of positions in one step. 0 means that vLLM chooses."""
    enforce_eager: bool = False
    cudagraph_mode: str = "auto"
    """One of CUDAGRAPH_MODES. "auto" means the fullest mode in which this vLLM can run the model."""
    lift_encoder_cache: bool = True
    """Make the encoder cache large enough for the audio of every running request. vLLM itself sizes the cache by
    max_num_batched_tokens."""
    prefill_encoder: str = AUTO
    """Run Voxtral Realtime's encoder once per chunk, and not inside every step: true, false or auto. "auto" means true
    if the plugin was proven with the installed vLLM and these settings (see `prefill`)."""
    block_size: int = 0
    """Number of positions in a K/V block, a multiple of 16. 0 means that vLLM chooses; its blocks have 16 positions on
    GPUs. Requests get blocks for their whole length. So larger blocks cost no memory, and save work of the
    scheduler."""
    attention_backend: str = ""
    """vLLM's name of an attention backend, e.g. FLASH_ATTN or TRITON_ATTN. Empty means voxbatch's own backend if the
    encoder runs once per chunk; otherwise vLLM chooses."""
    attention_splits: int = 0
    """Largest number of parts into which FlashAttention 3 splits the K/V of a request within CUDA graphs. 0 means that
    vLLM chooses (32). Many short requests fill the GPU without splitting, and 1 saves the addition of the parts.
    voxbatch's own attention does not split."""
    delay_ms: int = 0
    """Transcription delay of Voxtral Realtime, one of TRAINED_DELAYS_MS. 0 means the model's own delay."""
    ignore_eos: bool = False
    """Continue to the end of the audio even if the model writes EOS before."""
    watch: bool = True
    """Decode a chunk with a suspect text a second time."""
    confidence: bool = True
    """Give each word of Voxtral Realtime a confidence, from the probabilities of its tokens."""
    tensor_parallel_size: int = 1
    """Number of GPUs that one engine uses. `resolve` replaces ALL_GPUS by that number."""
    devices: str = ""
    """Ids of the GPUs to use, such as 0,1. Empty means all visible GPUs."""
    limit_mm_per_prompt: str = "audio=1"
    """Largest number of inputs of each kind in a request. Only audio=1 or more is accepted, because a request holds one
    piece of audio. The option exists because a serving.properties may contain it."""
    config_format: str = ""
    load_format: str = ""
    tokenizer_mode: str = ""
    """vLLM's options config_format, load_format and tokenizer_mode. Empty means the value that fits the files of the
    model. `load_format=dummy` means random weights, for benchmarks."""
    quantization: str = ""
    """One of vLLM's quantization methods, for all layers to which the method applies. Most methods need weights that
    were made for the method."""
    fp8: str = ""
    """Parts that compute in 8 bits, from FP8_PARTS, separated by commas: the matrices of the decoder, the matrices of
    the encoder, and the decoder's K/V cache. The matrices are quantised while the weights load. The effect on the word
    error rate was never measured."""
    revision: str = ""
    """Branch, tag or commit of a model of the hub."""
    restarts: int = 6
    """Number of deaths of the engine, without a result between them, that are answered with a restart."""
    kernel_cache: str = ""
    """Folder, gs:// or s3:// prefix with compiled kernels; see `kernel_cache`. Set by --kernel-cache. Empty means that
    kernels stay on this machine."""
    scheduler_cls: str = ""
    """module.Class of a scheduler that replaces voxbatch's own, for tests and experiments."""

    def __post_init__(self) -> None:
        for name, minimum in MINIMUMS.items():
            if getattr(self, name) < minimum:
                raise ConfigError(f"engine option {name}={getattr(self, name)}: it must be at least {minimum}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"engine option gpu_memory_utilization={self.gpu_memory_utilization}: it must be above 0 and at most 1"
            )
        for name, allowed in (
            ("task", (TRANSCRIBE, ASK)),
            ("dtype", DTYPES),
            ("cudagraph_mode", CUDAGRAPH_MODES),
            ("prefill_encoder", (AUTO, TRUE, FALSE)),
        ):
            if getattr(self, name) not in allowed:
                raise ConfigError(f"engine option {name}={getattr(self, name)}: it must be one of {', '.join(allowed)}")
        if self.delay_ms not in (0, *TRAINED_DELAYS_MS):
            raise ConfigError(
                f"engine option delay_ms={self.delay_ms}: it must be a multiple of 80 from 80 to 1200, or 2400; or 0 "
                "for the model's own delay"
            )
        if self.block_size % 16:
            raise ConfigError(
                f"engine option block_size={self.block_size}: it must be a multiple of 16, or 0 for vLLM's own value"
            )
        if bad := sorted(self.fp8_parts - {*FP8_PARTS}):
            raise ConfigError(
                f"engine option fp8={self.fp8}: {bad[0]!r} is not a part; give some of {', '.join(FP8_PARTS)}, "
                "separated by commas"
            )
        try:
            check_mm_limits(self.limit_mm_per_prompt)
        except ValueError as e:
            raise ConfigError(
                f"engine option limit_mm_per_prompt={self.limit_mm_per_prompt}: a request holds one recording; give "
                "audio=1 or more, or leave the option out"
            ) from e

    @property
    def fp8_parts(self) -> frozenset[str]:
        """Return the parts in the option `fp8`."""
        return frozenset(part for each in self.fp8.split(",") if (part := each.strip()))


def check_mm_limits(text: str) -> None:
    """Check the limits of inputs per request, such as 'audio=1,image=0', 'audio:8' or '{"audio": 1}'.

    Raises:
        ValueError: the text has another form, or allows no audio.
    """
    limits: dict[str, int]
    if text.startswith("{"):
        limits = json.loads(text)
    else:
        pairs = [re.split("[=:]", pair, maxsplit=1) for pair in text.split(",")]
        limits = {name.strip(): int(count) for name, count in pairs}
    if not all(type(count) is int for count in limits.values()):
        raise ValueError(f"{text}: a number each")
    if limits.get("audio", 0) < 1:
        raise ValueError(f"{text}: no audio")


def resolve(family: str, given: Mapping[str, str]) -> VllmSettings:
    """Return the given options, completed by the profile of the family.

    Args:
        family: REALTIME, INSTRUCT or WHISPER.
        given: the options by name, as text.

    Raises:
        ConfigError: a name is unknown, or a value has the wrong type or size.
    """
    defaults = load_profile(PROFILES[family])["engine_options"]
    values = {**{name: str(value) for name, value in defaults.items()}, **given}
    if values.get("tensor_parallel_size") == ALL_GPUS:
        values["tensor_parallel_size"] = str(len(gpu.visible_gpus()) or 1)
    if values.get("task") == ASK and values["max_model_len"] == str(defaults["max_model_len"]):
        values["max_model_len"] = str(QUESTION_CONTEXT)  # the profiles' value holds one window of 30 s
    return parse(VllmSettings, "vllm", values)
