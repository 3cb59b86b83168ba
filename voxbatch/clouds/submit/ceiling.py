"""The limits of what one run may start unasked: a manifest may say any duration, and each task costs money."""

from __future__ import annotations

from dataclasses import dataclass

from voxbatch.errors import ConfigError

MAX_AUTO_TASKS = 100
"""Tasks that a run may get from its hours of audio. On L4s they work for about 10,000 hours of audio, for 100 USD."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The most tasks that are calculated for a run, and the most that it may be expected to cost.

    Raises:
        ConfigError: a limit is not positive.
    """

    max_tasks: int = MAX_AUTO_TASKS
    """A number that is given by --tasks may be larger."""
    max_usd: float | None = None
    """None: no limit."""

    def __post_init__(self) -> None:
        if self.max_tasks < 1:
            raise ConfigError(f"--max-tasks is {self.max_tasks:,}; it must be 1 or more")
        if self.max_usd is not None and not self.max_usd > 0:
            raise ConfigError(f"--max-usd is {self.max_usd:g}; it must be more than 0")

    def check_tasks(self, tasks: int, task_hours: float) -> None:
        """Check a number of tasks that was calculated.

        Raises:
            ConfigError: it is above the limit.
        """
        if tasks > self.max_tasks:
            raise ConfigError(
                f"the hours of audio need {tasks:,} tasks of {task_hours:.3g} hours, and --max-tasks is "
                f"{self.max_tasks:,}: if the durations are right, raise --max-tasks (VOXBATCH_MAX_TASKS; MAX_TASKS of "
                "deploy.sh), or give --tasks N"
            )

    def check_usd(self, usd: tuple[float, float] | None) -> None:
        """Check the lowest and the highest expected price of a run.

        Raises:
            ConfigError: the highest price is above the limit, or the price is unknown and there is a limit.
        """
        if self.max_usd is None:
            return
        limit = f"--max-usd is {self.max_usd:,.2f}"
        if usd is None:
            raise ConfigError(
                f"the price of the run is unknown, and {limit}: give --usd-per-hour, --expected-rtfx, and durations "
                "in the manifest, or leave out --max-usd"
            )
        if usd[1] > self.max_usd:
            raise ConfigError(
                f"the run is expected to cost up to {usd[1]:,.2f} USD, and {limit}: raise --max-usd "
                "(VOXBATCH_MAX_USD; MAX_USD of deploy.sh), or divide the manifest"
            )


DEFAULT_CEILING = Ceiling()
"""The limits unless others are given."""
