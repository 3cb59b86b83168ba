"""Tests of the roles that jobs/cloudrun/terraform grants, and of the policy of SageMaker's runs: each account may make
the calls that its programs make, and has no role that none of them needs.

The programs run as the deployed jobs would start them, against a Cloud Storage, Google's Pub/Sub emulator and a Cloud
Run API that all record each call. The calls are mapped to methods by Google's discovery documents.
"""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import discovery
import pubsub
import pytest
import servers
import terraform
import yaml
from cloudrun_deployment import JOBS
from cloudrun_plan import bindings, container, of_kind, planned, variables_of
from clouds import CloudRunApi
from conftest import Recorder, Starter, environment
from google_roles import FETCH, PERMISSIONS, ROLES, Need, needs_of_fetching, storage_needs
from sagemaker_deployment import jobs_stack
from web_server import served

from voxbatch.storage import retry

pytestmark = [pytest.mark.slow, pytest.mark.forks_children]

REGION = "europe-west1"


def queue_needs(calls: list[tuple[str, str]]) -> set[Need]:
    """Return the needs of calls of Pub/Sub: "/google.pubsub.v1.Subscriber/GetSubscription" is subscriptions.get."""
    found = set()
    for path, resource in calls:
        _, service, name = path.split("/")
        name = name[0].lower() + name[1:].replace("Subscription", "")
        kind = {"Subscriber": "subscriptions", "Publisher": "topics"}[service.rpartition(".")[2]]
        method = discovery.api("pubsub.v1").method(f"pubsub.projects.{kind}.{name}")["id"]
        found |= {(f"pubsub {kind}/{resource.rpartition('/')[2]}", each) for each in PERMISSIONS[method]}
    return found


def run_needs(api: CloudRunApi) -> set[Need]:
    """Return the needs of requests to Cloud Run."""
    found = set()
    for call in api.endpoint.calls:
        method = discovery.api("run.v2").called(call.method, urlsplit(call.path).path)
        assert method, f"{call.method} {call.path}: no such method"
        job = re.search(r"/jobs/([a-z-]+)", call.path)
        assert job
        found |= {(f"run jobs/{job[1]}", permission) for permission in PERMISSIONS[method["id"]]}
        if call.body and "overrides" in call.body:
            found.add((f"run jobs/{job[1]}", "run.jobs.runWithOverrides"))
    return found


@dataclass
class Deployed:
    """The resources that Terraform makes, with servers for the programs of its jobs."""

    plan: terraform.Plan
    folder: Path
    queue: pubsub.PubsubProject
    store: servers.GoogleServer
    start: Starter
    stack: ExitStack
    needs: dict[str, set[Need]] = field(default_factory=dict)
    """The permissions that each account needs."""

    def container(self, name: str) -> tuple[str, list[str]]:
        """Return the account and the arguments of a job, or of the worker pool."""
        for kind in ("google_cloud_run_v2_job", "google_cloud_run_v2_worker_pool"):
            for values in of_kind(self.plan, kind):
                if values["name"] == name:
                    (template,) = values["template"]
                    (template,) = template.get("template", [template])
                    return template["service_account"].partition("@")[0], container(values)["args"]
        raise LookupError(name)

    def run(self, account: str, *arguments: str) -> Callable[[], CloudRunApi]:
        """Start voxbatch with these arguments. Return a function that waits for its end, and adds the needs of its
        calls to the account's.
        """
        proxy = self.stack.enter_context(servers.proxied(self.store))
        host, queue_calls = self.stack.enter_context(pubsub.recorded(self.queue.host))
        api = CloudRunApi(f"projects/{self.queue.project}/locations/{REGION}/jobs/voxbatch")
        self.stack.enter_context(served(api.endpoint))
        key = self.folder / f"key-{api.endpoint.server_address[1]}.json"
        key.write_text(json.dumps(servers.account(f"{api.endpoint.url}/token")))
        variables = {
            **self.store.settings(proxy.url), pubsub.HOST: host, retry.NO_WAIT: "1",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_RUN": api.endpoint.url, "GOOGLE_APPLICATION_CREDENTIALS": str(key),
        }  # fmt: skip
        process = self.start(*arguments, env=variables)

        def ended() -> CloudRunApi:
            _, said = process.communicate(timeout=120)
            assert process.returncode == 0, said
            assert not api.endpoint.wrong
            needs = storage_needs(proxy.log) | queue_needs(queue_calls) | run_needs(api)
            self.needs[account] = self.needs.get(account, set()) | needs
            return api

        return ended

    def fetch(self, account: str, address: str, folder: Path) -> None:
        """Fetch a model from a bucket, as an engine does."""
        self.needs[account] |= needs_of_fetching(self.store, address, folder)

    def bindings(self, *accounts: str) -> set[tuple[str, str, str]]:
        """Return (account, role, resource) of all roles of these accounts."""
        return {binding for binding in bindings(self.plan) if binding[0] in accounts}


def lacking(needs: dict[str, set[Need]], bindings: set[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
    """Return (account, resource, permission) of all needs that no role meets."""
    granted = {(account, resource, each) for account, role, resource in bindings for each in ROLES[role]}
    return {(account, *need) for account, some in needs.items() for need in some} - granted


def of_services(deployed: Deployed) -> dict[str, set[Need]]:
    """Return what Google's services need to do in the name of an account: schedules, the workflow, its trigger, and
    secrets of a job's environment.
    """
    plan, needs = deployed.plan, set[Need]()
    uris = [each["http_target"][0]["uri"] for each in of_kind(plan, "google_cloud_scheduler_job")]
    (workflow,) = of_kind(plan, "google_workflows_workflow")
    text = yaml.safe_load((JOBS / "terraform/jobs/workflow.yaml").read_text())
    calls = [call for call in _values(text, "call") if "." in call]
    assert calls == ["http.post", "sys.sleep", "googleapis.run.v2.projects.locations.jobs.run"]
    locks = workflow["user_env_vars"]["LOCKS"]
    needs.add((f"storage buckets/{locks}", "storage.objects.create"))
    (grant,) = [
        grant for grant in of_kind(plan, "google_storage_bucket_iam_member") if "voxbatch-start" in grant["member"]
    ]
    assert (
        grant["condition"][0]["expression"] == f'resource.name.startsWith("projects/_/buckets/{locks}/objects/wake/")'
    )
    for job in [*uris, f"/v2/{workflow['user_env_vars']['JOB']}:run"]:
        method = discovery.api("run.v2").called("POST", urlsplit(job).path)
        assert method
        assert method["id"] == "run.projects.locations.jobs.run"
        needs.add((f"run jobs/{job.rpartition('/')[2].removesuffix(':run')}", "run.jobs.run"))
    place = f"projects/{deployed.queue.project}"
    needs |= {  # by the guides of Eventarc and Workflows
        (place, "eventarc.events.receiveEvent"),
        (place, "workflows.executions.create"),
        (place, "logging.logEntries.create"),
    }
    (job,) = [each for each in of_kind(plan, "google_cloud_run_v2_job") if each["name"] == "voxbatch"]
    assert variables_of(job)["HF_TOKEN"] == "voxbatch-hf-token"
    secrets = {("secrets/voxbatch-hf-token", "secretmanager.versions.access")}
    return {"voxbatch-start": needs, "voxbatch-run": secrets}


def of_kernels(deployed: Deployed) -> set[Need]:
    """Return what fetching compiled kernels needs."""
    bucket = f"storage buckets/{deployed.queue.project}-voxbatch-kernels"
    return {(bucket, "storage.objects.get"), (bucket, "storage.objects.list")}


def _values(node: Any, key: str) -> Iterator[Any]:
    """Yield the values of a key, anywhere in a document."""
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for child in children:
        yield from _values(child, key)
    if isinstance(node, dict) and key in node:
        yield node[key]


@pytest.fixture
def deploy(
    tmp_path: Path, pubsub_projects: Callable[..., pubsub.PubsubProject], start: Starter, recording: Recorder
) -> Iterator[Callable[..., Deployed]]:
    """Return a function that evaluates the module, and makes the buckets, subscriptions and uploads."""
    with ExitStack() as stack:

        def make(**variables: Any) -> Deployed:
            queue = pubsub_projects()
            store = stack.enter_context(servers.google_server(servers.Events(queue.host, queue.project, "uploads", "")))
            (folder := tmp_path / queue.project).mkdir()
            plan = planned("jobs", project=queue.project, model="gs://m/x", **variables)
            policy = {"dead_letter_topic": queue.make_topic("voxbatch-dead"), "max_delivery_attempts": 20}
            for name in ("voxbatch-uploads", "voxbatch-nightly"):
                queue.subscribe(name, dead_letter_policy=policy)
            for name in ("in", "out", "models", "kernels"):
                store.make(f"{queue.project}-voxbatch-{name}")
            store.put(f"{queue.project}-voxbatch-models", "owner/name/config.json", b"{}")
            uploads = f"{queue.project}-voxbatch-in"
            store.put(uploads, "audio/a.wav", recording("a.wav", 1.5).read_bytes())
            for place in ("in", "nightly"):
                store.put(uploads, f"{place}/day.jsonl", b'{"audio_filepath": "../audio/a.wav"}\n')
                store.put(uploads, f"{place}/bad.jsonl", b"no json\n")
            return Deployed(plan, folder, queue, store, start, stack)

        yield make


def check(needs: dict[str, set[Need]], bindings: set[tuple[str, str, str]]) -> None:
    """Assert that the roles meet all needs, and that none of them is superfluous."""
    assert not lacking(needs, bindings)
    for each in bindings:
        assert lacking(needs, bindings - {each}), f"{each} is superfluous"


def test_accounts_have_the_roles_that_their_calls_need(deploy: Callable[..., Deployed], tmp_path: Path) -> None:
    """The dispatcher, the nightly job, the GPU task that they start and what wakes them have each role that they need,
    and no other.
    """
    deployed = deploy()
    ended = [deployed.run(*_started(deployed, f"voxbatch-{name}")) for name in ("dispatch", "nightly")]
    runs = [each["template"]["containers"][0]["args"] for wait in ended for each in wait().executions]
    assert len(runs) == 2
    account, _ = deployed.container("voxbatch")
    deployed.run(account, *runs[0], "--engine", "scripted", "--formats", "srt")()
    deployed.fetch(account, f"gs://{deployed.queue.project}-voxbatch-models/owner/name/", tmp_path / "models")
    deployed.needs[account] |= of_kernels(deployed)
    for name, needs in of_services(deployed).items():
        deployed.needs[name] = deployed.needs.get(name, set()) | needs
    assert deployed.needs.keys() == {"voxbatch-dispatch", "voxbatch-run", "voxbatch-start"}
    check(deployed.needs, deployed.bindings(*deployed.needs))
    forbidden = ("run.", "pubsub.", "iam.")
    assert not [each for _, each in deployed.needs["voxbatch-run"] if each.startswith(forbidden)]


def _started(deployed: Deployed, job: str) -> tuple[str, ...]:
    account, arguments = deployed.container(job)
    return account, *arguments


def test_worker_has_the_roles_that_its_calls_need(deploy: Callable[..., Deployed], tmp_path: Path) -> None:
    """The worker has each role that it needs, and no other; it may start no job."""
    deployed = deploy(uploads="worker", nightly=False)
    account, arguments = deployed.container("voxbatch-listen")
    deployed.run(account, *arguments, "--project", deployed.queue.project, "--engine", "scripted", "--drain")()
    deployed.fetch(account, f"gs://{deployed.queue.project}-voxbatch-models/owner/name/", tmp_path / "models")
    secret = {("secrets/voxbatch-hf-token", "secretmanager.versions.access")}
    check({account: deployed.needs[account] | secret | of_kernels(deployed)}, deployed.bindings(account))


# ── SageMaker ─────────────────────────────────────────────────────────────────────────────────────────────────────────

S3_ACTIONS = {
    "get": "s3:GetObject", "stat": "s3:GetObject", "list": "s3:ListBucket", "put": "s3:PutObject",
    "delete": "s3:DeleteObject",
}  # fmt: skip
"""Action of each kind of request, by the table "Actions defined by Amazon S3" of AWS's authorization reference."""
AFTER_FAILURES = "s3:AbortMultipartUpload"
"""Needed only after an upload of a large file that failed."""


def test_policy_of_sagemaker_allows_the_calls_of_a_run(
    amazon: servers.AmazonServer, start: Starter, recording: Recorder, tmp_path: Path
) -> None:
    """The role of the runs allows each request to S3 that the runs of a manifest and of a folder make, the latter with
    --overwrite, and that fetching a model makes, on their own buckets; and each action on S3 is needed.
    """
    names = {f"{name}Bucket": f"run-{name.lower()}-bucket" for name in ("In", "Out", "Models")}
    [policy] = jobs_stack(**names).resources["RunRole"][1]["Policies"]
    for bucket in names.values():
        amazon.make(bucket)
    amazon.put(names["InBucket"], "a.wav", recording("a.wav", 1.5).read_bytes())
    amazon.put(names["InBucket"], "day.jsonl", b'{"audio_filepath": "a.wav"}\n')
    amazon.put(names["ModelsBucket"], "owner/name/config.json", b"{}")
    place, out = f"s3://{names['InBucket']}/", f"s3://{names['OutBucket']}/day"
    with servers.proxied(amazon) as proxy:
        command = [sys.executable, "-c", FETCH, f"s3://{names['ModelsBucket']}/owner/name/", str(tmp_path / "models")]
        subprocess.run(command, check=True, env=environment(**amazon.settings(proxy.url)))
        for arguments in ((f"{place}day.jsonl",), (place, "--overwrite", "--include", "*.wav")):
            options = ("-o", out, "--engine", "scripted", "--formats", "srt")
            process = start("run", *arguments, *options, env=amazon.settings(proxy.url))
            _, said = process.communicate(timeout=120)
            assert process.returncode == 0, said
    needed = set()
    for call in proxy.log:
        bucket = urlsplit(call.path).path.split("/")[1]
        arn = f"arn:aws:s3:::{bucket}" if call.verb == "list" else f"arn:aws:s3:::{bucket}/{call.key}"
        needed.add((S3_ACTIONS[call.verb], arn))
    allowed = [
        (action, pattern)
        for statement in policy["PolicyDocument"]["Statement"]
        for action in _listed(statement["Action"])
        for pattern in _listed(statement["Resource"])
        if action.startswith("s3:")
    ]
    lacks = [each for each in needed if not any(_allows(rule, each) for rule in allowed)]
    assert not lacks
    assert not [rule for rule in allowed if rule[0] != AFTER_FAILURES and not any(_allows(rule, e) for e in needed)]


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _allows(rule: tuple[str, str], need: tuple[str, str]) -> bool:
    return rule[0] == need[0] and fnmatch.fnmatchcase(need[1], rule[1])
