"""Read what each platform tells its tasks. A reader returns the Task, or raises a ConfigError that names the variable.

A reader gets the name of its platform. It is called if one of the platform's signs exists; see `Platform`. `numbered`
serves each platform whose variables hold the index and the count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from voxbatch.errors import ConfigError
from voxbatch.platforms.tasks import sagemaker
from voxbatch.platforms.tasks.known import HOW_TO_IGNORE, MAX_TASKS, NONE, PLATFORMS, TASK_COUNT, UNREAD
from voxbatch.platforms.tasks.task import Task

MAX_INTEGER = 999_999_999
"""Highest whole number that a variable may hold."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The inputs of the readers."""

    environ: Mapping[str, str]
    root: str
    """Root folder of SageMaker's files."""
    count: int | None
    """Number of tasks from --shard, if given."""

    def text(self, name: str) -> str:
        """Return a variable without white space at its ends; "" if it is not set."""
        return self.environ.get(name, "").strip()

    def optional(self, name: str) -> str | None:
        """Return a variable, or None if it is not set or empty."""
        return self.text(name) or None

    def is_set(self, *names: str) -> bool:
        """Return whether all variables are set and not empty."""
        return all(map(self.text, names))

    def integer(self, name: str, minimum: int = 0, maximum: int = MAX_INTEGER) -> int:
        """Return a variable as a whole number.

        Raises:
            ConfigError: it is not set, not a whole number, or out of range.
        """
        text = self.text(name)
        if re.fullmatch(r"[0-9]{1,9}", text) and minimum <= int(text) <= maximum:
            return int(text)
        problem = f"is {text[:40]!r}" if text else "is not set"
        raise ConfigError(f"{name} {problem}; it must be a whole number from {minimum:,} to {maximum:,}{HOW_TO_IGNORE}")

    def index(self, name: str, count: int) -> int:
        """Return a variable as a task number: 0 to count - 1."""
        return self.integer(name, 0, count - 1)

    def attempt(self, name: str, first: int = 0) -> int | None:
        """Return the number of earlier attempts, or None if the variable is not set. The platform counts from
        `first`."""
        return self.integer(name, first) - first if self.is_set(name) else None

    def task_count(self, platform: str) -> int:
        """Return the number of tasks from the first of the platform's variables that is set, or else from --shard.

        Raises:
            ConfigError: the variables contradict each other, or no source gives the number.
        """
        entry = PLATFORMS[platform]
        names = entry.counts
        if TASK_COUNT not in names:  # the platform always sets its variable
            return self.integer(names[0], 1, MAX_TASKS)
        sizes = {name: self.integer(name, 1, MAX_TASKS) for name in names if self.is_set(name)}
        if len(set(sizes.values())) > 1:
            raise ConfigError(" and ".join(f"{name} is {size}" for name, size in sizes.items()) + "; they must agree")
        if sizes:
            return next(iter(sizes.values()))
        if self.count and (index := self.integer(entry.index)) >= self.count:
            raise ConfigError(
                f"--shard I/{self.count} contradicts {entry.index}, which is {index}: of {self.count} tasks it "
                f"would be {self.count - 1} at most; give --tasks {NONE} to use --shard alone"
            )
        if self.count:
            return self.count
        raise ConfigError(
            f"{entry.index} is {self.text(entry.index)!r}, but {entry.title}s do not give the number of tasks: "
            f"set {TASK_COUNT} to their number, or give --shard I/N{HOW_TO_IGNORE}"
        )


def numbered(env: Environment, platform: str) -> Task:
    """Return the task of a platform whose variables hold the index, from 0, and the count."""
    entry = PLATFORMS[platform]
    count = env.task_count(platform)
    attempt = env.attempt(entry.attempt, entry.first_attempt) if entry.attempt else None
    execution = env.text(entry.execution).partition(":")[0]  # AWS Batch appends ":" and the index
    return Task(env.index(entry.index, count), count, platform, attempt, execution or None, env.optional(entry.name))


def kubeflow(env: Environment, platform: str) -> Task | None:
    """Return the task of a TrainJob of Kubeflow. Its nodes are the tasks, unless torchrun has started several processes
    on each: then `torchrun` reads them.
    """
    return None if env.is_set("TORCHELASTIC_RUN_ID") else numbered(env, platform)


def sagemaker_host(env: Environment, platform: str) -> Task | None:
    """Return the task of a SageMaker job: its hosts are the tasks."""
    if (position := sagemaker.host(env.root)) is None:
        return None
    return Task(*position, platform, name=sagemaker.job_name(env.root))


def vertex_ai(env: Environment, platform: str) -> Task:
    """Return the task of a custom job of Vertex AI. Its replicas are the tasks, in the order of the worker pools.

    Raises:
        ConfigError: CLUSTER_SPEC is not of the form
            {"cluster": {"workerpool0": [address], "workerpool1": [address, …]}, "task": {"type": …, "index": …}}.
    """
    text = env.text("CLUSTER_SPEC")
    try:
        spec = json.loads(text)
        replicas = [(pool, at) for pool in sorted(spec["cluster"]) for at in range(len(spec["cluster"][pool]))]
        index = replicas.index((spec["task"]["type"], spec["task"]["index"]))
    except (ValueError, KeyError, TypeError) as e:
        raise ConfigError(
            f"CLUSTER_SPEC is {text[:80]!r}; Vertex AI names each replica of a job and this one there{HOW_TO_IGNORE}"
        ) from e
    return Task(index, len(replicas), platform)


def slurm(env: Environment, platform: str) -> Task:
    """Return the task of a Slurm array, whose job has array ids. A job that is no array has none.

    Array ids may begin at any number and may have a step, as in --array=1-15:2. A list with gaps has no such order, but
    Slurm describes it with the same variables. If srun starts several processes in each task of the array, each of
    them is a task.
    """
    at = "SLURM_ARRAY_TASK_ID"
    count, lowest = env.integer("SLURM_ARRAY_TASK_COUNT", 1, MAX_TASKS), env.integer("SLURM_ARRAY_TASK_MIN")
    step = env.integer("SLURM_ARRAY_TASK_STEP", 1) if env.is_set("SLURM_ARRAY_TASK_STEP") and count > 1 else 1
    last = lowest + (count - 1) * step
    highest = env.integer("SLURM_ARRAY_TASK_MAX") if env.is_set("SLURM_ARRAY_TASK_MAX") else last
    id_ = env.integer(at)
    if highest != last or not lowest <= id_ <= last or (id_ - lowest) % step:
        raise ConfigError(
            f"{at} is {id_}, of {count} ids from {lowest} to {highest} by {step}; they must be evenly spaced, such as "
            f"--array=0-{count - 1}{HOW_TO_IGNORE}"
        )
    attempt = env.attempt("SLURM_RESTART_COUNT") or 0  # not set before the first restart
    execution, name = env.optional("SLURM_ARRAY_JOB_ID"), env.optional("SLURM_JOB_NAME")
    processes = env.integer("SLURM_STEP_NUM_TASKS", 1, MAX_TASKS // count) if env.is_set("SLURM_STEP_NUM_TASKS") else 1
    process = env.index("SLURM_PROCID", processes) if processes > 1 else 0
    index = (id_ - lowest) // step * processes + process
    return Task(index, count * processes, platform, attempt, execution, name)


def torchrun(env: Environment, platform: str) -> Task | None:
    """Return the task of a torchrun job.

    Many tools set RANK. Only torchrun, or a tool that acts like torchrun, also sets WORLD_SIZE and a run id or a master
    address.
    """
    if not env.is_set("WORLD_SIZE") or not (env.is_set("TORCHELASTIC_RUN_ID") or env.is_set("MASTER_ADDR")):
        return None
    count = env.integer("WORLD_SIZE", 1, MAX_TASKS)
    attempt, execution = env.attempt("TORCHELASTIC_RESTART_COUNT"), env.optional("TORCHELASTIC_RUN_ID")
    if execution == "none":  # torchrun's value if no id was given
        execution = None
    return Task(env.index("RANK", count), count, platform, attempt, execution)


def refuse_unread(env: Environment, names: Iterable[str]) -> None:
    """Refuse to run as one of several tasks of a platform that is not read: each of them would do everything.

    Args:
        names: variables of `UNREAD` that are set.

    Raises:
        ConfigError: one of them says that this process is one of several.
    """
    for name in names:
        entry, index = UNREAD[name], env.text(name)
        if env.is_set(entry.count):
            count = env.integer(entry.count, 1, MAX_TASKS)
            if count == 1:
                continue
            shown = f"{name} is {index[:40]!r} and {entry.count} is {count}"
            shard = f"${name}/${entry.count}, here {index[:40]}/{count}"
        elif index == entry.alone:
            continue
        else:
            shown, shard = f"{name} is {index[:40]!r}", entry.shard or f"${name}/N"
        raise ConfigError(
            f"{shown}: this process is one of several tasks of a {entry.title}, and each would do all of the work; "
            f"give --shard {shard}, or --tasks {NONE} if each task has work of its own"
        )
