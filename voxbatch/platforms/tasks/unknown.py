"""Refuse to take no notice of the task number of a platform that no table of `known` has.

Platforms name the variables alike: one ends in RANK or INDEX, and another one with the same first word ends in COUNT,
NUM, NODES, SIZE or WORKERS. A run in each of several tasks that took no notice would do all of the work several times.

    find({"ACME_NODE_RANK": "3", "ACME_NUM_NODES": "8"})  →  [TaskVariables("ACME_NODE_RANK", 3, "ACME_NUM_NODES", 8)]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from voxbatch.errors import ConfigError
from voxbatch.platforms.tasks.known import NONE, PLATFORMS, UNREAD

_INDEX = re.compile(r"([A-Z][A-Z0-9]*)_(?:[A-Z0-9_]*_)?(?:RANK|INDEX)")
_COUNT = re.compile(r"([A-Z][A-Z0-9]*)_[A-Z0-9_]*?(?:COUNT|NUM|NODES|SIZE|WORKERS)")
_OF_ONE_MACHINE = re.compile(
    r"_(?:BATCH|BLOCK|BUFFER|CACHE|CHUNK|CORES?|CPUS?|DEVICES?|FAILURE|FILE|GPUS?|HEAP|LOCAL|LOG|MEMORY|PAGE|POOL"
    r"|PROCS?|QUEUE|REF|RESTART|RETRY|STACK|THREADS?|WINDOW)_"
)
"""Words of numbers that are not those of machines or tasks: LOCAL_RANK, APP_BATCH_SIZE, RUNPOD_GPU_COUNT."""
_OTHER_FAMILIES = frozenset({
    "CI", "CUDA", "GPU", "HISTORY", "LOCAL", "MPI", "NCCL", "NVIDIA", "OMP", "PMIX", "PYTEST", "ROCR", "VOXBATCH",
})  # fmt: skip
"""First words of variables that no platform of tasks sets, or that come with those of a known one."""
_AMBIGUOUS_FAMILIES = frozenset({"JOB", "NODE", "RANK", "TASK"})
"""First words of known variables that an unknown platform may use as well."""


@dataclass(frozen=True, slots=True, order=True)
class TaskVariables:
    """The variables of an unknown platform, and their values."""

    index_name: str
    index: int
    count_name: str
    count: int

    @property
    def common_words(self) -> int:
        """Return the number of words that both names have, NODE and NODES counting as one."""
        index_words, count_words = (
            {word.removesuffix("S") for word in name.split("_")} for name in (self.index_name, self.count_name)
        )
        return len(index_words & count_words)

    def __str__(self) -> str:
        """Return the variables with their values."""
        return f"{self.index_name} is {self.index} and {self.count_name} is {self.count}"


def refuse(environ: Mapping[str, str]) -> None:
    """Refuse to run where variables look like those of a task, and no table has them.

    Raises:
        ConfigError: a pair of variables may make this process one of several tasks.
    """
    if not (pairs := find(environ)):
        return
    first = pairs[0]
    others = "".join(f"; {pair}" for pair in pairs[1:3])
    raise ConfigError(
        f"{first}{others}: this process may be one of {first.count} tasks of a platform that voxbatch does not know, "
        f"and each would do all of the work; give --shard ${first.index_name}/${first.count_name}, here "
        f"{first.index}/{first.count}, or --tasks {NONE} if each task has work of its own or the variables mean "
        "something else; and please open an issue that names the platform and these variables"
    )


def find(environ: Mapping[str, str]) -> list[TaskVariables]:
    """Return the pairs that may make this process one of several tasks, the likeliest one first.

    The jobs of a CI pipeline, which sets CI, are no tasks: each transcribes what it tests.
    """
    if environ.get("CI", "").strip().lower() not in ("", "0", "false"):
        return []
    known = {name for platform in PLATFORMS.values() for name in (platform.index, *platform.counts)}
    families = {name.partition("_")[0] for name in known | UNREAD.keys()} - _AMBIGUOUS_FAMILIES | _OTHER_FAMILIES
    known |= UNREAD.keys() | {entry.count for entry in UNREAD.values()}
    numbers = {
        name: int(text)
        for name, text in environ.items()
        if name not in known
        and name.partition("_")[0] not in families
        and re.fullmatch("[0-9]{1,9}", text.strip())
        and not _OF_ONE_MACHINE.search(f"_{name}_")
    }
    pairs = [
        TaskVariables(index_name, index, count_name, count)
        for index_name, index in numbers.items()
        if (index_match := _INDEX.fullmatch(index_name))
        for count_name, count in numbers.items()
        if index < count > 1 and (match := _COUNT.fullmatch(count_name)) and match[1] == index_match[1]
    ]
    return sorted(pairs, key=lambda pair: (-pair.common_words, pair))
