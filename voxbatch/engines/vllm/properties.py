"""A `serving.properties` as DJL and SageMaker's LMI containers read it → our model and engine options.

Keys that steer a server mean nothing in a batch; they are accepted and named. The format is that of Java's
java.util.Properties: comments with # or !, = or : or white space between key and value, a backslash at the end of a
line that goes on. The keys are LMI's: deepjavalibrary/djl-serving, serving/docs/lmi. Whether a value goes together with
the model is for `checks` to say.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from voxbatch.engines.vllm.settings import ALL_CARDS, CUDAGRAPH_MODES, check_mm_limits
from voxbatch.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Properties:
    """What a file asks for."""

    file: str
    model: str | None
    options: Mapping[str, str]
    """By the names of Settings, unparsed."""
    without_effect: tuple[str, ...]
    """Keys that are known and mean nothing here."""
    unknown: tuple[str, ...]
    """One sentence for each key that nobody knows."""


@dataclass(frozen=True, slots=True)
class Entry:
    number: int
    """Of the line it begins in, from 1."""
    key: str
    value: str


def read(file: str) -> Properties:
    """Read a serving.properties.

    Raises:
        ConfigError: it cannot be read, or a value makes no sense; with file and line.
    """
    entries = list(parse(_text_of(file)))
    options = _options(file, [entry for entry in entries if entry.key in _KEYS])
    others = [entry for entry in entries if entry.key not in _KEYS]
    return Properties(
        file,
        options.pop("model", None),
        options,
        tuple(dict.fromkeys(entry.key for entry in others if entry.key in _WITHOUT_EFFECT)),
        tuple(_unknown(file, entry) for entry in others if entry.key not in _WITHOUT_EFFECT),
    )


def _text_of(file: str) -> str:
    try:
        return Path(file).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"--serving-properties {file} cannot be read ({e}); give a text file in UTF-8") from e


def parse(text: str) -> Iterator[Entry]:
    """Java's properties, in order; white space behind a value is left out."""
    for number, line in _logical_lines(text):
        found = _KEY_AND_VALUE.fullmatch(line)
        assert found is not None, "every part of it may be empty"
        yield Entry(number, _unescaped(found[1]), _unescaped(found[2]).strip())


_KEY_AND_VALUE = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with the number of the first of each, continued ones joined, comments and blank ones left out."""
    first, joined = 0, ""
    for number, raw in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = raw.lstrip(" \t\f")
        if not first and (not line or line[0] in "#!"):
            continue
        first = first or number
        goes_on = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        joined += line[:-1] if goes_on else line
        if not goes_on:
            yield first, joined
            first, joined = 0, ""
    if joined:
        yield first, joined


def _unescaped(text: str) -> str:
    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", lambda found: _character(found[1]), text, flags=re.DOTALL)


def _character(escape: str) -> str:
    if len(escape) == 5:
        return chr(int(escape[1:], 16))
    return {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(escape, escape)


def _options(file: str, entries: Iterable[Entry]) -> dict[str, str]:
    """By the names of Settings. As in Java the last one of equal keys counts; two keys for one setting must agree."""
    found: dict[str, tuple[Entry, str]] = {}
    for entry in entries:
        setting, value = _KEYS[entry.key].setting, _value(file, entry)
        other, before = found.get(setting, (entry, value))
        if other.key != entry.key and before != value:
            raise ConfigError(
                f"{file}:{entry.number}: {entry.key}={entry.value} contradicts {other.key}={other.value} in line "
                f"{other.number}; give one of them"
            )
        found[setting] = entry, value
    return {setting: value for setting, (_, value) in found.items()}


def _value(file: str, entry: Entry) -> str:
    key = _KEYS[entry.key]
    try:
        return key.read(entry.value)
    except ValueError as e:
        raise ConfigError(f"{file}:{entry.number}: {entry.key}={entry.value!r}: it must be {key.allowed}") from e


def _unknown(file: str, entry: Entry) -> str:
    near = difflib.get_close_matches(entry.key, [*_KEYS, *sorted(_WITHOUT_EFFECT)], 1)
    meant = f"; the nearest known key is {near[0]}" if near else ""
    return f"{file}:{entry.number}: {entry.key} is unknown and has no effect{meant}"


# -- values: each reader gives the value in our words, or raises ValueError --------------------------------------------


def _text(value: str) -> str:
    if not value:
        raise ValueError("empty")
    return value


def _one_of(*allowed: str) -> Callable[[str], str]:
    return _translated({each: each for each in allowed})


def _translated(words: Mapping[str, str]) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value.lower() not in words:
            raise ValueError(value)
        return words[value.lower()]

    return read


def _count(value: str) -> str:
    if int(value) < 1:
        raise ValueError(value)
    return str(int(value))


def _degree(value: str) -> str:
    return ALL_CARDS if value.lower() == ALL_CARDS else _count(value)


def _share(value: str) -> str:
    if not 0 < float(value) <= 1:
        raise ValueError(value)
    return value


def _mm_limits(value: str) -> str:
    check_mm_limits(value)
    return value


def _cudagraph_mode(value: str) -> str:
    config = json.loads(value)
    if not isinstance(config, dict) or config.keys() != {"cudagraph_mode"}:
        raise ValueError(value)
    return _one_of_modes(str(config["cudagraph_mode"]))


_one_of_modes = _translated({mode.lower(): mode for mode in CUDAGRAPH_MODES if mode != "auto"})

# -- keys --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Key:
    setting: str
    """A field of Settings, or "model"."""
    read: Callable[[str], str]
    allowed: str


_DTYPES = {
    "auto": "auto", "fp16": "float16", "float16": "float16", "half": "float16", "bf16": "bfloat16",
    "bfloat16": "bfloat16", "fp32": "float32", "float32": "float32", "float": "float32",
}  # fmt: skip
_COUNT = "a whole number from 1"
_REQUESTS = _Key("max_num_seqs", _count, _COUNT)
_TOKENS = _Key("max_num_batched_tokens", _count, _COUNT)
_DEGREE = _Key("tensor_parallel_size", _degree, "a number of GPUs from 1, or max for all that are visible")
_KV_DTYPES = {"auto": "", "fp8": "kv", "fp8_e4m3": "kv"}
_QUANTIZE = _Key("quantization", _text, "a method that vLLM knows, e.g. fp8")
_KEYS = {
    "option.model_id": _Key("model", _text, "a folder, a hub name, gs:// or s3://"),
    "option.revision": _Key("revision", _text, "a branch, a tag or a commit of a hub's model"),
    "option.tensor_parallel_degree": _DEGREE,
    "option.tensor_parallel_size": _DEGREE,
    "option.dtype": _Key("dtype", _translated(_DTYPES), "auto, fp16, bf16, fp32, or vLLM's own name of these"),
    "option.tokenizer_mode": _Key("tokenizer_mode", _one_of("auto", "hf", "mistral"), "auto, hf or mistral"),
    "option.config_format": _Key("config_format", _one_of("auto", "hf", "mistral"), "auto, hf or mistral"),
    "option.load_format": _Key("load_format", _text, "auto, mistral, safetensors, dummy or another of vLLM's"),
    "option.limit_mm_per_prompt": _Key(
        "limit_mm_per_prompt", _mm_limits, 'audio:N, audio=N or as JSON {"audio": N}, N from 1'
    ),
    "option.max_model_len": _Key("max_model_len", _count, _COUNT),
    "option.gpu_memory_utilization": _Key("gpu_memory_utilization", _share, "above 0, at most 1"),
    "option.max_num_seqs": _REQUESTS,
    "option.max_rolling_batch_size": _REQUESTS,
    "option.max_num_batched_tokens": _TOKENS,
    "option.max_rolling_batch_prefill_tokens": _TOKENS,
    "option.enforce_eager": _Key(
        "enforce_eager", _translated({"true": "true", "1": "true", "false": "false", "0": "false"}), "true or false"
    ),
    "option.quantize": _QUANTIZE,
    "option.quantization": _QUANTIZE,
    "option.kv_cache_dtype": _Key("fp8", _translated(_KV_DTYPES), "auto, fp8 or fp8_e4m3"),
    "option.block_size": _Key("block_size", _count, _COUNT),
    "option.attention_backend": _Key("attention_backend", _text, "a backend that vLLM knows, e.g. FLASH_ATTN"),
    "option.compilation_config": _Key(
        "cudagraph_mode",
        _cudagraph_mode,
        f'JSON that gives cudagraph_mode alone, e.g. {{"cudagraph_mode": "PIECEWISE"}}; modes are '
        f"{', '.join(CUDAGRAPH_MODES[1:])}",
    ),
}
_SERVER = (
    "engine", "job_queue_size", "batch_size", "max_batch_delay", "max_idle_time", "minWorkers", "maxWorkers",
    "min_workers", "max_workers", "gpu.minWorkers", "gpu.maxWorkers", "load_on_devices", "log_request_metric",
    "retry_threshold",
)  # fmt: skip
_OPTIONS = (
    "async_mode", "rolling_batch", "entryPoint", "trust_remote_code", "task", "mpi_mode", "device_map", "device_id",
    "parallel_loading", "model_loading_timeout", "predict_timeout", "load_on_devices", "python_executable",
    "output_formatter", "input_formatter", "enable_streaming", "return_tuple", "waiting_steps", "stream_interval",
    "pipeline_parallel_degree", "pipeline_parallel_size", "data_parallel_size", "enable_chunked_prefill",
    "enable_prefix_caching", "disable_log_stats", "disable_log_requests", "swap_space", "cpu_offload_gb",
    "cpu_offload_gb_per_gpu", "seed", "enable_lora", "max_loras", "max_lora_rank", "max_cpu_loras",
    "lora_extra_vocab_size", "adapters", "enable_auto_tool_choice", "tool_call_parser", "reasoning_parser",
    "chat_template", "use_v2_block_manager", "disable_custom_all_reduce", "max_logprobs", "served_model_name",
    "mm_processor_cache_gb", "mm_processor_kwargs",
)  # fmt: skip
_WITHOUT_EFFECT = frozenset([*_SERVER, *(f"option.{name}" for name in _OPTIONS)])
"""What steers a server, and what this engine settles itself."""
