"""Tests for `voxbatch deployment`: the real clients read a deployment, and the screen says what a person looks for."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import deployments
import pytest
from botocore import xform_name
from click.testing import CliRunner
from clouds import Call, Endpoint, ServiceModel, google_reply, remove_logins
from deployments import NOW, TASKS, Deployed, ago
from servers import Reply
from web_server import served

from voxbatch.cli import cli, main
from voxbatch.clouds.deployment import cloudrun, lines, sagemaker
from voxbatch.clouds.submit import CloudRun


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Deployed]:
    """Lead the command to a deployment, and assert that all requests are valid."""
    with deployments.deployed(tmp_path) as (apis, variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield apis


def screen(*arguments: str) -> list[str]:
    done = CliRunner().invoke(cli, ["deployment", *arguments])
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def test_cloud_run(deployed: Deployed) -> None:
    """The screen has what runs, the jobs, the failures with their reasons, the queues, workers and the price.

    The tasks took 0.5 + 0.9 and 2 hours at 1.306 USD, and 0.5 at 0.634; the worker is on for 24 hours.
    """
    state = cloudrun.read(CloudRun(), NOW - 24 * 3600, NOW)
    assert list(lines(state)) == [
        f"Cloud Run, project my-project, europe-west1, {ago(0)[:10]} {ago(0)[11:16]} UTC, the last 24 hours",
        "running  voxbatch-c, for 1:00:00, 1 of 2 tasks done",
        "job      voxbatch: 2 executions (1 failed, 1 running)",
        "job      voxbatch-dispatch: 1 execution (1 succeeded)",
        f"failed   voxbatch-b, {ago(5)[:10]} {ago(5)[11:16]} UTC: Task voxbatch-b-task0 failed with exit code 1",
        "queue    voxbatch-dead: 0 messages",
        "queue    voxbatch-uploads: 3 messages, the oldest for 12:00",
        "worker   voxbatch-listen: 1 instance, always on, 31.34 USD a day",
        "cost     about 36.10 USD of machines",
    ]


def test_longer_look(deployed: Deployed) -> None:
    """An execution is seen if it ran within the time, and its machines are counted within it alone."""
    TASKS["voxbatch-a"] = [(30, 26)]
    shown = json.loads("".join(screen("--target", "cloudrun", "--hours", "28", "--json")))
    assert [execution["name"] for execution in shown["executions"]] == ["voxbatch-c", "d", "voxbatch-b", "voxbatch-a"]
    state = cloudrun.read(CloudRun(), NOW - 28 * 3600, NOW)
    assert state.executions[3].machine_s == pytest.approx(2 * 3600, abs=1e-3)


def test_monitoring_that_refuses(deployed: Deployed) -> None:
    """A look without the role for Cloud Monitoring shows the other lines, and says which role is missing."""
    deployed.refused = 403
    shown = screen("--target", "cloudrun")
    assert shown[-1].startswith("unknown  how many messages wait: Cloud Monitoring cannot be read (403")
    assert shown[-1].endswith("it needs role roles/monitoring.viewer")
    assert "job      voxbatch-dispatch: 1 execution (1 succeeded)" in shown


def test_no_deployment(deployed: Deployed) -> None:
    """Another name or project is refused with the options to check."""
    deployed.jobs = []
    done = CliRunner().invoke(cli, ["deployment", "--target", "cloudrun"])
    assert "check --name, --project and --region, or make the deployment: jobs/cloudrun/deploy.sh" in str(
        done.exception
    )


WRONG: list[tuple[str, int, str]] = [
    ("--target cloudrun --region r", 1, "cannot use the Cloud Run job voxbatch: no usable credentials ("),
    ("--target cloudrun", 2, "which region the Cloud Run job voxbatch is in is not known: give --region, or set "),
    ("--target sagemaker --region us-east-1", 1, "cannot list the processing jobs of SageMaker: no usable credentials"),
    ("--target sagemaker", 2, "cannot list the processing jobs of SageMaker: which region is not known"),
    ("--target sagemaker --project p", 2, "--project is for --target cloudrun; leave it out for sagemaker"),
    ("--target sagemaker --name A", 2, "Invalid value for '--name': 'A': give 1 to 63 small letters, digits and "),
    ("--target cloudrun --name A", 2, "Invalid value for '--name': 'A': give 1 to 63 small letters, digits and "),
    ("", 2, "Missing option '--target'. Give cloudrun or sagemaker."),
]


@pytest.mark.parametrize(("arguments", "code", "message"), WRONG)
def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: str, code: int,
    message: str,
) -> None:  # fmt: skip
    """A login, a target or a place that is missing gives one line, which says what to do and claims no start."""
    remove_logins(monkeypatch, tmp_path)
    monkeypatch.setattr(sys, "argv", ["voxbatch", "deployment", *arguments.split()])
    with pytest.raises(SystemExit) as left:
        main()
    told = capsys.readouterr().err.splitlines()[-1]
    assert left.value.code == code
    assert told.startswith(f"Error: {message}")
    assert "cannot start" not in told


def test_connection_that_fails_starts_nothing(deployed: Deployed) -> None:
    """A connection that fails is told as a look that may be tried again, not as a submission."""
    deployed.endpoint.replies += ["reset"] * 9
    done = CliRunner().invoke(cli, ["deployment", "--target", "cloudrun"])
    assert str(done.exception).startswith("cannot list the executions of the Cloud Run job voxbatch of project my-")
    assert "try again: nothing is started twice" in str(done.exception)


# ── SageMaker ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Processed:
    """The API of SageMaker with two processing jobs, and a pipeline with an execution that failed."""

    def __init__(self) -> None:
        self.model = ServiceModel("sagemaker")
        self.endpoint = Endpoint(self.answer)

    def answer(self, call: Call, raw: bytes) -> Reply:
        operation = call.headers["x-amz-target"].partition(".")[2]
        self.endpoint.wrong += self.model.faults(operation, call.body)
        answer: Callable[[dict[str, Any]], Reply] = getattr(self, xform_name(operation))
        return answer(call.body)

    def list_processing_jobs(self, query: dict[str, Any]) -> Reply:
        assert query["NameContains"] == "voxbatch"
        summaries = [self.job("voxbatch-b", 1, None), self.job("voxbatch-a", 5, 3)]
        return google_reply({"ProcessingJobSummaries": summaries})

    def describe_processing_job(self, query: dict[str, Any]) -> Reply:
        cluster = {"InstanceCount": 2, "InstanceType": "ml.g6.2xlarge", "VolumeSizeInGB": 30}
        hours = (1, None) if query["ProcessingJobName"] == "voxbatch-b" else (5, 3)
        job = self.job(query["ProcessingJobName"], *hours)
        return google_reply({**job, "ProcessingResources": {"ClusterConfig": cluster}})

    def list_pipelines(self, query: dict[str, Any]) -> Reply:
        return google_reply({"PipelineSummaries": [{"PipelineName": query["PipelineNamePrefix"]}]})

    def list_pipeline_executions(self, query: dict[str, Any]) -> Reply:
        failed = {
            "PipelineExecutionArn": f"arn:aws:sagemaker:us-east-1:1:pipeline/{query['PipelineName']}/execution/x1",
            "StartTime": NOW - 3600, "PipelineExecutionStatus": "Failed",
            "PipelineExecutionFailureReason": "ResourceLimitExceeded: 0 instances",
        }  # fmt: skip
        return google_reply({"PipelineExecutionSummaries": [failed]})

    @staticmethod
    def job(name: str, started_h: float, ended_h: float | None) -> dict[str, Any]:
        ended = {} if ended_h is None else {"ProcessingEndTime": NOW - ended_h * 3600}
        started = NOW - started_h * 3600
        return {
            "ProcessingJobName": name, "ProcessingJobArn": f"arn:aws:sagemaker:us-east-1:1:processing-job/{name}",
            "CreationTime": started - 60, "ProcessingStartTime": started, **ended,
            "ProcessingJobStatus": "Completed" if ended else "InProgress",
        }  # fmt: skip


@pytest.fixture
def processed(moto: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processed]:
    """Lead boto3 to a server of SageMaker's API, and to moto's for all others. Moto's jobs have no machines."""
    api = Processed()
    with served(api.endpoint):
        for name, value in {
            "AWS_ENDPOINT_URL": moto, "AWS_ENDPOINT_URL_SAGEMAKER": api.endpoint.url, "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        yield api
    assert not api.endpoint.wrong


def test_sagemaker(processed: Processed) -> None:
    """The screen has the jobs, the executions of the pipeline, the dead letters, and 3 x 2 hours at 1.222 USD."""
    queues = boto3.client("sqs", region_name="us-east-1")
    url = queues.create_queue(QueueName="voxbatch-dead")["QueueUrl"]
    queues.send_message(QueueUrl=url, MessageBody="{}")
    state = sagemaker.read("voxbatch", None, NOW - 24 * 3600, NOW)
    assert list(lines(state))[1:] == [
        "running  voxbatch-b, for 1:01:00, 0 of 2 tasks done",
        "job      pipeline voxbatch: 1 execution (1 failed)",
        "job      processing jobs: 2 executions (1 running, 1 succeeded)",
        f"failed   x1, {ago(1)[:10]} {ago(1)[11:16]} UTC: ResourceLimitExceeded: 0 instances",
        "queue    voxbatch-dead: 1 message",
        "cost     about 7.33 USD of machines",
    ]


def test_sagemaker_without_queue(processed: Processed) -> None:
    """A queue that is missing is named."""
    assert screen("--target", "sagemaker")[-1] == "unknown  dead letters: there is no queue voxbatch-dead"
