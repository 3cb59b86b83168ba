"""Start a run on a cloud platform: several tasks of the same `voxbatch run`, which share the work.

    order = Order("gs://calls/day.jsonl", "gs://calls/out", ("--language", "en"))
    order, forecast = sized(order, config, CloudRun(region="us-central1"))
    start(order, CloudRun(region="us-central1"))  →  Started("voxbatch-x7k2p", "https://console.cloud.google.com/…")

The package starts runs. It does not wait for a run or stop one: OUT shows the progress, and the same order, submitted
again, continues the run.
"""

from __future__ import annotations

from collections.abc import Callable

import tenacity

from voxbatch.errors import BusyError
from voxbatch.platforms.submit.cloudrun import CloudRun
from voxbatch.platforms.submit.order import Order, Request, Started, Target
from voxbatch.platforms.submit.sagemaker import SageMaker
from voxbatch.platforms.submit.size import Forecast, check, sized, task_count
from voxbatch.storage import retry

__all__ = [
    "CloudRun",
    "Forecast",
    "Order",
    "Request",
    "SageMaker",
    "Started",
    "Target",
    "check",
    "sized",
    "start",
    "start_in_time",
    "task_count",
]

ATTEMPTS = 20
"""Maximum attempts of `start_in_time`. The 19 waits between them (see retry.wait_s) add up to about two and a half
minutes, because Cloud Run's quotas are per minute.
"""
TOTAL_S = 300.0
"""Seconds after which no further attempt begins: an attempt without an answer takes a minute or two itself."""


def start(order: Order, target: Target, again: bool = False) -> Started:
    """Start the run, unless a run with the same arguments is in progress.

    Two calls at the same moment may both start a run. The two runs still commit each item once, but cost twice as much.

    Args:
        again: start the run without looking for one in progress.

    Raises:
        ConfigError: the order is wrong and stays wrong: no such job or region, an argument too long.
        StartError: the platform did not start the run: no credentials or permission, no network, a quota used up. The
            call may be repeated.
    """
    return target.start(order, again)


def start_in_time(order: Order, target: Target, tell: Callable[[str], None]) -> Started:
    """Call `start`, and retry while the platform is busy or unreachable, with at most ATTEMPTS attempts.

    If an attempt started a run but its answer was lost, the next attempt finds this run.

    Args:
        tell: is called before each wait with the reason, for people.

    Raises:
        ConfigError, StartError: as from `start`.
    """

    def say(state: tenacity.RetryCallState) -> None:
        assert state.outcome is not None
        tell(f"{state.outcome.exception()} (by itself, in {state.upcoming_sleep:.0f} s)")

    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(BusyError),
        stop=tenacity.stop_after_attempt(ATTEMPTS) | tenacity.stop_before_delay(TOTAL_S),
        wait=retry.wait_s,
        before_sleep=say,
        reraise=True,
    )
    return attempts(start, order, target)
