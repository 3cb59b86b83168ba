"""Tests for `voxbatch deployment`: the real clients read a deployment, and the screen says what a person looks for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import boto3
import discovery
import pytest
import servers
from botocore import xform_name
from click.testing import CliRunner
from clouds import Call, Endpoint, ServiceModel, google_refusal, google_reply
from servers import Reply
from web_server import served

from voxbatch.cli import cli
from voxbatch.clouds.deployment import cloudrun, lines, sagemaker
from voxbatch.clouds.submit import CloudRun

PARENT = "projects/p/locations/europe-west1"
NOW = time.time()
"""Time of all that was deployed. A test that counts seconds looks from it: the tests before may have taken minutes."""
GPU, CPU = {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "1"}, {"cpu": "2", "memory": "4Gi"}


def ago(hours: float) -> str:
    return datetime.fromtimestamp(NOW - hours * 3600, UTC).isoformat().replace("+00:00", "Z")


def execution(job: str, name: str, begun_h: float, ended_h: float | None, limits: Any, **counts: int) -> dict[str, Any]:
    """Return an execution that was asked for and ended so many hours ago."""
    ended = {} if ended_h is None else {"completionTime": ago(ended_h)}
    template = {"containers": [{"image": "i", "resources": {"limits": limits}}]}
    return {
        "name": f"{PARENT}/jobs/{job}/executions/{name}", "job": job, "createTime": ago(begun_h), "template": template,
        **ended, **counts,
    }  # fmt: skip


EXECUTIONS = {
    "voxbatch": [
        execution("voxbatch", "voxbatch-c", 1, None, GPU, taskCount=2, runningCount=1, succeededCount=1),
        execution("voxbatch", "voxbatch-b", 7, 5, GPU, taskCount=1, failedCount=1),
        execution("voxbatch", "voxbatch-a", 30, 26, GPU, taskCount=1, succeededCount=1),
    ],
    "voxbatch-dispatch": [execution("voxbatch-dispatch", "d", 2, 1.5, CPU, taskCount=1, succeededCount=1)],
}
EXECUTIONS["voxbatch"][1]["conditions"] = [{"type": "Completed", "message": "Task voxbatch-b-task0 failed:\n 1"}]
TASKS: dict[str, list[tuple[float, float | None]]] = {
    "voxbatch-c": [(0.9, 0.4), (0.9, None)],
    "voxbatch-b": [(7, 5)],
    "d": [(2, 1.5)],
}
"""Hours ago in which each task started and ended."""


class Deployed:
    """The APIs of Cloud Run and Cloud Monitoring, with a deployment."""

    def __init__(self) -> None:
        self.apis = [discovery.api("run.v2"), discovery.api("monitoring.v3")]
        self.jobs = [*EXECUTIONS, "other"]
        self.refused = 0
        self.endpoint = Endpoint(self.answer)

    def answer(self, call: Call, raw: bytes) -> Reply:
        path = urlsplit(call.path).path
        api = self.apis[path.startswith("/v3/")]
        self.endpoint.wrong += api.faults_of_request(call.method, call.path, raw)
        if path.startswith("/v3/"):
            if self.refused:
                return google_refusal(self.refused, "denied")
            return self.reply("ListTimeSeriesResponse", self.series(dict(parse_qsl(urlsplit(call.path).query))))
        *_, kind = path.split("/")
        place = path.removeprefix("/v2/").rpartition("/")[0]
        if kind == "jobs":
            jobs = [{"name": f"{PARENT}/jobs/{job}"} for job in self.jobs]
            return self.reply("GoogleCloudRunV2ListJobsResponse", {"jobs": jobs})
        if kind == "workerPools":
            template = {"containers": [{"image": "i", "resources": {"limits": GPU}}]}
            scaling = {"manualInstanceCount": 1}
            pool = {"name": f"{PARENT}/workerPools/voxbatch-listen", "template": template, "scaling": scaling}
            return self.reply("GoogleCloudRunV2ListWorkerPoolsResponse", {"workerPools": [pool] if self.jobs else []})
        if kind == "executions":
            executions = EXECUTIONS[place.rpartition("/")[2]]
            return self.reply("GoogleCloudRunV2ListExecutionsResponse", {"executions": executions})
        assert kind == "tasks"
        tasks = [
            {"name": f"{place}/tasks/{i}", "startTime": ago(started)}
            | ({"completionTime": ago(ended)} if ended else {})
            for i, (started, ended) in enumerate(TASKS[place.rpartition("/")[2]])
        ]
        return self.reply("GoogleCloudRunV2ListTasksResponse", {"tasks": tasks})

    def series(self, query: dict[str, str]) -> dict[str, Any]:
        """Return two subscriptions, each with two samples, the latest first, as Monitoring sends them."""
        assert 'starts_with("voxbatch")' in query["filter"]
        is_age = "oldest_unacked_message_age" in query["filter"]
        latest = {"voxbatch-uploads": 720 if is_age else 3, "voxbatch-dead": 0}
        return {
            "timeSeries": [
                {
                    "resource": {"type": "pubsub_subscription", "labels": {"subscription_id": name}},
                    "points": [{"value": {"int64Value": str(number)}} for number in (value, 99)],
                }
                for name, value in latest.items()
            ]
        }

    def reply(self, schema: str, body: Any) -> Reply:
        faults = [
            fault for api in self.apis if schema in api._schemas for fault in api.faults(body, schema, sent=False)
        ]
        assert not faults
        return google_reply(body)


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Deployed]:
    """Serve the APIs with a service account key, and assert that all requests are valid."""
    apis = Deployed()
    with served(apis.endpoint):
        (tmp_path / "key.json").write_text(json.dumps(servers.account(f"{apis.endpoint.url}/token")))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        for name in ("RUN", "MONITORING"):
            monkeypatch.setenv(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}", f"{apis.endpoint.url}/")
        monkeypatch.setenv("CLOUDSDK_RUN_REGION", "europe-west1")
        monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p")
        yield apis
    assert not apis.endpoint.wrong


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
        f"Cloud Run, project p, europe-west1, {ago(0)[:10]} {ago(0)[11:16]} UTC, the last 24 hours",
        "running  voxbatch-c, for 1:00:00, 1 of 2 tasks done",
        "job      voxbatch: 2 executions (1 failed, 1 running)",
        "job      voxbatch-dispatch: 1 execution (1 succeeded)",
        f"failed   voxbatch-b, {ago(5)[:10]} {ago(5)[11:16]} UTC: Task voxbatch-b-task0 failed: 1",
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
