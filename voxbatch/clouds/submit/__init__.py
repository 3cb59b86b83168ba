"""Start a run on a cloud platform: several tasks of the same `voxbatch run`, which share the work.

    submission = Submission("gs://calls/day.jsonl", "gs://calls/out", ("--language", "en"))
    submission, forecast = size_run(submission, config, CloudRun(region="us-central1"))
    start(submission, CloudRun(region="us-central1"))  →  StartedRun("voxbatch-x7k2p", "https://console…")

The package starts runs. It does not wait for a run or stop one: OUT shows the progress. To continue a run, start the
same submission again.
"""

from __future__ import annotations

from collections.abc import Callable

from voxbatch.clouds.submit.ceiling import Ceiling
from voxbatch.clouds.submit.cloudrun import CloudRun
from voxbatch.clouds.submit.sagemaker import SageMaker
from voxbatch.clouds.submit.sizing import (
    Forecast,
    Target,
    check_tasks,
    size_run,
    size_without_source,
    task_count,
)
from voxbatch.clouds.submit.submission import (
    ApiRequest,
    StartedRun,
    StartTime,
    Submission,
    redact_addresses,
)
from voxbatch.errors import BusyError
from voxbatch.storage.retry import RUN_START, Retries

__all__ = [
    "ApiRequest",
    "Ceiling",
    "CloudRun",
    "Forecast",
    "SageMaker",
    "StartTime",
    "StartedRun",
    "Submission",
    "Target",
    "check_tasks",
    "redact_addresses",
    "size_run",
    "size_without_source",
    "start",
    "start_with_retries",
    "task_count",
]


def start(submission: Submission, target: Target, again: bool = False) -> StartedRun:
    """Start the run, unless a run with the same arguments is in progress.

    Two calls at the same moment may both start a run. The two runs still commit each item once, but cost twice as much.
    A dispatcher (`voxbatch listen --to cloudrun`) therefore claims the start in OUT first.

    Args:
        again: start the run without looking for one in progress.

    Raises:
        ConfigError: the submission is wrong and stays wrong: no such job or region, an argument too long.
        StartError: the platform did not start the run: no credentials or permission, no network, a quota used up. The
            call may be repeated.
    """
    return target.connect().start(submission, again)


def start_with_retries(submission: Submission, target: Target, tell: Callable[[str], None]) -> StartedRun:
    """Call `start`, and retry while the platform is busy or unreachable, as the policy RUN_START says.

    If an attempt started a run but its answer was lost, the next attempt finds this run.

    Args:
        tell: is called before each wait with the reason, for people.

    Raises:
        ConfigError, StartError: as from `start`.
    """
    return Retries(RUN_START).call(
        lambda: start(submission, target),
        lambda error: isinstance(error, BusyError),
        lambda error, wait_s: tell(f"{error} (by itself, in {wait_s:.0f} s)"),
    )
