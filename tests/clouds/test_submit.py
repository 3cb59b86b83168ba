"""Tests for `voxbatch submit`: requests to cloud platforms, checked by the real clients and API descriptions, and the
messages to users.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Any

import discovery
import pytest
import servers
from clouds import CloudRunApi, SageMakerApi, ServiceModel, amazon_refusal, google_refusal, remove_logins
from conftest import ROOT, Recorder, environment, understood
from fake_aws import validated
from hypothesis import given
from hypothesis import strategies as st
from web_server import served

import voxbatch
from voxbatch import cli, prices
from voxbatch.clouds import submit
from voxbatch.errors import ConfigError, StartError

JOB = "projects/p/locations/us-central1/jobs/voxbatch"
ROLE = "arn:aws:iam::123456789012:role/voxbatch"
IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/voxbatch:1"
SOURCE, OUT = "gs://calls/day.jsonl", "gs://calls/out"
SUBMISSION = submit.Submission(SOURCE, OUT, ("--language", "en"), tasks=3)
SAGEMAKER = submit.SageMaker(IMAGE, ROLE)
CLOUD_RUN = submit.CloudRun()


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the credentials, project and region of the person who runs the tests."""
    remove_logins(monkeypatch, tmp_path)


@pytest.fixture
def cloud_run(nowhere: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[CloudRunApi]:
    """Serve the Cloud Run API with a service account key, and assert that all requests are valid."""
    api = CloudRunApi()
    with served(api.endpoint):
        (tmp_path / "key.json").write_text(json.dumps(servers.account(f"{api.endpoint.url}/token")))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_RUN", f"{api.endpoint.url}/")
        monkeypatch.setenv("CLOUDSDK_RUN_REGION", "us-central1")
        yield api
    assert not api.endpoint.wrong


@pytest.fixture
def sagemaker(nowhere: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[SageMakerApi]:
    """Serve the SageMaker API with an access key, and assert that all requests are valid."""
    api = SageMakerApi()
    with served(api.endpoint):
        monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", api.endpoint.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDTEST")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET-OF-test")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        yield api
    assert not api.endpoint.wrong


@dataclass(slots=True)
class Typed:
    """Exit code and output of a command."""

    code: int
    lines: list[str]
    said: str
    """Text on standard error."""

    def line(self, name: str) -> str:
        return next(line[9:] for line in self.lines if line[:9].strip() == name)

    @property
    def body(self) -> Any:
        """Return the request that --dry-run prints."""
        return json.loads("\n".join(self.lines[self.lines.index("{") :]))


Type = Callable[..., Typed]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Type:
    """Return a function that runs `voxbatch submit` in this process: typed("gs://…", "--target", "cloudrun", …)."""

    def run(*args: object) -> Typed:
        monkeypatch.setattr(sys, "argv", ["voxbatch", "submit", *map(str, args)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        shown = capsys.readouterr()
        return Typed(int(left.value.code or 0), shown.out.splitlines(), shown.err)

    return run


@dataclass(slots=True)
class Calls:
    """A bucket with manifests."""

    server: servers.Server
    bucket: str = field(default_factory=lambda: f"calls-{uuid.uuid4().hex[:12]}")

    def manifest(self, *seconds: float, name: str = "day.jsonl") -> str:
        """Upload a manifest whose recordings have these durations and return its address."""
        rows = [{"audio_filepath": f"r{i}.wav", "duration": each} for i, each in enumerate(seconds)]
        self.server.put(self.bucket, name, "".join(json.dumps(row) + "\n" for row in rows).encode())
        return f"gs://{self.bucket}/{name}"


@pytest.fixture
def calls(google: servers.Server, monkeypatch: pytest.MonkeyPatch) -> Calls:
    for name, value in google.settings(f"http://127.0.0.1:{google.port}").items():
        monkeypatch.setenv(name, value)
    calls = Calls(google)
    google.make(calls.bucket)
    return calls


# ── number of tasks ───────────────────────────────────────────────────────────────────────────────────────────────────


@given(
    st.floats(0, 1e9),
    st.integers(1, 10**7),
    st.floats(0.1, 1000),
    st.floats(0.01, 100),
    st.integers(1, 10_000),
    st.sampled_from([0.0, 270.0, 1e4]),
)
def test_task_count_keeps_tasks_below_the_target_duration(
    audio_s: float, items: int, rtfx: float, hours: float, most: int, start_s: float
) -> None:
    """No task exceeds the target duration, unless the number of tasks is at its maximum, or one more task would start
    for longer than it works; with one task less, some would. Each of several tasks works for at least as long as its
    start takes.
    """
    count = submit.task_count(audio_s, items, rtfx, hours, most, start_s)
    assert 1 <= count <= min(items, most)
    needed, work_s = audio_s / 3600 / (rtfx * hours), audio_s / rtfx
    assert count == min(items, most) or count >= needed or (count + 1) * start_s > work_s
    assert count == 1 or count - 1 < needed
    assert count == 1 or count * start_s <= work_s


# ── orders ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("source", "out", "message"),
    [
        (
            "m.jsonl",
            OUT,
            "SOURCE m.jsonl lies on this machine, where a job elsewhere cannot see it: upload it",
        ),
        ("-", OUT, "SOURCE - lies on this machine"),
        (SOURCE, "https://h/out?sig=SECRET", "OUT https://h/out?… is no place that all tasks share"),
        (SOURCE, "gs://-a-/x", "-o gs://-a-/x: '-a-' is not a valid bucket name"),
    ],
)
def test_local_sources_and_outputs_are_refused(source: str, out: str, message: str) -> None:
    """A source or output that other machines cannot read is refused."""
    with pytest.raises(ConfigError) as told:
        submit.Submission(source, out)
    assert str(told.value).startswith(message)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: submit.CloudRun(job="Calls"), "--job 'Calls': a job's name has 1 to 63 small letters"),
        (lambda: submit.CloudRun(project="p/q"), "--project 'p/q': write its id"),
        (lambda: submit.CloudRun(region="us central"), "--region 'us central': write its id"),
        (
            lambda: submit.SageMaker("x", ROLE),
            "--image 'x': give an image in ECR: ACCOUNT.dkr.ecr.",
        ),
        (lambda: submit.SageMaker(IMAGE, "voxbatch"), "--role 'voxbatch': give a role's ARN"),
        (lambda: submit.SageMaker(IMAGE, ROLE, "g6"), "--instance-type 'g6': give a type such as ml.g6.2xlarge"),
        (lambda: submit.SageMaker(IMAGE, ROLE, region="x/"), "--region 'x/': give a region such as us-east-1"),
        (lambda: submit.SageMaker(IMAGE, ROLE, volume_gb=0), "volume-gb is 0; it must be from 1 to 16,384"),
        (lambda: submit.SageMaker(IMAGE, ROLE, subnets="subnet-1"), "--subnets and --security-groups belong together"),
        (lambda: submit.SageMaker(IMAGE, ROLE, tags="team"), "--tags 'team': give NAME=VALUE, several separated"),
        (lambda: submit.SageMaker(IMAGE, ROLE, tags="a=b,"), "--tags 'a=b,': give NAME=VALUE, several separated"),
    ],
)
def test_invalid_targets_and_submissions_are_refused(made: Callable[[], object], message: str) -> None:
    """Invalid targets and orders are refused when they are built."""
    with pytest.raises(ConfigError) as told:
        made()
    assert str(told.value).startswith(message)


# ── Cloud Run ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def started_once(api: CloudRunApi) -> list[str]:
    """Return the paths of all POST requests."""
    return [call.path.partition("?")[0] for call in api.endpoint.calls if call.method == "POST"]


@pytest.mark.slow
def test_cloud_run_receives_the_request_of_the_dry_run(cloud_run: CloudRunApi) -> None:
    """The API receives the request that --dry-run prints, at the job's address; the name and
    console page are returned.
    """
    submission = replace(SUBMISSION, limit_s=5400, environment={"A": "1"})
    started = submit.start(submission, CLOUD_RUN)
    listed, ran = cloud_run.endpoint.calls
    assert (listed.method, listed.path.partition("?")[0]) == ("GET", f"/v2/{JOB}/executions")
    assert (ran.method, ran.path.partition("?")[0]) == ("POST", f"/v2/{JOB}:run")
    shown = submit.CloudRun(project="p").request(submission)
    assert shown.where == f"POST {cloud_run.endpoint.url}/v2/{JOB}:run"
    assert ran.body == shown.body
    assert ran.body == {
        "overrides": {
            "containerOverrides": [{"args": submission.arguments, "env": [{"name": "A", "value": "1"}]}],
            "taskCount": 3,
            "timeout": "5400s",
        }
    }
    page = "https://console.cloud.google.com/run/jobs/executions/details/us-central1/voxbatch-00000/tasks?project=p"
    assert started == submit.StartedRun("voxbatch-00000", page)


@pytest.mark.slow
def test_running_execution_with_the_same_arguments_is_found(cloud_run: CloudRunApi) -> None:
    """A running execution with the same arguments is returned instead of a new one, however many started after it.
    `again` starts another one, and so does a submission after the end of the first.
    """
    first = submit.start(SUBMISSION, CLOUD_RUN)
    for i in range(4):
        submit.start(replace(SUBMISSION, options=("--limit", str(i + 1))), CLOUD_RUN)
    assert submit.start(replace(SUBMISSION, tasks=7), CLOUD_RUN) == replace(first, was_running=True)
    assert len(started_once(cloud_run)) == 5
    assert submit.start(SUBMISSION, CLOUD_RUN, again=True).name == "voxbatch-00005"
    cloud_run.end_all()
    assert submit.start(SUBMISSION, CLOUD_RUN) == submit.StartedRun(
        "voxbatch-00006", submit.start(SUBMISSION, CLOUD_RUN).url
    )
    assert len(started_once(cloud_run)) == 7


def of_google(status: int, message: str, reason: str = "") -> Callable[[CloudRunApi], None]:
    """Return a function that queues the same refusal nine times, because the client renews its credentials after 401
    and retries.
    """
    return lambda api: api.endpoint.replies.extend([google_refusal(status, message, reason)] * 9)


AT = "the Cloud Run job voxbatch of project p in us-central1: "
GOOGLE_REFUSES: list[tuple[Callable[[CloudRunApi], None], type[Exception], str]] = [
    (of_google(403, "Permission 'run.x' denied on resource"), StartError,
     f"{AT}permission denied: robot@p.iam.gserviceaccount.com lacks run.jobs.get and run.executions.list (role "),
    (of_google(401, "Request had invalid authentication credentials."), StartError,
     f"{AT}the credentials are invalid or have expired: set GOOGLE_APPLICATION_CREDENTIALS"),
    (of_google(404, "Resource 'voxbatch' of kind 'JOB' in region 'us-central1' does not exist."), ConfigError,
     f"{AT}there is no job voxbatch (project p, region us-central1): check its name, --project and --region, or "),
    (of_google(403, "Location us-central1 is not found or access is unauthorized."), ConfigError,
     f"{AT}check --region us-central1; Cloud Run says: Location us-central1 is not found"),
    (of_google(403, "Cloud Run Admin API has not been used in project p before", "SERVICE_DISABLED"), ConfigError,
     f"{AT}the Cloud Run API is not enabled there: gcloud services enable run.googleapis.com --project=p"),
    (of_google(409, "The job is being updated"), StartError,
     f"{AT}Cloud Run is busy, or a quota is used up (409: The job is being updated): try again"),
    (of_google(429, "Quota exceeded"), StartError,
     f"{AT}Cloud Run is busy, or a quota is used up (429: Quota exceeded): try again"),
    (of_google(500, "oops"), StartError, f"{AT}Cloud Run is busy, or a quota is used up (500: oops): try again"),
    (of_google(400, "timeout is too long"), ConfigError, f"{AT}Cloud Run refuses the request: timeout is too long"),
    (lambda api: api.endpoint.replies.append("reset"), StartError, f"{AT}the connection failed ("),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("spoil", "kind", "message"), GOOGLE_REFUSES)
def test_refusals_of_google_give_cause_and_remedy(
    cloud_run: CloudRunApi, spoil: Callable[[CloudRunApi], None], kind: type[Exception], message: str
) -> None:
    """Each refusal is one line with the cause and the remedy, and nothing is started."""
    spoil(cloud_run)
    with pytest.raises(kind) as told:
        submit.start(SUBMISSION, CLOUD_RUN)
    text = str(told.value)
    assert text.startswith(f"cannot look at {message}")
    assert "\n" not in text
    assert not [secret for secret in servers.SECRETS if secret in text]
    assert not started_once(cloud_run)


@pytest.mark.slow
def test_missing_permissions_to_start_are_named(cloud_run: CloudRunApi) -> None:
    """An account that may list executions but not start them gets the permissions that it lacks in the message."""
    cloud_run.endpoint.replies.append(google_refusal(403, "no"))
    with pytest.raises(StartError, match=r"^cannot start .* lacks run.jobs.run and run.jobs.runWithOverrides \(role"):
        submit.start(SUBMISSION, CLOUD_RUN, again=True)


@pytest.mark.slow
def test_execution_with_a_lost_reply_is_found(cloud_run: CloudRunApi) -> None:
    """An execution that started without a reply is found when the run is submitted again."""
    cloud_run.endpoint.replies += ["lost"]
    with pytest.raises(StartError, match="try again: nothing is started twice"):
        submit.start(SUBMISSION, CLOUD_RUN, again=True)
    assert submit.start(SUBMISSION, CLOUD_RUN).was_running
    assert len(started_once(cloud_run)) == 1


@pytest.mark.slow
def test_login_page_of_a_proxy_is_refused(cloud_run: CloudRunApi) -> None:
    """A proxy's login page is refused as an answer; without an execution name in the reply, the name of the operation
    is used.
    """
    cloud_run.endpoint.replies.append(servers.Reply(200, (("Content-Type", "text/html"),), b"<html>Log in</html>"))
    with pytest.raises(StartError, match="what answers is not Cloud Run"):
        submit.start(SUBMISSION, CLOUD_RUN)
    cloud_run.endpoint.replies.append(servers.Reply(200, (), b'{"name": "projects/p/locations/x/operations/o7"}'))
    assert submit.start(SUBMISSION, CLOUD_RUN, again=True).name == "o7"


@pytest.mark.slow
def test_project_and_region_follow_their_order_of_precedence(
    cloud_run: CloudRunApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings have priority over environment variables, and these over the project of the credentials. A missing
    region is refused.
    """
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "q")
    cloud_run.jobs = ("projects/q/locations/us-central1/jobs/voxbatch", "projects/r/locations/europe-west4/jobs/j")
    assert submit.start(SUBMISSION, CLOUD_RUN).url.endswith("?project=q")
    started = submit.start(SUBMISSION, submit.CloudRun("j", "r", "europe-west4"))
    assert "/europe-west4/j-00001/" in started.url
    assert started.url.endswith("?project=r")
    monkeypatch.delenv("CLOUDSDK_RUN_REGION")
    with pytest.raises(ConfigError, match="is in is not known: give --region, or set CLOUDSDK_RUN_REGION"):
        submit.start(SUBMISSION, CLOUD_RUN)


def test_missing_google_credentials_are_explained(nowhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says how to set credentials if there are none."""
    monkeypatch.setenv("CLOUDSDK_RUN_REGION", "us-central1")
    with pytest.raises(StartError, match=r"no usable credentials \(.*\): set GOOGLE_APPLICATION_CREDENTIALS"):
        submit.start(SUBMISSION, CLOUD_RUN)


@pytest.mark.slow
def test_credentials_without_a_project_are_refused(
    cloud_run: CloudRunApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the credentials name no project, the user must give one."""
    key = json.loads((tmp_path / "key.json").read_text())
    (tmp_path / "key.json").write_text(json.dumps({**key, "project_id": None}))
    monkeypatch.setenv("PATH", "")  # so that gcloud is not asked for a project
    with pytest.raises(ConfigError, match=r"which project .* is in is not known: give --project, or set GOOGLE_CLOUD"):
        submit.start(SUBMISSION, CLOUD_RUN)


def test_time_limit_of_a_task_depends_on_the_gpu() -> None:
    """With a GPU, the job's own limit holds, unless longer tasks were requested: 12 hours at most. Elsewhere a task may
    take three times the expected time, at least an hour (Cloud Run) or a day (SageMaker).
    """
    assert [CLOUD_RUN.limit_s("vllm", hours, None) for hours in (0.5, 1, 2, 1000)] == [None, None, 7800, 43_200]
    assert [CLOUD_RUN.limit_s("faster-whisper", 0.1, wall) for wall in (None, 1e4, 1e6)] == [3600, 30_000, 604_800]
    day = 24 * 3600
    assert [SAGEMAKER.limit_s("vllm", hours, wall) for hours, wall in ((4, None), (4, 100_000.0), (999, None))] == [
        day, 300_000, 9 * day,
    ]  # fmt: skip


# ── SageMaker ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_settings_of_an_account_are_in_the_request() -> None:
    """The network, the key of the disks and the tags of --target sagemaker make a valid request."""
    settings: dict[str, Any] = {"subnets": "subnet-1,subnet-2", "security_groups": "sg-1", "tags": "team=speech,cost="}
    body = submit.SageMaker(IMAGE, ROLE, volume_kms_key="k", **settings).request(SUBMISSION).body
    validated("sagemaker", "CreateProcessingJobRequest", body)
    assert body["NetworkConfig"] == {"VpcConfig": {"Subnets": ["subnet-1", "subnet-2"], "SecurityGroupIds": ["sg-1"]}}
    assert body["ProcessingResources"]["ClusterConfig"]["VolumeKmsKeyId"] == "k"
    assert body["Tags"][1:] == [{"Key": "team", "Value": "speech"}, {"Key": "cost", "Value": ""}]


def test_failed_items_do_not_fail_a_processing_job() -> None:
    """Each job exits with 0 if items failed, as the pipeline, submit.py and the job on Cloud Run do, unless --env says
    otherwise.
    """
    assert SAGEMAKER.request(SUBMISSION).body["Environment"] == {"VOXBATCH_EXIT_ZERO": "1"}
    strict = replace(SUBMISSION, environment={"VOXBATCH_EXIT_ZERO": "0"})
    assert SAGEMAKER.request(strict).body["Environment"] == {"VOXBATCH_EXIT_ZERO": "0"}


@pytest.mark.slow
def test_sagemaker_receives_the_request_of_the_dry_run(sagemaker: SageMakerApi) -> None:
    """SageMaker receives the request that --dry-run prints; the job's name contains the digest of the submission and
    time.
    """
    submission = replace(SUBMISSION, environment={"A": "1"}, limit_s=100_000)
    started = submit.start(submission, SAGEMAKER)
    assert [call.headers["x-amz-target"] for call in sagemaker.endpoint.calls] == [
        "SageMaker.ListProcessingJobs", "SageMaker.CreateProcessingJob",
    ]  # fmt: skip
    (body,) = sagemaker.jobs.values()
    shown = SAGEMAKER.request(submission).body
    assert {**body, "ProcessingJobName": ""} == {**shown, "ProcessingJobName": ""}
    assert body == {
        "ProcessingJobName": started.name,
        "ProcessingResources": {
            "ClusterConfig": {"InstanceCount": 3, "InstanceType": "ml.g6.2xlarge", "VolumeSizeInGB": 100}
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": 100_000},
        "AppSpecification": {"ImageUri": IMAGE, "ContainerArguments": submission.arguments},
        "Environment": {"VOXBATCH_EXIT_ZERO": "1", "A": "1"},
        "RoleArn": ROLE,
        "Tags": [{"Key": "voxbatch", "Value": submission.digest}],
    }
    assert started.name.startswith(f"voxbatch-{submission.digest}-2")
    console = "https://us-east-1.console.aws.amazon.com/sagemaker/home?region=us-east-1#/processing-jobs/"
    assert started.url == console + started.name


@pytest.mark.slow
def test_running_processing_job_with_the_same_arguments_is_found(sagemaker: SageMakerApi) -> None:
    """A running job with the same arguments is returned instead of a new one; jobs of other orders do not matter."""
    first = submit.start(SUBMISSION, SAGEMAKER)
    assert submit.start(SUBMISSION, SAGEMAKER) == replace(first, was_running=True)
    assert not submit.start(replace(SUBMISSION, options=()), SAGEMAKER).was_running
    sagemaker.running.clear()
    sagemaker.jobs.clear()
    assert not submit.start(SUBMISSION, SAGEMAKER).was_running


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["lost", amazon_refusal(500, "InternalFailure", "oops")])
def test_processing_job_with_a_lost_reply_is_not_started_twice(sagemaker: SageMakerApi, lost: Any) -> None:
    """If a reply is lost, the client retries; a job that had started is not started twice, and no error is raised."""
    sagemaker.endpoint.replies.append(lost)
    assert submit.start(SUBMISSION, SAGEMAKER, again=True).was_running is (lost == "lost")
    assert len(sagemaker.jobs) == 1


AMAZON_REFUSES = [
    (400, "AccessDeniedException", "User: x is not authorized to perform: sagemaker:X", StartError,
     "permission denied: sagemaker:CreateProcessingJob and sagemaker:AddTags, or iam:PassRole on the role is missing"),
    (400, "ThrottlingException", "Rate exceeded", StartError, "AWS is busy (ThrottlingException: Rate "),
    (400, "ResourceLimitExceeded", "The account-level service limit is 0", StartError,
     "the account's quota does not admit it: take fewer --tasks or another --instance-type, or ask for more under "),
    (400, "ValidationException", "No S3 objects", ConfigError,
     "AWS refuses the request (ValidationException: No S3 objects)"),
    (400, "UnrecognizedClientException", "The security token is invalid", StartError,
     "the credentials are invalid or have expired (UnrecognizedClientException): set AWS_ACCESS_KEY_ID"),
    (503, "ServiceUnavailable", "x", StartError, "AWS is busy (ServiceUnavailable: x): try again"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("status", "code", "words", "kind", "message"), AMAZON_REFUSES)
def test_refusals_of_amazon_give_cause_and_remedy(
    sagemaker: SageMakerApi, status: int, code: str, words: str, kind: type[Exception], message: str
) -> None:
    """Each refusal is one line with the cause and the remedy."""
    sagemaker.endpoint.replies += [amazon_refusal(status, code, words)] * 3
    with pytest.raises(kind) as told:
        submit.start(SUBMISSION, SAGEMAKER, again=True)
    text = str(told.value)
    assert text.startswith(f"cannot start a SageMaker Processing job in us-east-1: {message}")
    assert "\n" not in text
    assert not [secret for secret in servers.SECRETS if secret in text]
    assert not sagemaker.jobs


@pytest.mark.slow
def test_unreachable_sagemaker_is_explained(sagemaker: SageMakerApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreachable or invalid endpoint, a missing region and missing credentials give messages
    that say what to set.
    """
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", f"http://127.0.0.1:{servers.free_port()}")
    with pytest.raises(StartError, match=r"the connection failed \(.*\): check the network and --region"):
        submit.start(SUBMISSION, SAGEMAKER)
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", "nowhere")
    with pytest.raises(ConfigError, match="Invalid endpoint: nowhere"):
        submit.start(SUBMISSION, SAGEMAKER)
    monkeypatch.delenv("AWS_ENDPOINT_URL_SAGEMAKER")
    monkeypatch.delenv("AWS_REGION")
    with pytest.raises(ConfigError, match="which region is not known: give --region, or set AWS_REGION"):
        submit.start(SUBMISSION, SAGEMAKER)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(StartError, match=r"no usable credentials \(.*\): set AWS_ACCESS_KEY_ID"):
        submit.start(SUBMISSION, replace(SAGEMAKER, region="us-east-1"))


@pytest.mark.parametrize(
    ("submission", "message"),
    [
        (replace(SUBMISSION, source=f"s3://calls/{'x' * 256}"), "has 267 characters; SageMaker takes 256"),
        (replace(SUBMISSION, options=("--limit", "1") * 60), "the run has 124 arguments; SageMaker takes 100"),
        (replace(SUBMISSION, environment={"A": "x" * 257}), "has 257 characters; SageMaker takes 256"),
        (replace(SUBMISSION, environment={"A-B": "x"}), "--env 'A-B': a variable's name has letters"),
        (
            replace(SUBMISSION, environment={f"A{i}": "x" for i in range(100)}),
            "the job has 101 variables; SageMaker takes 100",
        ),
    ],
)
def test_limits_of_sagemaker_are_checked_first(submission: submit.Submission, message: str) -> None:
    """The limits of SageMaker are checked before a request is sent."""
    with pytest.raises(ConfigError) as told:
        SAGEMAKER.request(submission)
    assert message in str(told.value)


# ── checks of the checks ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_discovery_document_finds_faults() -> None:
    """The check by the discovery document finds an unknown field, a wrong type, a missing field, and a wrong path or
    method.
    """
    api, path = discovery.api("run.v2"), f"/v2/{JOB}:run"

    def faults(overrides: Any, method: str = "POST", path: str = path) -> list[str]:
        return api.faults_of_request(method, path, json.dumps({"overrides": overrides}).encode())

    assert not faults({"taskCount": 1, "timeout": "3.5s", "containerOverrides": [{"env": [{"name": "A"}]}]})
    wrong: Any
    for wrong in (
        {"tasks": 1}, {"taskCount": "1"}, {"taskCount": True}, {"timeout": "1h"}, {"containerOverrides": {}},
        {"containerOverrides": [{"args": "run"}]}, {"containerOverrides": [{"env": [{"value": "1"}]}]}, [],
    ):  # fmt: skip
        assert len(faults(wrong)) == 1, wrong
    assert faults({}, "PUT") == [f"PUT {path}: no such method"]
    assert faults({}, path=path.replace(":run", ":start"))
    assert faults({}, path=f"{path}?task=1") == ["?task: unknown"]


def test_the_service_model_finds_faults() -> None:
    """The check by the service model finds the same faults, and wrong lengths, patterns and enum values."""
    model, body = ServiceModel("sagemaker"), SAGEMAKER.request(SUBMISSION).body
    assert not model.faults("CreateProcessingJob", body)
    cluster = body["ProcessingResources"]["ClusterConfig"]
    wrong: dict[str, Any]
    for wrong in (
        {"Image": "x"}, {"RoleArn": None}, {"RoleArn": "x" * 30}, {"ProcessingJobName": "a_b"},
        {"Environment": {"A-": "1"}},
        {"AppSpecification": {"ImageUri": IMAGE, "ContainerArguments": ["x" * 257]}}, {"Environment": {"A": 1}},
        {"AppSpecification": {"ContainerArguments": []}}, {"StoppingCondition": {"MaxRuntimeInSeconds": 777_601}},
        {"ProcessingResources": {"ClusterConfig": {**cluster, "InstanceCount": 101}}},
        {"ProcessingResources": {"ClusterConfig": {**cluster, "InstanceType": "ml.g6.3xlarge"}}},
    ):  # fmt: skip
        assert model.faults("CreateProcessingJob", {**body, **wrong}), wrong
    assert model.faults("StartProcessingJob", body)


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────────────────

TO_CLOUD_RUN = ("--target", "cloudrun", "--project", "p", "--region", "us-central1")
TO_SAGEMAKER = ("--target", "sagemaker", "--image", IMAGE, "--role", ROLE)


def test_submit_prints_the_forecast_and_starts_an_execution(cloud_run: CloudRunApi, calls: Calls, typed: Type) -> None:
    """`submit` prints the number of items, the hours, time and cost, the started execution and how to follow it. A
    second call reports the running execution.
    """
    source = calls.manifest(*[7200] * 50)
    command = (source, *TO_CLOUD_RUN, "--expected-rtfx", "20")
    done = typed(*command)
    assert (done.code, done.said) == (0, "")
    tasks = ceil(100 / (20 * 50 / 60))
    assert done.lines[:7] == [
        "items    50",
        "audio    100.0 hours",
        f"tasks    {tasks}",
        "time     about 53:00 to 56:00: 50:00 of work at RTFx 20, after a start of 3:00 to 6:00 (modelled)",
        "cost     about $6.92 to $7.31 at $1.306 an hour and task: $6.53 of work, $0.39 to $0.78 of starts",
        "quota    a new project runs 2 tasks at a time, so that all take about 2:39:00 to 2:48:00",
        "started  voxbatch-00000",
    ]
    assert done.lines[7].startswith(
        "console  https://console.cloud.google.com/run/jobs/executions/details/us-central1/"
    )
    assert done.lines[8:] == [f"progress voxbatch status {source.removesuffix('.jsonl')}.voxbatch"]
    (overrides,) = [call.body["overrides"] for call in cloud_run.endpoint.calls if call.method == "POST"]
    assert (overrides["taskCount"], "timeout" in overrides) == (tasks, False)  # the job's own limit holds
    again = typed(*command)
    assert (again.code, again.line("running")) == (
        0, "voxbatch-00000, with the same arguments: nothing was started (--again starts another)",
    )  # fmt: skip
    assert typed(*command, "--again").line("started") == "voxbatch-00001"


def test_given_options_are_forwarded_to_the_job(
    nowhere: None, calls: Calls, typed: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options of `run` that were set by flags or variables are passed to the job as written. Defaults, and options of
    this machine or command, are not passed.
    """
    source = calls.manifest(60)
    monkeypatch.setenv("VOXBATCH_LANGUAGE", "en")
    monkeypatch.setenv("VOXBATCH_DECODERS", "2")
    done = typed(
        source, "-o", OUT, *TO_CLOUD_RUN, "--profile", "cpu", "--formats", "srt, txt", "--engine-option", "beam_size=1",
        "--engine-option=threads=2", "--limit=1", "--exit-zero", "--workers", "auto", "--tasks", "1",
        "--only-under", f"gs://{calls.bucket}/", "--part-seconds", "5", "--dry-run", "--expected-rtfx", "3",
        "--usd-per-hour", "2", "--env", "A=1", "-q", "--no-prefill-encoder", "--prompt", "About printing.",
        "--hotwords", "gs://calls/names.txt",
    )  # fmt: skip
    assert (done.code, done.said) == (0, "")
    (container,) = done.body["overrides"]["containerOverrides"]
    assert container["env"] == [{"name": "A", "value": "1"}]
    assert container["args"][:4] == ["run", source, "-o", OUT]
    assert container["args"][4:] == [
        "--prompt", "About printing.", "--profile", "cpu", "--engine-option", "beam_size=1", "--engine-option",
        "threads=2", "--no-prefill-encoder", "--language", "en", "--hotwords", "gs://calls/names.txt",
        "--formats", "srt, txt", "--part-seconds", "5",
        "--workers", "auto", "--usd-per-hour", "2", "--quiet", "--exit-zero", "--limit", "1", "--only-under", f"gs://{calls.bucket}/",
    ]  # fmt: skip
    understood(*container["args"])
    assert done.line("time") == "about 20.0 s at RTFx 3, and a start of unknown length"
    assert done.line("cost") == "about $0.01 at $2 an hour and task, and the start of each"


def test_dry_run_needs_no_credentials(nowhere: None, calls: Calls, tmp_path: Path) -> None:
    """A dry run needs no credentials, cloud client or engine; without the client, a real submission says what to
    install.
    """
    source = calls.manifest(*[3600] * 10)
    code = f"""
import sys
for name in ("google.cloud.run_v2", "boto3", "faster_whisper", "vllm"):
    sys.modules[name] = None
sys.argv = ["voxbatch", "submit", {source!r}, "-o", "gs://calls/out", "--expected-rtfx", "2", *sys.argv[1:]]
from voxbatch.cli import main
main()
"""

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, *args]
        return subprocess.run(command, env=environment(), cwd=tmp_path, capture_output=True, text=True)

    done = run("--target", "cloudrun", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[2] == "tasks    6"
    assert lines[6] == (
        "request  POST https://run.googleapis.com/v2/projects/PROJECT/locations/REGION/jobs/voxbatch:run"
    )
    assert lines[7:9] == [
        "unknown  PROJECT: a start takes that of the credentials, unless --project or GOOGLE_CLOUD_PROJECT gives one",
        "unknown  REGION: give --region, or set CLOUDSDK_RUN_REGION",
    ]
    assert json.loads("\n".join(lines[9:]))["overrides"]["taskCount"] == 6
    known = run("--target", "cloudrun", "--dry-run", "--project", "p", "--region", "r").stdout.splitlines()
    assert known[6].endswith("/v2/projects/p/locations/r/jobs/voxbatch:run")
    assert known[7] == "{"
    nowhere_to_read = ("gs://calls/m.jsonl", "-o", "gs://calls/out", "--target", "cloudrun", "--dry-run")
    without = {"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "gone.json"), "STORAGE_EMULATOR_HOST": ""}
    command = [sys.executable, "-m", "voxbatch", "submit", *nowhere_to_read]
    refused = subprocess.run(command, env=environment(**without), cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode == 1
    assert refused.stderr.startswith("Error: cannot read gs://calls/: no usable credentials")
    assert refused.stderr.endswith("With --tasks N it shows the request without them\n")
    shown = subprocess.run(
        [*command, "--tasks", "3"], env=environment(**without), cwd=tmp_path, capture_output=True, text=True
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("source   cannot be read from here: cannot read gs://calls/")
    tasks, duration, cost = shown.stdout.splitlines()[1:4]
    assert (tasks, duration) == ("tasks    3", "time     unknown: give a SOURCE that can be read from here")
    assert cost.removeprefix("cost     unknown: give a SOURCE that can be read from here; ") == (
        "the starts cost about $0.20 to $0.39, and tasks of 1:00:00, their limit, $3.92 an attempt"
    )  # 3 tasks at 1.306 USD an hour, with starts of 180 to 360 s
    limited = subprocess.run(
        [*command, "--tasks", "3", "--max-usd", "1"], env=environment(**without), cwd=tmp_path, capture_output=True,
        text=True,
    )  # fmt: skip
    assert limited.returncode == 2
    assert limited.stderr.startswith("Error: the price of the run is unknown, and --max-usd is 1.00")
    assert '"taskCount": 3' in shown.stdout
    done = run(*TO_SAGEMAKER, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[2:5] == [
        "tasks    2",
        "time     about 2:33:00 to 2:36:00: 2:30:00 of work at RTFx 2, after a start of 3:00 to 6:00 (modelled)",
        "cost     about $6.23 to $6.35 at $1.222 an hour and task: $6.11 of work, $0.12 to $0.24 of starts",
    ]
    assert lines[5] == "request  sagemaker:CreateProcessingJob in the default region"
    assert not ServiceModel("sagemaker").faults("CreateProcessingJob", json.loads("\n".join(lines[6:])))
    for args, extra in (((*TO_CLOUD_RUN, "--tasks", "1"), "cloudrun"), ((*TO_SAGEMAKER, "--tasks", "1"), "s3")):
        done = run(*args)
        assert done.returncode == 1
        assert "the client library is not installed" in done.stderr
        assert done.stderr.endswith(f": pip install 'voxbatch[{extra}]'\n")


REFUSED = [
    (("--tasks", "0"), "Invalid value for '--tasks': '0': give auto, or how many, from 1"),
    (("--tasks", "10001"), "tasks is 10,001; Cloud Run takes from 1 to 10,000"),
    (("--task-hours", "0"), "task-hours is 0.0; it must be more than 0, and finite"),
    (("--role", ROLE), "--role is for --target sagemaker; leave it out for cloudrun"),
    (
        ("--engine", "scripted"),
        "the speed of scripted on the machine of a task is unknown, so the number of tasks",
    ),
    (("-o", "here"), "OUT here is no place that all tasks share: give -o gs://… or -o s3://…"),
    (("--overwrite",), "No such option"),
    (("--hotwords", __file__), f"--hotwords {__file__} lies on this machine, where a job elsewhere cannot see it"),
]


@pytest.mark.parametrize(("args", "message"), REFUSED)
def test_invalid_options_exit_with_2(
    nowhere: None, calls: Calls, typed: Type, args: tuple[str, ...], message: str
) -> None:
    """Invalid options give one line and exit code 2."""
    done = typed(calls.manifest(60), *TO_CLOUD_RUN, *args)
    assert (done.code, done.lines) == (2, [])
    assert done.said.splitlines()[-1].startswith(f"Error: {message}")


def test_speed_of_an_unmeasured_gpu_is_estimated(nowhere: None, calls: Calls, typed: Type) -> None:
    """The speed of an unmeasured GPU is estimated and marked as an estimate; --expected-rtfx replaces it."""
    hours = calls.manifest(*[3600] * 105)
    done = typed(hours, *TO_CLOUD_RUN, "--dry-run", "--no-prefill-encoder")
    assert "tasks    4" in done.lines
    assert "(calculated for an NVIDIA L4 with stock vLLM, not measured" in done.lines[3]
    done = typed(hours, *TO_CLOUD_RUN, "--dry-run", "--expected-rtfx", "140")
    assert "tasks    1" in done.lines
    assert "not measured" not in done.lines[3]


def test_a_cascade_is_forwarded_with_both_prices(nowhere: None, calls: Calls, typed: Type, tmp_path: Path) -> None:
    """The last task alone makes the second pass, so that its time and its price are added. A calibration must lie where
    the tasks see it."""
    hours = calls.manifest(*[3600] * 100)
    large = "mistralai/Voxtral-Mini-4B-Realtime-2602"
    models = f"openai/whisper-tiny.en,{large}"
    command = (hours, *TO_CLOUD_RUN, "--dry-run", "--engine", "vllm", "--usd-per-hour", "3.6", "--tasks", "10")
    done = typed(*command, "--cascade", models, "--expected-rtfx", "100")
    assert (done.code, done.said) == (0, "")
    (container,) = done.body["overrides"]["containerOverrides"]
    assert container["args"][container["args"].index("--cascade") + 1] == models
    understood(*container["args"])
    assert done.line("second").startswith(f"{large} does about 0.3 of the audio again, in the last task alone: ")
    usd = float(done.line("second").rpartition("$")[2])
    work = typed(*command, "--model", large, "--no-prefill-encoder").line("cost")
    assert 0 < usd < float(work.partition("task: $")[2].split()[0])
    assert done.line("cost") == (
        f"about ${3.6 + 1.8 + usd:.2f} to ${3.6 + 3.6 + usd:.2f} at $3.6 an hour and task: $3.60 of work, $1.80 to "
        "$3.60 of starts and the second pass"
    )
    unknown = typed(*command, "--cascade", "openai/whisper-tiny.en,b/c", "--expected-rtfx", "100")
    assert unknown.line("second").endswith("time and cost unknown, and not in the above")
    by_wer = (*command, "--cascade", f"{models}:wer=5", "--calibration")
    assert typed(*by_wer, "gs://calls/tiny.json").code == 0
    (tmp_path / "c.json").touch()
    assert f"--calibration {tmp_path}/c.json lies on this machine" in typed(*by_wer, f"{tmp_path}/c.json").said


def test_starts_that_cost_more_than_the_work_are_told(nowhere: None, calls: Calls, typed: Type) -> None:
    """If the starts cost more than the work, `submit` advises the number of tasks that pays, or fewer runs and a worker
    that is always on. The automatic number of tasks follows this advice; --tasks is taken as it is.
    """
    source = calls.manifest(*[3600] * 36)
    command = (source, *TO_CLOUD_RUN, "--expected-rtfx", "120", "--dry-run")
    done = typed(*command, "--tasks", "8")
    assert done.line("tasks") == "8"
    assert done.line("time") == "about 5:15 to 8:15: 2:15 of work at RTFx 120, after a start of 3:00 to 6:00 (modelled)"
    assert (
        done.line("cost") == "about $0.91 to $1.44 at $1.306 an hour and task: $0.39 of work, $0.52 to $1.04 of starts"
    )
    assert done.line("advice") == (
        "the starts cost more than the work: --tasks 4 is about $0.65 to $0.91, in 7:30 to 10:30. A start costs as "
        "much as 9.0 hours of audio (4:30 x RTFx 120)"
    )
    for args in (("--tasks", "4"), ("--task-hours", "0.01"), ()):
        assert not [line for line in typed(*command, *args).lines if line.startswith("advice")]
    assert typed(*command, "--task-hours", "0.01").line("tasks") == "4"
    done = typed(calls.manifest(3600), *TO_CLOUD_RUN, "--expected-rtfx", "120", "--dry-run")
    assert done.line("advice") == (
        "the start costs more than the work: a run pays from 9.0 hours of audio (4:30 x RTFx 120). Collect recordings "
        "for fewer runs. A worker that is always on has no start; it costs $31.34 a day, as much as "
        "320 starts"
    )
    done = typed(calls.manifest(10), *TO_CLOUD_RUN, "--dry-run")  # ten seconds are slow, and many hours are not
    assert "a run pays from 9.8 hours of audio (4:30 x RTFx 130). Collect" in done.line("advice")


def test_a_price_on_sagemaker_needs_no_image(nowhere: None, calls: Calls, typed: Type) -> None:
    """`--dry-run` shows hours, time and price before anything is deployed; only image and role are made up."""
    hours = calls.manifest(*[3600] * 1000)
    done = typed(hours, "--target", "sagemaker", "--dry-run")
    full = typed(hours, *TO_SAGEMAKER, "--dry-run")
    for line in ("audio", "tasks", "time", "cost"):
        assert done.line(line) == full.line(line)
    assert done.body["AppSpecification"]["ImageUri"].startswith("000000000000.dkr.ecr.")
    assert done.line("unknown") == "--image, --role: the request has made-up ones"
    done = typed(hours, "--target", "sagemaker")
    assert (done.code, done.said.splitlines()[-1].endswith("its own job; --dry-run needs neither")) == (2, True), (
        done.said
    )


def test_gpus_follow_from_the_instance_type(nowhere: None, calls: Calls, typed: Type) -> None:
    """The GPUs are derived from the instance type; for an unknown type or model, no speed is assumed."""
    hours = calls.manifest(*[3600] * 1000)
    for kind, gpus in (("ml.g5.xlarge", "an NVIDIA A10G"), ("ml.p4de.24xlarge", "8 NVIDIA A100-SXM4-80GB")):
        done = typed(hours, *TO_SAGEMAKER, "--instance-type", kind, "--dry-run")
        assert f"(calculated for {gpus} with the encoder once a chunk, not measured" in done.line("time")
    for args in (
        ("--instance-type", "ml.g4dn.xlarge"),
        ("--model", "mistralai/Voxtral-Mini-3B-2507"),
        ("--profile", "mini-3b", "--model", "gs://models/mini"),
    ):
        done = typed(hours, *TO_SAGEMAKER, *args, "--dry-run")
        assert (done.code, done.said.startswith("Error: the speed of vllm on the machine of a task is unknown")) == (
            2,
            True,
        )
        assert typed(hours, *TO_SAGEMAKER, *args, "--dry-run", "--tasks", "2").line("tasks") == "2"


def test_options_of_another_target_are_refused(nowhere: None, calls: Calls, typed: Type) -> None:
    """Options of another target and exceeded limits are refused before the manifest is read."""
    for args, message in (
        (
            ("--target", "sagemaker"),
            "--target sagemaker needs --image and --role, because each run creates its own job",
        ),
        ((*TO_SAGEMAKER, "--job", "j"), "--job is for --target cloudrun; leave it out for sagemaker"),
        ((*TO_SAGEMAKER, "--tasks", "101"), "tasks is 101; SageMaker Processing takes from 1 to 100"),
        ((*TO_SAGEMAKER, "--model", "m" * 300), f"'{'m' * 60}'… has 300 characters; SageMaker takes 256"),
    ):
        done = typed("gs://no-such-bucket/m.jsonl", "-o", OUT, *args)
        assert (done.code, done.said.startswith(f"Error: {message}")) == (2, True), done.said


@pytest.mark.parametrize(
    ("machine", "model", "args"),
    [
        ("cloudrun-l4", "Voxtral Realtime", TO_CLOUD_RUN),
        ("cloudrun-l4", "Voxtral Realtime, 8 bits", (*TO_CLOUD_RUN, "--expected-rtfx", "190")),
        ("cloudrun-l4", "Parakeet", (*TO_CLOUD_RUN, "--model", "parakeet")),
        ("ml.g6.2xlarge", "Voxtral Realtime", TO_SAGEMAKER),
        ("g2-standard-8-spot", "Voxtral Realtime", (*TO_SAGEMAKER, "--usd-per-hour", "0.337")),
    ],
)
def test_dry_run_prints_the_costs_of_the_page(
    nowhere: None, calls: Calls, typed: Type, machine: str, model: str, args: tuple[str, ...]
) -> None:
    """The dry run of 10,000 hours has the cost that docs/costs.md shows, and on Cloud Run the lines of its block."""
    sys.path.append(str(ROOT / "docs"))
    from make_costs import PAGE, costs, forecast, speed_of

    page = PAGE.read_text()
    done = typed(calls.manifest(*[3600] * 10_000), *args, "--dry-run")
    expected = forecast(machine, speed_of(model, prices.machines()[machine].gpu) or pytest.fail("no speed"))
    lowest, highest = expected.usd or pytest.fail("no cost")
    assert done.line("tasks") == f"{expected.tasks}"
    assert done.line("cost").startswith(f"about ${lowest:,.2f} to ${highest:,.2f} at "), done.lines
    (row,) = [row for row in costs() if row[0] == prices.machines()[machine].title]
    cell = row[costs()[0].index(model)]
    assert cell.split(" ")[0] == f"{(lowest + highest) / 2:.{0 if highest > 10 else 1}f}"
    if args == TO_CLOUD_RUN:
        of = "(calculated for an NVIDIA L4 with "
        shown = re.sub(rf"{re.escape(of)}.*--expected-rtfx\)", f"{of}…)", "\n".join(done.lines))
        assert shown.partition("\nrequest")[0] in page, shown


def test_number_of_tasks_has_its_own_variable(
    nowhere: None, calls: Calls, typed: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VOXBATCH_TASKS belongs to `run`, where it names a platform; submit reads VOXBATCH_SUBMIT_TASKS."""
    monkeypatch.setenv("VOXBATCH_TASKS", "slurm")
    monkeypatch.setenv("VOXBATCH_SUBMIT_TASKS", "7")
    done = typed(calls.manifest(60), *TO_CLOUD_RUN, "--dry-run")
    assert (done.code, done.line("tasks")) == (0, "7")


def test_missing_manifest_starts_nothing(cloud_run: CloudRunApi, calls: Calls, typed: Type) -> None:
    """A missing manifest is refused, and nothing is started."""
    done = typed(f"gs://{calls.bucket}/gone.jsonl", *TO_CLOUD_RUN, "--tasks", "1")
    assert (done.code, "gone.jsonl" in done.said, cloud_run.endpoint.calls) == (2, True, [])


def test_a_submission_is_sized_by_what_out_lacks(nowhere: None, calls: Calls, typed: Type, recording: Recorder) -> None:
    """Recordings that the run in OUT has done cost nothing again; a run that is complete gets one task."""
    source, out = calls.manifest(1, 1), f"gs://{calls.bucket}/out"
    for name in ("r0.wav", "r1.wav"):
        calls.server.put(calls.bucket, name, recording(name, 1).read_bytes())
    command = (source, "-o", out, "--target", "cloudrun", "--dry-run", "--expected-rtfx", "2", "--engine", "scripted")
    fresh = typed(*command)
    assert (fresh.line("items"), [line for line in fresh.lines if line.startswith("before")]) == ("2", [])
    voxbatch.run(source, out, engine="scripted", report=False)
    done = typed(*command)
    assert (done.line("before"), done.line("items")) == ("0 new; 2 done before, kept as they are", "0 to do")
    assert done.line("tasks") == "1"


def test_unknown_durations_require_tasks(nowhere: None, calls: Calls, typed: Type) -> None:
    """If no recording has a known duration, --tasks is required."""
    rows = b"".join(b'{"audio_filepath": "gone%d.wav"}\n' % i for i in range(3))
    calls.server.put(calls.bucket, "m.jsonl", rows)
    command = (f"gs://{calls.bucket}/m.jsonl", *TO_CLOUD_RUN, "--expected-rtfx", "2", "--dry-run")
    done = typed(*command)
    assert (done.code, done.said) == (2, "Error: the duration of none of 3 recordings is known: give --tasks N\n")
    assert typed(*command, "--tasks", "2").line("tasks") == "2"


def test_more_tasks_or_money_than_the_ceiling_are_refused(nowhere: None, calls: Calls, typed: Type) -> None:
    """A manifest that says 360,000 s a line gets no more tasks than --max-tasks unless --tasks asks for them, and
    costs no more than --max-usd in any case. The message says what to raise.
    """
    source = calls.manifest(*[360_000] * 1000)
    order = (source, "-o", OUT, "--target", "cloudrun", "--dry-run", "--expected-rtfx", "120")
    done = typed(*order)
    assert (done.code, done.lines) == (2, [])
    assert re.search(r"need [\d,]+ tasks of [\d.]+ hours, and --max-tasks is 100: .*raise --max-tasks", done.said)
    assert typed(*order, "--tasks", "100").code == 0
    done = typed(*order, "--tasks", "100", "--max-usd", "500")
    assert done.code == 2
    assert re.search(r"expected to cost up to 1,\d+\.\d\d USD, and --max-usd is 500.00: raise --max-usd", done.said)
    small = (calls.manifest(3600), *order[1:])
    assert typed(*small, "--max-usd", "1").code == 0
    assert "--max-usd is 0; it must be more than 0" in typed(*small, "--max-usd", "0").said


def test_too_few_tasks_for_the_time_limit_cause_a_warning(cloud_run: CloudRunApi, calls: Calls, typed: Type) -> None:
    """Too few tasks for the time limit are submitted as requested, with a warning; a failure to start gives exit code
    1.
    """
    command = (calls.manifest(*[3600] * 10), *TO_CLOUD_RUN, "--expected-rtfx", "2", "--tasks", "2")
    done = typed(*command)
    assert (done.code, done.line("time")[:24]) == (0, "about 2:33:00 to 2:36:00")
    assert done.said.startswith("Warning: Cloud Run ends a task after 1:00:00 unless the job has another limit ")
    cloud_run.endpoint.replies.append(google_refusal(403, "no"))
    assert typed(*command).code == 1


def test_printed_request_hides_signatures() -> None:
    """The query of an address is hidden in the printed request; the job receives it."""
    body = {"args": ["run", "https://h/m.jsonl?sig=SECRET", "-o", OUT]}
    assert submit.redact_addresses(body) == {"args": ["run", "https://h/m.jsonl?…", "-o", OUT]}
