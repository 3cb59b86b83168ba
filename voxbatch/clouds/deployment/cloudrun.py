"""Read a deployment on Cloud Run: its jobs by the Cloud Run API, its subscriptions by Cloud Monitoring."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from voxbatch import prices
from voxbatch.clouds.deployment import (
    CANCELLED,
    FAILED,
    RUNNING,
    SUCCEEDED,
    WAITING,
    Deployment,
    Execution,
    Queue,
    WorkerPool,
)
from voxbatch.clouds.submit.cloudrun import LIMIT_S, TIMEOUT_S, CloudRun, CloudRunApi
from voxbatch.errors import ConfigError
from voxbatch.stores.http_errors import one_line

ENDPOINT = "CLOUDSDK_API_ENDPOINT_OVERRIDES_MONITORING"
"""gcloud's variable for another address of the Monitoring API."""
_SUBSCRIPTION = "pubsub.googleapis.com/subscription"
_MESSAGES, _AGE = f"{_SUBSCRIPTION}/num_undelivered_messages", f"{_SUBSCRIPTION}/oldest_unacked_message_age"
_SAMPLED_S = 600
"""Seconds in which a metric of Pub/Sub has a sample: one a minute, which can be seen after four minutes
(cloud.google.com/monitoring/api/metrics_gcp_p_z, read 2026-11-29)."""
_GPU = "nvidia.com/gpu"


def read(settings: CloudRun, since: float, now: float) -> Deployment:
    """Return the deployment whose jobs, worker pools and subscriptions begin with the name of a job.

    Args:
        since: begin of the time that is looked at, in seconds since 1970.
        now: its end.

    Raises:
        ConfigError: there is no such job, or the project or the region is unknown.
        StartError: the jobs cannot be read.
    """
    api = settings.connect()
    with api.errors("list the executions of"):
        parent = f"projects/{api.project}/locations/{api.region}"
        with api.client(api.run_v2.JobsClient) as client:
            jobs = _named(client.list_jobs(parent=parent, timeout=TIMEOUT_S), settings.job)
        with api.client(api.run_v2.WorkerPoolsClient) as client:
            pools = _named(client.list_worker_pools(parent=parent, timeout=TIMEOUT_S), settings.job)
        if not jobs and not pools:
            raise ConfigError(
                f"no job of project {api.project} in {api.region} has a name that begins with {settings.job}: check "
                "--name, --project and --region, or make the deployment: jobs/cloudrun/deploy.sh"
            )
        executions = [execution for job in jobs for execution in _executions(api, job.name, since, now)]
    queues, unknown = _queues(api, settings.job, now)
    return Deployment(
        place=f"Cloud Run, project {api.project}, {api.region}",
        now=now,
        since=since,
        executions=tuple(sorted(executions, key=lambda execution: -execution.begun)),
        queues=queues,
        workers=tuple(
            WorkerPool(_short(pool.name), pool.scaling.manual_instance_count, _machine(pool)) for pool in pools
        ),
        unknown=unknown,
    )


def _named(resources: Iterable[Any], begin: str) -> list[Any]:
    return [resource for resource in resources if _short(resource.name).startswith(begin)]


def _short(name: str) -> str:
    return name.rpartition("/")[2]


def _machine(resource: Any) -> str:
    """Return the price table's entry for the container of an execution or of a worker pool."""
    limits = [container.resources.limits for container in resource.template.containers]
    return prices.CLOUD_RUN_L4 if any(_GPU in limit for limit in limits) else prices.CLOUD_RUN_CPU


def _executions(api: CloudRunApi, job: str, since: float, now: float) -> Iterator[Execution]:
    """Yield the executions of a job that ran in the time. The API lists the latest one first."""
    with api.client(api.run_v2.ExecutionsClient) as client, api.client(api.run_v2.TasksClient) as tasks:
        for execution in client.list_executions(parent=job, timeout=TIMEOUT_S):
            begun, ended = execution.create_time.timestamp(), execution.completion_time
            if begun < min(since, now - LIMIT_S):
                return
            if ended and ended.timestamp() < since:
                continue
            listed = tasks.list_tasks(parent=execution.name, timeout=TIMEOUT_S)
            yield Execution(
                job=_short(job),
                name=_short(execution.name),
                state=_state(execution),
                begun=begun,
                ended=ended.timestamp() if ended else None,
                tasks=execution.task_count,
                tasks_done=execution.succeeded_count,
                tasks_failed=execution.failed_count,
                machine=_machine(execution),
                machine_s=sum(_seconds(task, since, now) for task in listed),
                reason=_reason(execution) if execution.failed_count else "",
            )


def _state(execution: Any) -> str:
    if not execution.completion_time:
        return RUNNING if execution.running_count or execution.succeeded_count else WAITING
    return FAILED if execution.failed_count else CANCELLED if execution.cancelled_count else SUCCEEDED


def _reason(execution: Any) -> str:
    return next((one_line(condition.message) for condition in execution.conditions if condition.message), "")


def _seconds(task: Any, since: float, now: float) -> float:
    """Return the seconds of a task within the time."""
    if not task.start_time:
        return 0.0
    ended: float = task.completion_time.timestamp() if task.completion_time else now
    started: float = task.start_time.timestamp()
    return max(0.0, min(ended, now) - max(started, since))


def _queues(api: CloudRunApi, begin: str, now: float) -> tuple[tuple[Queue, ...], tuple[str, ...]]:
    """Return the subscriptions by Monitoring, and why they are not known."""
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import AuthorizedSession
    from requests.exceptions import RequestException

    try:
        with AuthorizedSession(api.credentials) as session:
            messages, ages = (_latest(session, api.project, metric, begin, now) for metric in (_MESSAGES, _AGE))
    except (RequestException, GoogleAuthError, ValueError, LookupError) as e:
        role = "role roles/monitoring.viewer"
        return (), (f"how many messages wait: Cloud Monitoring cannot be read ({one_line(e)}); it needs {role}",)
    return tuple(Queue(name, number, ages.get(name)) for name, number in sorted(messages.items())), ()


def _latest(session: Any, project: str, metric: str, begin: str, now: float) -> dict[str, int]:
    """Return the latest value of a metric for each subscription whose name begins so.

    Raises:
        RequestException, GoogleAuthError: the API does not answer, or refuses.
        ValueError, LookupError: it is not the API that answers.
    """
    endpoint = os.environ.get(ENDPOINT, "").rstrip("/") or "https://monitoring.googleapis.com"
    parameters = {
        "filter": f'metric.type = "{metric}" AND resource.labels.subscription_id = starts_with("{begin}")',
        "interval.startTime": datetime.fromtimestamp(now - _SAMPLED_S, UTC).isoformat(),
        "interval.endTime": datetime.fromtimestamp(now, UTC).isoformat(),
    }
    reply = session.get(f"{endpoint}/v3/projects/{project}/timeSeries", params=parameters, timeout=TIMEOUT_S)
    reply.raise_for_status()
    return {
        series["resource"]["labels"]["subscription_id"]: int(series["points"][0]["value"]["int64Value"])
        for series in reply.json().get("timeSeries", [])
    }
