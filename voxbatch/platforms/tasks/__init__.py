"""Find the task that this process is: its number, the number of tasks, and so its shard.

The platform that starts the tasks tells each one its number. Platforms that contradict each other, or a --shard, are
refused: a wrong guess would do the work several times, or leave some of it undone, with exit code 0. `readers` read
what a platform tells, and make a `task`.

    find({"CLOUD_RUN_TASK_INDEX": "3", "CLOUD_RUN_TASK_COUNT": "8"})  →  Task(3, 8, "cloud-run")
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from voxbatch.errors import ConfigError
from voxbatch.platforms.tasks import unknown
from voxbatch.platforms.tasks.known import (
    AUTO,
    MAX_TASKS,
    NONE,
    PLATFORMS,
    SAGEMAKER_HOSTS,
    SAGEMAKER_ROOT,
    TASK_COUNT,
    UNREAD,
    sagemaker_root,
)

if TYPE_CHECKING:
    from voxbatch.platforms.tasks.task import Task

_LOG_COLLECTORS = (
    "CLOUD_RUN_JOB", "CLOUD_RUN_TASK_INDEX", "CLOUD_RUN_WORKER_POOL", "K_SERVICE", "BATCH_TASK_INDEX",
    "CLOUD_ML_JOB_ID", "AWS_BATCH_JOB_ID", "AWS_BATCH_JOB_ARRAY_INDEX", "KUBERNETES_SERVICE_HOST",
    "JOB_COMPLETION_INDEX",
)  # fmt: skip
"""Variables of platforms that collect the logs of a job and read them as JSON: Cloud Run, Google's Batch and Vertex AI,
AWS Batch, Kubernetes. A person reads the log of a Slurm job or of torchrun as a file."""


def find(
    environ: Mapping[str, str], root: str = SAGEMAKER_ROOT, platform: str = AUTO, count: int | None = None
) -> Task | None:
    """Return the task that this process is, or None if no platform says that it is a task.

    Args:
        platform: the platform to ask, or all platforms (auto), or none. With auto, platforms that report a single task
            are ignored if another platform reports several.
        count: number of tasks from --shard, for platforms that do not tell it.

    Raises:
        ConfigError: a variable has an invalid value, a variable is missing, two platforms contradict each other, or a
            platform that is not read, or not known, says that this process is one of several.
    """
    if platform == NONE:
        return None

    def is_sign(name: str) -> bool:
        return Path(root, name).exists() if name == SAGEMAKER_HOSTS else bool(environ.get(name, "").strip())

    candidates = list(PLATFORMS) if platform == AUTO else [platform]
    platforms = [name for name in candidates if any(map(is_sign, PLATFORMS[name].signs or (PLATFORMS[name].index,)))]
    asks_all = platform == AUTO and count is None
    unread = [name for name in UNREAD if is_sign(name)] if asks_all else []
    if platform == AUTO and not platforms and not unread and not is_sign(TASK_COUNT):
        if asks_all:
            unknown.refuse(environ)
        return None
    from voxbatch.platforms.tasks import readers

    env = readers.Environment(environ, root, count)
    if any(PLATFORMS[name].on_kubernetes for name in platforms) and not env.is_set(TASK_COUNT):
        platforms = [name for name in platforms if name != "kubernetes"]
    reported: list[Task] = [task for name in platforms if (task := getattr(readers, PLATFORMS[name].reader)(env, name))]
    if asks_all and not any(task.count > 1 for task in reported):
        readers.refuse_unread(env, unread)
        unknown.refuse(environ)
    if reported:
        return _agreed(reported)
    if platform != AUTO:
        title, variable = PLATFORMS[platform].title, PLATFORMS[platform].index
        raise ConfigError(f"--tasks {platform}: no {title} has started this process: {variable} is missing")
    if count is None and env.is_set(TASK_COUNT) and (tasks := env.integer(TASK_COUNT, 1, MAX_TASKS)) > 1:
        variables = f"{PLATFORMS['kubernetes'].index} and {PLATFORMS['aws-batch'].index}"
        raise ConfigError(
            f"{TASK_COUNT} is {tasks}, but the number of this task is unknown: {variables} are not set; "
            f"make the job an indexed one, give --shard I/{tasks}, or leave {TASK_COUNT} out"
        )
    return None


def _agreed(reported: list[Task]) -> Task:
    """Return the task that the platforms report. Those that report a single task do not count beside others.

    Raises:
        ConfigError: two platforms contradict each other.
    """
    several = [task for task in reported if task.count > 1] or reported
    for other in several[1:]:
        if (other.index, other.count) != (several[0].index, several[0].count):
            raise ConfigError(
                f"this process is {several[0]} and {other} at once; give --tasks "
                f"{several[0].platform} or --tasks {other.platform}, or --tasks {NONE} and --shard I/N"
            )
    return several[0]


def shard_of(task: Task | None, requested: tuple[int, int] | None) -> tuple[int, int]:
    """Return (shard, number of shards): the values that were asked for, or else those of the task, or else (0, 1).

    Raises:
        ConfigError: the values that were asked for are not the task's. Some work would be done twice and some not at
            all.
    """
    if task is None or (task.count == 1 and requested):  # a single task does not tell how the work is divided
        return requested or (0, 1)
    if requested and requested != (task.index, task.count):
        variable = PLATFORMS[task.platform].index
        raise ConfigError(
            f"--shard {requested[0]}/{requested[1]} contradicts {variable}: this is {task}, and its "
            f"shard is {task.index}/{task.count}; leave out --shard (VOXBATCH_SHARD), or give --tasks {NONE} to use "
            "--shard alone"
        )
    return task.index, task.count


def own_task(
    environ: Mapping[str, str], platform: str, requested: tuple[int, int] | None, sources: Iterable[str]
) -> tuple[Task | None, tuple[int, int]]:
    """Return the task that this process is, if any, and (shard, number of shards).

    Raises:
        ConfigError: see `find` and `shard_of`; or each host of a SageMaker job has only a part of the source.
    """
    root = sagemaker_root(environ)
    task = find(environ, root, platform, requested and requested[1])
    shard = shard_of(task, requested)
    if task and task.platform == "sagemaker" and task.count > 1:
        from voxbatch.platforms.tasks import sagemaker

        sagemaker.refuse_sharded_input(sources, root)
    return task, shard


def in_job(environ: Mapping[str, str]) -> bool:
    """Return whether a platform started this process that collects the logs of its jobs as JSON."""
    root = sagemaker_root(environ)
    return any(map(environ.get, _LOG_COLLECTORS)) or Path(root, SAGEMAKER_HOSTS).exists()


def write_exit_message(reason: str) -> None:
    """Write the reason of a job's failure where the platform shows it. Only SageMaker has such a place."""
    root = sagemaker_root(os.environ)
    if Path(root, SAGEMAKER_HOSTS).exists():
        from voxbatch.platforms.tasks import sagemaker

        sagemaker.write_exit_message(reason, root)
