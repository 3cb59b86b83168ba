"""Permissions that requests to Google's services need, and the roles that contain them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import discovery
import servers
from conftest import environment

PERMISSIONS = {
    "storage.objects.get": {"storage.objects.get"},
    "storage.objects.list": {"storage.objects.list"},
    "storage.objects.insert": {"storage.objects.create"},
    "storage.objects.delete": {"storage.objects.delete"},
    "pubsub.projects.subscriptions.get": {"pubsub.subscriptions.get"},
    "pubsub.projects.subscriptions.pull": {"pubsub.subscriptions.consume"},
    "pubsub.projects.subscriptions.acknowledge": {"pubsub.subscriptions.consume"},
    "pubsub.projects.subscriptions.modifyAckDeadline": {"pubsub.subscriptions.consume"},
    "pubsub.projects.topics.publish": {"pubsub.topics.publish"},
    "run.projects.locations.jobs.get": {"run.jobs.get"},
    "run.projects.locations.jobs.run": {"run.jobs.run"},
    "run.projects.locations.jobs.executions.list": {"run.executions.list"},
}
"""Permissions of each method, by the reference of each API. Two depend on the request: an upload that may replace an
object needs storage.objects.delete, and an execution with overrides run.jobs.runWithOverrides."""
ROLES = {
    "roles/storage.objectViewer": {"storage.objects.get", "storage.objects.list"},
    "roles/storage.objectUser": {
        "storage.objects.create", "storage.objects.delete", "storage.objects.get", "storage.objects.list",
    },
    "roles/storage.objectCreator": {"storage.objects.create"},
    "roles/pubsub.subscriber": {"pubsub.subscriptions.consume"},
    "roles/pubsub.viewer": {"pubsub.subscriptions.get"},
    "roles/pubsub.publisher": {"pubsub.topics.publish"},
    "roles/run.jobsExecutorWithOverrides": {"run.jobs.run", "run.jobs.runWithOverrides", "run.executions.cancel"},
    "roles/run.viewer": {"run.jobs.get", "run.jobs.list", "run.executions.get", "run.executions.list"},
    "roles/run.invoker": {"run.jobs.run"},
    "roles/secretmanager.secretAccessor": {"secretmanager.versions.access"},
    "roles/workflows.invoker": {"workflows.executions.create"},
    "roles/eventarc.eventReceiver": {"eventarc.events.receiveEvent"},
    "roles/logging.logWriter": {"logging.logEntries.create"},
}  # fmt: skip
"""Permissions of each role, by Google's reference of roles, as far as they matter here."""

Need = tuple[str, str]
"""A resource, as the fake gcloud names it, and a permission on it."""


FETCH = """
import pathlib, sys
from voxbatch.storage.model_download import download_model
download_model(sys.argv[1], pathlib.Path(sys.argv[2]))
"""


def needs_of_fetching(store: servers.GoogleServer, address: str, folder: Path) -> set[Need]:
    """Fetch a model from a bucket, as an engine does, and return the needs."""
    with servers.proxied(store) as proxy:
        command = [sys.executable, "-c", FETCH, address, str(folder)]
        subprocess.run(command, check=True, env=environment(**store.settings(proxy.url)))
        return storage_needs(proxy.log)


def storage_needs(calls: list[servers.Asked]) -> set[Need]:
    """Return the needs of requests to Cloud Storage."""
    found = set()
    for call in calls:
        path = re.sub(r"^/((download|upload)/)?(resumable/)?storage/v1/", "", urlsplit(call.path).path)
        method = discovery.api("storage.v1").called(call.method, path)
        assert method, f"{call.method} {call.path}: no such method"
        bucket = f"storage buckets/{unquote(path.split('/')[1])}"
        found |= {(bucket, permission) for permission in PERMISSIONS[method["id"]]}
        if method["id"] == "storage.objects.insert" and call.query.get("ifGenerationMatch") != ["0"]:
            found.add((bucket, "storage.objects.delete"))
    return found
