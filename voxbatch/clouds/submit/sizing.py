"""The number of tasks of a run: from its hours of audio, the expected speed of a machine, the time that a task may
take, and the time that it needs to start.

A platform bills the start of each task. With `start_s` seconds for a start, the start costs as much as
`start_s x RTFx / 3600` hours of audio: 9 hours for 270 s and RTFx 120. So the automatic number of tasks is such that
each of several tasks works for at least as long as it starts.

The manifest and the headers of a sample of the recordings are read; no engine is created.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from voxbatch import prices
from voxbatch.clouds.submit.ceiling import DEFAULT_CEILING, Ceiling
from voxbatch.clouds.submit.cloudrun import CloudRun
from voxbatch.clouds.submit.sagemaker import SageMaker
from voxbatch.clouds.submit.submission import StartTime, Submission
from voxbatch.config import Config, RunOptions
from voxbatch.engines import ENGINES, uses_gpu
from voxbatch.engines.choice import AUTO
from voxbatch.engines.known_models import engines_of
from voxbatch.engines.previews import ExpectedSpeed
from voxbatch.errors import ConfigError
from voxbatch.runner.forecast import KnownRates, calculate_speed, known_rates, remaining_workload
from voxbatch.runner.steps import steps_of
from voxbatch.runner.workload import Workload

Target = CloudRun | SageMaker
"""A cloud platform, and the place in it. Frozen; building a target sends no request."""


@dataclass(frozen=True, slots=True)
class SecondForecast:
    """The expected second pass of a cascade."""

    model: str
    share: float
    """Part of the audio."""
    work_s: float | None
    """Seconds of one task. None if the speed of the model is unknown."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected size, time and cost of a run. None stands for an unknown value."""

    items: int | None
    """None: the source cannot be read."""
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
    limit_s: int | None
    """Seconds after which the platform ends a task. None: the job's own limit, which is not known here."""
    start: StartTime | None
    """Time that each task needs to start."""
    speed: ExpectedSpeed | None = None
    """The calculated speed that `rtfx` comes from; None if `rtfx` was measured."""
    full_rtfx: float | None = None
    """Seconds of audio per second of a task that has many recordings."""
    second: SecondForecast | None = None
    """The second pass of a cascade, which the last task makes alone."""
    is_about: bool = False
    """See runner.workload.Workload."""
    before: str = ""
    """How the run would continue the one in OUT, for people. Empty if OUT has no run, or was not looked at."""

    @property
    def work_s(self) -> float | None:
        """Seconds that all tasks together work, without their starts."""
        return self.audio_s / self.rtfx if self.rtfx and not self.unknown_items else None

    @property
    def wall_s(self) -> tuple[float, float] | None:
        """Least and most seconds of a task, with its start if that is known."""
        if self.work_s is None:
            return None
        shortest_s, longest_s = (self.start.shortest_s, self.start.longest_s) if self.start else (0.0, 0.0)
        return shortest_s + self.known_task_s, longest_s + self.known_task_s

    @property
    def known_task_s(self) -> float:
        """Seconds of the last task for recordings whose duration is known, and for the second pass, without its start.
        0 if the speed is unknown."""
        return self.audio_s / self.rtfx / self.tasks + self.second_s if self.rtfx else 0.0

    @property
    def second_s(self) -> float:
        """Seconds of the second pass; 0 if there is none, or if the speed of its model is unknown."""
        return (self.second.work_s if self.second else None) or 0.0

    @property
    def second_usd(self) -> float | None:
        """Price of the second pass."""
        return None if self.usd_per_hour is None else self.second_s / 3600 * self.usd_per_hour

    @property
    def work_usd(self) -> float | None:
        """Price of the work of all tasks, without their starts."""
        return None if self.work_s is None or self.usd_per_hour is None else self.work_s / 3600 * self.usd_per_hour

    @property
    def start_usd(self) -> tuple[float, float] | None:
        """Lowest and highest price of the starts of all tasks."""
        if self.start is None or self.usd_per_hour is None:
            return None
        usd_per_s = self.tasks * self.usd_per_hour / 3600
        return self.start.shortest_s * usd_per_s, self.start.longest_s * usd_per_s

    @property
    def usd(self) -> tuple[float, float] | None:
        """Lowest and highest price of all tasks, with their starts if these are known."""
        if self.work_usd is None:
            return None
        lowest, highest = self.start_usd or (0.0, 0.0)
        work_usd = self.work_usd + (self.second_usd or 0.0)
        return work_usd + lowest, work_usd + highest

    def most_usd(self, limit_s: int | None) -> float | None:
        """Return the highest expected price of the run; if the hours of audio are unknown, that of an attempt of all
        tasks up to their limit."""
        if self.usd is not None:
            return self.usd[1]
        return None if self.usd_per_hour is None or limit_s is None else self.tasks * limit_s / 3600 * self.usd_per_hour

    @property
    def break_even_hours(self) -> float | None:
        """Hours of audio whose work costs as much as one average start."""
        return self.start.average_s * self.full_rtfx / 3600 if self.start and self.full_rtfx else None

    @property
    def starts_outweigh(self) -> bool:
        """Return whether the starts cost more than the work."""
        return self.start is not None and self.work_s is not None and self.start.average_s * self.tasks > self.work_s

    @property
    def paying_tasks(self) -> int:
        """Largest number of tasks whose starts cost no more than the work, at least 1."""
        return _paying(self.work_s, self.start.average_s) if self.start and self.work_s is not None else self.tasks


def _paying(work_s: float, start_s: float) -> int:
    """Return the largest number of tasks whose starts take no longer than the work, at least 1."""
    return max(1, math.floor(work_s / start_s))


def task_count(
    audio_s: float, items: int, rtfx: float, task_hours: float, max_tasks: int, start_s: float | None = None
) -> int:
    """Return ceil(hours of audio / (RTFx x hours per task)): at least 1, at most `max_tasks`, at most one task an item.

    Args:
        start_s: seconds that a task needs to start. Each of several tasks works for at least as long. None or 0: the
            start is not considered.
    """
    needed = math.ceil(audio_s / 3600 / (rtfx * task_hours))
    return max(1, min(needed, items, max_tasks, _paying(audio_s / rtfx, start_s) if start_s else needed))


def size_run(
    submission: Submission,
    config: Config,
    target: Target,
    tasks: int | None = None,
    task_hours: float | None = None,
    usd_per_hour: float | None = None,
    tasks_if_unknown: int | None = None,
    workload: Workload | None = None,
    ceiling: Ceiling = DEFAULT_CEILING,
) -> tuple[Submission, Forecast]:
    """Return the submission with its number of tasks and their time limit, and the forecast of the run.

    Args:
        config: config of the run; its source is read from this machine.
        tasks: number of tasks, whatever the hours of audio; None: calculated from the audio.
        task_hours: hours that a task should take; None: the target's default.
        usd_per_hour: price of one machine; None: the price table's.
        tasks_if_unknown: number of tasks if no recording's duration is known; None: this is an error.
        workload: the measured workload of the config; None: that of the items that OUT lacks is measured here.
        ceiling: limits of the calculated number of tasks, and of the price.

    Raises:
        UsageError: the config or the manifest is invalid, the target does not take so many tasks, the speed of a
            machine is unknown, or the run is above the ceiling.
        StorageError: this machine cannot read the manifest or the recordings.
    """
    check_tasks(config, target, tasks, task_hours)
    workload, before = (workload, "") if workload else remaining_workload(config)
    engine, rates, speed = _speed(config, target, workload)
    rtfx = speed.rtfx if speed else rates.rtfx
    _, _, full_speed = _speed(config, target)
    hours = task_hours or target.task_hours
    start = target.start_time(engine)
    count = tasks or (None if workload.audio_s else tasks_if_unknown if workload.items else 1)
    if count is None:
        if not workload.audio_s:
            raise ConfigError(f"the duration of none of {workload.items:,} recordings is known: give --tasks N")
        start_s = start.average_s if start else None
        count = task_count(workload.audio_s, workload.items, rtfx or 0.0, hours, target.max_tasks, start_s)
        ceiling.check_tasks(count, hours)
    price = _price(target, engine, usd_per_hour)
    second = _second_pass(config, target, engine, workload)
    forecast = Forecast(
        workload.items, workload.audio_s, workload.estimated_items, workload.unknown_items, count, rtfx, price, None,
        start, speed, full_speed.rtfx if full_speed else rtfx, second, workload.is_about, before,
    )  # fmt: skip
    ceiling.check_usd(forecast.usd)
    limit_s = target.limit_s(engine, hours, forecast.known_task_s)
    return replace(submission, tasks=count, limit_s=limit_s), replace(forecast, limit_s=limit_s)


def engine_on(target: Target, config: RunOptions) -> str:
    """Return the engine of a config on a target: for "auto", one of the target's machines that runs the model."""
    if config.engine != AUTO:
        return config.engine
    usual = target.engine()
    fitting = [name for name in ENGINES if name in engines_of(config.model or "")]
    return next((name for name in fitting if uses_gpu(name) == uses_gpu(usual)), usual)


def _second_pass(config: Config, target: Target, engine: str, workload: Workload) -> SecondForecast | None:
    """Return the second pass, if there is one, as if its recordings were like the others. --expected-rtfx is that of
    the first model."""
    second, gpus = steps_of(config).second_options(), target.gpus(engine)
    if second is None:
        return None
    options = second.of(config)
    speed = calculate_speed(options, engine, workload, *gpus) if gpus else None
    work_s = second.share * workload.audio_s / speed.rtfx if speed else None
    return SecondForecast(str(options.model), second.share, work_s)


def size_without_source(
    submission: Submission,
    config: RunOptions,
    target: Target,
    tasks: int,
    task_hours: float | None = None,
    usd_per_hour: float | None = None,
    ceiling: Ceiling = DEFAULT_CEILING,
) -> tuple[Submission, Forecast]:
    """Return the submission with a given number of tasks and their time limit, and what is known of the run without a
    look at the source.

    Raises:
        ConfigError: there is a limit for the price, which is unknown.
    """
    engine = engine_on(target, config)
    limit_s = target.limit_s(engine, task_hours or target.task_hours, None)
    forecast = Forecast(
        None, 0.0, 0, 0, tasks, None, _price(target, engine, usd_per_hour), limit_s, target.start_time(engine)
    )
    ceiling.check_usd(forecast.usd)
    return replace(submission, tasks=tasks, limit_s=limit_s), forecast


def _price(target: Target, engine: str, usd_per_hour: float | None) -> float | None:
    """Return the price of a task for an hour: the given one, else that of the price table."""
    return prices.usd_per_hour(target.machine(engine)) if usd_per_hour is None else usd_per_hour


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
    engine, rates, speed = _speed(config, target)
    if tasks is None and not (rates.rtfx or speed):
        raise ConfigError(
            f"the speed of {engine} on the machine of a task is unknown, so the number of tasks cannot be calculated: "
            "give --tasks N, or --expected-rtfx X (the rtfx in the event run_finished of an earlier run)"
        )


def _speed(
    config: RunOptions, target: Target, workload: Workload | None = None
) -> tuple[str, KnownRates, ExpectedSpeed | None]:
    """Return the engine on the target, its known speed and price, and its calculated speed if no speed is known."""
    engine = engine_on(target, config)
    rates, gpus = known_rates(config, engine), target.gpus(engine)
    speed = calculate_speed(config, engine, workload, *gpus) if gpus and not rates.rtfx else None
    return engine, rates, speed
