"""Find the task that this process is: its number, the number of tasks, and so its shard.

The platform that starts the tasks tells each one its number. Platforms that contradict each other, or a --shard, are
refused: a wrong guess would do the work several times, or leave some of it undone, with exit code 0. `readers` read
what a platform tells, and make a `task`.

    find({"CLOUD_RUN_TASK_INDEX": "3", "CLOUD_RUN_TASK_COUNT": "8"})  →  Task(3, 8, "cloud-run")
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from voxbatch.errors import ConfigError

if TYPE_CHECKING:
    from voxbatch.platforms.tasks.task import Task

AUTO, NONE = "auto", "none"
_LOG_COLLECTORS = (
    "CLOUD_RUN_JOB", "CLOUD_RUN_TASK_INDEX", "CLOUD_RUN_WORKER_POOL", "K_SERVICE", "BATCH_TASK_INDEX",
    "CLOUD_ML_JOB_ID", "AWS_BATCH_JOB_ID", "AWS_BATCH_JOB_ARRAY_INDEX", "KUBERNETES_SERVICE_HOST",
    "JOB_COMPLETION_INDEX",
)  # fmt: skip
"""Variables of platforms that collect the logs of a job and read them as JSON: Cloud Run, Google's Batch and Vertex AI,
AWS Batch, Kubernetes. A person reads the log of a Slurm job or of torchrun as a file."""
TASK_COUNT = "VOXBATCH_TASK_COUNT"
"""Variable with the number of tasks, for platforms that do not tell it."""
MAX_TASKS = 99_999
"""Highest number of tasks; equal to the highest number of shards."""
HOW_TO_IGNORE = f" (--tasks {NONE} ignores it)"
"""Advice about a variable that a platform did not set."""
SAGEMAKER_ROOT = "/opt/ml"
"""Root folder of SageMaker's files."""
_SAGEMAKER_ROOT_VARIABLE = "SAGEMAKER_BASE_DIR"
"""Variable that names another root; SageMaker's own toolkits read it."""
SAGEMAKER_HOSTS = "config/resourceconfig.json"
"""The file below it that names the hosts."""


@dataclass(frozen=True, slots=True)
class Platform:
    """A platform of --tasks. docs/tasks.md has the vendor's page of each."""

    title: str
    """The name of a job of the platform, for people."""
    index: str
    """Variable with the number of the task, or SageMaker's file. Messages name it."""
    counts: tuple[str, ...] = ()
    """Variables with the number of tasks; the first one that is set counts."""
    signs: tuple[str, ...] = ()
    """Variables one of which exists if the platform started this process; `index` alone if empty."""
    reader: str = "numbered"
    """Name of a function in `readers`."""
    attempt: str = ""
    """Variable with the number of the attempt."""
    first_attempt: int = 0
    execution: str = ""
    """Variable with the identifier of this execution of the job."""
    name: str = ""
    """Variable with the name of the job."""
    inherited: bool = False
    """True if a shell or a script of a task passes the variables on to each command that it starts."""
    shares_no_folder: bool = False
    """True if the tasks share no folder, unless one is mounted."""


PLATFORMS = {
    "cloud-run": Platform(
        "Cloud Run job", "CLOUD_RUN_TASK_INDEX", ("CLOUD_RUN_TASK_COUNT",),
        ("CLOUD_RUN_TASK_INDEX", "CLOUD_RUN_TASK_COUNT"), attempt="CLOUD_RUN_TASK_ATTEMPT",
        execution="CLOUD_RUN_EXECUTION", name="CLOUD_RUN_JOB", shares_no_folder=True,
    ),
    "google-batch": Platform(
        "Google Batch job", "BATCH_TASK_INDEX", ("BATCH_TASK_COUNT",), attempt="BATCH_TASK_RETRY_ATTEMPT",
        shares_no_folder=True,
    ),
    "vertex-ai": Platform("Vertex AI job", "CLUSTER_SPEC", reader="vertex_ai", shares_no_folder=True),
    "sagemaker": Platform("SageMaker job", SAGEMAKER_HOSTS, reader="sagemaker_host", shares_no_folder=True),
    "aws-batch": Platform(
        "AWS Batch array", "AWS_BATCH_JOB_ARRAY_INDEX", ("AWS_BATCH_JOB_ARRAY_SIZE", TASK_COUNT),
        attempt="AWS_BATCH_JOB_ATTEMPT", first_attempt=1, execution="AWS_BATCH_JOB_ID",
    ),
    "skypilot": Platform(
        "SkyPilot job", "SKYPILOT_NODE_RANK", ("SKYPILOT_NUM_NODES",), execution="SKYPILOT_TASK_ID",
        shares_no_folder=True,
    ),
    "skypilot-pool": Platform(
        "SkyPilot pool", "SKYPILOT_JOB_RANK", ("SKYPILOT_NUM_JOBS",), ("SKYPILOT_NUM_JOBS",),
        execution="SKYPILOT_TASK_ID", shares_no_folder=True,
    ),
    "kubernetes": Platform("Kubernetes job", "JOB_COMPLETION_INDEX", (TASK_COUNT, "JOB_COMPLETIONS")),
    "slurm": Platform("Slurm array", "SLURM_ARRAY_TASK_ID", reader="slurm", inherited=True),
    # A Slurm job without srun has SLURM_PROCID and SLURM_NTASKS, too, but only one process.
    "srun": Platform(
        "step of srun", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS",), ("SLURM_STEP_NUM_TASKS",), inherited=True,
    ),
    "torchrun": Platform("torchrun job", "RANK", reader="torchrun", inherited=True),
}  # fmt: skip
"""The platforms, by the names of --tasks."""


@dataclass(frozen=True, slots=True)
class UnreadPlatform:
    """A platform whose tasks get their numbers by --shard: it does not say how many there are, or is rarely used."""

    title: str
    """The name of a job of the platform, for people."""
    count: str = ""
    """Variable with the number of tasks."""
    alone: str = "0"
    """Value of the index for which, without a count, the task may be the only one."""
    shard: str = ""
    """Value that a script gives to --shard. If it is empty, a script gives the index and the count."""


UNREAD = {
    "AWS_BATCH_JOB_NODE_INDEX": UnreadPlatform("multi-node job of AWS Batch", "AWS_BATCH_JOB_NUM_NODES"),
    "NODE_RANK": UnreadPlatform("cluster of RunPod or Lightning", "NUM_NODES"),
    "OMPI_COMM_WORLD_RANK": UnreadPlatform("job of Open MPI", "OMPI_COMM_WORLD_SIZE"),
    "PMI_RANK": UnreadPlatform("job of MPI", "PMI_SIZE"),
    "FLUX_TASK_RANK": UnreadPlatform("job of Flux", "FLUX_JOB_SIZE"),
    "LWS_WORKER_INDEX": UnreadPlatform("LeaderWorkerSet of Kubernetes", "LWS_GROUP_SIZE"),
    "VC_TASK_INDEX": UnreadPlatform("job of Volcano", shard="$VC_TASK_INDEX/8 for 8 replicas"),
    "NOMAD_ALLOC_INDEX": UnreadPlatform("group of Nomad", shard="$NOMAD_ALLOC_INDEX/8 for a count of 8"),
    "PBS_ARRAY_INDEX": UnreadPlatform("PBS array", alone="", shard="$((PBS_ARRAY_INDEX - 1))/8 for -J 1-8"),
    "PBS_ARRAYID": UnreadPlatform("Torque array", alone="", shard="$((PBS_ARRAYID - 1))/8 for -t 1-8"),
    "SGE_TASK_ID": UnreadPlatform(
        "Grid Engine array", alone="undefined", shard="$((SGE_TASK_ID - 1))/$SGE_TASK_LAST for -t 1-8"
    ),
    "LSB_JOBINDEX": UnreadPlatform("LSF array", shard="$((LSB_JOBINDEX - 1))/8 for an array [1-8]"),
}
"""The platforms that `find` refuses, by their variable with the number of the task. docs/tasks.md has their pages."""


def sagemaker_root(environ: Mapping[str, str]) -> str:
    """Return the root folder of SageMaker's files."""
    return environ.get(_SAGEMAKER_ROOT_VARIABLE) or SAGEMAKER_ROOT


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
            platform that is not read says that this process is one of several.
    """
    if platform == NONE:
        return None

    def is_sign(name: str) -> bool:
        return Path(root, name).exists() if name == SAGEMAKER_HOSTS else bool(environ.get(name, "").strip())

    candidates = list(PLATFORMS) if platform == AUTO else [platform]
    platforms = [name for name in candidates if any(map(is_sign, PLATFORMS[name].signs or (PLATFORMS[name].index,)))]
    unread = [name for name in UNREAD if is_sign(name)] if platform == AUTO and count is None else []
    if platform == AUTO and not platforms and not unread and not is_sign(TASK_COUNT):
        return None
    from voxbatch.platforms.tasks import readers

    env = readers.Environment(environ, root, count)
    reported: list[Task] = [task for name in platforms if (task := getattr(readers, PLATFORMS[name].reader)(env, name))]
    if not any(task.count > 1 for task in reported):
        readers.refuse_unread(env, unread)
    if not reported and platform != AUTO:
        title, variable = PLATFORMS[platform].title, PLATFORMS[platform].index
        raise ConfigError(f"--tasks {platform}: no {title} has started this process: {variable} is missing")
    if not reported:
        if count is None and env.is_set(TASK_COUNT) and (tasks := env.integer(TASK_COUNT, 1, MAX_TASKS)) > 1:
            variables = f"{PLATFORMS['kubernetes'].index} and {PLATFORMS['aws-batch'].index}"
            raise ConfigError(
                f"{TASK_COUNT} is {tasks}, but the number of this task is unknown: {variables} are not set; "
                f"make the job an indexed one, give --shard I/{tasks}, or leave {TASK_COUNT} out"
            )
        return None
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
