"""Translate vLLM's own names of settings into the model and the engine options. All files for vLLM share this table.

`serving_properties` and `vllm_config` read the files and return Entries; this module interprets each entry. Keys that
control a server have no effect in a batch job; they are accepted, and listed as such; `voxbatch serve` passes them on.
`checks` later checks that the values fit the model.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from voxbatch.errors import ConfigError
from voxbatch.log import Log
from voxbatch.vllm.engine.settings import ALL_GPUS, CUDAGRAPH_MODES, check_mm_limits


@dataclass(frozen=True, slots=True)
class FileSettings:
    """The settings in a file for vLLM."""

    flag: str
    """The command-line option that named the file."""
    file: str
    model: str | None
    options: Mapping[str, str]
    """Engine options by the names of VllmSettings, unparsed."""
    without_effect: tuple[str, ...]
    """Keys that are known but have no effect on a batch job."""
    of_server: Mapping[str, str]
    """The values of those keys that have an effect on a server, by vLLM's names: see SERVER_KEYS."""
    unknown: tuple[str, ...]
    """Sentences for people, one for each unknown key."""

    def report(self, log: Log) -> None:
        """Log the keys that have no effect on a batch job, and warn of the unknown ones."""
        event = self.flag[2:].replace("-", "_")
        if self.without_effect:
            log.info(event, text=f"{self.file}: without effect here: {', '.join(self.without_effect)}")
        for text in self.unknown:
            log.warning(event, text=text)


@dataclass(frozen=True, slots=True)
class Entry:
    """A key and its value in a file, as text."""

    number: int
    """Number of the line in which the entry begins, from 1."""
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Key:
    """The meaning of a key that has an effect."""

    setting: str
    """A field of VllmSettings, or "model"."""
    read: Callable[[str], str]
    """Function that translates the value for VllmSettings. Raises ValueError."""
    allowed: str
    """The allowed values, as text for messages."""


def read_text(flag: str, file: str) -> str:
    """Return the text of a file.

    Raises:
        ConfigError: the file cannot be read, or is not text in UTF-8.
    """
    try:
        return Path(file).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{flag} {file} cannot be read ({e}); give a text file in UTF-8") from e


def interpret(
    flag: str, file: str, entries: Collection[Entry], keys: Mapping[str, Key], without_effect: Collection[str]
) -> FileSettings:
    """Return the settings in the entries of a file.

    Two different keys for one setting must agree.

    Args:
        flag: the command-line option that named the file.
        keys: the keys that have an effect here.
        without_effect: the other keys of the file's format.

    Raises:
        ConfigError: a value makes no sense, or two values contradict each other. The message names file and line.
    """
    read: dict[str, tuple[Entry, str]] = {}
    for entry in entries:
        if (key := keys.get(entry.key)) is None:
            continue
        try:
            value = key.read(entry.value)
        except ValueError as e:
            raise ConfigError(f"{file}:{entry.number}: {entry.key}={entry.value!r}: it must be {key.allowed}") from e
        other, before = read.get(key.setting, (entry, value))
        if other.key != entry.key and before != value:
            raise ConfigError(
                f"{file}:{entry.number}: {entry.key}={entry.value} contradicts {other.key}={other.value} in line "
                f"{other.number}; give one of them"
            )
        read[key.setting] = entry, value  # if a key occurs more than once, its last value counts, as in Java
    options = {setting: value for setting, (_, value) in read.items()}
    others = [entry for entry in entries if entry.key not in keys]
    known = [*keys, *sorted(without_effect)]
    return FileSettings(
        flag,
        file,
        options.pop("model", None),
        options,
        tuple(dict.fromkeys(entry.key for entry in others if entry.key in without_effect)),
        {name: entry.value for entry in others if (name := entry.key.removeprefix("option.")) in SERVER_KEYS},
        tuple(_unknown(file, entry, known) for entry in others if entry.key not in without_effect),
    )


def _unknown(file: str, entry: Entry, known: list[str]) -> str:
    """Return a sentence about an unknown key, with the most similar known key if there is one."""
    near = difflib.get_close_matches(entry.key, known, 1)
    nearest = f"; the nearest known key is {near[0]}" if near else ""
    return f"{file}:{entry.number}: {entry.key} is unknown and has no effect{nearest}"


# -- values: each reader returns the value for VllmSettings, or raises ValueError --------------------------------------


def _text(value: str) -> str:
    if not value:
        raise ValueError("empty")
    return value


def _one_of(*allowed: str) -> Callable[[str], str]:
    return _translated({word: word for word in allowed})


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


_SIZE = re.compile(r"(\d+)(\.\d+)?([kmgt])", re.IGNORECASE)


def _size(value: str) -> str:
    """Read a count as vLLM does (vllm/utils/argparse_utils.py: human_readable_int): 2k is 2000, 2K 2048, 0.5k 500.
    Only powers of 1000 have fractions."""
    if not (match := _SIZE.fullmatch(value.strip())):
        return _count(value)
    whole, fraction, unit = match.groups()
    power = "kmgt".index(unit.lower()) + 1
    if unit.islower():
        return _count(str(int(float(whole + (fraction or "")) * 1000**power)))
    return _count(str(int(whole + (fraction or "")) * 1024**power))


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


_DTYPES = {
    "auto": "auto", "fp16": "float16", "float16": "float16", "half": "float16", "bf16": "bfloat16",
    "bfloat16": "bfloat16", "fp32": "float32", "float32": "float32", "float": "float32",
}  # fmt: skip
_COUNT = "a whole number from 1"
_SIZES = "a whole number from 1, such as 2048, 2k (2000) or 2K (2048)"
_KV_DTYPES = {"auto": "", "fp8": "kv", "fp8_e4m3": "kv"}
KEYS = {
    "model": Key("model", _text, "a folder, a hub name, gs:// or s3://"),
    "revision": Key("revision", _text, "a branch, a tag or a commit of a hub's model"),
    "tensor_parallel_size": Key(
        "tensor_parallel_size",
        lambda value: ALL_GPUS if value.lower() == ALL_GPUS else _count(value),
        "a number of GPUs from 1, or max for all that are visible",
    ),
    "dtype": Key("dtype", _translated(_DTYPES), "auto, fp16, bf16, fp32, or vLLM's own name of these"),
    "tokenizer_mode": Key("tokenizer_mode", _one_of("auto", "hf", "mistral"), "auto, hf or mistral"),
    "config_format": Key("config_format", _one_of("auto", "hf", "mistral"), "auto, hf or mistral"),
    "load_format": Key("load_format", _text, "auto, mistral, safetensors, dummy or another of vLLM's"),
    "limit_mm_per_prompt": Key("limit_mm_per_prompt", _mm_limits, 'audio:N, audio=N or as JSON {"audio": N}, N from 1'),
    "max_model_len": Key("max_model_len", _size, _SIZES),
    "gpu_memory_utilization": Key("gpu_memory_utilization", _share, "above 0, at most 1"),
    "max_num_seqs": Key("max_num_seqs", _count, _COUNT),
    "max_num_batched_tokens": Key("max_num_batched_tokens", _size, _SIZES),
    "enforce_eager": Key(
        "enforce_eager", _translated({"true": "true", "1": "true", "false": "false", "0": "false"}), "true or false"
    ),
    "quantization": Key("quantization", _text, "a method that vLLM knows, e.g. fp8"),
    "kv_cache_dtype": Key("fp8", _translated(_KV_DTYPES), "auto, fp8 or fp8_e4m3"),
    "block_size": Key("block_size", _count, _COUNT),
    "attention_backend": Key("attention_backend", _text, "a backend that vLLM knows, e.g. FLASH_ATTN"),
    "compilation_config": Key(
        "cudagraph_mode",
        _cudagraph_mode,
        f'JSON that gives cudagraph_mode alone, e.g. {{"cudagraph_mode": "PIECEWISE"}}; modes are '
        f"{', '.join(CUDAGRAPH_MODES[1:])}",
    ),
}
"""The keys that have an effect, by vLLM's names: fields of its EngineArgs."""
WITHOUT_EFFECT = (
    "trust_remote_code", "task", "pipeline_parallel_size", "data_parallel_size", "enable_chunked_prefill",
    "enable_prefix_caching", "disable_log_stats", "disable_log_requests", "swap_space", "cpu_offload_gb", "seed",
    "enable_lora", "max_loras", "max_lora_rank", "max_cpu_loras", "lora_extra_vocab_size", "enable_auto_tool_choice",
    "tool_call_parser", "reasoning_parser", "chat_template", "use_v2_block_manager", "disable_custom_all_reduce",
    "max_logprobs", "served_model_name", "mm_processor_cache_gb", "mm_processor_kwargs",
)  # fmt: skip
"""vLLM's names of the options that have no effect, because this engine decides their value itself."""
SERVER_KEYS = (
    "enable_chunked_prefill", "enable_prefix_caching", "enable_auto_tool_choice", "tool_call_parser",
    "reasoning_parser", "chat_template", "served_model_name", "max_logprobs", "seed",
)  # fmt: skip
"""The keys without effect on a batch job that `voxbatch serve` passes on to vLLM's server."""
