"""How many tasks a run gets: by its hours of audio, the speed that is expected of a machine, and how long a task may
take. The manifest is read for it, and a sample of the recordings; no engine is made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from voxbatch import prices
from voxbatch.config import Config
from voxbatch.engines import Speed
from voxbatch.errors import ConfigError
from voxbatch.plan import Expected, Extent, expected, measure, worked_out
from voxbatch.submit.order import Order, Target


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run is expected to take. None where nothing is known."""

    items: int
    audio_s: float
    estimated_items: int
    """Of these, the recordings whose duration is an estimate."""
    tasks: int
    rtfx: float | None
    """Audio seconds a second, of one task."""
    usd_per_hour: float | None
    """Of one task."""
    limit_s: int
    """After so long a task is ended."""
    speed: Speed | None = None
    """What rtfx is where it was worked out; None where somebody measured it."""

    @property
    def wall_s(self) -> float | None:
        """Of a task, its start left out."""
        return self.audio_s / self.rtfx / self.tasks if self.rtfx else None

    @property
    def usd(self) -> float | None:
        """Of all tasks, their starts left out."""
        if self.wall_s is None or self.usd_per_hour is None:
            return None
        return self.wall_s / 3600 * self.tasks * self.usd_per_hour


def task_count(audio_s: float, items: int, rtfx: float, task_hours: float, most: int) -> int:
    """ceil(hours of audio / (RTFx x hours a task)), at least 1, at most `most` and one an item."""
    return max(1, min(math.ceil(audio_s / 3600 / (rtfx * task_hours)), items, most))


def sized(
    order: Order,
    config: Config,
    target: Target,
    tasks: int | None = None,
    task_hours: float | None = None,
    usd_per_hour: float | None = None,
    blind: int | None = None,
) -> tuple[Order, Forecast]:
    """The order with the tasks that it needs and a limit for each, and what they are expected to take.

    Args:
        config: of the run; its source is read from here.
        tasks: how many, whatever the audio; None leaves it to the audio.
        task_hours: how long a task should take; None: see the target.
        usd_per_hour: of one machine; None: the table's price, or else the profile's.
        blind: tasks where no recording tells how long it is; None: that is refused.

    Raises:
        UsageError: the config or the manifest do not fit, more tasks are asked for than the target takes, or nobody
            says how fast a machine is.
        StorageError: the manifest or the recordings cannot be read from here.
    """
    check(config, target, tasks, task_hours)
    extent = measure(config)
    engine, known, speed = _speed(config, target, extent)
    rtfx = speed.rtfx if speed else known.rtfx
    hours = task_hours or target.task_hours
    count = tasks or (blind if not extent.audio_s else None) or _count(extent, rtfx or 0.0, hours, target)
    listed = prices.usd_per_hour(target.machine(engine))
    price = next((each for each in (usd_per_hour, listed, known.usd_per_hour) if each is not None), None)
    wall_s = extent.audio_s / rtfx / count if rtfx else None
    limit_s = target.limit_s(engine, hours, wall_s)
    guessed = extent.estimated_items
    forecast = Forecast(extent.items, extent.audio_s, guessed, count, rtfx, price, limit_s, speed)
    return replace(order, tasks=count, limit_s=limit_s), forecast


def check(config: Config, target: Target, tasks: int | None = None, task_hours: float | None = None) -> None:
    """As `sized` does before it looks at the source.

    Raises:
        ConfigError: whatever there is to transcribe, a run of so many tasks cannot be, or nobody says how many.
    """
    if tasks is not None and not 1 <= tasks <= target.most_tasks:
        raise ConfigError(f"tasks is {tasks:,}; {target.title} takes from 1 to {target.most_tasks:,}")
    if task_hours is not None and not 0 < task_hours < math.inf:
        raise ConfigError(f"task-hours is {task_hours!r}; it must be more than 0, and finite")
    engine, known, speed = _speed(config, target)
    if tasks is None and not (known.rtfx or speed):
        raise ConfigError(
            f"how fast {engine} is on such a machine is not known, so hours of audio say nothing of the number of "
            "tasks: give --tasks N, or --expected-rtfx X (run_finished has an earlier run's rtfx)"
        )


def _speed(config: Config, target: Target, extent: Extent | None = None) -> tuple[str, Expected, Speed | None]:
    """The engine there, what is expected of it, and what it ought to reach where its speed is not known."""
    engine = target.engine() if config.engine == "auto" else config.engine
    known, gpus = expected(config, engine), target.gpus(engine)
    speed = worked_out(config, engine, extent, *gpus) if gpus and not known.rtfx else None
    return engine, known, speed


def _count(extent: Extent, rtfx: float, hours: float, target: Target) -> int:
    if not extent.audio_s:
        raise ConfigError(f"none of {extent.items:,} recordings tells how long it is: give --tasks N")
    return task_count(extent.audio_s, extent.items, rtfx, hours, target.most_tasks)
