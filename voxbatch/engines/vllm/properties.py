"""A `serving.properties` as DJL and SageMaker's LMI containers read it → our model and engine options.

The format is that of Java's java.util.Properties: comments with # or !, = or : or white space between key and value, a
backslash at the end of a line that goes on. The keys are LMI's (deepjavalibrary/djl-serving, serving/docs/lmi): vLLM's
own behind `option.`, which `keys` gives their meaning, and a few more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from voxbatch.engines.vllm import keys
from voxbatch.engines.vllm.keys import Entry, Properties

FLAG = "--serving-properties"


def read(file: str) -> Properties:
    """Read a serving.properties.

    Raises:
        ConfigError: it cannot be read, or a value makes no sense; with file and line.
    """
    entries = list(parse(keys.text_of(FLAG, file)))
    return keys.gathered(FLAG, file, entries, _KEYS, _WITHOUT_EFFECT)


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


_ALIASES = {
    "model_id": "model",
    "tensor_parallel_degree": "tensor_parallel_size",
    "max_rolling_batch_size": "max_num_seqs",
    "max_rolling_batch_prefill_tokens": "max_num_batched_tokens",
    "quantize": "quantization",
}
"""LMI's own names → vLLM's."""
_KEYS = {
    **{f"option.{name}": key for name, key in keys.KEYS.items() if name != "model"},
    **{f"option.{alias}": keys.KEYS[name] for alias, name in _ALIASES.items()},
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
_WITHOUT_EFFECT = frozenset([*_SERVER, *(f"option.{name}" for name in (*_OPTIONS, *keys.WITHOUT_EFFECT))])
"""What steers a server, and what this engine settles itself."""
