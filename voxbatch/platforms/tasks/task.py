"""A task of a platform: what the log says about it, and the price of its machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from voxbatch.log import Log
from voxbatch.platforms.tasks import sagemaker
from voxbatch.platforms.tasks.known import NONE, PLATFORMS, sagemaker_root
from voxbatch.storage import is_remote


@dataclass(frozen=True, slots=True)
class Task:
    """A process that a platform started, together with others that are identical."""

    index: int
    """0-based number of the task."""
    count: int
    platform: str
    attempt: int | None = None
    """Number of earlier attempts of this task. None if the platform does not tell."""
    execution: str | None = None
    """Identifier of this execution of the job."""
    name: str | None = None

    def __str__(self) -> str:
        """Return, for example, "task 3 of 8 (Cloud Run job calls, execution calls-x7k, attempt 1)"."""
        facts = [f"{PLATFORMS[self.platform].title}{f' {self.name}' if self.name else ''}"]
        facts += [f"execution {self.execution}"] if self.execution else []
        facts += [f"attempt {self.attempt}"] if self.attempt is not None else []
        return f"task {self.index} of {self.count} ({', '.join(facts)})"

    def log_fields(self) -> dict[str, Any]:
        """Return the fields of each log line. On Cloud Run they include the platform's own labels."""
        fields = {} if self.attempt is None else {"attempt": self.attempt}
        if self.platform != "cloud-run":
            return fields
        named = {"execution_name": self.execution, "task_index": self.index, "task_attempt": self.attempt}
        labels = {f"run.googleapis.com/{name}": str(value) for name, value in named.items() if value is not None}
        return {**fields, "logging.googleapis.com/labels": labels}


def usd_per_hour(task: Task, environ: Mapping[str, str]) -> float | None:
    """Return the price of the machine that the task runs on; None if the price is unknown."""
    from voxbatch import engines, prices

    instance_type = sagemaker.instance_type(sagemaker_root(environ)) if task.platform == "sagemaker" else None
    return prices.usd_per_hour(prices.machine(task.platform, instance_type, engines.has_gpu()))


def announce(task: Task, shard: int, shards: int, out: str, log: Log, has_shard_option: bool) -> None:
    """Log the task and its shard; warn if OUT is a local folder that the tasks of the platform do not share.

    The task is a warning if a shell may have inherited its variables, and if the run is smaller only because of them.
    With --shard it is not.
    """
    text = f"{task}: shard {shard}/{shards}"
    if shards > 1 and PLATFORMS[task.platform].inherited and not has_shard_option:
        variable = PLATFORMS[task.platform].index
        text = f"{variable} makes this process {text}; give --tasks {NONE} to take all items"
        log.warning("task", engine=task.platform, text=text)
    else:
        log.info("task", engine=task.platform, text=text)
    if shards > 1 and PLATFORMS[task.platform].shares_no_folder and not is_remote(out):
        log.warning(
            "local_out",
            text=f"OUT {out} is a folder of this task: unless all {task.count} tasks see the same one, none of them "
            "merges; give an OUT at gs:// or s3://",
        )
