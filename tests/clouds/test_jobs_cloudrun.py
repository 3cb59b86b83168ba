"""Tests for jobs/cloudrun.

The scripts run with a fake gcloud and a fake terraform; their commands are compared with the parser of the real gcloud
and with the variables of the modules. What the modules make is tested in test_terraform.py. The workflow runs in an
interpreter of the Workflows syntax.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import terraform
import workflows
import yaml
from cloudrun_deployment import (
    APPLY,
    CURRENT,
    FOLDER,
    IMAGE,
    JOBS,
    TOKEN,
    Cloud,
    ask_gcloud,
    declared,
    faults_of_calls,
    given,
    project,
)  # fmt: skip
from cloudrun_plan import PROJECT, bindings, container, of_kind, planned
from conftest import ROOT

from voxbatch.clouds.listen.message import Ignored, ReceivedMessage, RunRequest, read
from voxbatch.clouds.listen.rules import PlaceRules
from voxbatch.sources.kinds import JSON_LINES

SUFFIXES = JSON_LINES.certain
"""Extensions of the manifests that an upload may have."""
APIS = ("cloudresourcemanager", "iam", "serviceusage", "storage")
"""APIs that Terraform itself needs."""
CLOSED = "--uniform-bucket-level-access --public-access-prevention"

# ── the scripts ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    with project(tmp_path) as made:
        yield made


@pytest.mark.slow
def test_deploy_applies_the_modules_with_every_setting(cloud: Cloud) -> None:
    """deploy.sh makes the bucket of the state, closed and with old versions. It applies the foundation and the jobs,
    with a state of their own in it, as the person who is logged in. Each setting becomes a variable.
    """
    cloud.put(**CURRENT)
    cloud.deploy(
        UPLOADS="worker", NIGHTLY="no", SCHEDULE="30 3 * * 1-5", TIME_ZONE="Europe/Berlin", TASKS="8", PARALLELISM="4",
        MAX_RETRIES="2", TASK_TIMEOUT="43200", MEMORY_GIB="32", DISK_GIB="0", USD_PER_HOUR="1.5", BUCKET_IN="calls",
        BUCKET_OUT="texts", BUCKET_KERNELS="kernels", PREFIX_UPLOADS="new/", PREFIX_NIGHTLY="night/", SCAN="yes",
        MAX_TASKS="20", MAX_USD="50", MAX_USD_PER_DAY="70", BUDGET_USD="900", BATCH_WINDOW="5",
    )  # fmt: skip
    assert cloud.changes() == [
        f"services enable {' '.join(f'{api}.googleapis.com' for api in APIS)}",
        f"storage buckets create gs://p-voxbatch-state --location=europe-west1 {CLOSED}",
        "storage buckets update gs://p-voxbatch-state --versioning",
    ]
    backend = "init -input=false -reconfigure -backend-config=bucket=p-voxbatch-state -backend-config=prefix=voxbatch"
    assert cloud.terraform.made("init", "apply") == [
        f"foundation {backend}/foundation", f"foundation {APPLY}", f"jobs {backend}/jobs", f"jobs {APPLY}",
    ]  # fmt: skip
    common = {"project": "p", "region": "europe-west1", "bucket_models": "p-voxbatch-models", "hub_token": "false"}
    assert given(cloud, "foundation") == {**common, "alert_email": "ops@example.org", "scan": "true"}
    assert given(cloud, "jobs") == {
        **common, "image": IMAGE, "model": FOLDER, "bucket_in": "calls", "bucket_out": "texts",
        "bucket_kernels": "kernels", "uploads": "worker", "nightly": "false", "schedule": "30 3 * * 1-5",
        "time_zone": "Europe/Berlin", "tasks": "8", "parallelism": "4", "max_retries": "2", "task_timeout": "43200",
        "memory_gib": "32", "disk_gib": "0", "usd_per_hour": "1.5", "prefix_uploads": "new/",
        "prefix_nightly": "night/", "max_tasks": "20", "max_usd": "50", "max_usd_per_day": "70", "budget_usd": "900",
        "billing_account": "0A-1B-2C", "batch_window": "5", "alerts": "true",
        "channel": "projects/p/notificationChannels/1",
    }  # fmt: skip
    assert given(cloud, "jobs").keys() == declared("jobs")
    assert 'GOOGLE_OAUTH_ACCESS_TOKEN="ya29.token"' in cloud.terraform.commands[-1].environment


@pytest.mark.slow
def test_later_runs_need_no_image_model_or_address(cloud: Cloud) -> None:
    """A second run finds the image, the weights and the mail address of before. It changes nothing outside of
    Terraform. ALERTS=no keeps the address for the service.
    """
    cloud.put(**CURRENT)
    cloud.deploy()
    before = given(cloud, "jobs")
    cloud.calls()
    cloud.deploy(ALERT_EMAIL="")
    assert (given(cloud, "jobs"), cloud.changes()) == (before, [])
    assert given(cloud, "foundation")["alert_email"] == "ops@example.org"
    cloud.deploy(ALERT_EMAIL="", ALERTS="no")
    assert (given(cloud, "foundation")["alert_email"], given(cloud, "jobs")["alerts"]) == ("ops@example.org", "false")
    cloud.deploy(CHANNEL="projects/p/notificationChannels/7")
    assert given(cloud, "jobs")["channel"] == "projects/p/notificationChannels/7"


@pytest.mark.slow
def test_settings_live_with_the_deployment(cloud: Cloud) -> None:
    """`PARALLELISM=1 deploy.sh` changes the parallelism and nothing else: a worker stays a worker, and schedule, time
    limit, memory and folders stay. The script says what is changed. --defaults forgets the settings; a dry run and a
    failed deployment remember nothing; a teardown finds the buckets.
    """
    cloud.put(**CURRENT)
    settings = {
        "REGION": "us-central1", "UPLOADS": "worker", "SCHEDULE": "30 3 * * 1-5", "TASK_TIMEOUT": "43200",
        "MEMORY_GIB": "32", "PREFIX_UPLOADS": "new/", "BUCKET_IN": "calls", "ALERTS": "no", "MODEL": "/models/own",
    }  # fmt: skip
    cloud.deploy(**settings)
    before = given(cloud, "jobs")
    said = cloud.deploy(PARALLELISM="1", ALERT_EMAIL="")
    assert given(cloud, "jobs") == before | {"parallelism": "1"}
    assert "= settings of the last deployment, except PARALLELISM=1 (was 0)" in said
    cloud.deploy("deploy.sh", "--dry-run", PARALLELISM="7")
    cloud.terraform.errors = ["Error: no"]
    assert cloud.run("deploy.sh", PARALLELISM="8").returncode == 1
    cloud.deploy()
    assert given(cloud, "jobs") == before | {"parallelism": "1"}
    cloud.run("teardown.sh", "--dry-run")
    assert given(cloud, "jobs")["bucket_in"] == "calls"
    cloud.deploy("deploy.sh", "--defaults")
    assert given(cloud, "jobs").items() >= {"uploads": "workflow", "region": "europe-west1", "parallelism": "0"}.items()


@pytest.mark.slow
def test_image_of_a_rollback_stays_until_the_next_build(cloud: Cloud) -> None:
    """An image that was given is that of later deployments, until a build makes another one."""
    cloud.put(**CURRENT)
    cloud.deploy(IMAGE=IMAGE)
    assert "IMAGE=" + IMAGE in cloud.gcloud.world.things["object p-voxbatch-state/voxbatch/settings"]
    cloud.deploy(BUILD="yes", VERIFY="no")
    assert "IMAGE=" not in cloud.gcloud.world.things["object p-voxbatch-state/voxbatch/settings"]


LOSS = """
  # google_pubsub_subscription.uploads["voxbatch-uploads"] must be replaced
-/+ resource "google_pubsub_subscription" "uploads" {
  # google_pubsub_subscription_iam_member.grant["x"] must be replaced
  # google_storage_bucket.bucket["in"] will be updated in-place
"""


@pytest.mark.slow
def test_messages_and_data_are_deleted_only_with_a_yes(cloud: Cloud) -> None:
    """A plan that replaces a subscription is shown and not applied, unless a person says yes or REPLACE=yes."""
    cloud.deploy()
    before = cloud.terraform.made()
    cloud.terraform.losses = LOSS
    done = cloud.run("deploy.sh", PREFIX_UPLOADS="new/")
    assert done.returncode == 1
    assert '# google_pubsub_subscription.uploads["voxbatch-uploads"] must be replaced\n' in done.stdout
    assert "iam_member" not in done.stdout
    assert "nothing of the module foundation was changed" in done.stderr
    assert cloud.terraform.made() == before
    cloud.on_terminal("deploy.sh", PREFIX_UPLOADS="new/", answer="no\nno\n")
    assert cloud.terraform.made() == before
    cloud.on_terminal("deploy.sh", PREFIX_UPLOADS="new/", answer="yes\nyes\n")
    assert cloud.terraform.made() == [*before, f"foundation {APPLY}", f"jobs {APPLY}"]
    cloud.deploy(REPLACE="yes")
    assert cloud.terraform.made()[-2:] == [f"foundation {APPLY}", f"jobs {APPLY}"]


@pytest.mark.slow
@pytest.mark.skipif(terraform.terraform() is None, reason="terraform is not installed")
def test_real_terraform_keeps_what_holds_messages(cloud: Cloud, tmp_path: Path) -> None:
    """Terraform's own plan of a replacement is recognised, and the refusal leaves the state as it was."""
    module = tmp_path / "terraform" / "jobs"
    inner = module / "subscription"
    inner.mkdir(parents=True)
    (inner / "main.tf").write_text(
        'variable "filter" {}\nresource "terraform_data" "uploads" {\n  triggers_replace = var.filter\n}\n'
    )
    (module / "main.tf").write_text(
        'variable "filter" {}\nmodule "google_pubsub_subscription" {\n'
        '  source = "./subscription"\n  filter = var.filter\n}\n'
    )
    assert terraform.run(module, "init").returncode == 0
    (cloud.programs / "terraform").unlink()
    functions = 'source "$1/settings.sh"; source "$1/terraform.sh"; HERE="$2"; WORK="$2"; ATTEMPTS=1; apply jobs'

    def apply(**settings: str) -> subprocess.CompletedProcess[str]:
        _, environment = cloud.command("deploy.sh", TF_CLI_CONFIG_FILE="/dev/null", **settings)
        command = ["bash", "-euo", "pipefail", "-c", functions, "deploy.sh", str(JOBS), str(tmp_path)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    assert apply(TF_VAR_filter="in/").returncode == 0
    state = (module / "terraform.tfstate").read_text()
    refused = apply(TF_VAR_filter="new/")
    assert (refused.returncode, (module / "terraform.tfstate").read_text()) == (1, state)
    assert "# module.google_pubsub_subscription.terraform_data.uploads must be replaced" in refused.stdout
    assert "nothing of the module jobs was changed" in refused.stderr
    assert apply(TF_VAR_filter="in/").returncode == 0
    assert apply(TF_VAR_filter="new/", REPLACE="yes").returncode == 0
    assert (module / "terraform.tfstate").read_text() != state


@pytest.mark.slow
def test_buckets_that_exist_are_taken_over(cloud: Cloud) -> None:
    """Terraform takes over a bucket that exists, such as one that teardown.sh has left, once. A bucket in another
    region is refused, because Eventarc would not receive its uploads.
    """
    cloud.put(**{"storage buckets/calls": {"location": "EUROPE-WEST1"}})
    cloud.deploy(BUCKET_IN="calls")
    cloud.deploy(BUCKET_IN="calls")
    assert cloud.terraform.made("import") == ['jobs import -input=false google_storage_bucket.bucket["in"] calls']
    cloud.put(**{"storage buckets/far": {"location": "US"}})
    done = cloud.run("deploy.sh", BUCKET_OUT="far")
    assert done.returncode == 1
    assert "bucket far lies in us, not in europe-west1: choose that REGION, or another bucket" in done.stderr


def test_denied_read_stops_deploy(cloud: Cloud) -> None:
    """A denied read is not mistaken for a missing resource."""
    cloud.trouble("artifacts docker images", "PERMISSION_DENIED: Permission 'a.get' denied (or it may not exist)")
    done = cloud.run("deploy.sh")
    assert (done.returncode, "PERMISSION_DENIED" in done.stderr) == (1, True)
    assert done.stderr.splitlines()[-1].startswith("deploy.sh: could not look: gcloud artifacts docker images describe")


# Google's own words for what passes by itself, as Terraform repeats them.
PASSING = yaml.safe_load("""
- "googleapi: Error 400: Service account voxbatch-run@p does not exist., badRequest"
- >-
  Error 400: Invalid resource state for "": Permission denied while using the Eventarc Service Agent. If you recently
  started to use Eventarc, it may take a few minutes before all necessary permissions are propagated to the Service
  Agent.
- "Error 403: Permission 'iam.serviceaccounts.actAs' denied on service account voxbatch-run@p (or it may not exist)."
- "Error 404: Cannot find metric(s) that match type = logging.googleapis.com/user/voxbatch_failed_items."
- >-
  Error 403: Cloud Pub/Sub API has not been used in project 42 before or it is disabled. Enable it by visiting
  https://console.developers.google.com/apis/api/pubsub.googleapis.com/overview?project=42 then retry.
""")


@pytest.mark.parametrize("said", PASSING)
def test_errors_that_pass_by_themselves_are_waited_for(cloud: Cloud, said: str) -> None:
    """Accounts, service agents, roles, APIs and metrics that Google does not know everywhere yet are waited for."""
    cloud.terraform.errors += [f"Error: {said}"] * 3
    assert cloud.deploy().count("  … not yet: ") == 3


# Google's own words for what somebody must set right: how often it is tried, and parts of our message.
REFUSALS = yaml.safe_load("""
- - >-
    Error 400: Billing account for project '42' is not found. Billing must be enabled for activation of service(s)
    'run.googleapis.com,artifactregistry.googleapis.com' to proceed.
  - 1
  - ["There is no billing: project p", "https://console.cloud.google.com/billing/linkedaccount?project=p"]
- - "googleapi: Error 403: me@example.org does not have storage.buckets.create access to the Google Cloud project."
  - 1
  - ["A role is missing: me@example.org needs the role Owner", "https://console.cloud.google.com/iam-admin/iam?project=p"]
- - "You do not have quota for using GPUs without zonal redundancy. Learn more: g.co/cloudrun/gpu-redundancy-help"
  - 1
  - - "There is no GPU quota: project p may not use NVIDIA L4s in europe-west1, or not as many."
    - "NvidiaL4GpuAllocNoZonalRedundancyPerProjectRegion (Cloud Run Admin API, region europe-west1)"
    - "https://console.cloud.google.com/iam-admin/quotas?project=p"
- - "Quota violated: NvidiaL4GpuAllocNoZonalRedundancyPerProjectRegion requested: 3 allowed: 1"
  - 1
  - ["There is no GPU quota: project p may not use NVIDIA L4s in europe-west1, or not as many."]
- - "Quota violated: CpuAllocPerProjectRegion requested: 60000 allowed: 20000"
  - 1
  - ["may use 20 vCPU in Cloud Run at a time", "and this needs 60.", "Ask for more of CpuAllocPerProjectRegion"]
- - "Quota violated: MemAllocPerProjectRegion requested: 85899345920 allowed: 42949672960"
  - 1
  - ["may use 40 GiB of memory in Cloud Run", "and this needs 80.", "40 GiB and 20 vCPU", "MEMORY_GIB"]
- - >-
    Error 403: Cloud Run Admin API has not been used in project 42 before or it is disabled. Enable it by visiting
    https://console.developers.google.com/apis/api/run.googleapis.com/overview?project=42 then retry.
  - 60
  - ["An API is switched off: run.googleapis.com.", "gcloud services enable run.googleapis.com --project=p"]
- - "Error 400: Service account service-42@serverless-robot-prod.iam.gserviceaccount.com (service agent) is absent"
  - 60
  - ["a service agent, does not exist yet, or does not have its role yet."]
""")


@pytest.mark.slow
@pytest.mark.parametrize(("said", "times", "told"), REFUSALS)
def test_refusals_are_explained(cloud: Cloud, said: str, times: int, told: list[str]) -> None:
    """A refusal that a person can set right is explained: no billing, a missing role, a quota of GPUs, memory or CPUs,
    an API that is switched off, a service agent that is not there. Only those that may pass are tried again.
    """
    cloud.terraform.errors += [f"Error: {said}"] * 99
    done = cloud.run("deploy.sh")
    assert done.returncode == 1
    assert all(part in done.stderr for part in [said, *told]), done.stderr
    assert done.stderr.splitlines()[-1].startswith("deploy.sh: could not apply the module foundation; what was done")
    assert len(cloud.terraform.made("apply")) == times


@pytest.mark.slow
def test_hub_token_is_in_no_argument_or_output(cloud: Cloud) -> None:
    """The hub token reaches Secret Manager through standard input, after Terraform has made the secret, and is in no
    argument, output or environment variable. The same token is not stored twice, a new one is, and later runs without a
    token keep it.
    """
    said = cloud.deploy(HF_TOKEN=TOKEN)
    calls = cloud.calls()
    assert TOKEN not in said + "".join(each.environment for each in cloud.terraform.commands)
    assert [call["stdin"] for call in calls if call["stdin"]] == [TOKEN]
    assert TOKEN not in json.dumps([[call["argv"], call["environment"]] for call in calls])
    assert (given(cloud, "foundation")["hub_token"], given(cloud, "jobs")["hub_token"]) == ("true", "true")
    cloud.put(**{"secrets/voxbatch-hf-token": {"name": "voxbatch-hf-token"}})
    cloud.deploy(HF_TOKEN=TOKEN)
    assert cloud.changes() == []
    cloud.deploy()
    assert given(cloud, "jobs")["hub_token"] == "true"
    cloud.deploy(HF_TOKEN="hf_another")
    assert cloud.changes() == ["secrets versions add voxbatch-hf-token --data-file=-"]
    assert cloud.gcloud.world.things["versions"] == [TOKEN, "hf_another"]


def test_alerts_that_nobody_reads_are_refused(cloud: Cloud) -> None:
    """deploy.sh has no address, channel or terminal: it stops before it changes anything, with what to set."""
    done = cloud.run("deploy.sh", ALERT_EMAIL="")
    assert (done.returncode, cloud.changes(), cloud.terraform.made()) == (1, [], [])
    assert done.stderr.startswith("deploy.sh: whom should alerts tell? Set ALERT_EMAIL=you@example.org, or CHANNEL=")
    assert "ALERTS=no: then nobody hears of" in done.stderr


@pytest.mark.slow
def test_address_for_alerts_is_asked_for_on_a_terminal(cloud: Cloud) -> None:
    """On a terminal, deploy.sh asks for the address."""
    done = cloud.on_terminal("deploy.sh", answer="me@example.org\n", ALERT_EMAIL="")
    assert "E-mail address for alerts of failed runs" in done
    assert given(cloud, "foundation")["alert_email"] == "me@example.org"


@pytest.mark.slow
def test_dry_run_changes_nothing(cloud: Cloud) -> None:
    """--dry-run shows Terraform's plans and the steps around them, and makes none, also of a build. Before the first
    deployment, it plans in a copy without the bucket of the state.
    """
    said = cloud.deploy("deploy.sh", "--dry-run", HF_TOKEN=TOKEN, BUILD="yes")
    assert (cloud.changes(), cloud.terraform.made()) == ([], [])
    assert cloud.terraform.made("plan") == ["foundation plan -input=false", "jobs plan -input=false"]
    assert "+ make bucket p-voxbatch-state" in said
    assert "+ build europe-west1-docker.pkg.dev/p/voxbatch/voxbatch:latest" in said
    assert not any("bucket=" in line for line in cloud.terraform.made("init"))
    cloud.deploy()
    cloud.calls()
    before = cloud.terraform.made()
    assert cloud.run("teardown.sh", "--dry-run").returncode == 0
    assert (cloud.changes(), cloud.terraform.made()) == ([], before)
    assert cloud.terraform.made("plan")[4:] == [
        "jobs plan -destroy -input=false",
        "foundation plan -destroy -input=false",
    ]


@pytest.mark.slow
def test_missing_image_stops_deploy_with_the_build_command(cloud: Cloud) -> None:
    """deploy.sh applies the foundation, stops, and prints the build command if the image does not exist. An image from
    another registry is used as given.
    """
    cloud.trouble("docker images describe", "Image not found.")
    done = cloud.run("deploy.sh")
    assert done.returncode == 1
    assert "voxbatch/voxbatch:latest is not there yet: build it, with BUILD=yes and the same settings." in done.stderr
    assert cloud.terraform.made() == [f"foundation {APPLY}"]
    cloud.deploy(IMAGE="ghcr.io/me/voxbatch:1")
    assert given(cloud, "jobs")["image"] == "ghcr.io/me/voxbatch:1"


@pytest.mark.slow
def test_one_command_builds_deploys_and_verifies(cloud: Cloud) -> None:
    """BUILD=yes goes from an empty project to a verified deployment: a job with a sample image shows a missing quota,
    the build follows, then the jobs by the digest of what was built, with its weights; doctor runs on a GPU, one
    recording is transcribed, and another job compiles the kernels from it.
    """
    outputs = {"txt/weather.txt": "Here is the weather.\n", "summary.json": '{\n  "wall_s": 21.5\n}\n'}
    cloud.put(**CURRENT, **{"outputs of a run": outputs, "log": [{"textPayload": "ready: voxbatch run"}]})
    said = cloud.deploy(BUILD="yes", BASE_IMAGE="vllm/vllm-openai:v0.32.0-cu129")
    assert cloud.terraform.made() == [f"foundation {APPLY}", f"jobs {APPLY}", f"jobs {APPLY}"]
    sample = '-target=google_cloud_run_v2_job.gpu["voxbatch"]'
    assert [line.endswith(sample) for line in cloud.terraform.made("plan")] == [False, True, False]
    assert (given(cloud, "jobs")["image"], given(cloud, "jobs")["model"]) == (IMAGE, FOLDER)
    changes = cloud.changes()
    (build,) = [change for change in changes if change.startswith("builds submit")]
    assert "_BASE_IMAGE=vllm/vllm-openai:v0.32.0-cu129," in build
    ran = [change.split()[3] for change in changes if change.startswith("run jobs execute")]
    assert ran == ["voxbatch", "voxbatch", "voxbatch-kernels"]
    assert "ready: voxbatch run" in said
    assert "  transcript:\n    Here is the weather.\n  cost: " in said
    cloud.deploy(BUILD="yes", VERIFY="no")
    assert cloud.terraform.made()[3:] == [f"foundation {APPLY}", f"jobs {APPLY}"]


def test_missing_quota_shows_before_the_build(cloud: Cloud) -> None:
    """A missing quota stops the first deployment before an hour of building."""
    cloud.terraform.errors += ["", "You do not have quota for using GPUs without zonal redundancy."]
    done = cloud.run("deploy.sh", BUILD="yes")
    assert (done.returncode, "There is no GPU quota" in done.stderr) == (1, True)
    assert not any(change.startswith("builds") for change in cloud.changes())


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"TASKS": "0"}, "TASKS=0: it is a number from 1 to 10000"),
        ({"MAX_RETRIES": "11"}, "MAX_RETRIES=11: it is a number from 0 to 10"),
        ({"TASK_TIMEOUT": "1h"}, "TASK_TIMEOUT=1h: it is a number from 60 to 43200"),
        ({"MEMORY_GIB": "8"}, "MEMORY_GIB=8: it is a number from 16 to 32"),
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
    assert (done.returncode, cloud.changes()) == (1, [])
    assert done.stderr.startswith(f"deploy.sh: {said}")


@pytest.mark.parametrize("script", ["deploy.sh", "teardown.sh", "service/deploy.sh", "service/teardown.sh"])
def test_help_sends_no_request(cloud: Cloud, script: str) -> None:
    """--help explains every setting of the script; an unknown argument is refused."""
    done = cloud.run(script, "--help")
    assert (done.returncode, cloud.calls()) == (0, [])
    texts = [(JOBS / script).read_text(), *([(JOBS / "build.sh").read_text()] if "deploy" in script else [])]
    taken = set(re.findall(r"\b_?([A-Z_]+)=\"?\$\{\1:-", "".join(texts)))
    assert taken <= set(re.findall(r"\b[A-Z_]+\b", done.stdout))
    done = cloud.run(script, "--hlep")
    name = Path(script).name
    assert (done.returncode, done.stderr) == (1, f"{name}: unknown argument --hlep; see --help\n")


def test_default_project_is_that_of_gcloud(cloud: Cloud) -> None:
    """deploy.sh uses the configured project of gcloud if PROJECT is not set."""
    assert "in project configured," in cloud.deploy("deploy.sh", "--dry-run", PROJECT="")


@pytest.mark.slow
def test_teardown_destroys_what_deploy_made(cloud: Cloud) -> None:
    """teardown.sh destroys the jobs, then the foundation and the state. A bucket with objects stays, and Terraform
    forgets it first; --with-data empties it. A second run finds nothing to remove.
    """
    cloud.deploy()
    cloud.put(**{"objects/p-voxbatch-out": ["gs://p-voxbatch-out/out/"]})
    cloud.calls()
    said = cloud.run("teardown.sh")
    assert "bucket p-voxbatch-out stays: there is something in it" in said.stdout, said.stderr
    destroy = "destroy -input=false -auto-approve"
    forget = 'jobs state rm google_storage_bucket.bucket["out"]'
    assert cloud.terraform.made()[2:] == [forget, f"jobs {destroy}", f"foundation {destroy}"]
    assert cloud.changes() == ["storage rm --recursive gs://p-voxbatch-state"]
    assert "Nothing to remove" in cloud.run("teardown.sh").stdout

    cloud.deploy()
    cloud.calls()
    assert cloud.run("teardown.sh", "--with-data").returncode == 0
    assert cloud.changes()[0] == "storage rm --recursive gs://p-voxbatch-out/**"
    assert len(cloud.terraform.made("state rm")) == 1


def test_missing_terraform_is_named(cloud: Cloud) -> None:
    """deploy.sh says where to get Terraform if it is missing."""
    command, environment = cloud.command("deploy.sh")
    (cloud.programs / "terraform").unlink()
    for name in ("bash", "dirname", "basename", "mktemp", "rm", "cat"):
        (cloud.programs / name).symlink_to(f"/usr/bin/{name}" if Path(f"/usr/bin/{name}").exists() else f"/bin/{name}")
    done = subprocess.run(command, env={**environment, "PATH": str(cloud.programs)}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "terraform is not installed. Cloud Shell has it; elsewhere see https://" in done.stderr


@pytest.mark.parametrize("script", ["deploy.sh", "service/deploy.sh", "teardown.sh"])
def test_old_terraform_stops_before_any_change(cloud: Cloud, script: str) -> None:
    """A Terraform that is older than Cloud Shell's is refused before any other command."""
    cloud.terraform.version = "1.4.6"
    done = cloud.run(script)
    assert done.returncode == 1
    assert "terraform is Terraform v1.4.6, and 1.5 or newer is needed. Nothing was changed." in done.stderr
    assert cloud.changes() == []
    assert cloud.terraform.commands == []


def test_printed_line_installs_a_newer_terraform(cloud: Cloud, tmp_path: Path) -> None:
    """The line that deploy.sh prints puts HashiCorp's program into the home's bin and on PATH. A folder takes the place
    of its server.
    """
    cloud.terraform.version = "1.4.6"
    line = cloud.run("deploy.sh").stderr.splitlines()[-1]
    archive = re.search(r"https://releases\.hashicorp\.com(/terraform/(\S+)/terraform_\2_linux_amd64\.zip)", line)
    assert archive
    place = tmp_path / "releases" / archive[1].lstrip("/")
    place.parent.mkdir(parents=True)
    with zipfile.ZipFile(place, "w") as zipped:
        program = zipfile.ZipInfo("terraform")
        program.external_attr = 0o755 << 16
        zipped.writestr(program, "#!/bin/sh\necho new\n")
        zipped.writestr("LICENSE.txt", "")
    line = line.replace("https://releases.hashicorp.com", f"file://{tmp_path}/releases")
    home = tmp_path / "home"
    home.mkdir()
    env = {"HOME": str(home), "PATH": os.environ["PATH"]}
    done = subprocess.run(["bash", "-euc", f"{line}; terraform"], env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("new\n", "")
    assert [path.name for path in (home / "bin").iterdir()] == ["terraform"]


@pytest.mark.slow
def test_documentation_lists_every_granted_role() -> None:
    """The table of roles in docs/cloud-run.md lists exactly the roles that the modules grant."""
    plans = (planned("foundation"), planned("jobs"), planned("jobs", uploads="worker", nightly=False))
    granted = {role for plan in plans for _, role, _ in bindings(plan)}
    assert set(re.findall(r"`(roles/[\w.]+)`", (ROOT / "docs" / "cloud-run.md").read_text())) == granted


@pytest.mark.slow
def test_real_gcloud_accepts_every_command(cloud: Cloud) -> None:
    """gcloud's parser accepts every command, flag and value, and its printer gives the output of the fake gcloud."""
    cloud.put(**CURRENT, **{"objects/p-voxbatch-in": ["gs://p-voxbatch-in/in/"]})
    cloud.deploy(HF_TOKEN=TOKEN)
    cloud.run("teardown.sh", "--with-data")
    calls = cloud.calls()
    assert len(calls) > 20
    assert faults_of_calls(calls) == []


@pytest.mark.slow
def test_check_of_gcloud_commands_finds_faults() -> None:
    """The check finds an unknown flag, a missing argument, a wrong value and another output."""
    commands = [
        ["pubsub", "topics", "create"],
        ["pubsub", "topics", "create", "t", "--colour=red"],
        ["pubsub", "subscriptions", "create", "s", "--topic=t", "--ack-deadline=soon"],
        ["scheduler", "jobs", "create", "http", "j", "--location=r", "--schedule=s"],
    ]
    shown = [{"flags": {"format": "value(a)"}, "resource": {"a": 1}, "out": "2"}]
    assert len(ask_gcloud({"commands": commands, "shown": shown})) == 5


# ── the workflow ──────────────────────────────────────────────────────────────────────────────────────────────────────

BUCKET = f"{PROJECT}-voxbatch-in"
JOB = "projects/p/locations/europe-west1/jobs/voxbatch-dispatch"
SETTINGS = {"JOB": JOB, "BUCKET": "p-in", "PREFIX": "in/", "LOCKS": "p-out", "WINDOW": "0"}
WORKFLOW = yaml.safe_load((JOBS / "terraform/jobs/workflow.yaml").read_text())


class Executions:
    """A fake of Cloud Run that first fails with `faults`, and then counts the executions that it starts; and of the
    bucket of the locks.

    With `forever`, the last fault is repeated.
    """

    def __init__(self, *faults: dict[str, Any], forever: bool = False):
        self.faults, self.forever = list(faults), forever
        self.started = 0
        self.locks: set[str] = set()
        self.lock_fault: dict[str, Any] | None = None

    def __call__(self, id: str, arguments: dict[str, Any]) -> None:
        if id == "storage.objects.insert":
            name = arguments.pop("name")
            assert arguments == {"bucket": "p-out", "uploadType": "media", "ifGenerationMatch": "0"}
            if fault := self.lock_fault or (status(412) if name in self.locks else None):
                raise workflows.Error(fault)
            self.locks.add(name)
            return
        assert (id, arguments) == ("run.projects.locations.jobs.run", {"name": JOB, "body": {}})
        if self.faults:
            raise workflows.Error(self.faults[0] if self.forever else self.faults.pop(0))
        self.started += 1


def status(code: int) -> dict[str, Any]:
    """Return the error of Workflows for a status of HTTP."""
    return {"tags": ["HttpError"], "code": code, "message": f"HTTP server responded with error code {code}"}


# https://cloud.google.com/workflows/docs/reference/syntax/error-types
LOST = {"tags": ["ConnectionError"], "message": "connection broken"}
NOT_CONNECTED = {"tags": ["ConnectionFailedError"], "message": "failed to connect"}
SLOW = {"tags": ["TimeoutError"], "message": "timed out"}


def event(name: str, bucket: str = "p-in") -> dict[str, Any]:
    """Return the event that Eventarc sends for the notification of an uploaded object."""
    attributes = {"eventType": "OBJECT_FINALIZE", "bucketId": bucket, "objectId": name, "objectGeneration": "1"}
    return {"data": {"message": {"attributes": attributes, "data": "e30=", "messageId": "7"}}, "type": PUBLISHED}


def upload(name: str, executions: Executions, bucket: str = "p-in", to: str = "p-in") -> str:
    """Run the workflow, which watches the bucket `to`, for an uploaded object and return its result."""
    returned: str = workflows.Run({**SETTINGS, "BUCKET": to}, executions).main(WORKFLOW, event(name, bucket))
    return returned


PUBLISHED = "google.cloud.pubsub.topic.v1.messagePublished"
TRANSIENT = [status(429), status(500), status(502), status(503), status(504), LOST, NOT_CONNECTED, SLOW]


@pytest.mark.parametrize("fault", TRANSIENT, ids=lambda fault: str(fault.get("code", fault["tags"][0])))
def test_workflow_retries_a_call_that_fails_for_a_while(fault: dict[str, Any]) -> None:
    """A call that fails three times because of load, an outage or a lost connection is retried with growing waits, and
    the dispatcher is executed.
    """
    cloud = Executions(*[fault] * 3)
    run = workflows.Run(SETTINGS, cloud)
    assert run.main(WORKFLOW, event("in/day.jsonl")) == "dispatched gs://p-in/in/day.jsonl"
    assert (cloud.started, run.waited) == (1, [2, 4, 8])


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


def test_uploads_of_a_window_wake_one_dispatcher() -> None:
    """500 manifests within a minute wake the dispatcher once, after the minute, so that it finds all their messages.
    Later ones wake it again. A fault of the lock costs a dispatcher, and leaves no upload without one.
    """
    cloud = Executions()
    runs = [workflows.Run({**SETTINGS, "WINDOW": "60"}, cloud) for _ in range(500)]
    end = (runs[0].now // 60 + 1) * 60
    returned = [run.main(WORKFLOW, event(f"in/{i}.jsonl")) for i, run in enumerate(runs)]
    assert returned.count("dispatched gs://p-in/in/0.jsonl") == cloud.started == 1
    assert returned[1:] == [f"woken with others gs://p-in/in/{i}.jsonl" for i in range(1, 500)]
    assert runs[0].now >= end
    late = workflows.Run({**SETTINGS, "WINDOW": "60"}, cloud)
    late.now = end + 1
    assert late.main(WORKFLOW, event("in/late.jsonl")) == "dispatched gs://p-in/in/late.jsonl"
    cloud.lock_fault = status(403)
    assert late.main(WORKFLOW, event("in/last.jsonl")) == "dispatched gs://p-in/in/last.jsonl"
    assert cloud.started == 3
    assert sum(run.steps for run in runs) < 20 * len(runs)  # billed, see docs/costs.md


@pytest.mark.parametrize("code", [400, 401, 403, 404, 409])
def test_workflow_fails_at_once_if_a_retry_cannot_help(code: int) -> None:
    """A missing role or a missing job fails the execution at once."""
    run = workflows.Run(SETTINGS, Executions(status(code), forever=True))
    with pytest.raises(workflows.Error, match=f"code {code}"):
        run.main(WORKFLOW, event("in/day.jsonl"))
    assert run.waited == []


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
def test_each_upload_is_kept_until_the_right_dispatcher_runs_it() -> None:
    """For each upload: what a dispatcher would run is in its subscription and in no other one, and in a notification of
    the bucket. The workflow wakes the dispatcher for exactly the manifests below in/, and starts nothing else.
    """
    plan, rules = planned("jobs"), {}
    filters = {
        each["name"].removeprefix("voxbatch-"): each["filter"]
        for each in of_kind(plan, "google_pubsub_subscription")
        if "filter" in each
    }
    jobs = {each["name"]: container(each)["args"] for each in of_kind(plan, "google_cloud_run_v2_job")}
    for job, name in (("dispatch", "uploads"), ("nightly", "nightly")):
        option = dict(itertools.pairwise(jobs[f"voxbatch-{job}"]))
        assert option["--subscription"] == f"projects/{PROJECT}/subscriptions/voxbatch-{name}"
        places = ([option["--prefix"]], [option["--recordings"]] if "--recordings" in option else [])
        rules[name] = PlaceRules.from_options(option["-o"], *places)
    notified = [each["object_name_prefix"] for each in of_kind(plan, "google_storage_notification")]
    (workflow,) = of_kind(plan, "google_workflows_workflow")
    assert workflow["user_env_vars"] == {
        "JOB": JOB.replace("/p/", f"/{PROJECT}/"), "BUCKET": BUCKET, "PREFIX": "in/", "WINDOW": "60",
        "LOCKS": f"{PROJECT}-voxbatch-out",
    }  # fmt: skip

    names = ["call.flac", "day.json", ".day.jsonl", "day.jsonl/", "a/day.jsonl", "day.jsonl.bak", "talk.MP3", "jsonl"]
    names += [".jsonl", "day.jsonl/part.flac", "a.b c.jsonl", "x"]
    names += [f"day{suffix}" for suffix in SUFFIXES] + [f"Day{suffix.upper()}" for suffix in SUFFIXES]
    folders = ["in/", "in/2026/", "in/.tmp/", "in", "nightly/", "nightly/2026/", "nightlyx/", "x/in/", ""]
    for upload_name in ["in/", *(folder + name for name in names for folder in folders)]:
        attributes = {"eventType": "OBJECT_FINALIZE", "bucketId": BUCKET, "objectId": upload_name}
        asked = {name: read(ReceivedMessage("1", b"", attributes), rules[name]) for name in rules}
        for name, request in asked.items():
            kept = is_delivered(filters[name], attributes) and upload_name.startswith(tuple(notified))
            assert kept or isinstance(request, Ignored), upload_name
            assert not is_delivered(filters[name], {**attributes, "eventType": "OBJECT_DELETE"})
        assert any(isinstance(request, Ignored) for request in asked.values()), upload_name
        upload(upload_name, cloud := Executions(), bucket=BUCKET, to=BUCKET)
        assert cloud.started == isinstance(asked["uploads"], RunRequest), upload_name
    assert [is_delivered(filters[name], {}) for name in ("uploads", "nightly")] == [True, False]  # people's messages


@pytest.mark.slow
def test_uploads_elsewhere_start_no_workflow() -> None:
    """The workflow's events are the messages of the topic, to which the bucket reports only uploads to its folder:
    100,000 uploads elsewhere, or to the folder of the night, start nothing. An object in the folder that is no manifest
    costs one step. No account may publish to all topics of the project.
    """
    plan = planned("jobs")
    (trigger,) = of_kind(plan, "google_eventarc_trigger")
    assert trigger["matching_criteria"] == [{"attribute": "type", "value": PUBLISHED}]
    topic = f"projects/{PROJECT}/topics/voxbatch-uploads"
    assert trigger["transport"] == [{"pubsub": [{"topic": topic}]}]
    notifications = of_kind(plan, "google_storage_notification")
    assert {(each["topic"], each["object_name_prefix"]) for each in notifications} == {
        (topic, "in/"), (f"projects/{PROJECT}/topics/voxbatch-nightly", "nightly/"),
    }  # fmt: skip
    recording = workflows.Run(SETTINGS, Executions())
    assert (recording.main(WORKFLOW, event("in/call.wav")), recording.steps) == ("not a manifest", 1)
    assert not [
        who for who, role, on in bindings(plan) if (role, on) == ("roles/pubsub.publisher", f"projects/{PROJECT}")
    ]


def test_message_of_a_person_wakes_the_dispatcher() -> None:
    """A message without an object, which names a manifest elsewhere, does not wait for the sweep."""
    message = {"data": "e30=", "messageId": "7"}
    for attributes in ({}, {"attributes": {"a": "b"}}):
        run = workflows.Run(SETTINGS, cloud := Executions())
        woken = run.main(WORKFLOW, {"data": {"message": message | attributes}, "type": PUBLISHED})
        assert (woken, cloud.started) == ("dispatched a message without an object", 1)


def test_another_bucket_starts_nothing() -> None:
    """An event of another bucket starts nothing."""
    assert upload("in/day.jsonl", cloud := Executions(), bucket="q") == "not ours, another bucket gs://q/in/day.jsonl"
    assert cloud.started == 0
