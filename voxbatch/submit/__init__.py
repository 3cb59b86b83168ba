"""A run on a cloud's task engine instead of here: so many tasks of the same `voxbatch run`, which share the work out.

    order = Order("gs://calls/day.jsonl", "gs://calls/out", ("--language", "en"))
    order, forecast = sized(order, config, CloudRun(region="us-central1"))
    start(order, CloudRun(region="us-central1"))  →  Started("voxbatch-x7k2p", "https://console.cloud.google.com/…")

It starts runs, and neither waits for one nor stops it: OUT tells how far it is, and the same order again goes on
with it.
"""

from __future__ import annotations

from collections.abc import Callable

import tenacity

from voxbatch.errors import BusyError
from voxbatch.storage import steady
from voxbatch.submit.cloudrun import CloudRun
from voxbatch.submit.order import Order, Request, Started, Target
from voxbatch.submit.sagemaker import SageMaker
from voxbatch.submit.size import Forecast, check, sized, task_count

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
"""19 waits (see steady.wait_s) add up to some two and a half minutes: Cloud Run's quotas are so much a minute."""
TOTAL_S = 300.0
"""After so long no further attempt is begun: one that gets no answer takes a minute or two by itself."""


def start(order: Order, target: Target, again: bool = False) -> Started:
    """Start the run, unless one with the same arguments is under way.

    Two calls at the same moment may both start one. They do each item once all the same, for twice the price.

    Args:
        again: do not look, start it.

    Raises:
        ConfigError: what was asked for is wrong, now and later: no such job or region, an argument too long.
        StartError: the engine did not start it: no credentials or permission, no network, a quota used up. It may be
            asked again.
    """
    return target.start(order, again)


def start_in_time(order: Order, target: Target, tell: Callable[[str], None]) -> Started:
    """`start`, as often as it takes while the engine is busy or out of reach, ATTEMPTS times at most. What an attempt
    began whose answer was lost is found by the next.

    Args:
        tell: is given the reason of each wait, for people.

    Raises:
        ConfigError, StartError: as from `start`.
    """

    def say(state: tenacity.RetryCallState) -> None:
        assert state.outcome is not None
        tell(f"{state.outcome.exception()} (by itself, in {state.upcoming_sleep:.0f} s)")

    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(BusyError),
        stop=tenacity.stop_after_attempt(ATTEMPTS) | tenacity.stop_before_delay(TOTAL_S),
        wait=steady.wait_s,
        before_sleep=say,
        reraise=True,
    )
    return attempts(start, order, target)
