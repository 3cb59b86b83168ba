"""Find the task that this process is: its number, the number of tasks, and so its shard.

The platform that starts the tasks tells each one its number. Every platform has a reader. The reader returns a Task, or
None if that platform did not start this process, or it raises a ConfigError that names the variable. Platforms that
contradict each other, or a --shard, are refused: a wrong guess would do the work several times, or leave some of it
undone, with exit code 0.

    find({"CLOUD_RUN_TASK_INDEX": "3", "CLOUD_RUN_TASK_COUNT": "8"})  →  Task(3, 8, "cloud-run")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from voxbatch.errors import ConfigError
from voxbatch.log import Log
from voxbatch.platforms.tasks import sagemaker
from voxbatch.storage import is_remote

AUTO, NONE = "auto", "none"
_LOG_COLLECTORS = (
    "CLOUD_RUN_JOB", "CLOUD_RUN_TASK_INDEX", "K_SERVICE", "BATCH_TASK_INDEX", "CLOUD_ML_JOB_ID", "AWS_BATCH_JOB_ID",
    "AWS_BATCH_JOB_ARRAY_INDEX", "KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX",
)  # fmt: skip
"""Variables of platforms that collect the logs of a job and read them as JSON: Cloud Run, Google's Batch and Vertex AI,
AWS Batch, Kubernetes. A person reads the log of a Slurm job or of torchrun as a file."""
TASK_COUNT = "VOXBATCH_TASK_COUNT"
"""Variable with the number of tasks, for platforms that do not tell it."""
MAX_TASKS = 99_999
"""Highest number of tasks; equal to the highest number of shards."""
_MAX_INTEGER = 999_999_999
"""Highest whole number that a variable may hold."""


@dataclass(frozen=True, slots=True)
class Task:
    """One of several identical processes that a platform started."""

    index: int
    """0-based number of the task."""
    count: int
    platform: str
    """The platform, a name in PLATFORMS."""
    attempt: int | None = None
    """Number of earlier attempts of this task. None if the platform does not tell."""
    execution: str | None = None
    """Identifier of this execution of the job."""
    name: str | None = None
    """Name of the job."""

    def __str__(self) -> str:
        """Return, for example, "task 3 of 8 (Cloud Run job calls, execution calls-x7k, attempt 1)"."""
        said = [f"{PLATFORMS[self.platform].title}{f' {self.name}' if self.name else ''}"]
        said += [f"execution {self.execution}"] if self.execution else []
        said += [f"attempt {self.attempt}"] if self.attempt is not None else []
        return f"task {self.index} of {self.count} ({', '.join(said)})"

    def log_fields(self) -> dict[str, Any]:
        """Return the fields of each log line. On Cloud Run they include the platform's own labels."""
        fields = {} if self.attempt is None else {"attempt": self.attempt}
        if self.platform != "cloud-run":
            return fields
        named = {"execution_name": self.execution, "task_index": self.index, "task_attempt": self.attempt}
        labels = {f"run.googleapis.com/{name}": str(value) for name, value in named.items() if value is not None}
        return {**fields, "logging.googleapis.com/labels": labels}


def find(
    environ: Mapping[str, str], root: str = sagemaker.ROOT, platform: str = AUTO, count: int | None = None
) -> Task | None:
    """Return the task that this process is, or None if no platform says that it is a task.

    Args:
        root: root folder of SageMaker's files.
        platform: the platform to ask, or all platforms (auto), or none. With auto, platforms that report a single task
            are ignored if another platform reports several.
        count: number of tasks from --shard, for platforms that do not tell it.

    Raises:
        ConfigError: a variable has an invalid value, a variable is missing, or two platforms contradict each other.
    """
    if platform == NONE:
        return None
    env = _Environment(environ, root, count)
    asked = PLATFORMS.values() if platform == AUTO else [PLATFORMS[platform]]
    found = [task for each in asked if (task := each.read(env))]
    if not found and platform != AUTO:
        this = PLATFORMS[platform]
        raise ConfigError(f"--tasks {platform}: no {this.title} has started this process: {this.variable} is missing")
    if not found:
        if count is None and env.is_set(TASK_COUNT) and (tasks := env.integer(TASK_COUNT, 1, MAX_TASKS)) > 1:
            variables = f"{PLATFORMS['kubernetes'].variable} and {PLATFORMS['aws-batch'].variable}"
            raise ConfigError(
                f"{TASK_COUNT} is {tasks}, but the number of this task is unknown: {variables} are not set; "
                f"make the job an indexed one, give --shard I/{tasks}, or leave {TASK_COUNT} out"
            )
        return None
    several = [task for task in found if task.count > 1] or found
    for other in several[1:]:
        if (other.index, other.count) != (several[0].index, several[0].count):
            raise ConfigError(
                f"this process is {several[0]} and {other} at once; give --tasks "
                f"{several[0].platform} or --tasks {other.platform}, or --tasks {NONE} and --shard I/N"
            )
    return several[0]


def shard_of(task: Task | None, asked: tuple[int, int] | None) -> tuple[int, int]:
    """Return (shard, number of shards): the values that were asked for, or else those of the task, or else (0, 1).

    Raises:
        ConfigError: the values that were asked for are not the task's. Some work would be done twice and some not at
            all.
    """
    if task is None or (task.count == 1 and asked):  # a single task does not tell how the work is divided
        return asked or (0, 1)
    if asked and asked != (task.index, task.count):
        raise ConfigError(
            f"--shard {asked[0]}/{asked[1]} contradicts {PLATFORMS[task.platform].variable}: this is {task}, and its "
            f"shard is {task.index}/{task.count}; leave out --shard (VOXBATCH_SHARD), or give --tasks {NONE} to use "
            "--shard alone"
        )
    return task.index, task.count


def own_task(
    environ: Mapping[str, str], platform: str, asked: tuple[int, int] | None, sources: Iterable[str]
) -> tuple[Task | None, tuple[int, int]]:
    """Return the task that this process is, if any, and (shard, number of shards).

    Args:
        environ: the environment of this process.
        platform: see `find`.
        asked: --shard, if given.
        sources: each SOURCE of the run.

    Raises:
        ConfigError: see `find` and `shard_of`; or each host of a SageMaker job has only a part of the source.
    """
    root = sagemaker.root_folder(environ)
    task = find(environ, root, platform, asked and asked[1])
    shard = shard_of(task, asked)
    if task and task.platform == "sagemaker" and task.count > 1:
        sagemaker.refuse_sharded_input(sources, root)
    return task, shard


def in_job(environ: Mapping[str, str]) -> bool:
    """Return whether a platform started this process that collects the logs of its jobs as JSON."""
    root = sagemaker.root_folder(environ)
    return any(map(environ.get, _LOG_COLLECTORS)) or sagemaker.resource_config(root).exists()


def usd_per_hour(task: Task, environ: Mapping[str, str]) -> float | None:
    """Return the price of the machine that the task runs on; None if the price is unknown."""
    from voxbatch import engines, prices

    instance_type = None
    if task.platform == "sagemaker":
        instance_type = sagemaker.instance_type(sagemaker.root_folder(environ))
    return prices.usd_per_hour(prices.machine(task.platform, instance_type, engines.has_gpu()))


def announce(task: Task, shard: int, shards: int, out: str, log: Log, has_shard_option: bool = False) -> None:
    """Log the task and its shard; warn if OUT is a local folder that the tasks of the platform do not share.

    The task is a warning if a shell may have inherited its variables, and if the run is smaller only because of them.
    With --shard it is not.
    """
    text = f"{task}: shard {shard}/{shards}"
    if shards > 1 and task.platform in _INHERITED and not has_shard_option:
        variable = PLATFORMS[task.platform].variable
        text = f"{variable} makes this process {text}; give --tasks {NONE} to take all items"
        log.warning("task", engine=task.platform, text=text)
    else:
        log.info("task", engine=task.platform, text=text)
    if shards > 1 and task.platform in _NO_SHARED_FOLDER and not is_remote(out):
        log.warning(
            "local_out",
            text=f"OUT {out} is a folder of this task: unless all {task.count} tasks see the same one, none of them "
            "merges; give an OUT at gs:// or s3://",
        )


_INHERITED = ("slurm", "torchrun")
"""Platforms whose variables a shell or a script of a task passes on to each command that it starts."""
_NO_SHARED_FOLDER = ("cloud-run", "sagemaker")
"""Platforms whose tasks share no folder, unless one is mounted."""


@dataclass(frozen=True, slots=True)
class _Environment:
    """The inputs of the readers."""

    environ: Mapping[str, str]
    """The environment of this process."""
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

    def integer(self, name: str, least: int = 0, most: int = _MAX_INTEGER) -> int:
        """Return a variable as a whole number.

        Raises:
            ConfigError: it is not set, not a whole number, or out of range.
        """
        text = self.text(name)
        if re.fullmatch(r"[0-9]{1,9}", text) and least <= int(text) <= most:
            return int(text)
        seen = f"is {text[:40]!r}" if text else "is not set"
        raise ConfigError(f"{name} {seen}; it must be a whole number from {least:,} to {most:,}{_HOW_TO_IGNORE}")

    def index(self, name: str, count: int) -> int:
        """Return a variable as a task number: 0 to count - 1."""
        return self.integer(name, 0, count - 1)

    def attempt(self, name: str, first: int = 0) -> int | None:
        """Return the number of earlier attempts, or None if the variable is not set. The platform counts from
        `first`."""
        return self.integer(name, first) - first if self.is_set(name) else None

    def task_count(self, platform: str, names: Sequence[str]) -> int:
        """Return the number of tasks from the first of the variables that is set, or else from --shard.

        Raises:
            ConfigError: the variables contradict each other, or no source gives the number.
        """
        sizes = {name: self.integer(name, 1, MAX_TASKS) for name in names if self.is_set(name)}
        if len(set(sizes.values())) > 1:
            raise ConfigError(" and ".join(f"{name} is {size}" for name, size in sizes.items()) + "; they must agree")
        if sizes:
            return next(iter(sizes.values()))
        this = PLATFORMS[platform]
        if self.count and (index := self.integer(this.variable)) >= self.count:
            raise ConfigError(
                f"--shard I/{self.count} contradicts {this.variable}, which is {index}: of {self.count} tasks it would "
                f"be {self.count - 1} at most; give --tasks {NONE} to use --shard alone"
            )
        if self.count:
            return self.count
        raise ConfigError(
            f"{this.variable} is {self.text(this.variable)!r}, but {this.title}s do not give the number of tasks: set "
            f"{TASK_COUNT} to their number, or give --shard I/N{_HOW_TO_IGNORE}"
        )


_HOW_TO_IGNORE = f" (--tasks {NONE} ignores it)"


def _cloud_run(env: _Environment) -> Task | None:
    at, of = "CLOUD_RUN_TASK_INDEX", "CLOUD_RUN_TASK_COUNT"
    if not (env.is_set(at) or env.is_set(of)):
        return None
    count = env.integer(of, 1, MAX_TASKS)
    attempt, execution = env.attempt("CLOUD_RUN_TASK_ATTEMPT"), env.optional("CLOUD_RUN_EXECUTION")
    return Task(env.index(at, count), count, "cloud-run", attempt, execution, env.optional("CLOUD_RUN_JOB"))


def _sagemaker(env: _Environment) -> Task | None:
    if (found := sagemaker.host(env.root)) is None:
        return None
    return Task(*found, "sagemaker", name=sagemaker.job_name(env.root))


def _aws_batch(env: _Environment) -> Task | None:
    at = "AWS_BATCH_JOB_ARRAY_INDEX"
    if not env.is_set(at):
        return None
    count = env.task_count("aws-batch", ("AWS_BATCH_JOB_ARRAY_SIZE", TASK_COUNT))
    execution = env.text("AWS_BATCH_JOB_ID").partition(":")[0]
    return Task(env.index(at, count), count, "aws-batch", env.attempt("AWS_BATCH_JOB_ATTEMPT", 1), execution or None)


def _kubernetes(env: _Environment) -> Task | None:
    at = "JOB_COMPLETION_INDEX"
    if not env.is_set(at):
        return None
    count = env.task_count("kubernetes", (TASK_COUNT, "JOB_COMPLETIONS"))
    return Task(env.index(at, count), count, "kubernetes")


def _slurm(env: _Environment) -> Task | None:
    """Return the task of a Slurm array, whose job has array ids. A job that is no array has none.

    Array ids may begin at any number and may have a step, as in --array=1-15:2. A list with gaps has no such order, but
    Slurm describes it with the same variables.
    """
    at = "SLURM_ARRAY_TASK_ID"
    if not env.is_set(at):
        return None
    count, least = env.integer("SLURM_ARRAY_TASK_COUNT", 1, MAX_TASKS), env.integer("SLURM_ARRAY_TASK_MIN")
    step = env.integer("SLURM_ARRAY_TASK_STEP", 1) if env.is_set("SLURM_ARRAY_TASK_STEP") and count > 1 else 1
    last = least + (count - 1) * step
    most = env.integer("SLURM_ARRAY_TASK_MAX") if env.is_set("SLURM_ARRAY_TASK_MAX") else last
    id_ = env.integer(at)
    if most != last or not least <= id_ <= last or (id_ - least) % step:
        raise ConfigError(
            f"{at} is {id_}, of {count} ids from {least} to {most} by {step}; they must be evenly spaced, such as "
            f"--array=0-{count - 1}{_HOW_TO_IGNORE}"
        )
    attempt = env.attempt("SLURM_RESTART_COUNT") or 0  # not set before the first restart
    execution, name = env.optional("SLURM_ARRAY_JOB_ID"), env.optional("SLURM_JOB_NAME")
    return Task((id_ - least) // step, count, "slurm", attempt, execution, name)


def _torchrun(env: _Environment) -> Task | None:
    """Return the task of a torchrun job.

    Many tools set RANK. Only torchrun, or a tool that acts like torchrun, also sets WORLD_SIZE and a run id or a master
    address.
    """
    if not env.is_set("RANK", "WORLD_SIZE") or not (env.is_set("TORCHELASTIC_RUN_ID") or env.is_set("MASTER_ADDR")):
        return None
    count = env.integer("WORLD_SIZE", 1, MAX_TASKS)
    attempt, execution = env.attempt("TORCHELASTIC_RESTART_COUNT"), env.optional("TORCHELASTIC_RUN_ID")
    if execution == "none":  # torchrun's value if no id was given
        execution = None
    return Task(env.index("RANK", count), count, "torchrun", attempt, execution)


@dataclass(frozen=True, slots=True)
class _Platform:
    """A platform."""

    title: str
    """The name of a job of the platform, for people."""
    variable: str
    """The variable or file that shows that the platform started this process."""
    read: Callable[[_Environment], Task | None]
    """The reader."""


PLATFORMS = {
    "cloud-run": _Platform("Cloud Run job", "CLOUD_RUN_TASK_INDEX", _cloud_run),
    "sagemaker": _Platform("SageMaker job", "config/resourceconfig.json", _sagemaker),
    "aws-batch": _Platform("AWS Batch array", "AWS_BATCH_JOB_ARRAY_INDEX", _aws_batch),
    "kubernetes": _Platform("Kubernetes job", "JOB_COMPLETION_INDEX", _kubernetes),
    "slurm": _Platform("Slurm array", "SLURM_ARRAY_TASK_ID", _slurm),
    "torchrun": _Platform("torchrun job", "RANK", _torchrun),
}
"""The platforms, by the names of --tasks."""
