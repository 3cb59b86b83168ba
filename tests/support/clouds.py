"""Local endpoints of the cloud platforms for their real clients.

Each endpoint checks every request against the API's own description (`discovery`, botocore's service model) and records
faults.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import discovery
import pytest
from servers import Reply
from web_server import Handler, WebServer, served


class ServiceModel:
    """botocore's model of a service, with checks of lengths, patterns and enumerations that botocore leaves to the
    service.
    """

    def __init__(self, name: str):
        from botocore.loaders import Loader
        from botocore.model import ServiceModel

        self.model = ServiceModel(Loader().load_service_model(name, "service-2"), name)

    def faults(self, operation: str, body: Any) -> list[str]:
        """Return the faults of a request body for an operation."""
        from botocore.validate import ParamValidator

        if operation not in self.model.operation_names:
            return [f"{operation}: no such operation"]
        shape = self.model.operation_model(operation).input_shape
        report = ParamValidator().validate(body, shape)
        return [report.generate_report()] if report.has_errors() else list(_faults_of(body, shape, operation))


def _faults_of(value: Any, shape: Any, at: str) -> Iterator[str]:
    if shape.type_name == "structure":
        for name, each in value.items():
            yield from _faults_of(each, shape.members[name], f"{at}.{name}")
    elif shape.type_name in ("list", "map"):
        yield from _size(len(value), shape, at)
        for i, each in enumerate(value):
            yield from _faults_of(each, shape.member if shape.type_name == "list" else shape.key, f"{at}[{i}]")
        for each in value.values() if shape.type_name == "map" else ():
            yield from _faults_of(each, shape.value, f"{at}.value")
    elif shape.type_name == "string":
        yield from _size(len(value), shape, at)
        if (pattern := shape.metadata.get("pattern")) and not _matches(pattern, value):
            yield f"{at}: {value!r} does not match {pattern}"
        if shape.enum and value not in shape.enum:
            yield f"{at}: {value!r} is none that is known"
    elif shape.type_name in ("integer", "long"):
        yield from _size(value, shape, at)


def _matches(pattern: str, value: str) -> bool:
    """Return whether the value matches; patterns with Java's character classes, which Python lacks,
    count as a match.
    """
    return "\\p{" in pattern or re.fullmatch(pattern, value, re.DOTALL) is not None


def _size(value: int, shape: Any, at: str) -> Iterator[str]:
    least, most = shape.metadata.get("min", value), shape.metadata.get("max", value)
    if not least <= value <= most:
        yield f"{at}: {value} is not from {least} to {most}"


def remove_logins(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Remove the credentials, project and region of the person who runs the tests.

    Args:
        folder: where the clients find no settings.
    """
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "AWS_PROFILE", "AWS_REGION",
                 "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
                 "CLOUDSDK_RUN_REGION", "CLOUDSDK_COMPUTE_REGION"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(folder / "gcloud"))
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(folder / "aws"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


# ── endpoints ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Call:
    """A received request."""

    method: str
    path: str
    headers: dict[str, str]
    """Headers, with names in lower case."""
    body: Any
    """The parsed JSON body; None if it is none."""


class Endpoint(WebServer):
    """A local server that answers by `answer` or by planned replies, and records calls and faults."""

    def __init__(self, answer: Callable[[Call, bytes], Reply]):
        super().__init__(_Handler)
        self.answer = answer
        self.calls: list[Call] = []
        self.wrong: list[str] = []
        """Faults of requests by the API description."""
        self.replies: list[Reply | str] = []
        """Replies in place of the next answers, one each. "reset": no reply; "lost": the request is executed, but no
        reply is sent.
        """


class _Handler(Handler):
    server: Endpoint

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/token":
            self._send(_json(200, {"access_token": "TOKEN-OF-tests", "expires_in": 3600, "token_type": "Bearer"}))
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        call = Call(self.command, self.path, headers, json.loads(raw) if raw.startswith((b"{", b"[")) else None)
        self.server.calls.append(call)
        planned = self.server.replies.pop(0) if self.server.replies else ""
        if planned == "reset":
            self.close_connection = True
            return
        reply = planned if isinstance(planned, Reply) else self.server.answer(call, raw)
        if planned == "lost":
            self.close_connection = True
            return
        self._send(reply)

    do_GET = do_POST

    def _send(self, reply: Reply) -> None:
        self.send_response_only(reply.status)
        for name, value in (*reply.headers, ("Content-Length", str(len(reply.body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)


@contextmanager
def answering(*replies: Reply) -> Iterator[Endpoint]:
    """Run a server that gives each request the next reply, and repeats the last one."""
    left = list(replies)
    with served(Endpoint(lambda call, raw: left.pop(0) if len(left) > 1 else left[0])) as endpoint:
        yield endpoint


def _json(status: int, body: Any, kind: str = "application/json") -> Reply:
    return Reply(status, (("Content-Type", kind),), json.dumps(body).encode())


def google_reply(body: Any) -> Reply:
    """Return a reply of a Google API."""
    return _json(200, body)


def google_refusal(status: int, message: str, reason: str = "") -> Reply:
    """Return an error reply of a Google API."""
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason}] if reason else []
    return _json(status, {"error": {"code": status, "message": message, "status": "X", "details": details}})


def amazon_refusal(status: int, code: str, message: str) -> Reply:
    """Return an error reply of an AWS API."""
    return _json(status, {"__type": code, "message": message}, "application/x-amz-json-1.1")


class CloudRunApi:
    """The v2 API of Cloud Run with some jobs; an execution runs until the test ends it."""

    page_size = 2

    def __init__(self, *jobs: str):
        self.api = discovery.api("run.v2")
        self.jobs = jobs or ("projects/p/locations/us-central1/jobs/voxbatch",)
        self.executions: list[dict[str, Any]] = []
        """The latest execution first, in the order of listings."""
        self.endpoint = Endpoint(self._answer)

    def end_all(self) -> None:
        """Mark all executions as finished."""
        for each in self.executions:
            each["completionTime"] = "2026-11-21T12:00:00Z"

    def _answer(self, call: Call, raw: bytes) -> Reply:
        wrong = self.api.faults_of_request(call.method, call.path, raw)
        if not call.headers.get("authorization", "").startswith("Bearer "):
            wrong.append("no token")
        self.endpoint.wrong += wrong
        path, _, query = call.path.removeprefix("/v2/").partition("?")
        if call.method == "GET" and path in self.jobs and not wrong:
            return _json(200, {"name": path})
        job, _, verb = path.partition(":") if path.endswith(":run") else path.rpartition("/")
        if wrong:
            return google_refusal(400, "; ".join(wrong))
        if job not in self.jobs:
            return google_refusal(
                404, f"Resource '{job.rpartition('/')[2]}' of kind 'JOB' in region 'x' does not exist."
            )
        return self._run(job, call.body) if verb == "run" else self._list(job, dict(parse_qsl(query)))

    def _run(self, job: str, body: dict[str, Any]) -> Reply:
        name = f"{job}/executions/{job.rpartition('/')[2]}-{len(self.executions):05d}"
        overrides = body["overrides"]
        container = {"image": "i", "args": overrides["containerOverrides"][0]["args"]}
        execution = {
            "name": name,
            "job": job,
            "taskCount": overrides["taskCount"],
            "template": {"containers": [container]},
        }
        assert not self.api.faults(execution, "GoogleCloudRunV2Execution", sent=False)
        self.executions.insert(0, execution)
        kind = {"@type": "type.googleapis.com/google.cloud.run.v2.Execution"}
        return _json(200, {"name": "projects/p/locations/us-central1/operations/o1", "metadata": {**kind, **execution}})

    def _list(self, job: str, query: dict[str, str]) -> Reply:
        start = int(query.get("pageToken", 0))
        mine = [each for each in self.executions if each["job"] == job]
        page: dict[str, Any] = {"executions": mine[start : start + self.page_size]}
        if len(mine) > start + self.page_size:
            page["nextPageToken"] = str(start + self.page_size)
        return _json(200, page)


class SageMakerApi:
    """The processing jobs of SageMaker; a job runs until the test ends it."""

    def __init__(self) -> None:
        self.model = ServiceModel("sagemaker")
        self.jobs: dict[str, dict[str, Any]] = {}
        self.running: set[str] = set()
        self.endpoint = Endpoint(self._answer)

    def _answer(self, call: Call, raw: bytes) -> Reply:
        service, _, operation = call.headers.get("x-amz-target", "").partition(".")
        wrong = self.model.faults(operation, call.body)
        if (call.method, call.path, service) != ("POST", "/", "SageMaker"):
            wrong.append(f"{call.method} {call.path} {service}")
        if "/sagemaker/aws4_request" not in call.headers.get("authorization", ""):
            wrong.append("not signed")
        self.endpoint.wrong += wrong
        if wrong:
            return amazon_refusal(400, "ValidationException", "; ".join(wrong))
        return self._create(call.body) if operation == "CreateProcessingJob" else self._list(call.body)

    def _create(self, body: dict[str, Any]) -> Reply:
        name = body["ProcessingJobName"]
        if name in self.jobs:
            return amazon_refusal(400, "ResourceInUse", f"Job name must be unique: {name}")
        self.jobs[name] = body
        self.running.add(name)
        return _json(200, {"ProcessingJobArn": f"arn:aws:sagemaker:us-east-1:1:processing-job/{name}"})

    def _list(self, query: dict[str, Any]) -> Reply:
        found = [name for name in self.running if query["NameContains"] in name]
        arn = "arn:aws:sagemaker:us-east-1:1:processing-job/"
        known = {"CreationTime": 1.0, "ProcessingJobStatus": "InProgress"}
        jobs = [{"ProcessingJobName": name, "ProcessingJobArn": arn + name, **known} for name in found]
        return _json(200, {"ProcessingJobSummaries": jobs})
