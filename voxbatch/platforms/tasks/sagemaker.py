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
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from voxbatch.errors import ConfigError
from voxbatch.platforms.tasks.known import SAGEMAKER_HOSTS
from voxbatch.safe_text import redact_secrets

MESSAGE_BYTES = 1024
"""Length of the message that SageMaker shows."""


def host(root: str) -> tuple[int, int] | None:
    """Return (number of this host, number of hosts), or None outside SageMaker.

    The order is that of the numbers in the names: algo-1, algo-2, algo-10.

    Raises:
        ConfigError: the file exists and does not name this host among the hosts.
    """
    config = _read(Path(root, SAGEMAKER_HOSTS))
    if config is None:
        return None
    hosts, current = config.get("hosts"), config.get("current_host")
    if not isinstance(hosts, list) or not all(isinstance(name, str) for name in hosts) or current not in hosts:
        raise ConfigError(
            f"{Path(root, SAGEMAKER_HOSTS)}: current_host is {current!r} and hosts are {hosts!r}; current_host must be "
            "one of the hosts"
        )

    def natural_order(name: str) -> list[str | int]:  # "algo-10" → ["algo-", 10, ""]: any two of these compare
        return [int(piece) if i % 2 else piece for i, piece in enumerate(re.split(r"([0-9]+)", name))]

    return sorted(set(hosts), key=natural_order).index(current), len(set(hosts))


def job_name(root: str) -> str | None:
    """Return the name of the processing job, or None if the file does not tell it."""
    name = _job(root).get("ProcessingJobName")
    return name if isinstance(name, str) else None


def instance_type(root: str) -> str | None:
    """Return the machine of this host, for example "ml.g6.2xlarge", or None if neither file tells it."""
    with contextlib.suppress(LookupError, TypeError, ConfigError):
        return str((_read(Path(root, SAGEMAKER_HOSTS)) or {})["current_instance_type"])
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
    s3_inputs = (
        [entry.get("S3Input") for entry in inputs if isinstance(entry, dict)] if isinstance(inputs, list) else []
    )
    sharded = [
        s3_input
        for s3_input in s3_inputs
        if isinstance(s3_input, dict) and s3_input.get(_DISTRIBUTION) == "ShardedByS3Key"
    ]
    places = [str(s3_input["LocalPath"]) for s3_input in sharded if s3_input.get("LocalPath")]
    for source, place in itertools.product(sources, places):
        if Path(os.path.abspath(source)).is_relative_to(place):
            raise ConfigError(
                f"{source} lies in {place}, of which each host has a part of its own (ShardedByS3Key), and would "
                "transcribe a shard of that part only: make that input FullyReplicated, give SOURCE as s3://, or give "
                "--tasks none and an OUT for each host"
            )


_DISTRIBUTION = "S3DataDistributionType"


def write_exit_message(reason: str, root: str) -> None:
    """Write the reason of a job's failure on SageMaker; do nothing elsewhere.

    The message is the first KB of the reason, cut at the end of a character, without the secrets of an address.
    """
    cut = redact_secrets(reason).encode(errors="replace")[:MESSAGE_BYTES].decode(errors="ignore")
    place = Path(root, "output", "message")
    with contextlib.suppress(OSError):  # the log has the reason, too
        if Path(root, SAGEMAKER_HOSTS).exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(cut, encoding="utf-8")


def _job(root: str) -> dict[str, Any]:
    return _read(Path(root, "config", "processingjobconfig.json")) or {}


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as e:
        raise ConfigError(f"{path}: cannot be read ({e}); {_RULE}") from e
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: holds {str(content)[:60]!r}; {_RULE}")
    return content


_RULE = "SageMaker writes a JSON object there (--tasks none ignores it)"
