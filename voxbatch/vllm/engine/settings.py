"""The options of this engine. They come from `--engine-option NAME=VALUE`, from the engine_options of a profile, or
from a file for vLLM (`serving_properties`, `vllm_config`).

An option that is not given gets its value from the profile for the model's family. So the reason for each value is in
one place, `profiles/*.yaml`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from voxbatch.errors import ConfigError
from voxbatch.settings import setting, settings_of

TRANSCRIBE, ASK, SPEAK = "transcribe", "ask", "speak"
ALL_GPUS = "max"
"""The value of tensor_parallel_size for one engine over all visible GPUs."""
DTYPES = ("auto", "bfloat16", "float16", "float32")
CUDAGRAPH_MODES = ("auto", "NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
"""The values of vLLM's CUDAGraphMode, and "auto" of voxbatch."""
AUTO, TRUE, FALSE = "auto", "true", "false"
DECODER, ENCODER, KV = "decoder", "encoder", "kv"
FP8_PARTS = (DECODER, ENCODER, KV)
TRAINED_DELAYS_MS = (*range(80, 1201, 80), 2400)
"""The transcription delays with which Voxtral Realtime was trained, according to its model card."""


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """The options of this engine.

    Raises:
        ConfigError: a value makes no sense with any model.
    """

    task: str = setting(
        TRANSCRIBE, choices=(TRANSCRIBE, ASK, SPEAK),
        help="transcribe; ask or speak: `voxbatch ask` and `voxbatch speak` set them",
    )  # fmt: skip
    max_answer_tokens: int = setting(
        1_024, minimum=1, help="largest number of tokens of an answer; `voxbatch ask --max-tokens` sets it"
    )
    max_model_len: int = setting(
        512, minimum=0,
        help="positions of one request: 512 are 35.12 s with a delay of 2,400 ms. 0: up to 2,048, for models other "
        "than Voxtral and Whisper",
    )  # fmt: skip
    dtype: str = setting("bfloat16", choices=DTYPES, help=f"number format: {', '.join(DTYPES)}")
    gpu_memory_utilization: float = setting(
        0.95,
        help="largest share of the GPU's memory in use, other programs included",
    )  # fmt: skip
    gpu_memory_gb: float = setting(0.0, help="the same in GB (10⁹ bytes); 0: use the share")
    beside_gb: float = setting(
        0.0, help="GB of that memory for networks that run beside vLLM on each GPU; `--speakers` sets it"
    )
    max_num_seqs: int = setting(0, minimum=0, help="requests at a time; 0: as many as the memory admits")
    max_num_batched_tokens: int = setting(0, help="positions in one step; 0: vLLM chooses")
    enforce_eager: bool = setting(False, help="use no CUDA graphs")
    cudagraph_mode: str = setting(
        "auto", choices=CUDAGRAPH_MODES,
        help="mode of CUDA graphs; auto: the fullest that works",
    )  # fmt: skip
    lift_encoder_cache: bool = setting(
        True,
        help="make the encoder cache fit all running requests",
    )  # fmt: skip
    prefill_encoder: str = setting(
        AUTO, choices=(AUTO, TRUE, FALSE),
        help="`--prefill-encoder` sets it: true, false, or auto: if proven with this vLLM",
    )  # fmt: skip
    block_size: int = setting(
        0, minimum=0,
        help="positions in a K/V block, a multiple of 16; 0: vLLM chooses",
    )  # fmt: skip
    attention_backend: str = setting(
        "",
        help="an attention backend of vLLM, e.g. FLASH_ATTN; empty: chosen",
    )  # fmt: skip
    delay_ms: int = setting(
        0,
        help="Voxtral Realtime's delay: a multiple of 80 from 80 to 1200, or 2400; 0: the model's own (480). A longer "
        "one gives a lower WER",
    )  # fmt: skip
    ignore_eos: bool = setting(False, help="continue to the end of the audio even if the model writes EOS before")
    watch: bool = setting(True, help="decode a chunk with suspect text a second time")
    confidence: bool = setting(
        True,
        help="give words (or transcripts without word times) a [confidence](confidence.md#confidence)",
    )  # fmt: skip
    reproducible: bool = setting(
        False,
        help="`--reproducible` sets it: text, times and confidences depend on the item alone. Slower",
    )
    tensor_parallel_size: int = setting(
        1, minimum=1, help=f"GPUs that one engine spans; {ALL_GPUS}: all that are visible"
    )
    """`families.choice.resolve` replaces ALL_GPUS by a number."""
    devices: str = setting("", help="ids of the GPUs to use, such as `0,1`; empty: all that are visible")
    limit_mm_per_prompt: str = setting(
        "audio=1",
        help="inputs in a request; a serving.properties sets it: audio=1 or more, of which one is used",
    )  # fmt: skip
    config_format: str = setting("", help="vLLM's option; empty: what fits the model")
    load_format: str = setting(
        "",
        help="vLLM's option; empty: what fits the model. `dummy`: random weights, for benchmarks",
    )  # fmt: skip
    tokenizer_mode: str = setting("", help="vLLM's option; empty: what fits the model")
    quantization: str = setting(
        "",
        help="vLLM's quantization method for all layers. `fp8` raised the WER of Whisper tiny from 12.85 to 14.29 %",
    )  # fmt: skip
    fp8: str = setting(
        "",
        help=f"parts that calculate in 8 bits: {', '.join(FP8_PARTS)} (the K/V cache), joined with commas. Needs an "
        "L4, L40S, H100 or later. Voxtral's WER is then unknown",
    )  # fmt: skip
    revision: str = setting("", help="branch, tag or commit of a model of the hub")
    restarts: int = setting(6, minimum=0, help="deaths of the engine that are allowed without a result between")
    kernel_cache: str = setting(
        "", help="folder, gs:// or s3:// prefix with compiled kernels; `--kernel-cache` sets it; empty: this machine"
    )
    scheduler_cls: str = setting(
        "", help="module.Class of a scheduler that replaces voxbatch's own, for tests and experiments"
    )

    def __post_init__(self) -> None:
        for name, declared in settings_of(VllmSettings).items():
            value = getattr(self, name)
            if rule := declared.broken_rule(value):
                raise ConfigError(f"engine option {name}={value}: {rule}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"engine option gpu_memory_utilization={self.gpu_memory_utilization}: it must be above 0 and at most 1"
            )
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
        return frozenset(filter(None, map(str.strip, self.fp8.split(","))))


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
