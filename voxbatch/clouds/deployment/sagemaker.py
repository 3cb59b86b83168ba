"""Read a deployment on SageMaker: its processing jobs, the executions of its pipeline, and its dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from voxbatch.clouds.deployment import CANCELLED, FAILED, RUNNING, SUCCEEDED, Deployment, Execution, Queue
from voxbatch.clouds.submit.sagemaker import MAX_LIMIT_S, client, errors
from voxbatch.stores.http_errors import one_line

_STATES = {
    "InProgress": RUNNING, "Executing": RUNNING, "Stopping": RUNNING, "Completed": SUCCEEDED, "Succeeded": SUCCEEDED,
    "Failed": FAILED, "Stopped": CANCELLED,
}  # fmt: skip
"""States of processing jobs and of executions of pipelines."""


def read(name: str, region: str | None, since: float, now: float) -> Deployment:
    """Return the deployment of this name.

    Args:
        name: the name of jobs/sagemaker/deploy.sh, which begins all of its names.
        region: None leaves it to the environment and to boto3.
        since: begin of the time that is looked at, in seconds since 1970.
        now: its end.

    Raises:
        ConfigError: the region is unknown.
        StartError: the jobs cannot be read.
    """
    failure = "cannot list the processing jobs of SageMaker"
    sagemaker, queues = (client(service, region, failure) for service in ("sagemaker", "sqs"))
    with errors(failure, "list"):
        executions = [*_jobs(sagemaker, name, since, now), *_pipelines(sagemaker, name, since)]
    with errors(f"cannot read the queue {name}-dead", "list"):
        dead = _dead_letters(queues, f"{name}-dead")
    return Deployment(
        place=f"SageMaker, {sagemaker.meta.region_name}",
        now=now,
        since=since,
        executions=tuple(sorted(executions, key=lambda execution: -execution.begun)),
        queues=(dead,) if dead else (),
        unknown=() if dead else (f"dead letters: there is no queue {name}-dead",),
    )


def _jobs(sagemaker: Any, name: str, since: float, now: float) -> Iterator[Execution]:
    pages = sagemaker.get_paginator("list_processing_jobs").paginate(
        NameContains=name, CreationTimeAfter=datetime.fromtimestamp(min(since, now - MAX_LIMIT_S), UTC)
    )
    for summary in (summary for page in pages for summary in page["ProcessingJobSummaries"]):
        ended = summary.get("ProcessingEndTime")
        if ended and ended.timestamp() < since:
            continue
        job = sagemaker.describe_processing_job(ProcessingJobName=summary["ProcessingJobName"])
        cluster = job["ProcessingResources"]["ClusterConfig"]
        state = _STATES[job["ProcessingJobStatus"]]
        started = job.get("ProcessingStartTime")
        seconds = 0.0 if not started else (ended.timestamp() if ended else now) - max(started.timestamp(), since)
        yield Execution(
            job="processing jobs",
            name=job["ProcessingJobName"],
            state=state,
            begun=job["CreationTime"].timestamp(),
            ended=ended.timestamp() if ended else None,
            tasks=cluster["InstanceCount"],
            tasks_done=cluster["InstanceCount"] if state == SUCCEEDED else 0,
            tasks_failed=cluster["InstanceCount"] if state == FAILED else 0,
            machine=cluster["InstanceType"],
            machine_s=max(0.0, seconds) * cluster["InstanceCount"],
            reason=one_line(job.get("FailureReason", "")),
        )


def _pipelines(sagemaker: Any, name: str, since: float) -> Iterator[Execution]:
    """Yield the executions of the pipeline that uploads start: one that fails before its job is seen only here."""
    for pipeline in sagemaker.list_pipelines(PipelineNamePrefix=name)["PipelineSummaries"]:
        pages = sagemaker.get_paginator("list_pipeline_executions").paginate(
            PipelineName=pipeline["PipelineName"], CreatedAfter=datetime.fromtimestamp(since, UTC)
        )
        for summary in (summary for page in pages for summary in page["PipelineExecutionSummaries"]):
            state = _STATES[summary["PipelineExecutionStatus"]]
            begun = summary["StartTime"].timestamp()
            yield Execution(
                job=f"pipeline {pipeline['PipelineName']}",
                name=summary.get("PipelineExecutionDisplayName") or summary["PipelineExecutionArn"].rpartition("/")[2],
                state=state,
                begun=begun,
                ended=None if state == RUNNING else begun,
                reason=one_line(summary.get("PipelineExecutionFailureReason", "")),
            )


def _dead_letters(queues: Any, name: str) -> Queue | None:
    try:
        url = queues.get_queue_url(QueueName=name)["QueueUrl"]
    except queues.exceptions.QueueDoesNotExist:
        return None
    amount = "ApproximateNumberOfMessages"
    return Queue(name, int(queues.get_queue_attributes(QueueUrl=url, AttributeNames=[amount])["Attributes"][amount]))
