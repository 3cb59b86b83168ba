"""Read a `serving.properties` of DJL and of SageMaker's LMI containers, and return the model and the engine options.

The format is that of Java's java.util.Properties. Comments begin with # or !. The separator between key and value is =,
: or white space. A backslash at the end of a line continues the line. The keys are those of LMI
(deepjavalibrary/djl-serving, serving/docs/lmi): vLLM's own options with the prefix `option.`, which `config_keys`
interprets, and a few more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from voxbatch.vllm.engine import config_keys
from voxbatch.vllm.engine.config_keys import Entry, FileSettings

FLAG = "--serving-properties"


def read(file: str) -> FileSettings:
    """Read a serving.properties.

    Raises:
        ConfigError: the file cannot be read, or a value makes no sense. The message names file and line.
    """
    entries = list(parse(config_keys.read_text(FLAG, file)))
    return config_keys.interpret(FLAG, file, entries, _KEYS, _WITHOUT_EFFECT)


def parse(text: str) -> Iterator[Entry]:
    """Yield the entries of a properties file, in order. White space at the end of a value is removed."""
    for number, line in _logical_lines(text):
        match = _KEY_AND_VALUE.fullmatch(line)
        assert match is not None, "every part of it may be empty"
        yield Entry(number, _unescaped(match[1]), _unescaped(match[2]).strip())


_KEY_AND_VALUE = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each logical line with the number of its first line. Comments and blank lines are left out.

    A logical line consists of a line and the lines that continue it.
    """
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
    def character(match: re.Match[str]) -> str:
        escape = match[1]
        if len(escape) == 5:
            return chr(int(escape[1:], 16))
        return {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(escape, escape)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", character, text, flags=re.DOTALL)


_ALIASES = {
    "model_id": "model",
    "tensor_parallel_degree": "tensor_parallel_size",
    "max_rolling_batch_size": "max_num_seqs",
    "max_rolling_batch_prefill_tokens": "max_num_batched_tokens",
    "quantize": "quantization",
}
"""vLLM's names of the keys that LMI calls by other names."""
_KEYS = {
    **{f"option.{name}": key for name, key in config_keys.KEYS.items() if name != "model"},
    **{f"option.{alias}": config_keys.KEYS[name] for alias, name in _ALIASES.items()},
}
_SERVER = (
    "engine", "job_queue_size", "batch_size", "max_batch_delay", "max_idle_time", "minWorkers", "maxWorkers",
    "min_workers", "max_workers", "gpu.minWorkers", "gpu.maxWorkers", "load_on_devices", "log_request_metric",
    "retry_threshold",
)  # fmt: skip
_OPTIONS = (
    "async_mode", "rolling_batch", "entryPoint", "mpi_mode", "device_map", "device_id", "parallel_loading",
    "model_loading_timeout", "predict_timeout", "load_on_devices", "python_executable", "output_formatter",
    "input_formatter", "enable_streaming", "return_tuple", "waiting_steps", "stream_interval",
    "pipeline_parallel_degree", "cpu_offload_gb_per_gpu", "adapters",
)  # fmt: skip
_WITHOUT_EFFECT = frozenset([*_SERVER, *(f"option.{name}" for name in (*_OPTIONS, *config_keys.WITHOUT_EFFECT))])
"""Keys that are known but have no effect: they control a server, or this engine decides their value itself."""
