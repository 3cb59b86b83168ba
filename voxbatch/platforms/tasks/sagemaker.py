"""Read and write the files of a SageMaker Processing container: its hosts, their inputs, and the reason of a failure.

    <root>/config/resourceconfig.json        {"current_host": "algo-2", "hosts": ["algo-1", "algo-2"]}
    <root>/config/processingjobconfig.json   ProcessingJobName, ProcessingInputs, …
    <root>/output/message                    written by voxbatch; SageMaker shows it as ExitMessage

Outside SageMaker, these files do not exist.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from voxbatch.errors import ConfigError
from voxbatch.safe_text import redact_secrets

ROOT = "/opt/ml"
ROOT_VARIABLE = "SAGEMAKER_BASE_DIR"
"""Variable that names another root; SageMaker's own toolkits read it."""
MESSAGE_BYTES = 1024
"""Length of the message that SageMaker shows."""


def root_folder(environ: Mapping[str, str]) -> str:
    """Return the root folder of SageMaker's files."""
    return environ.get(ROOT_VARIABLE) or ROOT


def resource_config(root: str) -> Path:
    """Return the path of the file that names the hosts."""
    return Path(root, "config", "resourceconfig.json")


def host(root: str) -> tuple[int, int] | None:
    """Return (number of this host, number of hosts), or None outside SageMaker.

    The order is that of the numbers in the names: algo-1, algo-2, algo-10.

    Raises:
        ConfigError: the file exists and does not name this host among the hosts.
    """
    found = _read(resource_config(root))
    if found is None:
        return None
    hosts, current = found.get("hosts"), found.get("current_host")
    if not isinstance(hosts, list) or not all(isinstance(each, str) for each in hosts) or current not in hosts:
        raise ConfigError(
            f"{resource_config(root)}: current_host is {current!r} and hosts are {hosts!r}; current_host must be "
            "one of the hosts"
        )
    return sorted(set(hosts), key=_natural_order).index(current), len(set(hosts))


def job_name(root: str) -> str | None:
    """Return the name of the processing job, or None if the file does not tell it."""
    name = _job(root).get("ProcessingJobName")
    return name if isinstance(name, str) else None


def instance_type(root: str) -> str | None:
    """Return the machine of this host, for example "ml.g6.2xlarge", or None if neither file tells it."""
    with contextlib.suppress(LookupError, TypeError, ConfigError):
        return str((_read(resource_config(root)) or {})["current_instance_type"])
    with contextlib.suppress(LookupError, TypeError, ConfigError):
        return str(_job(root)["ProcessingResources"]["ClusterConfig"]["InstanceType"])
    return None


def refuse_sharded_input(sources: Iterable[str], root: str) -> None:
    """Refuse a source of which each host has only a part.

    Raises:
        ConfigError: SageMaker gave each host other files of an input that holds a source, so no host can take a shard
            of the whole input.
    """
    inputs = _job(root).get("ProcessingInputs")
    given = [each.get("S3Input") for each in inputs if isinstance(each, dict)] if isinstance(inputs, list) else []
    sharded = [each for each in given if isinstance(each, dict) and each.get(_DISTRIBUTION) == "ShardedByS3Key"]
    places = [str(each["LocalPath"]) for each in sharded if each.get("LocalPath")]
    for source, place in itertools.product(sources, places):
        if Path(os.path.abspath(source)).is_relative_to(place):
            raise ConfigError(
                f"{source} lies in {place}, of which each host has a part of its own (ShardedByS3Key), and would "
                "transcribe a shard of that part only: make that input FullyReplicated, give SOURCE as s3://, or give "
                "--tasks none and an OUT for each host"
            )


_DISTRIBUTION = "S3DataDistributionType"


def write_exit_message(reason: str, root: str) -> None:
    """On SageMaker, write the reason of a job's failure: the first KB, cut at the end of a character, and without the
    secrets of an address. Elsewhere, do nothing."""
    cut = redact_secrets(reason).encode(errors="replace")[:MESSAGE_BYTES].decode(errors="ignore")
    place = Path(root, "output", "message")
    with contextlib.suppress(OSError):  # the log has the reason, too
        if resource_config(root).exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(cut, encoding="utf-8")


def _job(root: str) -> dict[str, Any]:
    return _read(Path(root, "config", "processingjobconfig.json")) or {}


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as e:
        raise ConfigError(f"{path}: cannot be read ({e}); {_RULE}") from e
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: holds {str(found)[:60]!r}; {_RULE}")
    return found


_RULE = "SageMaker writes a JSON object there (--tasks none ignores it)"


def _natural_order(name: str) -> list[str | int]:
    """Split a name for sorting: "algo-10" → ["algo-", 10, ""]. Strings and numbers alternate, so any two can be
    compared."""
    return [int(piece) if i % 2 else piece for i, piece in enumerate(re.split(r"([0-9]+)", name))]
