"""The number of tasks of a run: from its hours of audio, the expected speed of a machine, and the time that a task may
take.

The manifest and the headers of a sample of the recordings are read; no engine is created.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from voxbatch import prices
from voxbatch.config import Config, RunOptions
from voxbatch.engines import ExpectedSpeed
from voxbatch.errors import ConfigError
from voxbatch.platforms.submit.submission import Submission, Target
from voxbatch.runner.forecast import KnownRates, Workload, calculate_speed, known_rates, measure_workload


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected size, time and cost of a run. None stands for an unknown value."""

    items: int
    audio_s: float
    estimated_items: int
    """Number of these items whose duration is an estimate."""
    unknown_items: int
    """Number of these items whose duration is unknown. `audio_s` does not include them."""
    tasks: int
    rtfx: float | None
    """Seconds of audio per second, of one task."""
    usd_per_hour: float | None
    """Price of one task."""
    limit_s: int
    """Seconds after which the platform ends a task."""
    speed: ExpectedSpeed | None = None
    """The calculated speed that `rtfx` comes from; None if `rtfx` was measured."""

    @property
    def wall_s(self) -> float | None:
        """Seconds of a task, without its start."""
        return self.audio_s / self.rtfx / self.tasks if self.rtfx and not self.unknown_items else None

    @property
    def usd(self) -> float | None:
        """Price of all tasks, without their starts."""
        if self.wall_s is None or self.usd_per_hour is None:
            return None
        return self.wall_s / 3600 * self.tasks * self.usd_per_hour


def task_count(audio_s: float, items: int, rtfx: float, task_hours: float, most: int) -> int:
    """Return ceil(hours of audio / (RTFx x hours per task)): at least 1, at most `most`, at most one task an item."""
    return max(1, min(math.ceil(audio_s / 3600 / (rtfx * task_hours)), items, most))


def size_run(
    submission: Submission,
    config: Config,
    target: Target,
    tasks: int | None = None,
    task_hours: float | None = None,
    usd_per_hour: float | None = None,
    tasks_if_unknown: int | None = None,
) -> tuple[Submission, Forecast]:
    """Return the submission with its number of tasks and their time limit, and the forecast of the run.

    Args:
        config: config of the run; its source is read from this machine.
        tasks: number of tasks, whatever the hours of audio; None: calculated from the audio.
        task_hours: hours that a task should take; None: the target's default.
        usd_per_hour: price of one machine; None: the price table's.
        tasks_if_unknown: number of tasks if no recording's duration is known; None: this is an error.

    Raises:
        UsageError: the config or the manifest is invalid, the target does not take so many tasks, or the speed of a
            machine is unknown.
        StorageError: this machine cannot read the manifest or the recordings.
    """
    check_tasks(config, target, tasks, task_hours)
    workload = measure_workload(config)
    engine, known, speed = _speed(config, target, workload)
    rtfx = speed.rtfx if speed else known.rtfx
    hours = task_hours or target.task_hours
    count = tasks or (None if workload.audio_s else tasks_if_unknown)
    if count is None:
        if not workload.audio_s:
            raise ConfigError(f"the duration of none of {workload.items:,} recordings is known: give --tasks N")
        count = task_count(workload.audio_s, workload.items, rtfx or 0.0, hours, target.max_tasks)
    listed = prices.usd_per_hour(target.machine(engine))
    price = listed if usd_per_hour is None else usd_per_hour
    wall_s = workload.audio_s / rtfx / count if rtfx else None
    limit_s = target.limit_s(engine, hours, wall_s)
    forecast = Forecast(
        workload.items, workload.audio_s, workload.estimated_items, workload.unknown_items, count, rtfx, price, limit_s,
        speed,
    )  # fmt: skip
    return replace(submission, tasks=count, limit_s=limit_s), forecast


def size_without_source(
    submission: Submission, config: RunOptions, target: Target, tasks: int, task_hours: float | None = None
) -> Submission:
    """Return the submission with a given number of tasks and their time limit, without a look at the source."""
    engine = target.engine() if config.engine == "auto" else config.engine
    return replace(submission, tasks=tasks, limit_s=target.limit_s(engine, task_hours or target.task_hours, None))


def check_tasks(config: RunOptions, target: Target, tasks: int | None = None, task_hours: float | None = None) -> None:
    """Check a submission as `size_run` does before it reads the source.

    Raises:
        ConfigError: the number of tasks or their hours are invalid for any source, or the number of tasks cannot be
            calculated because the speed is unknown.
    """
    if tasks is not None and not 1 <= tasks <= target.max_tasks:
        raise ConfigError(f"tasks is {tasks:,}; {target.title} takes from 1 to {target.max_tasks:,}")
    if task_hours is not None and not 0 < task_hours < math.inf:
        raise ConfigError(f"task-hours is {task_hours!r}; it must be more than 0, and finite")
    engine, known, speed = _speed(config, target)
    if tasks is None and not (known.rtfx or speed):
        raise ConfigError(
            f"the speed of {engine} on the machine of a task is unknown, so the number of tasks cannot be calculated: "
            "give --tasks N, or --expected-rtfx X (the rtfx in the event run_finished of an earlier run)"
        )


def _speed(
    config: RunOptions, target: Target, workload: Workload | None = None
) -> tuple[str, KnownRates, ExpectedSpeed | None]:
    """Return the engine on the target, its known speed and price, and its calculated speed if no speed is known."""
    engine = target.engine() if config.engine == "auto" else config.engine
    known, gpus = known_rates(config, engine), target.gpus(engine)
    speed = calculate_speed(config, engine, workload, *gpus) if gpus and not known.rtfx else None
    return engine, known, speed
