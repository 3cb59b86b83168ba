"""Read a YAML file for vLLM's own `--config`, and return the model and the engine options.

The keys are vLLM's options, with - or _ between the words. A nested mapping stands for JSON (vllm/utils,
argparse_utils.py: load_config_file). This module reads only the top level; `config_keys` interprets the keys.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import yaml

from voxbatch.errors import ConfigError
from voxbatch.storage.address import is_bucket_address
from voxbatch.vllm.engine import config_keys
from voxbatch.vllm.engine.config_keys import Entry, FileSettings

FLAG = "--vllm-config"


def read(file: str) -> FileSettings:
    """Read a configuration file of vLLM.

    A `model` that begins with a dot, or that is a folder beside the file, is relative to the file, because published
    submissions hold the file and the weights in one repository. Other names belong to the hub or to a bucket.

    Raises:
        ConfigError: the file cannot be read, is no YAML mapping, or has a value that makes no sense. The message names
            file and line.
    """
    entries = list(parse(file, config_keys.read_text(FLAG, file)))
    settings = config_keys.interpret(FLAG, file, entries, config_keys.KEYS, _WITHOUT_EFFECT)
    if not settings.model or is_bucket_address(settings.model):
        return settings
    folder = os.path.abspath(Path(file).parent / settings.model)
    return replace(settings, model=folder) if settings.model.startswith(".") or os.path.isdir(folder) else settings


def parse(file: str, text: str) -> Iterator[Entry]:
    """Yield the entries of the top level, with values as on vLLM's command line. Nulls are left out.

    Raises:
        ConfigError: the text is not a YAML mapping.
    """
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(f"{file}:{root.start_mark.line + 1}: give vLLM's options as a mapping, KEY: VALUE")
        for key, node in root.value:
            if node.tag != "tag:yaml.org,2002:null":
                yield Entry(key.start_mark.line + 1, str(key.value).replace("-", "_"), _value_as_text(loader, node))
    except (yaml.YAMLError, ValueError) as e:
        mark = getattr(e, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(e, "problem", None) or str(e).splitlines()[0]
        raise ConfigError(f"{file}{line}: this cannot be read as YAML ({problem})") from e


def _value_as_text(loader: yaml.SafeLoader, node: yaml.Node) -> str:
    """Return a value as text. Numbers stay as they are in the file, so that a revision such as 007 keeps its zeros."""
    if isinstance(node, yaml.ScalarNode):
        is_bool = node.tag == "tag:yaml.org,2002:bool"
        return str(loader.construct_yaml_bool(node)).lower() if is_bool else str(node.value)
    return json.dumps(loader.construct_object(node, deep=True), default=str)


_WITHOUT_EFFECT = frozenset([
    *config_keys.WITHOUT_EFFECT, "host", "port", "uvicorn_log_level", "api_key", "root_path", "allowed_origins",
    "allowed_methods", "allowed_headers", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "api_server_count", "headless",
    "response_role", "enable_log_requests", "max_log_len", "disable_fastapi_docs", "disable_uvicorn_access_log",
    "allowed_local_media_path", "distributed_executor_backend", "async_scheduling", "scheduling_policy",
    "generation_config", "optimization_level", "skip_mm_profiling",
])  # fmt: skip
"""Keys that are known but have no effect: they control a server, or this engine decides their value itself."""
