"""What is passed to a cloud's task engine, and what comes back: the records of this room. They are checked when they
are made, and nothing here asks a cloud.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from voxbatch.config import digest
from voxbatch.errors import ConfigError
from voxbatch.storage import is_remote, shown
from voxbatch.storage.address import in_bucket, is_bucket


@dataclass(frozen=True, slots=True)
class Order:
    """One run to start elsewhere. Raises ConfigError where no machine elsewhere could do it."""

    source: str
    """Of `voxbatch run`: an address."""
    out: str
    """gs:// or s3://."""
    options: tuple[str, ...] = ()
    """Further arguments of `voxbatch run`, such as ("--language", "en")."""
    tasks: int = 1
    limit_s: int | None = None
    """After so long the engine ends a task; None: the target's usual limit."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the job's container, beside those that it has anyway. Whoever may see the job may read them."""

    def __post_init__(self) -> None:
        if not is_remote(self.source):
            raise ConfigError(
                f"SOURCE {self.source} lies on this machine, where a job elsewhere cannot see it: upload it with its "
                "recordings, and give its address: gs://, s3:// or https://"
            )
        if not is_bucket(self.out):
            raise ConfigError(f"OUT {shown(self.out)} is no place that all tasks share: give -o gs://… or -o s3://…")
        try:
            in_bucket(self.out)
        except ValueError as e:
            raise ConfigError(f"-o {self.out}: {e}") from e
        if self.tasks < 1:
            raise ConfigError(f"tasks is {self.tasks}; a run takes at least 1")

    @property
    def arguments(self) -> list[str]:
        """Of the image's entry point, which is voxbatch."""
        return ["run", self.source, "-o", self.out, *self.options]

    @property
    def digest(self) -> str:
        """12 hex digits that two orders share exactly when their arguments are equal: the same work, once more."""
        return digest({"arguments": self.arguments})[:12]


@dataclass(frozen=True, slots=True)
class Request:
    """What a target would be asked."""

    where: str
    """For people: the call."""
    body: dict[str, Any]
    """As JSON."""


@dataclass(frozen=True, slots=True)
class Started:
    """A run that is under way."""

    name: str
    """Of the execution or the job."""
    url: str
    """Of its page in the cloud's console."""
    was_running: bool = False
    """It was found, with the same arguments, and nothing was started."""


class Target(Protocol):
    """A cloud's task engine, and where in it. Frozen; made without asking the cloud."""

    title: ClassVar[str]
    most_tasks: ClassVar[int]
    """The engine's own limit."""
    task_hours: ClassVar[float]
    """How long a task should take, where nobody says otherwise."""

    def machine(self, engine: str) -> str:
        """Which entry of the prices a task of this engine runs on."""

    def engine(self) -> str:
        """Which engine `auto` comes to there."""

    def gpus(self, engine: str) -> tuple[str, int] | None:
        """NVML's name of a task's GPUs that this engine would use, and how many there are; None where it would use
        none, or nobody knows which."""

    def limit_s(self, engine: str, task_hours: float, wall_s: float | None) -> int:
        """After how long a task of this engine is to be ended that should take `task_hours`, and is expected to take
        `wall_s`."""

    def request(self, order: Order) -> Request:
        """
        Raises:
            ConfigError: the engine does not take that.
        """

    def start(self, order: Order, again: bool = False) -> Started:
        """See start."""
