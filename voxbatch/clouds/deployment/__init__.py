"""Look at a deployment in one screen: what runs, what the last day did, what waits, and what the machines cost.

`cloudrun` and `sagemaker` read it from the APIs of the platforms. Nothing is changed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from voxbatch import prices
from voxbatch.display import format_duration
from voxbatch.safe_text import counted

WAITING, RUNNING, SUCCEEDED, FAILED, CANCELLED = "waiting", "running", "succeeded", "failed", "cancelled"
SHOWN_FAILURES = 5
"""Failed executions that are shown, the latest first."""
_MINUTE = "%Y-%m-%d %H:%M UTC"


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of a job, as the platform knows it."""

    job: str
    name: str
    state: str
    """WAITING for a machine, RUNNING, SUCCEEDED, FAILED or CANCELLED."""
    begun: float
    """Time when it was asked for, in seconds since 1970."""
    ended: float | None = None
    tasks: int = 1
    tasks_done: int = 0
    tasks_failed: int = 0
    machine: str | None = None
    """The machine of a task: an entry of prices.machines()."""
    machine_s: float = 0.0
    """Seconds of all machines within the time that is looked at."""
    reason: str = ""
    """Why it failed, in the platform's words."""


@dataclass(frozen=True, slots=True)
class Queue:
    """The messages that wait: in a subscription, or in a queue of dead letters."""

    name: str
    messages: int
    oldest_s: float | None = None
    """Age of the oldest message, in seconds; None if the platform does not say."""


@dataclass(frozen=True, slots=True)
class WorkerPool:
    """Machines that are always on."""

    name: str
    instances: int
    machine: str


@dataclass(frozen=True, slots=True)
class Deployment:
    """The state of a deployment, as its platform tells it."""

    place: str
    now: float
    """Time of the look, in seconds since 1970."""
    since: float
    """Begin of the time that is looked at."""
    executions: tuple[Execution, ...] = ()
    """The latest one first."""
    queues: tuple[Queue, ...] = ()
    workers: tuple[WorkerPool, ...] = ()
    unknown: tuple[str, ...] = field(default=())
    """Sentences about what could not be read."""

    @property
    def usd(self) -> float:
        """Price of the machines since `since`, of those whose price is known."""
        days = (self.now - self.since) / 86_400
        always = sum(
            24 * days * worker.instances * (prices.usd_per_hour(worker.machine) or 0) for worker in self.workers
        )
        return always + sum(
            execution.machine_s / 3600 * (prices.usd_per_hour(execution.machine) or 0) for execution in self.executions
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the records and the price for JSON."""
        return {**asdict(self), "usd": round(self.usd, 2)}


def lines(deployment: Deployment) -> Iterator[str]:
    """Yield the lines of the screen."""
    hours = (deployment.now - deployment.since) / 3600
    yield f"{deployment.place}, {time.strftime(_MINUTE, time.gmtime(deployment.now))}, the last {hours:g} hours"
    unfinished = [execution for execution in deployment.executions if execution.ended is None]
    for execution in unfinished:
        lasted = format_duration(deployment.now - execution.begun)
        done = f", {execution.tasks_done:,} of {counted(execution.tasks, 'task')} done" if execution.tasks > 1 else ""
        yield f"{execution.state:<8} {execution.name}, for {lasted}{done}"
    if not unfinished:
        yield "running  nothing"
    for job, executions in _by_job(deployment.executions).items():
        states = Counter(execution.state for execution in executions)
        amounts = ", ".join(f"{number:,} {state}" for state, number in sorted(states.items()))
        yield f"job      {job}: {counted(len(executions), 'execution')} ({amounts})"
    failed = [execution for execution in deployment.executions if execution.state == FAILED]
    for execution in failed[:SHOWN_FAILURES]:
        share = f", {execution.tasks_failed:,} of {counted(execution.tasks, 'task')}" if execution.tasks > 1 else ""
        reason = f": {execution.reason}" if execution.reason else ""
        yield f"failed   {execution.name}{share}, {time.strftime(_MINUTE, time.gmtime(execution.ended))}{reason}"
    for queue in deployment.queues:
        age = "" if not queue.oldest_s else f", the oldest for {format_duration(queue.oldest_s)}"
        yield f"queue    {queue.name}: {counted(queue.messages, 'message')}{age}"
    for worker in deployment.workers:
        price = prices.usd_per_hour(worker.machine)
        cost = "" if price is None else f", {24 * price * worker.instances:,.2f} USD a day"
        yield f"worker   {worker.name}: {counted(worker.instances, 'instance')}, always on{cost}"
    yield f"cost     about {deployment.usd:,.2f} USD of machines{_unpriced(deployment.executions)}"
    for text in deployment.unknown:
        yield f"unknown  {text}"


def _by_job(executions: Iterable[Execution]) -> dict[str, list[Execution]]:
    by_job: dict[str, list[Execution]] = {}
    for execution in executions:
        by_job.setdefault(execution.job, []).append(execution)
    return dict(sorted(by_job.items()))


def _unpriced(executions: Iterable[Execution]) -> str:
    machines = {execution.machine for execution in executions if execution.machine_s}
    unknown = sorted(str(machine) for machine in machines if prices.usd_per_hour(machine) is None)
    return f", without {', '.join(unknown)}, whose price is not known" if unknown else ""
