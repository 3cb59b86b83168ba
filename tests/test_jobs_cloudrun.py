"""Tests for jobs/cloudrun.

The scripts run against a fake gcloud with a memory and against the parser of the real gcloud. The files are checked
against Google's published API descriptions, and the workflow runs in an interpreter of the Workflows syntax.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import discovery
import pytest
import workflows
import yaml
from conftest import understood
from gcloud_stub import Gcloud, Trouble, gcloud

from voxbatch.manifest.source import SUFFIXES
from voxbatch.platforms.listen.message import Ignored, ReceivedMessage, RunRequest, read
from voxbatch.platforms.listen.rules import Rules

ROOT = Path(__file__).parents[1]
JOBS = ROOT / "jobs" / "cloudrun"
TOKEN = "hf_aSecretThatNobodyMaySee"

# ── the scripts, with the fake gcloud ─────────────────────────────────────────────────────────────────────────────────


@dataclass
class Cloud:
    """A project whose gcloud is the fake one."""

    programs: Path
    gcloud: Gcloud

    def run(self, script: str, *args: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run a script of jobs/cloudrun with only these settings in the environment."""
        command, environment = self.command(script, *args, **settings)
        return subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    def on_terminal(self, script: str, *args: str, answer: str, **settings: str) -> str:
        """Run a script on a terminal, on which a person types the answer; return what the terminal shows."""
        command, environment = self.command(script, *args, **settings)
        person, terminal = pty.openpty()
        with subprocess.Popen(command, env=environment, stdin=terminal, stdout=terminal, stderr=terminal):
            os.close(terminal)
            os.write(person, answer.encode())
            shown = b""
            with contextlib.suppress(OSError):  # the terminal is closed at the end of the script
                while part := os.read(person, 1000):
                    shown += part
        os.close(person)
        return shown.decode()

    def command(self, script: str, *args: str, **settings: str) -> tuple[list[str], dict[str, str]]:
        """Return the command line and the environment of a script."""
        kept = {name: os.environ[name] for name in ("HOME", "TMPDIR") if name in os.environ}
        environment = {
            **kept,
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "RETRY_S": "0",
            "PROJECT": "p",
            "ALERT_EMAIL": "ops@example.org",
            **settings,
        }
        return ["bash", str(JOBS / script), *args], environment

    def deploy(self, *args: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run deploy.sh and assert that it succeeds."""
        done = self.run("deploy.sh", *args, **settings)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def calls(self) -> list[dict[str, Any]]:
        """Return the gcloud calls since the last call of this method."""
        calls = list(self.gcloud.record)
        self.gcloud.record.clear()
        return calls

    def changes(self) -> list[str]:
        """Return the calls since the last one of `calls` that change something, as command lines."""
        return [" ".join(call["argv"]) for call in self.calls() if not call["reads"]]

    @property
    def world(self) -> dict[str, Any]:
        """Return a copy of all resources that exist."""
        return copy.deepcopy(self.gcloud.world.things)

    def put(self, **things: Any) -> None:
        self.gcloud.world.things.update(things)

    def trouble(self, at: str, say: str, **when: Any) -> None:
        """Let the next matching gcloud commands fail."""
        self.gcloud.trouble = Trouble(at, say, **when)

    def roles(self, thing: str) -> set[tuple[str, str]]:
        """Return the (account, role) pairs of a resource's policy."""
        return roles_in(self.gcloud.world.things, thing)


def roles_in(world: dict[str, Any], thing: str) -> set[tuple[str, str]]:
    """Return the (account, role) pairs of a resource's policy."""
    bindings = world.get(f"policy:{thing}", [])
    return {(member.split(":")[1].split("@")[0], b["role"]) for b in bindings for member in b["members"]}


@contextmanager
def project(folder: Path) -> Iterator[Cloud]:
    """Create a project that contains only an image."""
    programs = folder / "bin"
    programs.mkdir()
    with gcloud(programs, folder / "files") as stub:
        cloud = Cloud(programs, stub)
        cloud.put(image={"image_summary": {"digest": "sha256:0123"}})
        yield cloud


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    with project(tmp_path) as made:
        yield made


@dataclass
class First:
    """The first deployment into an empty project, with a hub token."""

    said: str
    calls: list[dict[str, Any]]
    world: dict[str, Any]

    def roles(self, thing: str) -> set[tuple[str, str]]:
        """Return the (account, role) pairs of a resource's policy."""
        return roles_in(self.world, thing)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> First:
    with project(tmp_path_factory.mktemp("first")) as cloud:
        done = cloud.deploy(HF_TOKEN=TOKEN)
        return First(done.stdout + done.stderr, cloud.calls(), cloud.world)


@pytest.fixture
def deployed(cloud: Cloud, first: First) -> Cloud:
    """Return a project after its first deployment."""
    cloud.put(**copy.deepcopy(first.world))
    return cloud


def made(world: dict[str, Any]) -> dict[str, Any]:
    """Return the resources without counters, so that two deployments can be compared."""
    counted = {"notifications made", "versions"}
    things = {k: v for k, v in world.items() if k not in counted and not k.startswith("notification/")}
    told = sorted(
        world[k]["Notification Configuration"]["object_name_prefix"] for k in world if k.startswith("notification/")
    )
    found: dict[str, Any] = json.loads(json.dumps({**things, "notifications": told}), object_hook=_without_files)
    return found


def _without_files(thing: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in thing.items() if k not in ("config-from-file", "policy-from-file")}


@pytest.mark.slow
def test_deploy_creates_all_and_a_second_run_only_reads(deployed: Cloud, first: First) -> None:
    """deploy.sh creates all resources in an empty project; a second run only reads, and reports
    that nothing changes.
    """
    assert {key for key in first.world if "/" in key and not key.startswith(("policy:", "alert/", "channel/"))} == {
        "artifacts repositories/voxbatch", "storage buckets/p-voxbatch-in", "storage buckets/p-voxbatch-out",
        "storage buckets/p-voxbatch-models", "iam service-accounts/voxbatch-run",
        "iam service-accounts/voxbatch-dispatch", "iam service-accounts/voxbatch-start",
        "pubsub topics/voxbatch-uploads", "pubsub topics/voxbatch-dead", "pubsub subscriptions/voxbatch-uploads",
        "pubsub subscriptions/voxbatch-nightly", "pubsub subscriptions/voxbatch-dead", "secrets/voxbatch-hf-token",
        "run jobs/voxbatch", "run jobs/voxbatch-dispatch", "run jobs/voxbatch-nightly", "workflows/voxbatch",
        "eventarc triggers/voxbatch", "scheduler jobs/voxbatch-sweep", "scheduler jobs/voxbatch-nightly",
        "notification/1", "notification/2",
        "logging metrics/voxbatch_failed_items", "logging metrics/voxbatch_starved_seconds",
    }  # fmt: skip
    assert len([key for key in first.world if key.startswith("alert/")]) == 6
    assert f"{len([call for call in first.calls if not call['reads']])} changes made." in first.said

    second = deployed.deploy(HF_TOKEN=TOKEN)
    assert "Nothing to change." in second.stdout
    assert deployed.changes() == []
    assert deployed.world == first.world


READS, WRITES = "roles/storage.objectViewer", "roles/storage.objectUser"
LISTENS = {"roles/pubsub.subscriber", "roles/pubsub.viewer"}
AGENTS = {("service-42", "roles/pubsub.publisher")}


@pytest.mark.slow
def test_each_account_has_the_least_roles(first: First) -> None:
    """Accounts get roles on single resources, and on the project only if no smaller scope exists. The account of GPU
    tasks, which run ffmpeg on untrusted audio, starts no jobs and reads no messages.
    """
    policies = [key.removeprefix("policy:") for key in first.world if key.startswith("policy:")]
    assert {thing: first.roles(thing) for thing in policies} == {
        "storage buckets/p-voxbatch-in": {("voxbatch-run", READS), ("voxbatch-dispatch", READS)},
        "storage buckets/p-voxbatch-out": {("voxbatch-run", WRITES), ("voxbatch-dispatch", WRITES)},
        "storage buckets/p-voxbatch-models": {("voxbatch-run", READS)},
        "secrets/voxbatch-hf-token": {("voxbatch-run", "roles/secretmanager.secretAccessor")},
        **{
            f"pubsub subscriptions/voxbatch-{name}": {
                *(("voxbatch-dispatch", role) for role in LISTENS),
                ("service-42", "roles/pubsub.subscriber"),
            }
            for name in ("uploads", "nightly")
        },
        "pubsub topics/voxbatch-dead": {("voxbatch-dispatch", "roles/pubsub.publisher"), *AGENTS},
        "pubsub topics/voxbatch-uploads": AGENTS,
        "run jobs/voxbatch": {
            ("voxbatch-dispatch", "roles/run.jobsExecutorWithOverrides"),
            ("voxbatch-dispatch", "roles/run.viewer"),
        },
        "run jobs/voxbatch-dispatch": {("voxbatch-start", "roles/run.invoker")},
        "run jobs/voxbatch-nightly": {("voxbatch-start", "roles/run.invoker")},
        "projects/p": {
            ("voxbatch-start", "roles/workflows.invoker"),
            ("voxbatch-start", "roles/eventarc.eventReceiver"),
            ("voxbatch-start", "roles/logging.logWriter"),
            *AGENTS,
        },
    }


@pytest.mark.slow
def test_subscription_has_the_specified_settings(deployed: Cloud) -> None:
    """The subscriptions have the specified lease, retention, dead-letter policy, backoff, expiration and filters. A
    setting that somebody changed is corrected, and nothing else is touched.
    """
    there = deployed.world["pubsub subscriptions/voxbatch-uploads"]
    assert there["ackDeadlineSeconds"] == 600
    assert there["messageRetentionDuration"] == "2678400s"
    assert there["expirationPolicy"] == {}
    assert there["deadLetterPolicy"] == {
        "deadLetterTopic": "projects/p/topics/voxbatch-dead",
        "maxDeliveryAttempts": 20,
    }
    assert there["retryPolicy"] == {"minimumBackoff": "60s", "maximumBackoff": "600s"}
    assert there["flags"]["message-filter"] == (
        "NOT attributes:objectId OR "
        '(attributes.eventType = "OBJECT_FINALIZE" AND hasPrefix(attributes.objectId, "in/"))'
    )
    nightly = deployed.world["pubsub subscriptions/voxbatch-nightly"]
    assert nightly["flags"]["message-filter"] == (
        'attributes.eventType = "OBJECT_FINALIZE" AND hasPrefix(attributes.objectId, "nightly/")'
    )
    assert {name: value for name, value in nightly.items() if name != "flags"} == {
        name: value for name, value in there.items() if name != "flags"
    }

    deployed.put(**{"pubsub subscriptions/voxbatch-uploads": {**there, "expirationPolicy": {"ttl": "2678400s"}}})
    deployed.deploy()
    (change,) = deployed.changes()
    assert change.startswith("pubsub subscriptions update projects/p/subscriptions/voxbatch-uploads ")
    assert deployed.world["pubsub subscriptions/voxbatch-uploads"]["expirationPolicy"] == {}


@pytest.mark.slow
@pytest.mark.parametrize("fails_at", [20, 50])
def test_deploy_completes_a_partly_deployed_project(cloud: Cloud, fails_at: int) -> None:
    """If a change is refused, deploy.sh stops there with a clear message; the next run makes the
    missing changes only.
    """
    cloud.trouble(".", "PERMISSION_DENIED: Permission 'it' denied on resource", changing_only=True, skip=fails_at)
    failed = cloud.run("deploy.sh", HF_TOKEN=TOKEN)
    assert failed.returncode == 1
    assert "PERMISSION_DENIED: Permission 'it' denied" in failed.stderr
    assert re.search(
        r"^deploy\.sh: could not .+; what was done before it stays, and running", failed.stderr, re.MULTILINE
    )
    before = cloud.changes()
    assert len(before) == fails_at + 1

    cloud.deploy(HF_TOKEN=TOKEN)
    after = cloud.changes()
    assert after[0].split("--")[0] == before[-1].split("--")[0]  # it continues with the failed change
    assert not {c.split("--")[0] for c in before[:-1] if " create" in c} & {c.split("--")[0] for c in after}


def test_denied_read_stops_deploy(cloud: Cloud) -> None:
    """A denied read is not mistaken for a missing resource."""
    cloud.trouble(
        "artifacts repositories describe", "PERMISSION_DENIED: Permission 'a.get' denied (or it may not exist)"
    )
    done = cloud.run("deploy.sh")
    assert done.returncode == 1
    assert "PERMISSION_DENIED" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("deploy.sh: could not look: gcloud artifacts repositories describe")
    assert [c for c in cloud.changes() if "artifacts" in c] == []


# Google's own words for what passes by itself: the command, and its error.
PASSING = yaml.safe_load("""
- [add-iam-policy-binding, "INVALID_ARGUMENT: Service account voxbatch-run@p does not exist."]
- - add-iam-policy-binding
  - "INVALID_ARGUMENT: Service account service-42@gcp-sa-pubsub.iam.gserviceaccount.com does not exist."
- - eventarc triggers create
  - >-
    INVALID_ARGUMENT: Invalid resource state for "": Permission denied while using the Eventarc Service Agent. If you
    recently started to use Eventarc, it may take a few minutes before all necessary permissions are propagated to the
    Service Agent.
- - run jobs replace
  - >-
    PERMISSION_DENIED: Permission 'iam.serviceaccounts.actAs' denied on service account voxbatch-run@p (or it may not
    exist).
- - projects describe
  - >-
    PERMISSION_DENIED: Cloud Resource Manager API has not been used in project 42 before or it is disabled. Enable it by
    visiting https://console.developers.google.com/apis/api/cloudresourcemanager.googleapis.com/overview?project=42 then
    retry.
- - pubsub topics create
  - >-
    PERMISSION_DENIED: Cloud Pub/Sub API has not been used in project 42 before or it is disabled. Enable it by visiting
    https://console.developers.google.com/apis/api/pubsub.googleapis.com/overview?project=42 then retry.
""")


@pytest.mark.slow
@pytest.mark.parametrize(("at", "said"), PASSING)
def test_errors_that_pass_by_themselves_are_waited_for(deployed: Cloud, first: First, at: str, said: str) -> None:
    """Accounts, service agents, roles and APIs that Google does not know everywhere yet are waited for. A service agent
    that was never made is made.
    """
    kinds = {"add-iam": "policy:projects/p", "eventarc": "eventarc triggers/voxbatch", "run": "run jobs/voxbatch"}
    key = next((each for kind, each in kinds.items() if at.startswith(kind)), "pubsub topics/voxbatch-uploads")
    if "describe" not in at:
        del deployed.gcloud.world.things[key]
    deployed.trouble(at, said, times=3)
    assert deployed.deploy(HF_TOKEN=TOKEN).stdout.count("  … not yet: ") == 3
    made = [change for change in deployed.changes() if change.startswith("beta services identity create")]
    assert made == (["beta services identity create --service=pubsub.googleapis.com"] * 3 if "gcp-sa" in said else [])
    assert deployed.world.keys() == first.world.keys()


# Google's own words for what somebody must set right: the command, its error, how often it is tried, and parts of our
# message.
REFUSALS = yaml.safe_load("""
- - services enable
  - >-
    FAILED_PRECONDITION: Billing account for project '42' is not found. Billing must be enabled for activation of
    service(s) 'run.googleapis.com,artifactregistry.googleapis.com' to proceed.
  - 1
  - ["There is no billing: project p", "https://console.cloud.google.com/billing/linkedaccount?project=p"]
- - storage buckets create
  - "HTTPError 403: The billing account for the owning project is disabled in state absent"
  - 1
  - ["There is no billing: project p"]
- - services enable
  - >-
    PERMISSION_DENIED: Not found or permission denied for service(s): run.googleapis.com. Permission denied to enable
    service [run.googleapis.com]
  - 1
  - ["A role is missing: me@example.org needs the role Owner on project p; or Editor with Project IAM Admin"]
- - storage buckets create
  - "HTTPError 403: me@example.org does not have storage.buckets.create access to the Google Cloud project."
  - 1
  - ["A role is missing: me@example.org needs the role Owner", "https://console.cloud.google.com/iam-admin/iam?project=p"]
- - run jobs replace
  - >-
    spec.template.spec.parallelism: You do not have quota for using GPUs without zonal redundancy. Learn more about GPU
    zonal redundancy: g.co/cloudrun/gpu-redundancy-help
  - 1
  - - "There is no GPU quota: project p may not use NVIDIA L4s in europe-west1, or not as many."
    - "NvidiaL4GpuAllocNoZonalRedundancyPerProjectRegion (Cloud Run Admin API, region europe-west1)"
    - "https://console.cloud.google.com/iam-admin/quotas?project=p"
- - run jobs replace
  - "Quota violated: NvidiaL4GpuAllocNoZonalRedundancyPerProjectRegion requested: 3 allowed: 1"
  - 1
  - ["There is no GPU quota: project p may not use NVIDIA L4s in europe-west1, or not as many."]
- - run jobs replace
  - >-
    PERMISSION_DENIED: Cloud Run Admin API has not been used in project 42 before or it is disabled. Enable it by
    visiting https://console.developers.google.com/apis/api/run.googleapis.com/overview?project=42 then retry.
  - 60
  - ["An API is switched off: run.googleapis.com.", "gcloud services enable run.googleapis.com --project=p"]
- - run jobs replace
  - >-
    INVALID_ARGUMENT: Service account service-42@serverless-robot-prod.iam.gserviceaccount.com (service agent) is absent
  - 60
  - ["a service agent, does not exist yet, or does not have its role yet."]
""")


@pytest.mark.slow
@pytest.mark.parametrize(("at", "said", "times", "told"), REFUSALS)
def test_refusals_are_explained(cloud: Cloud, first: First, at: str, said: str, times: int, told: list[str]) -> None:
    """A refusal that a person can set right is explained: no billing, a missing role, a missing GPU quota, an API that
    is switched off, a service agent that is not there. Only those that may pass are tried again, for ten minutes.
    """
    kept = {"services enable": (), "storage buckets create": ("apis",)}.get(at)
    world = {k: v for k, v in first.world.items() if (k in kept if kept is not None else k != "run jobs/voxbatch")}
    cloud.put(**copy.deepcopy(world))
    cloud.trouble(at, said, times=99)
    done = cloud.run("deploy.sh", HF_TOKEN=TOKEN)
    assert done.returncode == 1
    assert all(part in done.stderr for part in [said, *told]), done.stderr
    assert done.stderr.splitlines()[-1].startswith("deploy.sh: could not ")
    assert len([call for call in cloud.calls() if " ".join(call["argv"]).startswith(at)]) == times


@pytest.mark.slow
def test_hub_token_is_in_no_argument_or_output(deployed: Cloud, first: First) -> None:
    """The hub token reaches Secret Manager through standard input and is in no argument, output or environment
    variable. The same token is not stored twice, a new one is, and later runs without a token keep it.
    """
    assert TOKEN not in first.said
    assert [call["stdin"] for call in first.calls if call["stdin"]] == [TOKEN]
    assert TOKEN not in json.dumps([[call["argv"], call["environment"]] for call in first.calls])
    kept = (Path(word.rpartition("=")[2]) for call in first.calls for word in call["kept"] if "/files" in word)
    assert TOKEN not in "".join(path.read_text() for path in kept)
    assert first.world["versions"] == [TOKEN]

    said = deployed.deploy(HF_TOKEN=TOKEN)
    assert TOKEN not in said.stdout + said.stderr
    deployed.deploy(HF_TOKEN="hf_another")
    assert deployed.changes() == ["secrets versions add voxbatch-hf-token --data-file=-"]
    assert deployed.world["versions"] == [TOKEN, "hf_another"]
    (container,) = containers(deployed.world["run jobs/voxbatch"])
    assert {
        "name": "HF_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": "voxbatch-hf-token", "key": "latest"}},
    } in container["env"]


@pytest.mark.slow
def test_without_a_token_there_is_no_secret(cloud: Cloud) -> None:
    """There is no secret if HF_TOKEN is not set, and the job requests none."""
    cloud.deploy()
    assert not any("secrets" in change for change in cloud.changes())
    (container,) = containers(cloud.world["run jobs/voxbatch"])
    assert [each["name"] for each in container["env"]] == [
        "VOXBATCH_EXIT_ZERO",
        "VOXBATCH_USD_PER_HOUR",
        "VOXBATCH_KERNEL_CACHE",
    ]
    cloud.deploy(UPLOADS="worker")
    (container,) = containers(cloud.world["beta run worker-pools/voxbatch-listen"])
    assert [each["name"] for each in container["env"]] == ["VOXBATCH_USD_PER_HOUR", "VOXBATCH_KERNEL_CACHE"]


def roles_of(cloud: Cloud, account: str) -> set[tuple[str, str]]:
    """Return the (resource, role) pairs of an account."""
    things = [key.removeprefix("policy:") for key in cloud.gcloud.world.things if key.startswith("policy:")]
    return {(thing, role) for thing in things for member, role in cloud.roles(thing) if member == account}


@pytest.mark.slow
def test_either_worker_or_trigger_reacts_to_uploads(deployed: Cloud, first: First) -> None:
    """With a worker there are no trigger and no dispatcher of uploads; switched back, there is no worker. The
    night goes on in both cases.
    """
    cloud = deployed
    by_workflow = made(first.world)
    assert by_workflow["notifications"] == ["in/", "nightly/"]
    cloud.deploy(UPLOADS="worker")
    assert "beta run worker-pools/voxbatch-listen" in cloud.world
    assert not {
        "workflows/voxbatch",
        "eventarc triggers/voxbatch",
        "scheduler jobs/voxbatch-sweep",
        "run jobs/voxbatch-dispatch",
    } & set(cloud.world)
    assert {"run jobs/voxbatch-nightly", "scheduler jobs/voxbatch-nightly"} <= set(cloud.world)
    assert made(cloud.world)["notifications"] == ["in/", "nightly/"]
    assert roles_of(cloud, "voxbatch-listen") == {
        ("storage buckets/p-voxbatch-in", READS),
        ("storage buckets/p-voxbatch-out", WRITES),
        ("storage buckets/p-voxbatch-models", READS),
        ("secrets/voxbatch-hf-token", "roles/secretmanager.secretAccessor"),
        *(("pubsub subscriptions/voxbatch-uploads", role) for role in LISTENS),
        ("pubsub topics/voxbatch-dead", "roles/pubsub.publisher"),
    }
    assert cloud.roles("projects/p") == {("service-42", "roles/pubsub.publisher")}

    cloud.deploy(UPLOADS="none", NIGHTLY="no")
    assert not {
        "beta run worker-pools/voxbatch-listen",
        "iam service-accounts/voxbatch-listen",
        "run jobs/voxbatch-nightly",
    } & set(cloud.world)
    assert made(cloud.world)["notifications"] == []
    assert roles_of(cloud, "voxbatch-listen") == set()

    cloud.deploy()
    back = made(cloud.world)
    assert {k: v for k, v in back.items() if "policy" not in k} == {
        k: v for k, v in by_workflow.items() if "policy" not in k
    }
    assert cloud.roles("run jobs/voxbatch") != set()
    assert len(cloud.roles("projects/p")) == 4


@pytest.mark.slow
def test_deploy_updates_only_differences(deployed: Cloud) -> None:
    """A new image, schedule or notification channel changes only the resources that depend on it."""
    deployed.put(image={"image_summary": {"digest": "sha256:4567"}})
    deployed.deploy()
    assert [change.split("/")[0].rsplit(" ", 1)[0] for change in deployed.changes()] == ["run jobs replace"] * 3
    (container,) = containers(deployed.world["run jobs/voxbatch"])
    assert container["image"] == "europe-west1-docker.pkg.dev/p/voxbatch/voxbatch@sha256:4567"

    deployed.deploy(SCHEDULE="30 3 * * 1-5")
    schedule, alert = deployed.changes()
    assert schedule.startswith("scheduler jobs update http voxbatch-nightly ")
    assert "--schedule=30 3 * * 1-5" in schedule
    assert alert.startswith("alpha monitoring policies update projects/p/alertPolicies/6")  # longer waits are normal

    deployed.deploy(SCHEDULE="30 3 * * 1-5", CHANNEL="projects/p/notificationChannels/7")
    assert [c.split(" --")[0] for c in deployed.changes()] == [
        f"alpha monitoring policies update projects/p/alertPolicies/{n}" for n in (1, 2, 3, 4, 5, 6)
    ]
    assert {thing["notificationChannels"][0] for thing in deployed.gcloud.world.under("alert/")} == {
        "projects/p/notificationChannels/7"
    }


@pytest.mark.slow
def test_alerts_tell_somebody(deployed: Cloud) -> None:
    """deploy.sh makes a channel for ALERT_EMAIL and gives it to every alert. Later runs find it; another address gets
    another channel.
    """
    assert [thing["labels"] for thing in deployed.gcloud.world.under("channel/")] == [
        {"email_address": "ops@example.org"}
    ]
    told = [thing["notificationChannels"] for thing in deployed.gcloud.world.under("alert/")]
    assert told == [["projects/p/notificationChannels/1"]] * 6
    deployed.changes()
    deployed.deploy(ALERT_EMAIL="")
    assert deployed.changes() == []
    deployed.deploy(ALERT_EMAIL="night@example.org")
    told = [thing["notificationChannels"] for thing in deployed.gcloud.world.under("alert/")]
    assert told == [["projects/p/notificationChannels/2"]] * 6


def test_alerts_that_nobody_reads_are_refused(cloud: Cloud) -> None:
    """deploy.sh has no address, channel or terminal: it stops before it changes anything, with what to set."""
    done = cloud.run("deploy.sh", ALERT_EMAIL="")
    assert (done.returncode, cloud.changes()) == (1, [])
    assert done.stderr.startswith("deploy.sh: whom should alerts tell? Set ALERT_EMAIL=you@example.org, or CHANNEL=")
    assert "ALERTS=no: then nobody hears of" in done.stderr


def test_address_for_alerts_is_asked_for_on_a_terminal(cloud: Cloud) -> None:
    """On a terminal, deploy.sh asks for the address."""
    done = cloud.on_terminal("deploy.sh", "--dry-run", answer="me@example.org\n", ALERT_EMAIL="")
    assert "E-mail address for alerts of failed runs" in done
    assert "+ make notification channel me@example.org" in done
    done = cloud.on_terminal("deploy.sh", "--dry-run", answer="\n", ALERT_EMAIL="")
    assert "whom should alerts tell?" in done


@pytest.mark.slow
def test_dry_run_changes_nothing(cloud: Cloud) -> None:
    """--dry-run prints the planned changes and makes none, also of a build."""
    said = cloud.deploy("--dry-run", HF_TOKEN=TOKEN, BUILD="yes").stdout
    assert cloud.changes() == []
    assert "+ make bucket p-voxbatch-in" in said
    assert "changes would be made." in said
    assert cloud.run("teardown.sh", "--dry-run").returncode == 0
    assert cloud.changes() == []


@pytest.mark.slow
def test_missing_image_stops_deploy_with_the_build_command(cloud: Cloud) -> None:
    """deploy.sh creates the repository, stops, and prints the build command if the image does not exist. An image from
    another registry is used as given.
    """
    cloud.put(image=None)
    cloud.trouble("docker images describe", "Image not found.")
    done = cloud.run("deploy.sh")
    assert done.returncode == 1
    assert "voxbatch/voxbatch:latest is not there yet: build it, with BUILD=yes and the same settings." in done.stderr
    assert "artifacts repositories/voxbatch" in cloud.world
    assert "run jobs/voxbatch" not in cloud.world

    cloud.deploy(IMAGE="ghcr.io/me/voxbatch:1")
    (container,) = containers(cloud.world["run jobs/voxbatch"])
    assert container["image"] == "ghcr.io/me/voxbatch:1"


FOLDER = "gs://p-voxbatch-models/mistralai/Voxtral-Mini-4B-Realtime-2602/0123/"


@pytest.mark.slow
def test_one_command_builds_deploys_and_verifies(cloud: Cloud, first: First) -> None:
    """BUILD=yes goes from an empty project to a verified deployment: it builds, deploys what was built by its digest,
    with the weights of the build, runs doctor on a GPU, transcribes one recording, and prints its text and cost. A
    later deployment without a build keeps image and weights.
    """
    outputs = {"txt/weather.txt": "Here is the weather.\n", "summary.json": '{\n  "wall_s": 21.5\n}\n'}
    current = f"object {FOLDER.removeprefix('gs://').replace('0123/', 'current')}"
    cloud.put(**{current: FOLDER, "outputs of a run": outputs, "log": [{"textPayload": "ready: voxbatch run"}]})
    said = cloud.deploy(BUILD="yes", HF_TOKEN=TOKEN).stdout
    calls = [" ".join(call["argv"]) for call in cloud.gcloud.record]
    order = ["run jobs replace", "builds submit", "run jobs replace", "workflows deploy", "run jobs execute voxbatch"]
    at = 0
    for begin in order:
        at = next(i for i, call in enumerate(calls) if i >= at and call.startswith(begin)) + 1
    job = containers(cloud.world["run jobs/voxbatch"])[0]
    assert job["image"] == "europe-west1-docker.pkg.dev/p/voxbatch/voxbatch@sha256:0123"
    assert {"name": "VOXBATCH_MODEL", "value": FOLDER} in job["env"]
    assert "ready: voxbatch run" in said
    assert "  transcript:\n    Here is the weather.\n  cost: " in said
    assert first.world.keys() - cloud.world.keys() == set()
    assert "iam service-accounts/voxbatch-build" in cloud.world
    cloud.calls()
    assert "Nothing to change." in cloud.deploy(HF_TOKEN=TOKEN).stdout
    assert cloud.changes() == []

    assert cloud.run("teardown.sh", "--with-data").returncode == 0
    assert [key for key in cloud.world if key.startswith(("iam", "storage", "run jobs/"))] == []
    assert cloud.roles("projects/p") == {("service-42", "roles/pubsub.publisher")}


def test_missing_quota_shows_before_the_build(deployed: Cloud) -> None:
    """With BUILD=yes, the first GPU job of a project is made with a sample image, so that a missing quota stops the
    deployment before an hour of building.
    """
    del deployed.gcloud.world.things["run jobs/voxbatch"]
    deployed.trouble("run jobs replace", "You do not have quota for using GPUs without zonal redundancy.", times=9)
    done = deployed.run("deploy.sh", BUILD="yes")
    assert (done.returncode, "There is no GPU quota" in done.stderr) == (1, True)
    assert not any(change.startswith("builds") for change in deployed.changes())


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"TASKS": "0"}, "TASKS=0: it is a number from 1 to 10000"),
        ({"MAX_RETRIES": "11"}, "MAX_RETRIES=11: it is a number from 0 to 10"),
        ({"TASK_TIMEOUT": "1h"}, "TASK_TIMEOUT=1h: it is a number from 60 to 604800"),
        ({"USD_PER_HOUR": "cheap"}, "USD_PER_HOUR=cheap: it is a price, such as 1.42"),
        ({"UPLOADS": "both"}, "UPLOADS=both: it is one of: workflow worker none"),
        ({"ALERTS": "1"}, "ALERTS=1: it is one of: yes no"),
        ({"BUILD": "1"}, "BUILD=1: it is one of: yes no"),
        ({"VERIFY": "1"}, "VERIFY=1: it is one of: yes no"),
        ({"WEIGHTS": "gcs"}, "WEIGHTS=gcs: it is one of: bucket image none"),
        ({"RETRY_S": "1m"}, "RETRY_S=1m: it is a number from 0 to 600"),
        ({"ALERT_EMAIL": "me"}, "ALERT_EMAIL=me: it is an address, such as ops@example.org"),
        (
            {"CHANNEL": "me@example.org"},
            "CHANNEL=me@example.org: it is projects/…/notificationChannels/…, see: gcloud beta",
        ),
    ],
)
def test_invalid_setting_is_refused(cloud: Cloud, setting: dict[str, str], said: str) -> None:
    """An invalid setting is refused with its permitted values, before any request to Google."""
    done = cloud.run("deploy.sh", **setting)
    assert (done.returncode, cloud.calls()) == (1, [])
    assert done.stderr.startswith(f"deploy.sh: {said}")


@pytest.mark.parametrize("script", ["deploy.sh", "teardown.sh"])
def test_help_sends_no_request(cloud: Cloud, script: str) -> None:
    """--help explains every setting of the script; an unknown argument is refused."""
    done = cloud.run(script, "--help")
    assert (done.returncode, cloud.calls()) == (0, [])
    taken = set(re.findall(r"\b([A-Z_]+)=\"\$\{\1:-", (JOBS / script).read_text()))
    assert taken <= set(re.findall(r"\b[A-Z_]+\b", done.stdout))
    done = cloud.run(script, "--hlep")
    assert (done.returncode, done.stderr) == (1, f"{script}: unknown argument --hlep; see --help\n")


@pytest.mark.slow
def test_default_project_is_that_of_gcloud(cloud: Cloud) -> None:
    """deploy.sh uses the configured project of gcloud if PROJECT is not set."""
    cloud.trouble("services list", "PERMISSION_DENIED: denied")  # the first lines are enough
    assert "in project configured," in cloud.run("deploy.sh", "--dry-run", PROJECT="").stdout


def test_bucket_in_another_region_is_refused(cloud: Cloud) -> None:
    """A bucket in another region is refused, because Eventarc would not receive its uploads."""
    cloud.put(**{"storage buckets/p-voxbatch-in": {"location": "US", "public_access_prevention": "enforced"}})
    done = cloud.run("deploy.sh")
    assert done.returncode == 1
    assert "bucket p-voxbatch-in lies in us, not in europe-west1: choose that REGION, or another bucket" in done.stderr


@pytest.mark.slow
def test_existing_bucket_gets_access_prevention(cloud: Cloud) -> None:
    """An existing bucket gets uniform access and public access prevention, too."""
    open_bucket = {
        "location": "EUROPE-WEST1",
        "uniform_bucket_level_access": False,
        "public_access_prevention": "inherited",
    }
    cloud.put(**{"storage buckets/p-voxbatch-in": open_bucket})
    cloud.trouble("iam service-accounts", "PERMISSION_DENIED: denied")  # what comes before is enough
    cloud.run("deploy.sh")
    there = cloud.world["storage buckets/p-voxbatch-in"]
    assert (there["uniform_bucket_level_access"], there["public_access_prevention"]) == (True, "enforced")


@pytest.mark.slow
@pytest.mark.parametrize("uploads", ["workflow", "worker"])
def test_teardown_removes_all_resources(deployed: Cloud, uploads: str) -> None:
    """teardown.sh removes all resources except for the APIs and Cloud Storage's own permission to publish. A second run
    finds nothing to remove.
    """
    cloud = deployed
    if uploads == "worker":
        cloud.deploy(UPLOADS=uploads)
    assert cloud.run("teardown.sh").returncode == 0
    assert set(cloud.world) == {"apis", "image", "notifications made", "versions", "policy:projects/p"}
    assert cloud.roles("projects/p") == {("service-42", "roles/pubsub.publisher")}
    cloud.calls()
    assert "Nothing to remove." in cloud.run("teardown.sh").stdout
    assert cloud.changes() == []


@pytest.mark.slow
def test_teardown_keeps_data_unless_with_data(deployed: Cloud) -> None:
    """A bucket with objects is kept; --with-data deletes it, too."""
    deployed.put(**{"objects/p-voxbatch-out": ["gs://p-voxbatch-out/out/"]})
    assert "bucket p-voxbatch-out stays: there is something in it" in deployed.run("teardown.sh").stdout
    assert [key for key in deployed.world if key.startswith("storage buckets")] == ["storage buckets/p-voxbatch-out"]
    deployed.run("teardown.sh", "--with-data")
    assert [key for key in deployed.world if key.startswith("storage buckets")] == []


@pytest.mark.parametrize("script", sorted(JOBS.glob("*.sh")), ids=lambda path: path.name)
def test_shellcheck_finds_no_fault(script: Path) -> None:
    """shellcheck finds no fault in any script at its default severity."""
    found = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([found, "--external-sources", str(script)], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == ""


def test_documentation_lists_every_granted_role() -> None:
    """The table of roles in docs/cloud-run.md lists exactly the roles that deploy.sh grants."""
    scripts = "".join((JOBS / name).read_text() for name in ("deploy.sh", "settings.sh", "build.sh"))
    given = set(re.findall(r"roles/[\w.]+", scripts))
    assert set(re.findall(r"`(roles/[\w.]+)`", (ROOT / "docs" / "cloud-run.md").read_text())) == given


# ── checks with the real gcloud ───────────────────────────────────────────────────────────────────────────────────────


def ask_gcloud(question: dict[str, Any]) -> list[str]:
    """Return the faults that gcloud's own parser, printer and API messages find; skip the test without gcloud."""
    binary = shutil.which("gcloud")
    above = Path(binary).resolve().parents if binary else ()
    root = next((folder for folder in above if (folder / "lib/googlecloudsdk").is_dir()), None)
    if root is None:
        pytest.skip("gcloud is not installed: its flags were not checked")
    python = root / "platform/bundledpythonunix/bin/python3"
    command = [str(python) if python.exists() else "python3", str(ROOT / "tests/support/gcloud_real.py")]
    command += [str(root / "lib"), str(root / "lib/third_party")]
    environment = {**os.environ, "CLOUDSDK_CORE_DISABLE_PROMPTS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, input=json.dumps(question), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer: list[str] = json.loads(done.stdout)
    return answer


@dataclass
class Later:
    """A project after its first deployment: other settings, corrections, a worker, and its end."""

    calls: list[dict[str, Any]]
    documents: dict[str, Any]
    """The resources of all deployments, with every setting given."""


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory, first: First) -> Later:
    settings = {"MODEL": "gs://weights/voxtral", "CHANNEL": "projects/p/notificationChannels/7"}
    with project(tmp_path_factory.mktemp("later")) as cloud:
        drifted = copy.deepcopy(first.world)
        drifted["image"] = {"image_summary": {"digest": "sha256:4567"}}
        drifted["pubsub subscriptions/voxbatch-uploads"]["ackDeadlineSeconds"] = 10
        drifted["storage buckets/p-voxbatch-in"]["public_access_prevention"] = "inherited"
        drifted["logging metrics/voxbatch_failed_items"]["description"] = "mine"
        drifted["eventarc triggers/voxbatch"]["labels"] = {}
        cloud.put(**drifted)
        cloud.deploy(SCHEDULE="0 4 * * *", **settings)
        by_workflow = cloud.world
        cloud.deploy(UPLOADS="worker", NIGHTLY="no", **settings)
        by_worker = cloud.world
        cloud.put(**{"objects/p-voxbatch-in": ["gs://p-voxbatch-in/in/"]})
        cloud.run("teardown.sh", "--with-data")
        return Later(cloud.calls(), {**by_worker, **by_workflow})


@pytest.fixture(scope="module")
def all_calls(first: First, later: Later) -> list[dict[str, Any]]:
    """Return every kind of command that the scripts issue, for all settings."""
    return first.calls + later.calls


@pytest.fixture(scope="module")
def documents(later: Later) -> dict[str, Any]:
    """Return the documents that would be sent to Google, with every setting given."""
    return later.documents


@pytest.mark.slow
def test_real_gcloud_accepts_every_command(all_calls: list[dict[str, Any]]) -> None:
    """gcloud's parser accepts every command, flag and value, and its printer gives the output of the fake gcloud."""
    assert len(all_calls) > 200
    commands = sorted({tuple(call["kept"]) for call in all_calls})
    showing = [
        c for c in all_calls if c["rc"] == 0 and "format" in c["flags"] and isinstance(c["resource"], dict | list)
    ]
    shown = [{key: call[key] for key in ("flags", "resource", "out")} for call in showing]
    assert ask_gcloud({"commands": commands, "shown": shown}) == []


@pytest.mark.slow
def test_check_of_gcloud_commands_finds_faults() -> None:
    """The check finds an unknown flag, a missing argument, a wrong value and a wrong field."""
    commands = [
        ["pubsub", "topics", "create"],
        ["pubsub", "topics", "create", "t", "--colour=red"],
        ["pubsub", "subscriptions", "create", "s", "--topic=t", "--ack-deadline=soon"],
        ["scheduler", "jobs", "create", "http", "j", "--location=r", "--schedule=s"],
    ]
    shown = [{"flags": {"format": "value(a)"}, "resource": {"a": 1}, "out": "2"}]
    job = {"spec": {"template": {"spec": {"taskCount": "many"}}}}
    asked = {"commands": commands, "shown": shown, "messages": [{"message": ["", "v1", "Job"], "document": job}]}
    assert len(ask_gcloud(asked)) == 6


@pytest.mark.slow
def test_gcloud_messages_hold_every_document(all_calls: list[dict[str, Any]]) -> None:
    """Jobs, worker pools, alert policies and log metrics fit the messages in which gcloud sends them."""
    kinds = {"Job": ["", "v1", "Job"], "WorkerPool": ["", "v1", "WorkerPool"]}
    messages = []
    for path in {word.rpartition("=")[2] for call in all_calls for word in call["kept"] if word.endswith(".yaml")}:
        document = yaml.safe_load(Path(path).read_text())
        if "main" in document:  # gcloud sends a workflow as plain text
            continue
        other = ["monitoring", "v3", "AlertPolicy"] if "conditions" in document else ["logging", "v2", "LogMetric"]
        messages.append({"message": kinds.get(document.get("kind"), other), "document": document})
    assert {each["message"][2] for each in messages} == {"Job", "WorkerPool", "AlertPolicy", "LogMetric"}
    assert ask_gcloud({"messages": messages}) == []


# ── the files, against Google's API descriptions ──────────────────────────────────────────────────────────────────────


def containers(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the containers of a Cloud Run job or worker pool."""
    spec = document["spec"]["template"]["spec"]
    found: list[dict[str, Any]] = (spec["template"]["spec"] if "template" in spec else spec)["containers"]
    return found


@pytest.mark.slow
def test_jobs_and_worker_pool_are_valid(documents: dict[str, Any]) -> None:
    """Jobs and the worker pool have no unknown, missing or mistyped field by the description of the Admin API. They
    request an L4 with the CPUs and memory that it needs.
    """
    kinds = {key: thing["kind"] for key, thing in documents.items() if isinstance(thing, dict) and "kind" in thing}
    assert kinds == {
        "run jobs/voxbatch": "Job",
        "run jobs/voxbatch-dispatch": "Job",
        "run jobs/voxbatch-nightly": "Job",
        "beta run worker-pools/voxbatch-listen": "WorkerPool",
    }
    for name, kind in kinds.items():
        document = documents[name]
        told = discovery.api("run.v1").faults(document, kind)  # gcloud fills in the namespace, which is the project
        assert [each for each in told if not each.endswith("metadata.namespace: required")] == []
        assert (document["apiVersion"], document["kind"]) == ("run.googleapis.com/v1", kind)
        assert "${" not in json.dumps(document)
        labels = document["metadata"]["labels"]
        assert labels["cloud.googleapis.com/location"] == "europe-west1"
        assert re.fullmatch(r"[a-z0-9_-]{1,63}", labels["voxbatch-config"])
    for name in ("run jobs/voxbatch", "beta run worker-pools/voxbatch-listen"):
        spec = documents[name]["spec"]["template"]["spec"]
        spec = spec["template"]["spec"] if "template" in spec else spec
        (container,) = spec["containers"]
        assert spec["nodeSelector"] == {"run.googleapis.com/accelerator": "nvidia-l4"}
        assert container["resources"]["limits"] == {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"}
        assert {"name": "VOXBATCH_MODEL", "value": "gs://weights/voxtral"} in container["env"]
        annotations = documents[name]["spec"]["template"]["metadata"]["annotations"]
        assert annotations["run.googleapis.com/gpu-zonal-redundancy-disabled"] == "true"


def test_check_of_documents_finds_faults() -> None:
    """The check finds an unknown field, a wrong type, a missing name and an unknown enum value."""
    job = {"spec": {"template": {"spec": {"taskCount": "8", "template": {"spec": {"containers": [{"imag": "x"}]}}}}}}
    told = discovery.api("run.v1").faults(job, "Job")
    assert any("taskCount: int32, not '8'" in each for each in told)
    assert any("imag: no such field" in each for each in told)
    assert any(each.endswith("image: required") for each in told)
    policy = {"combiner": "XOR", "conditions": {}}
    assert len(discovery.api("monitoring.v3").faults(policy, "AlertPolicy")) == 2


@pytest.mark.slow
def test_alerts_and_metrics_are_valid(documents: dict[str, Any]) -> None:
    """Alerts and metrics are valid by the API descriptions; each alert uses a metric of Google's or one that deploy.sh
    makes.
    """
    own = {thing["name"] for key, thing in documents.items() if key.startswith("logging metrics/")}
    googles = {
        "run.googleapis.com/job/completed_execution_count",
        "pubsub.googleapis.com/subscription/num_undelivered_messages",
        "pubsub.googleapis.com/subscription/oldest_unacked_message_age",
        "workflows.googleapis.com/finished_execution_count",
    }
    for key, thing in documents.items():
        if key.startswith("logging metrics/"):
            document = {name: value for name, value in thing.items() if name != "flags"}
            assert discovery.api("logging.v2").faults(document, "LogMetric") == []
        if key.startswith("alert/"):
            assert discovery.api("monitoring.v3").faults(thing, "AlertPolicy") == []
            assert thing["notificationChannels"] == ["projects/p/notificationChannels/7"]
            for condition in thing["conditions"]:
                if "conditionMatchedLog" in condition:  # Monitoring requires a limit, and no other condition
                    assert len(thing["conditions"]) == 1
                    assert "notificationRateLimit" in thing["alertStrategy"]
                    continue
                of = condition["conditionThreshold"]["filter"]
                (metric,) = re.findall(r'metric\.type="([^"]+)"', of)
                assert metric in googles | {f"logging.googleapis.com/user/{name}" for name in own}
                assert len(re.findall(r'resource\.type="', of)) == 1  # Monitoring requires exactly one resource type


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "job", "when"),
    [("voxbatch-nightly", "voxbatch-nightly", "0 4 * * *"), ("voxbatch-sweep", "voxbatch-dispatch", "0 * * * *")],
)
def test_scheduler_posts_a_valid_request(documents: dict[str, Any], name: str, job: str, when: str) -> None:
    """Cloud Scheduler posts a valid RunJobRequest as voxbatch-start: to the nightly job, and every hour to the
    dispatcher.
    """
    schedule = documents[f"scheduler jobs/{name}"]
    assert discovery.api("run.v2").faults(json.loads(schedule["body"]), "GoogleCloudRunV2RunJobRequest") == []
    flags = schedule["flags"]
    assert flags["uri"] == f"https://run.googleapis.com/v2/projects/p/locations/europe-west1/jobs/{job}:run"
    assert (flags["http-method"], flags["schedule"], flags["oauth-service-account-email"]) == (
        "POST",
        when,
        "voxbatch-start@p.iam.gserviceaccount.com",
    )


@pytest.mark.slow
def test_container_arguments_are_voxbatch_commands(documents: dict[str, Any]) -> None:
    """The arguments of each container are a voxbatch command, and its VOXBATCH_… variables are options of `run` or
    `listen`.
    """
    from voxbatch.cli import cli

    known = {p.envvar for name in ("run", "listen") for p in cli.commands[name].params}
    for name, document in documents.items():
        if isinstance(document, dict) and "kind" in document:
            (container,) = containers(document)
            understood(*container["args"])
            others = {each["name"] for each in container.get("env", [])} - known
            assert others <= {"HF_TOKEN"}, name


# ── the workflow ──────────────────────────────────────────────────────────────────────────────────────────────────────

JOB = "projects/p/locations/europe-west1/jobs/voxbatch-dispatch"
SETTINGS = {"JOB": JOB, "BUCKET": "p-in", "PREFIX": "in/"}
WORKFLOW = yaml.safe_load((JOBS / "workflow.yaml").read_text())


class Executions:
    """A fake of Cloud Run that first fails with `faults`, and then counts the executions that it starts.

    With `forever`, the last fault is repeated.
    """

    def __init__(self, *faults: dict[str, Any], forever: bool = False):
        self.faults, self.forever = list(faults), forever
        self.started = 0

    def __call__(self, id: str, arguments: dict[str, Any]) -> Any:
        assert (id, arguments) == ("run.projects.locations.jobs.run", {"name": JOB, "body": {}})
        if self.faults:
            raise workflows.Error(self.faults[0] if self.forever else self.faults.pop(0))
        self.started += 1
        return {"name": "operations/1", "metadata": {"name": f"{JOB}/executions/1"}}


def status(code: int) -> dict[str, Any]:
    """Return the error of Workflows for a status of HTTP."""
    return {"tags": ["HttpError"], "code": code, "message": f"HTTP server responded with error code {code}"}


# https://cloud.google.com/workflows/docs/reference/syntax/error-types
LOST = {"tags": ["ConnectionError"], "message": "connection broken"}
NOT_CONNECTED = {"tags": ["ConnectionFailedError"], "message": "failed to connect"}
SLOW = {"tags": ["TimeoutError"], "message": "timed out"}


def event(name: str, bucket: str = "p-in") -> dict[str, Any]:
    """Return the event that Eventarc sends for an uploaded object."""
    data = {"bucket": bucket, "name": name, "generation": "1"}
    return {"data": data, "type": "google.cloud.storage.object.v1.finalized"}


def upload(name: str, executions: Executions, bucket: str = "p-in", to: str = "p-in") -> str:
    """Run the workflow, which watches the bucket `to`, for an uploaded object and return its result."""
    returned: str = workflows.Run({**SETTINGS, "BUCKET": to}, executions).main(WORKFLOW, event(name, bucket))
    return returned


TRANSIENT = [status(429), status(500), status(502), status(503), status(504), LOST, NOT_CONNECTED, SLOW]


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("fault", TRANSIENT, ids=lambda fault: str(fault.get("code", fault["tags"][0])))
def test_workflow_retries_a_call_that_fails_for_a_while(fault: dict[str, Any], times: int) -> None:
    """A call that fails once or three times because of load, an outage or a lost connection is retried with growing
    waits, and the dispatcher is executed.
    """
    cloud = Executions(*[fault] * times)
    run = workflows.Run(SETTINGS, cloud)
    assert run.main(WORKFLOW, event("in/day.jsonl")) == "dispatched gs://p-in/in/day.jsonl"
    assert (cloud.started, run.waited) == (1, [2, 4, 8][:times])


@pytest.mark.parametrize("fault", TRANSIENT, ids=lambda fault: str(fault.get("code", fault["tags"][0])))
def test_workflow_fails_if_a_call_fails_for_ever(fault: dict[str, Any]) -> None:
    """An outage that lasts longer than all retries fails the execution, which an alert reports, with the upload and the
    cause. The retries last a quarter of an hour at least, and end before the next sweep.
    """
    run = workflows.Run(SETTINGS, Executions(fault, forever=True))
    with pytest.raises(workflows.Error) as failed:
        run.main(WORKFLOW, event("in/day.jsonl"))
    assert failed.value.value.startswith(
        f"cannot execute {JOB}, so that gs://p-in/in/day.jsonl waits for the next sweep"
    )
    assert fault["message"] in failed.value.value
    assert 900 <= sum(run.waited) <= 3600


@pytest.mark.parametrize("code", [400, 401, 403, 404, 409])
def test_workflow_fails_at_once_if_a_retry_cannot_help(code: int) -> None:
    """A missing role or a missing job fails the execution at once."""
    run = workflows.Run(SETTINGS, Executions(status(code), forever=True))
    with pytest.raises(workflows.Error, match=f"code {code}"):
        run.main(WORKFLOW, event("in/day.jsonl"))
    assert run.waited == []


@pytest.mark.parametrize(
    "name", ["in/2026/11/day.jsonl.gz", "in/Day.JSONL.GZ", "in/a.b c.jsonl", *(f"in/day{each}" for each in SUFFIXES)]
)
def test_uploaded_manifest_wakes_the_dispatcher(name: str) -> None:
    """A manifest of each kind that the listener takes executes the dispatcher, which gets no arguments: it reads the
    upload from Pub/Sub.
    """
    cloud = Executions()
    assert upload(name, cloud) == f"dispatched gs://p-in/{name}"
    assert cloud.started == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("in/call.flac", "not a manifest gs://p-in/in/call.flac"),
        ("in/day.json", "not a manifest gs://p-in/in/day.json"),
        ("in/.jsonl", "hidden gs://p-in/in/.jsonl"),
        ("in/.tmp/day.jsonl", "hidden gs://p-in/in/.tmp/day.jsonl"),
        ("in/day.jsonl/part.flac", "not a manifest gs://p-in/in/day.jsonl/part.flac"),
        ("out/day.jsonl", "not ours, another prefix gs://p-in/out/day.jsonl"),
        ("nightly/day.jsonl", "not ours, another prefix gs://p-in/nightly/day.jsonl"),
        ("in/", "not ours, another prefix gs://p-in/in/"),
        ("x", "not ours, another prefix gs://p-in/x"),
    ],
)
def test_other_uploads_start_nothing(name: str, said: str) -> None:
    """Uploads with other suffixes or prefixes end the workflow before any request to Cloud Run."""
    cloud = Executions()
    assert upload(name, cloud) == said
    assert cloud.started == 0


def is_delivered(message_filter: str, attributes: dict[str, str]) -> bool:
    """Evaluate the filter of a subscription: https://cloud.google.com/pubsub/docs/subscription-message-filter"""
    assert len(message_filter.encode()) <= 256  # Pub/Sub's limit
    python = re.sub(r"hasPrefix\(attributes\.(\w+), (\".*?\")\)", r'a.get("\1", "").startswith(\2)', message_filter)
    python = re.sub(r"attributes\.(\w+) = (\".*?\")", r'(a.get("\1") == \2)', python)
    python = re.sub(r"attributes:(\w+)", r'("\1" in a)', python)
    for word in ("NOT", "AND", "OR"):
        python = python.replace(f"{word} ", f"{word.lower()} ")
    return bool(eval(python, {"a": attributes}))


@pytest.mark.slow
def test_each_upload_is_kept_until_the_right_dispatcher_runs_it(documents: dict[str, Any], first: First) -> None:
    """For each upload: what a dispatcher would run is in its subscription and in no other one, and in a notification of
    the bucket. The workflow wakes the dispatcher for exactly the manifests below in/, and starts nothing else.
    """
    rules, filters = {}, {}
    for job, name in (("dispatch", "uploads"), ("nightly", "nightly")):
        (container,) = containers(documents[f"run jobs/voxbatch-{job}"])
        option = dict(itertools.pairwise(container["args"]))
        assert option["--subscription"] == f"projects/p/subscriptions/voxbatch-{name}"
        given = ([option["--prefix"]], [option["--recordings"]] if "--recordings" in option else [])
        rules[name] = Rules.from_options(option["-o"], *given)
        filters[name] = first.world[f"pubsub subscriptions/voxbatch-{name}"]["flags"]["message-filter"]
    notified = made(documents)["notifications"]
    settings = documents["workflows/voxbatch"]["flags"]["set-env-vars"]
    assert dict(each.split("=", 1) for each in settings.split(",")) == {**SETTINGS, "BUCKET": "p-voxbatch-in"}

    names = ["call.flac", "day.json", ".day.jsonl", "day.jsonl/", "a/day.jsonl", "day.jsonl.bak", "talk.MP3", "jsonl"]
    names += [f"day{suffix}" for suffix in SUFFIXES] + [f"Day{suffix.upper()}" for suffix in SUFFIXES]
    folders = ["in/", "in/2026/", "in/.tmp/", "in", "nightly/", "nightly/2026/", "nightlyx/", "x/in/", ""]
    for upload_name in (folder + name for name in names for folder in folders):
        attributes = {"eventType": "OBJECT_FINALIZE", "bucketId": "p-voxbatch-in", "objectId": upload_name}
        asked = {name: read(ReceivedMessage("1", b"", attributes), rules[name]) for name in rules}
        for name, request in asked.items():
            kept = is_delivered(filters[name], attributes) and upload_name.startswith(tuple(notified))
            assert kept or isinstance(request, Ignored), upload_name
            assert not is_delivered(filters[name], {**attributes, "eventType": "OBJECT_DELETE"})
        assert any(isinstance(request, Ignored) for request in asked.values()), upload_name
        upload(upload_name, cloud := Executions(), bucket="p-voxbatch-in", to="p-voxbatch-in")
        assert cloud.started == isinstance(asked["uploads"], RunRequest), upload_name
    assert [is_delivered(filters[name], {}) for name in ("uploads", "nightly")] == [True, False]  # people's messages


def test_another_bucket_starts_nothing() -> None:
    """An event of another bucket starts nothing."""
    assert upload("in/day.jsonl", cloud := Executions(), bucket="q") == "not ours, another bucket gs://q/in/day.jsonl"
    assert cloud.started == 0


JOBS_RUN = {"call": "googleapis.run.v2.projects.locations.jobs.run", "args": {"name": "j"}}
RETRY = {"max_retries": 1, "backoff": {"initial_delay": 1, "max_delay": 1, "multiplier": 1}}


def test_workflow_is_valid() -> None:
    """The workflow uses only known words, existing steps and defined names, and its API calls match the API
    description.
    """
    assert workflows.problems(WORKFLOW) == []
    assert set(re.findall(r'get_env\("(\w+)"\)', (JOBS / "workflow.yaml").read_text())) == set(SETTINGS)


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ({"cal": "x"}, "no step of Workflows"),
        ({"assign": [{"a": "${nobody}"}]}, "nothing sets nobody"),
        ({"assign": [{"a": "${text.reverse(event)}"}]}, "nothing sets text.reverse"),
        ({"switch": [{"condition": "${true}", "next": "nowhere"}]}, "no step nowhere"),
        ({"call": "googleapis.run.v2.projects.locations.jobs.run", "args": {"nam": "x"}}, "takes no nam"),
        ({"call": "googleapis.run.v2.projects.locations.jobs.run", "args": {}}, "needs name"),
        ({"try": {"return": 1}, "except": {"as": "e", "steps": []}}, "no try of Workflows"),
        ({"try": JOBS_RUN}, "no try of Workflows"),
        ({"try": JOBS_RUN, "retry": {"predicate": "${p}"}}, "no retry of Workflows"),
        ({"try": JOBS_RUN, "retry": {**RETRY, "predicate": "${p}"}}, "nothing sets p"),
        ({"try": JOBS_RUN, "except": {"steps": []}}, "no except of Workflows"),
        ({"try": JOBS_RUN, "except": {"as": "e", "steps": [{"x": {"raise": "${f}"}}]}}, "nothing sets f"),
    ],
)
def test_check_of_workflows_finds_faults(step: dict[str, Any], problem: str) -> None:
    """The check finds an unknown word, name, function, step or argument."""
    assert any(problem in told for told in workflows.problems({"main": {"params": ["event"], "steps": [{"s": step}]}}))
