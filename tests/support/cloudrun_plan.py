"""The resources that the modules of jobs/cloudrun/terraform make, in the names and forms of Google's APIs."""

from __future__ import annotations

import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import terraform
from cloudrun_deployment import JOBS

Values = dict[str, Any]

PROJECT = "my-project"
REGION = "europe-west1"
MODELS = f"gs://{PROJECT}-voxbatch-models/owner/name/0123/"
CHANNEL = "projects/p/notificationChannels/7"
DEPLOYED: Values = {"image": "r/i@sha256:0123", "channel": CHANNEL, "model": MODELS}
REQUIRED: dict[str, Values] = {
    "foundation": {"alert_email": "ops@example.org", "hub_token": True},
    "jobs": {**DEPLOYED, "hub_token": True},
    "service": {**DEPLOYED, "invokers": ("user:me@example.org",)},
}
"""Variables of each module that the tests set unless they say otherwise."""


@cache
def planned(module: str, **variables: Any) -> terraform.Plan:
    """Return what a module makes with these variables, beside REQUIRED."""
    with tempfile.TemporaryDirectory() as folder:
        given = {"project": PROJECT, **REQUIRED[module], **variables}
        return terraform.evaluate(JOBS / "terraform" / module, Path(folder) / "module", **given)


POLICY_OF = {
    "google_storage_bucket_iam_member": "storage buckets",
    "google_pubsub_subscription_iam_member": "pubsub subscriptions",
    "google_pubsub_topic_iam_member": "pubsub topics",
    "google_cloud_run_v2_job_iam_member": "run jobs",
    "google_cloud_run_v2_service_iam_binding": "run services",
    "google_project_iam_member": "projects",
    "google_secret_manager_secret_iam_member": "secrets",
    "google_artifact_registry_repository_iam_member": "artifacts repositories",
}
ON = ("bucket", "subscription", "topic", "secret_id", "repository", "name", "project")
"""Arguments that name the resource of a policy; the first one that is there counts."""


def bindings(plan: terraform.Plan) -> set[tuple[str, str, str]]:
    """Return (account, role, resource) of all roles: ("voxbatch-run", "roles/storage.objectViewer", "storage
    buckets/b").

    Accounts of Google's own have their domain as a name, such as gcp-sa-pubsub; other members are as they are given.
    """
    found = set()
    for address, values in plan.resources.items():
        kind = address.partition(".")[0]
        if "_iam_" not in kind:
            continue
        resource = f"{POLICY_OF[kind]}/{next(values[name] for name in ON if name in values)}"
        for member in values.get("members") or [values["member"]]:
            own = re.fullmatch(r"serviceAccount:(voxbatch-\w+)@.*|serviceAccount:service-\d+@([\w-]+)\..*", member)
            found.add((own[1] or own[2] if own else member, values["role"], resource))
    return found


def of_kind(plan: terraform.Plan, kind: str) -> list[Values]:
    """Return all resources of a type."""
    return [values for address, values in plan.resources.items() if address.partition(".")[0] == kind]


def container(values: Values) -> Values:
    """Return the container of a job, worker pool or service."""
    (template,) = values["template"]
    if "template" in template:
        (template,) = template["template"]
    (only,) = template["containers"]
    return only  # type: ignore[no-any-return]


def variables_of(values: Values) -> dict[str, str]:
    """Return the variables of a container; of a secret, its name."""
    found = {}
    for each in container(values).get("env", []):
        secret = [source["secret_key_ref"][0]["secret"] for source in each.get("value_source", [])]
        found[each["name"]] = secret[0] if secret else each["value"]
    return found


LISTS = {
    "conditions", "aggregations", "denominator_aggregations", "containers", "env", "labels", "ports", "volumes",
    "volume_mounts",
}  # fmt: skip
"""Blocks that are lists in Google's APIs, however many there are; the others are there once or not at all."""
OF_TERRAFORM = {"project", "location", "region", "id", "uri", "deletion_protection"}
"""Attributes that an API has in its address or computes, or that only Terraform knows."""


def document(values: Values) -> Values:
    """Return a resource in the form of Google's APIs: camel case, and nothing that is empty."""
    converted: Values = _document({name: value for name, value in values.items() if name not in OF_TERRAFORM})
    return converted


def _document(value: Any) -> Any:
    if isinstance(value, list):
        return [_document(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for name, part in value.items():
        if isinstance(part, list) and part and isinstance(part[0], dict) and name not in LISTS:
            (part,) = part
        if part not in ([], "", None):
            found[re.sub(r"_(\w)", lambda letter: letter[1].upper(), name)] = _document(part)
    return found
