"""The records of this package: the input of a cloud platform, and its answer.

They are checked when they are built, and nothing here sends a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from voxbatch.config import digest
from voxbatch.errors import ConfigError
from voxbatch.storage import is_remote, redacted
from voxbatch.storage.address import is_bucket_address, parse_bucket_address


@dataclass(frozen=True, slots=True)
class Submission:
    """A run to start on a platform.

    Raises:
        ConfigError: no machine of a platform could do the run.
    """

    source: str | tuple[str, ...]
    """SOURCE of `voxbatch run`: an address, or several."""
    out: str
    """OUT of `voxbatch run`: gs:// or s3://."""
    options: tuple[str, ...] = ()
    """Further arguments of the command, such as ("--language", "en")."""
    command: str = "run"
    """"run" or "ask"."""
    tasks: int = 1
    """See `sizing.check_tasks`."""
    limit_s: int | None = None
    """Seconds after which the platform ends a task; None: the target's default limit."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the job's container, in addition to its own. Everyone who may see the job can read them."""

    def __post_init__(self) -> None:
        for name in self._sources:
            if is_remote(name.removeprefix("@")):
                continue
            raise ConfigError(
                f"SOURCE {name} lies on this machine, where a job elsewhere cannot see it: upload it with its "
                "recordings, and give its address: gs://, s3:// or https://"
            )
        if not is_bucket_address(self.out):
            raise ConfigError(f"OUT {redacted(self.out)} is no place that all tasks share: give -o gs://… or -o s3://…")
        try:
            parse_bucket_address(self.out)
        except ValueError as e:
            raise ConfigError(f"-o {self.out}: {e}") from e

    @property
    def arguments(self) -> list[str]:
        """Arguments of the image's entry point, which is voxbatch."""
        return [self.command, *self._sources, "-o", self.out, *self.options]

    @property
    def _sources(self) -> tuple[str, ...]:
        return (self.source,) if isinstance(self.source, str) else self.source

    @property
    def digest(self) -> str:
        """12 hex digits. Two submissions have the same digits exactly if their arguments are equal."""
        return digest({"arguments": self.arguments})[:12]


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """The request that a target would send."""

    where: str
    """The call, for people."""
    body: dict[str, Any]
    unknown: tuple[str, ...] = ()
    """Sentences about the placeholders in `where`."""


def redact_addresses(value: Any) -> Any:
    """Return a JSON value without the queries of its addresses, because a query may be a signature."""
    if isinstance(value, dict):
        return {name: redact_addresses(member) for name, member in value.items()}
    if isinstance(value, list):
        return [redact_addresses(member) for member in value]
    return redacted(value) if isinstance(value, str) and is_remote(value) else value


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run that is in progress."""

    name: str
    """Name of the execution or the job."""
    url: str
    """Address of its page in the cloud's console."""
    was_running: bool = False
    """True if a run with the same arguments was found and none was started."""


@dataclass(frozen=True, slots=True)
class StartTime:
    """Seconds from the start of a task's container to its first item: the image, the weights, the kernels. The platform
    bills them.
    """

    shortest_s: float
    longest_s: float

    @property
    def average_s(self) -> float:
        """Mean of the shortest and the longest start, in seconds."""
        return (self.shortest_s + self.longest_s) / 2


GPU_START = StartTime(180, 360)
"""Start of a task with one GPU: 3 to 6 minutes. The range is modelled for an L4 on Cloud Run, from 9 GB of weights that
come from a bucket or from the hub and kernels that are compiled or come from the cache. It was never measured there. On
an H200 whose image and weights were on its disk, a start took 38 to 113 s (benchmarks/RESULTS.md)."""
