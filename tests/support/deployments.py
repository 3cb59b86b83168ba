"""A deployment on Cloud Run: the APIs of Cloud Run and Cloud Monitoring with jobs, executions, queues and a worker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import discovery
import servers
from clouds import Call, Endpoint, google_refusal, google_reply
from servers import Reply
from web_server import served

PROJECT, REGION = "my-project", "europe-west1"
PARENT = f"projects/{PROJECT}/locations/{REGION}"
NOW = time.time()
"""Time of all that was deployed. Whoever counts seconds looks from it: what ran before may have taken minutes."""
GPU, CPU = {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "1"}, {"cpu": "2", "memory": "4Gi"}


def ago(hours: float) -> str:
    """Return the time so many hours ago, as the APIs write it."""
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
EXECUTIONS["voxbatch"][1]["conditions"] = [
    {"type": "Completed", "message": "Task voxbatch-b-task0 failed\n with exit code 1"}
]
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


@contextmanager
def deployed(folder: Path) -> Iterator[tuple[Deployed, dict[str, str]]]:
    """Serve the APIs, give the variables that lead a command to them, and assert that all requests were valid.

    `folder` gets a service account key.
    """
    apis = Deployed()
    with served(apis.endpoint):
        key = folder / "key.json"
        key.write_text(json.dumps(servers.account(f"{apis.endpoint.url}/token")))
        address = f"{apis.endpoint.url}/"
        yield (
            apis,
            {
                "GOOGLE_APPLICATION_CREDENTIALS": str(key),
                "GOOGLE_CLOUD_PROJECT": PROJECT,
                "CLOUDSDK_RUN_REGION": REGION,
                "CLOUDSDK_API_ENDPOINT_OVERRIDES_RUN": address,
                "CLOUDSDK_API_ENDPOINT_OVERRIDES_MONITORING": address,
            },
        )
    assert not apis.endpoint.wrong
