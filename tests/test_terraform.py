"""Tests for jobs/cloudrun/terraform.

Terraform evaluates the module, without a provider (tests/support/terraform.py). The result is compared with what
deploy.sh makes in the fake gcloud for the same settings, and the arguments with the provider's published schema.
"""

from __future__ import annotations

import base64
import re
import shlex
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import google_provider
import hcl2
import pytest
import terraform
import yaml
from test_jobs_cloudrun import ask_gcloud, project

ROOT = Path(__file__).parents[1]
JOBS = ROOT / "jobs" / "cloudrun"
MODULE = JOBS / "terraform"
PROJECT = "my-project"
REGION = "europe-west1"
DIGEST = "sha256:" + 32 * "0f"
IMAGE = f"{REGION}-docker.pkg.dev/{PROJECT}/voxbatch/voxbatch@{DIGEST}"
CHANNEL = f"projects/{PROJECT}/notificationChannels/7"
TOKEN_SECRET = "voxbatch-hf-token"

Values = dict[str, Any]

needs_terraform = pytest.mark.skipif(terraform.terraform() is None, reason="terraform is not installed")


def evaluated(folder: Path, module: Path = MODULE, **variables: Any) -> terraform.Plan:
    """Return what the module makes with these variables and an image."""
    return terraform.evaluate(module, folder, **{"project": PROJECT, "image": IMAGE, "channel": CHANNEL, **variables})


# ── the same set as deploy.sh ─────────────────────────────────────────────────────────────────────────────────────────
# Both sides are brought into one form: a dict from the names of the fake gcloud to what each resource is. The form of
# jobs, worker pools, metrics and alert policies is the document that deploy.sh sends to Google.


def of_deploy(world: Values) -> Values:
    """Return what deploy.sh made, without what only tells it apart: fingerprints and counters."""
    found: Values = {"apis": set(world["apis"])}
    for key, thing in world.items():
        if key.startswith("policy:"):
            found[key] = {(b["role"], member) for b in thing for member in b["members"]}
        elif key.startswith("notification/"):
            told = thing["Notification Configuration"]
            found[f"notification/{told['object_name_prefix']}"] = {
                "bucket": thing["Bucket URL"].strip("/").removeprefix("gs://"),
                "topic": told["topic"].removeprefix("//pubsub.googleapis.com/"),
                "event_types": told["event_types"],
            }
        elif key.startswith("alert/"):
            found[f"alert/{thing['displayName']}"] = {k: v for k, v in thing.items() if k not in ("name", "userLabels")}
        elif "/" in key and (kind := key.split("/")[0]) in OF_DEPLOY:
            found[key] = OF_DEPLOY[kind](thing)
    return {key: value for key, value in found.items() if value != set()}


def _knative(thing: Values) -> Values:
    return {**thing, "metadata": {k: v for k, v in thing["metadata"].items() if k != "labels"}}


def _subscription(thing: Values) -> Values:
    shown = {k: v for k, v in thing.items() if k != "flags"}
    flags = thing["flags"]
    return {**shown, "topic": flags["topic"].rsplit("/", 1)[-1], "filter": flags.get("message-filter")}


def _schedule(thing: Values) -> Values:
    flags = thing["flags"]
    return {
        "uri": flags["uri"],
        "schedule": flags["schedule"],
        "time_zone": flags["time-zone"],
        "method": flags["http-method"],
        "headers": flags["headers"],
        "body": thing["body"],
        "account": flags["oauth-service-account-email"],
        "retries": int(flags["max-retry-attempts"]),
        "region": flags["location"],
        "description": thing["description"].split(", config")[0],
    }


def _workflow(thing: Values) -> Values:
    flags = thing["flags"]
    return {
        "source": Path(flags["source"]).read_text(encoding="utf-8"),
        "account": flags["service-account"],
        "region": flags["location"],
        "variables": dict(pair.split("=", 1) for pair in flags["set-env-vars"].split(",")),
        "description": flags["description"],
    }


def _metric(thing: Values) -> Values:
    description = thing["description"].split("; config")[0]
    return {**{k: v for k, v in thing.items() if k not in ("flags", "config-from-file")}, "description": description}


OF_DEPLOY: dict[str, Callable[[Values], Any]] = {
    "artifacts repositories": lambda t: (t["flags"]["location"], t["flags"]["repository-format"].upper()),
    "storage buckets": lambda t: (t["location"], t["uniform_bucket_level_access"], t["public_access_prevention"]),
    "iam service-accounts": lambda t: t["flags"]["display-name"],
    "pubsub topics": lambda t: True,
    "pubsub subscriptions": _subscription,
    "run jobs": _knative,
    "beta run worker-pools": _knative,
    "workflows": _workflow,
    "eventarc triggers": lambda t: (
        t["flags"]["location"],
        set(t["filters"]),
        t["flags"]["destination-workflow"],
        t["flags"]["service-account"],
    ),
    "scheduler jobs": _schedule,
    "logging metrics": _metric,
}


def of_terraform(resources: dict[str, Values]) -> Values:
    """Return what Terraform would make, in the form of `of_deploy`."""
    found: Values = {"apis": set()}
    for address, values in resources.items():
        kind = address.removeprefix("data.").split(".")[0]
        if kind == "google_project_service":
            found["apis"].add(values["service"])
        elif kind.endswith("_iam_member"):
            on = next(
                values[key]
                for key in ("bucket", "subscription", "topic", "secret_id", "repository", "name", "project")
                if key in values
            )
            policy = found.setdefault(f"policy:{POLICY_OF[kind]}/{on}", set())
            policy.add((values["role"], values["member"]))
        elif kind in OF_TERRAFORM:
            key, value = OF_TERRAFORM[kind](values)
            found[key] = value
        else:
            assert kind in WITHOUT_A_COUNTERPART, address
    return found


def _only(values: Values, *path: str) -> Values:
    """Return a block of a block, each of which is there once."""
    for name in path:
        (values,) = values[name]
    return values


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)


LISTS = {"conditions", "aggregations", "containers", "env", "metric_labels"}
"""Blocks that are lists in Google's documents, however many there are; the others are there once or not at all."""


def _document(values: Any) -> Any:
    """Return blocks in the form of Google's documents: camel case, and nothing that is empty."""
    if isinstance(values, list):
        return [_document(each) for each in values]
    if not isinstance(values, dict):
        return values
    found = {}
    for name, value in values.items():
        if isinstance(value, list) and value and isinstance(value[0], dict) and name not in LISTS:
            (value,) = value
        if value != []:
            found[_camel(name)] = _document(value)
    return found


def _containers(values: Values) -> list[Values]:
    return [
        {
            **{k: v for k, v in each.items() if k not in ("env", "resources")},
            "resources": {"limits": _only(each, "resources")["limits"]},
            **({"env": [_variable(each) for each in each["env"]]} if each["env"] else {}),
        }
        for each in values["containers"]
    ]


def _variable(values: Values) -> Values:
    if not values["value_source"]:
        return {"name": values["name"], "value": values["value"]}
    secret = _only(values, "value_source", "secret_key_ref")
    return {
        "name": values["name"],
        "valueFrom": {"secretKeyRef": {"name": secret["secret"], "key": secret["version"]}},
    }


def _spec(values: Values) -> Values:
    gpu = [each["accelerator"] for each in values["node_selector"]]
    return {
        "serviceAccountName": values["service_account"],
        "containers": _containers(values),
        **({"nodeSelector": {"run.googleapis.com/accelerator": gpu[0]}} if gpu else {}),
    }


def _annotations(**values: Any) -> Values:
    given = {f"run.googleapis.com/{k.replace('_', '-')}": v for k, v in values.items() if v is not None}
    return {"annotations": given} if given else {}


def _zonal(values: Values) -> Values:
    disabled = values.get("gpu_zonal_redundancy_disabled")
    annotations = _annotations(gpu_zonal_redundancy_disabled=None if disabled is None else str(disabled).lower())
    return {"metadata": annotations} if annotations else {}


def _job(values: Values) -> tuple[str, Values]:
    execution, task = _only(values, "template"), _only(values, "template", "template")
    spec = {
        "taskCount": execution["task_count"],
        **({"parallelism": execution["parallelism"]} if "parallelism" in execution else {}),
        "template": {
            "spec": {
                **_spec(task),
                "maxRetries": task["max_retries"],
                "timeoutSeconds": int(task["timeout"].removesuffix("s")),
            }
        },
    }
    return f"run jobs/{values['name']}", {
        "apiVersion": "run.googleapis.com/v1",
        "kind": "Job",
        "metadata": {"name": values["name"], **_annotations(launch_stage=values.get("launch_stage"))},
        "spec": {"template": {**_zonal(task), "spec": spec}},
    }


def _worker_pool(values: Values) -> tuple[str, Values]:
    instance = _only(values, "template")
    annotations = _annotations(
        launch_stage=values["launch_stage"],
        scalingMode="manual",
        manualInstanceCount=str(_only(values, "scaling")["manual_instance_count"]),
    )
    return f"beta run worker-pools/{values['name']}", {
        "apiVersion": "run.googleapis.com/v1",
        "kind": "WorkerPool",
        "metadata": {"name": values["name"], **annotations},
        "spec": {"template": {**_zonal(instance), "spec": _spec(instance)}},
    }


def _terraform_subscription(values: Values) -> tuple[str, Values]:
    ttl = _only(values, "expiration_policy")["ttl"]
    dead = [_document(each) for each in values.get("dead_letter_policy", [])]
    retry = [_document(each) for each in values.get("retry_policy", [])]
    return f"pubsub subscriptions/{values['name']}", {
        "ackDeadlineSeconds": values["ack_deadline_seconds"],
        "messageRetentionDuration": values["message_retention_duration"],
        "expirationPolicy": {"ttl": ttl} if ttl else {},
        "topic": values["topic"].rsplit("/", 1)[-1],
        "filter": values.get("filter"),
        **({"deadLetterPolicy": dead[0], "retryPolicy": retry[0]} if dead else {}),
    }


def _terraform_schedule(values: Values) -> tuple[str, Values]:
    target = _only(values, "http_target")
    return f"scheduler jobs/{values['name']}", {
        "uri": target["uri"],
        "schedule": values["schedule"],
        "time_zone": values["time_zone"],
        "method": target["http_method"],
        "headers": ",".join(f"{k}={v}" for k, v in target["headers"].items()),
        "body": base64.b64decode(target["body"]).decode(),
        "account": _only(target, "oauth_token")["service_account_email"],
        "retries": _only(values, "retry_config").get("retry_count"),
        "region": values["region"],
        "description": values["description"],
    }


def _terraform_metric(values: Values) -> tuple[str, Values]:
    descriptor = dict(_only(values, "metric_descriptor"))
    labels = descriptor.pop("labels")
    document = _document({k: v for k, v in values.items() if k not in ("project", "metric_descriptor")})
    document["metricDescriptor"] = _document(descriptor)
    if labels:
        document["metricDescriptor"]["labels"] = [_document(each) for each in labels]
    return f"logging metrics/{values['name']}", {**document, "description": values["description"].split("; config")[0]}


def _alert(values: Values) -> tuple[str, Values]:
    return f"alert/{values['display_name']}", _document(
        {k: v for k, v in values.items() if k not in ("project", "user_labels")}
    )


OF_TERRAFORM: dict[str, Callable[[Values], tuple[str, Any]]] = {
    "google_artifact_registry_repository": lambda v: (
        f"artifacts repositories/{v['repository_id']}",
        (v["location"], v["format"]),
    ),
    "google_storage_bucket": lambda v: (
        f"storage buckets/{v['name']}",
        (v["location"], v["uniform_bucket_level_access"], v["public_access_prevention"]),
    ),
    "google_service_account": lambda v: (f"iam service-accounts/{v['account_id']}", v["display_name"]),
    "google_pubsub_topic": lambda v: (f"pubsub topics/{v['name']}", True),
    "google_pubsub_subscription": _terraform_subscription,
    "google_storage_notification": lambda v: (
        f"notification/{v['object_name_prefix']}",
        {"bucket": v["bucket"], "topic": v["topic"], "event_types": v["event_types"]},
    ),
    "google_cloud_run_v2_job": _job,
    "google_cloud_run_v2_worker_pool": _worker_pool,
    "google_workflows_workflow": lambda v: (
        f"workflows/{v['name']}",
        {
            "source": v["source_contents"],
            "account": v["service_account"],
            "region": v["region"],
            "variables": v["user_env_vars"],
            "description": v["description"],
        },
    ),
    "google_eventarc_trigger": lambda v: (
        f"eventarc triggers/{v['name']}",
        (
            v["location"],
            {f"{each['attribute']}={each['value']}" for each in v["matching_criteria"]},
            _only(v, "destination")["workflow"].rsplit("/", 1)[-1],
            v["service_account"],
        ),
    ),
    "google_cloud_scheduler_job": _terraform_schedule,
    "google_logging_metric": _terraform_metric,
    "google_monitoring_alert_policy": _alert,
}
POLICY_OF = {
    "google_storage_bucket_iam_member": "storage buckets",
    "google_pubsub_subscription_iam_member": "pubsub subscriptions",
    "google_pubsub_topic_iam_member": "pubsub topics",
    "google_cloud_run_v2_job_iam_member": "run jobs",
    "google_project_iam_member": "projects",
    "google_secret_manager_secret_iam_member": "secrets",
    "google_artifact_registry_repository_iam_member": "artifacts repositories",
}
WITHOUT_A_COUNTERPART = {
    "google_storage_project_service_account",  # a question, not a resource
    "google_project_service_identity",  # exists with the API at the latest when it is used
    "google_monitoring_notification_channel",
    "time_sleep",
}


SETTINGS: dict[str, tuple[Values, dict[str, str]]] = {
    "default": ({}, {}),
    "worker": ({"uploads": "worker"}, {"UPLOADS": "worker"}),
    "by hand": ({"uploads": "none", "nightly": False}, {"UPLOADS": "none", "NIGHTLY": "no"}),
    "all settings": (
        {
            "region": "us-central1",
            "bucket_in": "calls",
            "bucket_out": "texts",
            "bucket_models": "weights",
            "tasks": 8,
            "parallelism": 4,
            "max_retries": 2,
            "task_timeout": 1800,
            "usd_per_hour": 1.5,
            "schedule": "30 3 * * 1-5",
            "time_zone": "Europe/Berlin",
            "model": "gs://weights/mistralai/voxtral/0123",
            "hub_token_secret": TOKEN_SECRET,
        },
        {
            "REGION": "us-central1",
            "BUCKET_IN": "calls",
            "BUCKET_OUT": "texts",
            "BUCKET_MODELS": "weights",
            "TASKS": "8",
            "PARALLELISM": "4",
            "MAX_RETRIES": "2",
            "TASK_TIMEOUT": "1800",
            "USD_PER_HOUR": "1.5",
            "SCHEDULE": "30 3 * * 1-5",
            "TIME_ZONE": "Europe/Berlin",
            "MODEL": "gs://weights/mistralai/voxtral/0123",
            "HF_TOKEN": "hf_aToken",
        },
    ),
}


Deployments = Callable[[str], tuple[Values, dict[str, str]]]


@pytest.fixture(scope="module")
def deployments(tmp_path_factory: pytest.TempPathFactory) -> Deployments:
    """Return a function that deploys a case once, and returns the resources and the flags with which it builds."""

    @cache
    def deployed(case: str) -> tuple[Values, dict[str, str]]:
        with project(tmp_path_factory.mktemp("deployed")) as cloud:
            cloud.put(image={"image_summary": {"digest": DIGEST}})
            cloud.deploy(PROJECT=PROJECT, CHANNEL=CHANNEL, BUILD="yes", VERIFY="no", **SETTINGS[case][1])
            (submitted,) = [call["argv"] for call in cloud.calls() if call["argv"][:2] == ["builds", "submit"]]
            return of_deploy(cloud.world), flags(shlex.join(submitted))

    return deployed


def flags(command: str) -> dict[str, str]:
    """Return the flags of a command line, and each substitution of a build: `--a=b` → {"a": "b"}."""
    words = [word.removeprefix("--").split("=", 1) for word in shlex.split(command) if re.match("--.*=", word)]
    found = dict(words)
    substitutions = dict(pair.split("=", 1) for pair in found.pop("substitutions").split(","))
    return {**found, **substitutions}


@needs_terraform
@pytest.mark.slow
@pytest.mark.parametrize("case", SETTINGS)
def test_module_defines_what_deploy_makes(deployments: Deployments, tmp_path: Path, case: str) -> None:
    """The module defines the resources, roles and settings that deploy.sh makes for the same settings, and the command
    with which it builds the image.
    """
    variables = SETTINGS[case][0]
    plan = evaluated(tmp_path, image=IMAGE.replace(REGION, variables.get("region", REGION)), **variables)
    made, build = deployments(case)
    assert of_terraform(plan.resources) == made
    same = {"project": PROJECT, "config": "cloudbuild.yaml", "_COMMIT": "$(git rev-parse HEAD)"}
    assert flags(plan.outputs["build_image"]) == {**{k: v for k, v in build.items() if k != "format"}, **same}


@needs_terraform
@pytest.mark.slow
def test_comparison_finds_what_is_missing(deployments: Deployments, tmp_path: Path) -> None:
    """A role, a filter and a number of retries that are missing in the module are found."""
    shutil.copytree(JOBS, tmp_path / "cloudrun")
    module = tmp_path / "cloudrun" / "terraform"
    for file, text in {
        "access.tf": '        { who = "dispatch", role = "roles/run.viewer", on = "voxbatch" },\n',
        "messages.tf": "  filter                     = each.value\n",
        "starts.tf": "    retry_count = 3\n",
    }.items():
        whole = (module / file).read_text(encoding="utf-8")
        assert whole.count(text) == 1
        (module / file).write_text(whole.replace(text, ""))
    broken = of_terraform(evaluated(tmp_path / "evaluated", module).resources)
    right, _ = deployments("default")
    assert {key for key in broken.keys() | right.keys() if broken.get(key) != right.get(key)} == {
        "policy:run jobs/voxbatch",
        "pubsub subscriptions/voxbatch-uploads",
        "pubsub subscriptions/voxbatch-nightly",
        "scheduler jobs/voxbatch-sweep",
        "scheduler jobs/voxbatch-nightly",
    }
    assert len(right["policy:run jobs/voxbatch"] - broken["policy:run jobs/voxbatch"]) == 1


# ── the module by itself ──────────────────────────────────────────────────────────────────────────────────────────────


@needs_terraform
@pytest.mark.slow
def test_without_an_image_there_is_all_that_a_build_needs(tmp_path: Path) -> None:
    """The module without an image makes all that a build needs, no job, and nothing that would start one. gcloud's own
    parser accepts the commands for what is left to do.
    """
    plan = evaluated(tmp_path, image="")
    kinds = {key.split("/")[0] for key in of_terraform(plan.resources)}
    assert kinds.isdisjoint({"run jobs", "policy:run jobs", "workflows", "eventarc triggers", "scheduler jobs"})
    assert {"artifacts repositories", "storage buckets", "iam service-accounts", "pubsub subscriptions"} <= kinds
    assert plan.outputs["jobs"] == []
    commands = [plan.outputs[name] for name in ("build_image", "find_image", "find_model", "try_job")]
    assert ask_gcloud({"commands": [shlex.split(command)[1:] for command in commands]}) == []


@needs_terraform
@pytest.mark.slow
def test_invalid_variable_is_refused_with_what_is_allowed(tmp_path: Path) -> None:
    """Each invalid variable is refused with its name, its value and the values that are allowed."""
    with pytest.raises(terraform.Refused) as refused:
        evaluated(
            tmp_path, project="P", region="Paris", image="repo/image:latest", uploads="both", schedule="at night",
            tasks=0, parallelism=-1, max_retries=11, task_timeout=10, usd_per_hour=-1, alert_email="me",
            channel="me@example.org", hub_token_secret="hf_aToken",
        )  # fmt: skip
    told = " ".join(re.sub(r"[│╷╵]", " ", str(refused.value)).split())
    for message in (
        'project is the id of a project, such as my-project-1; this is "P".',
        'region is a region of Cloud Run that has L4s, such as europe-west1; this is "Paris".',
        "image is NAME@sha256:DIGEST, because a tag may name another image tomorrow, or empty; this is",
        'uploads is one of workflow, worker, none; this is "both".',
        'schedule has the five fields of cron, such as 0 2 * * *; this is "at night".',
        "tasks is a whole number from 1 to 10000; this is 0.",
        "parallelism is a whole number from 0 to 10000; this is -1.",
        "max_retries is a whole number from 0 to 10; this is 11.",
        "task_timeout is a whole number of seconds from 60 to 604800; this is 10.",
        "usd_per_hour is a price, such as 1.421; this is -1.",
        'alert_email is an address, such as ops@example.org; this is "me".',
        "channel is projects/…/notificationChannels/…, see: gcloud beta monitoring channels list;",
        "hub_token_secret is the name of a secret of this project, such as voxbatch-hf-token, or empty; it is never",
    ):
        assert message in told, told


@needs_terraform
@pytest.mark.slow
def test_alerts_need_a_receiver(tmp_path: Path) -> None:
    """Alerts without a receiver are refused; an address becomes the receiver of all of them."""
    with pytest.raises(
        terraform.Refused, match="alerts need a receiver: set alert_email or channel, or alerts = false"
    ):
        evaluated(tmp_path / "without", channel="")
    plan = evaluated(tmp_path / "email", channel="", alert_email="ops@example.org", uploads="none", image="")
    (channel,) = [v for k, v in plan.resources.items() if k.startswith("google_monitoring_notification_channel.")]
    assert channel["labels"] == {"email_address": "ops@example.org"}
    policies = [v for k, v in plan.resources.items() if k.startswith("google_monitoring_alert_policy.")]
    assert policies
    assert {tuple(each["notification_channels"]) for each in policies} == {(channel["id"],)}


@needs_terraform
def test_files_are_in_canonical_format() -> None:
    """`terraform fmt` has nothing to change."""
    formatted = terraform.run(MODULE, "fmt", "-check", "-diff")
    assert (formatted.returncode, formatted.stdout, formatted.stderr) == (0, "", "")


def test_state_has_no_secret_value() -> None:
    """No resource or data source of the module writes or reads the value of a secret: all of them are in the state."""
    assert {each.type for each in terraform.resources(MODULE) if "secret" in each.type} == {
        "google_secret_manager_secret_iam_member"
    }


def variables() -> set[str]:
    """Return the names of the module's variables."""
    text = (MODULE / "variables.tf").read_text(encoding="utf-8")
    return {name.strip('"') for block in hcl2.loads(text)["variable"] for name in block if name != "__is_block__"}


def test_documentation_lists_every_variable() -> None:
    """The table in docs/cloud-run.md has every variable of the module."""
    section = (ROOT / "docs" / "cloud-run.md").read_text(encoding="utf-8").split("\n## Terraform\n")[1]
    first_cells = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    assert {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)} == variables()


def test_documented_configuration_gives_variables_of_the_module() -> None:
    """The configuration in docs/cloud-run.md can be read, and each argument of its module is a variable."""
    page = (ROOT / "docs" / "cloud-run.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```hcl\n(.*?)```", page, re.DOTALL)
    (module,) = hcl2.loads(text)["module"]
    given = set(module['"voxbatch"']) - {"source", "__is_block__"}
    assert given <= variables()


def test_plan_in_a_pull_request_stores_no_key_and_changes_nothing() -> None:
    """The workflow exchanges GitHub's token, holds no secret, and only plans."""
    text = (ROOT / "examples" / "orchestrators" / "github-actions-terraform.yml").read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read", "id-token": "write"}
    assert "secrets." not in text
    (job,) = workflow["jobs"].values()
    commands = [step["run"].split()[:2] for step in job["steps"] if "run" in step]
    assert commands == [["terraform", "init"], ["terraform", "plan"]]


# ── the provider's schema ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> google_provider.Provider:
    try:
        return google_provider.Provider(tmp_path_factory.mktemp("provider"))
    except google_provider.Unavailable as e:
        pytest.skip(f"pip does not fetch {google_provider.PACKAGE}: {e}")


OTHER_PROVIDERS = {
    "google_project_service_identity": {"project", "service"},  # google-beta's
    "time_sleep": {"create_duration"},  # time's
}
"""Resources that the bindings of the provider google do not have, with the arguments that the module gives them."""


@pytest.mark.slow
def test_every_argument_is_in_the_providers_schema(provider: google_provider.Provider) -> None:
    """The provider has every resource, argument and block of the module, and none that it requires is missing."""
    faults = []
    for resource in terraform.resources(MODULE):
        if resource.type in OTHER_PROVIDERS:
            assert set(resource.body.arguments) - terraform.META == OTHER_PROVIDERS[resource.type]
        else:
            faults += provider.faults(resource)
            faults += [
                f"{resource.address}.{name}: not computed"
                for name in terraform.COMPUTED.get(resource.type, {})
                if name not in provider.attributes(resource)
            ]
    assert faults == []


@pytest.mark.slow
def test_check_of_arguments_finds_faults(provider: google_provider.Provider, tmp_path: Path) -> None:
    """The check finds an unknown resource, argument and block, a missing argument, a block given as an argument, and a
    block that is given twice.
    """
    (tmp_path / "main.tf").write_text("""
resource "google_pubsub_queue" "a" {
}
resource "google_pubsub_subscription" "a" {
  topic        = "t"
  retry_policy = { minimum_backoff = "60s" }
  colour       = "red"
  dead_letter {
  }
  expiration_policy {
  }
  push_config {
    push_endpoint = "https://a"
  }
  push_config {
    push_endpoint = "https://b"
  }
}
""")
    faults = [each.split(";")[0] for resource in terraform.resources(tmp_path) for each in provider.faults(resource)]
    assert sorted(faults) == [
        "google_pubsub_queue.a: no such resource",
        "google_pubsub_subscription.a.colour: no such argument",
        "google_pubsub_subscription.a.dead_letter: no such block",
        "google_pubsub_subscription.a.expiration_policy.ttl: required",
        "google_pubsub_subscription.a.name: required",
        "google_pubsub_subscription.a.push_config: only one of these blocks is allowed",
        "google_pubsub_subscription.a.retry_policy: a block, not an argument",
    ]
