"""Tests for jobs/cloudrun/service.

The scripts run against a fake gcloud with a memory and against the parser of the real gcloud. The files are checked
against Google's published API descriptions, and the numbers against voxbatch's own.
"""

from __future__ import annotations

import copy
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import discovery
import pytest
import servers
import yaml
from conftest import ROOT, environment, understood
from test_jobs_cloudrun import JOBS, TOKEN, Cloud, ask_gcloud, containers, project, roles_in
from test_jobs_roles import ROLES, storage_needs

from voxbatch.cli import cli
from voxbatch.engines.vllm.gpu_specs import GPU_SPECS
from voxbatch.engines.vllm.memory import UNCOUNTED_BYTES, Footprint

SERVICE = "run services/voxbatch-serve"
FOLDER = "gs://p-voxbatch-models/mistralai/Voxtral-Mini-4B-Realtime-2602/0123/"
CURRENT = {"object p-voxbatch-models/mistralai/Voxtral-Mini-4B-Realtime-2602/current": FOLDER}
EXISTS_BEFORE = {"image", "versions", "apis", *CURRENT}
"""Resources that a test puts into the project, and that no teardown.sh removes."""


@dataclass
class First:
    """The first deployment of the service into a project that has an image and weights, with a hub token."""

    said: str
    calls: list[dict[str, Any]]
    world: dict[str, Any]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> First:
    with project(tmp_path_factory.mktemp("first")) as cloud:
        cloud.put(**CURRENT)
        done = cloud.run("service/deploy.sh", HF_TOKEN=TOKEN)
        assert done.returncode == 0, done.stderr
        return First(done.stdout + done.stderr, cloud.calls(), cloud.world)


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    with project(tmp_path) as made:
        yield made


@pytest.fixture
def deployed(cloud: Cloud, first: First) -> Cloud:
    """Return a project after the first deployment of the service."""
    cloud.put(**copy.deepcopy(first.world))
    return cloud


def deploy(cloud: Cloud, **settings: str) -> str:
    """Run deploy.sh of the service, assert that it succeeds, and return what it says."""
    done = cloud.run("service/deploy.sh", **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def invokers(cloud: Cloud) -> set[str]:
    """Return the members who may call the service."""
    return {member for binding in cloud.world[f"policy:{SERVICE}"] for member in binding["members"]}


@pytest.mark.slow
def test_deploy_creates_all_and_a_second_run_only_reads(deployed: Cloud, first: First) -> None:
    """deploy.sh makes the service, its account and its alerts; a second run only reads."""
    made = {
        key for key in first.world if "/" in key and not key.startswith(("policy:", "alert/", "channel/", "object "))
    }
    assert made == {
        "artifacts repositories/voxbatch", "storage buckets/p-voxbatch-models", "iam service-accounts/voxbatch-serve",
        "secrets/voxbatch-hf-token", SERVICE,
    }  # fmt: skip
    alerts = [thing["displayName"] for key, thing in first.world.items() if key.startswith("alert/")]
    assert alerts == ["voxbatch: service errors", "voxbatch: service latency", "voxbatch: service gpu idle"]
    assert "https://voxbatch-serve-42.europe-west1.run.app/v1/models" in first.said
    assert "Nothing to change." in deploy(deployed, HF_TOKEN=TOKEN)
    assert deployed.changes() == []


@pytest.mark.slow
def test_account_reads_the_weights_and_nothing_else(cloud: Cloud, first: First) -> None:
    """The account of the service has one role: it reads the weights. If each start downloads from the hub, it reads the
    hub token instead, and with weights in the image it reads neither. Only the person who deploys may call the service.
    """
    policies = {key: roles_in(first.world, key.removeprefix("policy:")) for key in first.world if "policy:" in key}
    assert policies == {
        "policy:storage buckets/p-voxbatch-models": {("voxbatch-serve", "roles/storage.objectViewer")},
        f"policy:{SERVICE}": {("me", "roles/run.invoker")},
    }
    assert first.world[f"policy:{SERVICE}"] == [{"role": "roles/run.invoker", "members": ["user:me@example.org"]}]
    (container,) = containers(first.world[SERVICE])
    assert {each["name"]: each.get("value") for each in container["env"]} == {
        "VOXBATCH_MODEL": FOLDER,
        "VOXBATCH_ENGINE_OPTION": "max_model_len=8192 gpu_memory_utilization=0.9 max_num_seqs=8",
    }
    cloud.put(**copy.deepcopy(first.world))
    deploy(cloud, WEIGHTS="none", MODEL="owner/name")
    secret = {("voxbatch-serve", "roles/secretmanager.secretAccessor")}
    assert (cloud.roles("storage buckets/p-voxbatch-models"), cloud.roles("secrets/voxbatch-hf-token")) == (
        set(),
        secret,
    )
    assert "HF_TOKEN" in [each["name"] for each in containers(cloud.world[SERVICE])[0]["env"]]
    deploy(cloud, WEIGHTS="image")
    assert (cloud.roles("storage buckets/p-voxbatch-models"), cloud.roles("secrets/voxbatch-hf-token")) == (
        set(),
        set(),
    )


@pytest.mark.slow
def test_role_is_what_the_weights_need(tmp_path: Path, first: First) -> None:
    """Fetching the weights from the bucket needs each permission of the role that matters here, and no other."""
    with servers.google_server() as store, servers.proxied(store) as proxy:
        store.make("p-voxbatch-models")
        store.put("p-voxbatch-models", FOLDER.removeprefix("gs://p-voxbatch-models/") + "params.json", b"{}")
        code = "import sys, pathlib; from voxbatch.storage.model_download import download_model as fetch"
        command = [
            sys.executable,
            "-c",
            f"{code}; fetch(sys.argv[1], pathlib.Path(sys.argv[2]))",
            FOLDER,
            str(tmp_path),
        ]
        subprocess.run(command, check=True, env=environment(**store.settings(proxy.url)))
        needs = storage_needs(proxy.log)
    assert needs == {("storage buckets/p-voxbatch-models", each) for each in ROLES["roles/storage.objectViewer"]}
    (container,) = containers(first.world[SERVICE])
    assert {"name": "VOXBATCH_MODEL", "value": FOLDER} in container["env"]


@pytest.mark.slow
def test_only_named_members_may_call_the_service(deployed: Cloud) -> None:
    """INVOKERS is the list of callers: others lose the role. Without INVOKERS, the callers stay, also those that a
    person added by hand. allUsers is refused, with the command for those who want it.
    """
    deploy(deployed, INVOKERS="group:a@example.org,serviceAccount:b@p.iam.gserviceaccount.com")
    assert invokers(deployed) == {"group:a@example.org", "serviceAccount:b@p.iam.gserviceaccount.com"}
    deployed.calls()
    deploy(deployed)
    assert deployed.changes() == []
    deployed.gcloud.world.things[f"policy:{SERVICE}"] = [{"role": "roles/run.invoker", "members": ["allUsers"]}]
    assert "callers: allUsers" in deploy(deployed)
    deploy(deployed, INVOKERS="user:a@example.org")
    assert invokers(deployed) == {"user:a@example.org"}
    done = deployed.run("service/deploy.sh", INVOKERS="user:a@example.org,allUsers")
    assert (done.returncode, "--member=allUsers --role=roles/run.invoker" in done.stderr) == (1, True)


@pytest.mark.slow
def test_service_is_valid(first: First) -> None:
    """The service has no unknown, missing or mistyped field by the description of the Admin API. It scales to zero, has
    an L4, and gives a start seven minutes.
    """
    service = first.world[SERVICE]
    told = discovery.api("run.v1").faults(service, "Service")  # gcloud fills in the namespace, which is the project
    assert [each for each in told if not each.endswith("metadata.namespace: required")] == []
    assert (service["apiVersion"], "${" in json.dumps(service)) == ("serving.knative.dev/v1", False)
    described = discovery.api("run.v1")
    template = service["spec"]["template"]
    for kind, metadata in (("Service", service["metadata"]), ("Revision", template["metadata"])):
        for name in metadata["annotations"]:
            assert re.search(rf"`{re.escape(name)}`: [^*]*\b{kind}\b", annotations_of(described)), name
    assert template["metadata"]["annotations"]["autoscaling.knative.dev/minScale"] == "0"
    spec = template["spec"]
    assert spec["nodeSelector"] == {"run.googleapis.com/accelerator": "nvidia-l4"}
    assert spec["timeoutSeconds"] == 3600
    (container,) = spec["containers"]
    assert container["resources"]["limits"] == {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"}
    started, alive = container["startupProbe"], container["livenessProbe"]
    assert started["failureThreshold"] * started["periodSeconds"] == 240  # Google's maximum
    assert started["initialDelaySeconds"] == 180
    for probe in (started, alive):
        assert probe["httpGet"] == {"path": "/health", "port": container["ports"][0]["containerPort"]}
        assert probe["timeoutSeconds"] <= probe["periodSeconds"]


def annotations_of(api: discovery.Api) -> str:
    """Return Google's list of annotations, each with the kinds of resources that may have it."""
    found: str = api.schema("ObjectMeta")["properties"]["annotations"]["description"]
    return found


@pytest.mark.slow
def test_arguments_are_a_server_command(first: First) -> None:
    """The container runs `voxbatch serve`, its VOXBATCH_… variables are options of it, and it takes its port from
    Cloud Run's PORT. The image's entry point is voxbatch, so the batch's image serves without a change.
    """
    (container,) = containers(first.world[SERVICE])
    understood(*container["args"])
    known = {
        name
        for p in cli.commands["serve"].params
        for name in ([p.envvar] if isinstance(p.envvar, str) else p.envvar or [])
    }
    assert {each["name"] for each in container["env"]} <= known
    assert "PORT" in known
    assert 'ENTRYPOINT ["/usr/bin/tini", "--", "voxbatch"]' in (ROOT / "Dockerfile").read_text()
    assert container["args"][:3] == ["serve", "--host", "0.0.0.0"]


@pytest.mark.slow
def test_cloud_run_sends_as_many_requests_as_vllm_runs(cloud: Cloud, first: First) -> None:
    """CONCURRENCY is one number for Cloud Run and vLLM. An L4 holds that many sessions by voxbatch's calculation."""
    options = engine_options(first.world)
    assert first.world[SERVICE]["spec"]["template"]["spec"]["containerConcurrency"] == int(options["max_num_seqs"]) == 8
    encoder = {
        "dim": 1280, "n_layers": 32, "head_dim": 64, "hidden_dim": 5120, "n_heads": 32, "n_kv_heads": 32,
        "ffn_type": "swiglu", "sliding_window": 750,
    }  # fmt: skip
    params = {  # params.json of Voxtral-Mini-4B-Realtime-2602
        "dim": 3072, "n_layers": 26, "head_dim": 128, "hidden_dim": 9216, "n_heads": 32, "n_kv_heads": 8,
        "vocab_size": 131_072, "multimodal": {"whisper_model_args": {"encoder_args": encoder}},
    }  # fmt: skip
    gpu = GPU_SPECS["NVIDIA L4"]
    limit = float(options["gpu_memory_utilization"]) * gpu.total_bytes
    plan = limit - gpu.reserved_bytes - UNCOUNTED_BYTES
    assert Footprint(params, True, int(options["max_model_len"])).fitting(plan) == 8
    cloud.put(**copy.deepcopy(first.world))
    deploy(cloud, PROFILE="mini-3b", CONCURRENCY="16", ENGINE_OPTIONS="max_model_len=4096", MODEL="gs://m/mini/")
    assert cloud.world[SERVICE]["spec"]["template"]["spec"]["containerConcurrency"] == 16
    assert engine_options(cloud.world) == {"max_model_len": "4096", "max_num_seqs": "16"}


def engine_options(world: dict[str, Any]) -> dict[str, str]:
    """Return the engine options of the service."""
    (container,) = containers(world[SERVICE])
    (text,) = [each["value"] for each in container["env"] if each["name"] == "VOXBATCH_ENGINE_OPTION"]
    return dict(each.split("=", 1) for each in text.split())


PUBLISHED = {
    "run.googleapis.com/request_count": "INT64",
    "run.googleapis.com/request_latencies": "DISTRIBUTION",
    "run.googleapis.com/container/gpu/utilizations": "DISTRIBUTION",
}
"""Metrics of Cloud Run, all DELTA, with their types: cloud.google.com/monitoring/api/metrics_gcp"""


@pytest.mark.slow
def test_alerts_are_valid(first: First) -> None:
    """The alerts are valid by the API description, use published metrics with aligners for their types, name only this
    service, and tell the channel. Their thresholds are 5 % of errors, 2 s at P95 and 20 % of the GPU.
    """
    alerts = [thing for key, thing in first.world.items() if key.startswith("alert/")]
    thresholds = {}
    for alert in alerts:
        assert discovery.api("monitoring.v3").faults(alert, "AlertPolicy") == []
        assert alert["notificationChannels"] == ["projects/p/notificationChannels/1"]
        (condition,) = (each["conditionThreshold"] for each in alert["conditions"])
        for name in condition.keys() & {"filter", "denominatorFilter"}:
            (metric,) = re.findall(r'metric\.type="([^"]+)"', condition[name])
            assert 'resource.type="cloud_run_revision"' in condition[name]
            assert 'resource.labels.service_name="voxbatch-serve"' in condition[name]
            numbers = PUBLISHED[metric] == "INT64"
            aggregation = condition["aggregations" if name == "filter" else "denominatorAggregations"][0]
            aligner = aggregation["perSeriesAligner"]
            assert aligner == "ALIGN_DELTA" or (not numbers and aligner.startswith("ALIGN_PERCENTILE_"))
        thresholds[alert["displayName"]] = (condition["comparison"], condition["thresholdValue"])
    assert thresholds == {
        "voxbatch: service errors": ("COMPARISON_GT", 0.05),
        "voxbatch: service latency": ("COMPARISON_GT", 2000),
        "voxbatch: service gpu idle": ("COMPARISON_LT", 0.2),
    }


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"CONCURRENCY": "0"}, "CONCURRENCY=0: it is a number from 1 to 1000"),
        ({"MAX_INSTANCES": "many"}, "MAX_INSTANCES=many: it is a number from 1 to 100"),
        ({"START_DELAY": "300"}, "START_DELAY=300: it is a number from 0 to 240"),
        ({"PROFILE": "ctx513"}, "PROFILE=ctx513: see voxbatch profiles"),
        ({"INGRESS": "none"}, "INGRESS=none: it is one of: all internal internal-and-cloud-load-balancing"),
        ({"ENGINE_OPTIONS": "max_num_seqs=4"}, "ENGINE_OPTIONS=max_num_seqs=4: max_num_seqs is CONCURRENCY: set that"),
        ({"ENGINE_OPTIONS": 'a="b"'}, 'ENGINE_OPTIONS=a="b": it is NAME=VALUE NAME=VALUE'),
        ({"INVOKERS": "me@example.org"}, "INVOKERS: me@example.org is no member: it is user:ADDRESS"),
        ({"INVOKERS": "allAuthenticatedUsers"}, "INVOKERS: allAuthenticatedUsers would let every caller use your GPU"),
        ({"ALERT_EMAIL": ""}, "whom should alerts tell?"),
    ],
)
def test_invalid_setting_is_refused(cloud: Cloud, setting: dict[str, str], said: str) -> None:
    """An invalid setting is refused with its permitted values, before any change."""
    done = cloud.run("service/deploy.sh", **setting)
    assert (done.returncode, cloud.changes()) == (1, [])
    assert done.stderr.startswith(f"deploy.sh: {said}")


@pytest.mark.parametrize("script", ["deploy.sh", "teardown.sh"])
def test_help_sends_no_request(cloud: Cloud, script: str) -> None:
    """--help explains every setting of the script; an unknown argument is refused."""
    done = cloud.run(f"service/{script}", "--help")
    assert (done.returncode, cloud.calls()) == (0, [])
    texts = [(JOBS / "service" / script).read_text()] + [(JOBS / "steps.sh").read_text()] * (script == "deploy.sh")
    taken = set(re.findall(r"\b([A-Z_]+)=\"\$\{\1:-", "".join(texts)))
    assert taken <= set(re.findall(r"\b[A-Z_]+\b", done.stdout))
    done = cloud.run(f"service/{script}", "--hlep")
    assert (done.returncode, done.stderr) == (1, f"{script}: unknown argument --hlep; see --help\n")


@pytest.mark.slow
def test_one_command_builds_and_deploys(cloud: Cloud) -> None:
    """BUILD=yes goes from an empty project to a service, with the weights of the build; --dry-run changes nothing."""
    assert "changes would be made." in cloud.run("service/deploy.sh", "--dry-run", BUILD="yes").stdout
    assert cloud.changes() == []
    cloud.put(**CURRENT)
    deploy(cloud, BUILD="yes", HF_TOKEN=TOKEN)
    changes = cloud.changes()
    assert [change.split(" ")[0] for change in changes if change.startswith(("builds", "run services replace"))] == [
        "builds",
        "run",
    ]
    assert {"name": "VOXBATCH_MODEL", "value": FOLDER} in containers(cloud.world[SERVICE])[0]["env"]
    cloud.run("service/teardown.sh")
    assert left(cloud) == set()


def left(cloud: Cloud) -> set[str]:
    """Return the resources and roles that are left, without what a test has put there."""
    there = {key: thing for key, thing in cloud.world.items() if not key.startswith(("builds/", "build states"))}
    names = {key: f"alert {thing['displayName']}" for key, thing in there.items() if key.startswith("alert/")}
    return {names.get(key, key) for key, thing in there.items() if thing and key not in EXISTS_BEFORE}


@pytest.mark.slow
def test_teardown_removes_what_deploy_made(deployed: Cloud) -> None:
    """teardown.sh removes all resources and roles but the APIs; a second run finds nothing to remove. Weights stay
    unless --with-data is given.
    """
    deployed.put(**{"objects/p-voxbatch-models": [FOLDER]})
    assert "bucket p-voxbatch-models stays: there is something in it" in deployed.run("service/teardown.sh").stdout
    assert left(deployed) == {"storage buckets/p-voxbatch-models", "objects/p-voxbatch-models"}
    deployed.run("service/teardown.sh", "--with-data")
    assert left(deployed) == set()
    deployed.calls()
    assert "Nothing to remove." in deployed.run("service/teardown.sh").stdout
    assert deployed.changes() == []


@pytest.mark.slow
def test_jobs_and_service_share_and_leave_each_other_alone(deployed: Cloud) -> None:
    """With the jobs beside it, teardown.sh of the service leaves what they share, and that of the jobs leaves the
    service; the second of the two removes the rest.
    """
    alone = left(deployed)
    deployed.deploy(HF_TOKEN=TOKEN)
    assert deployed.run("service/teardown.sh").returncode == 0
    with_jobs = copy.deepcopy(deployed.world)
    assert not {SERVICE, "iam service-accounts/voxbatch-serve"} & set(with_jobs)
    assert {"artifacts repositories/voxbatch", "secrets/voxbatch-hf-token", "run jobs/voxbatch"} <= set(with_jobs)
    deployed.calls()
    deployed.deploy(HF_TOKEN=TOKEN)
    assert deployed.changes() == []

    deploy(deployed, HF_TOKEN=TOKEN)
    assert deployed.run("teardown.sh").returncode == 0
    assert left(deployed) - {"notifications made", "policy:projects/p"} == alone
    deployed.calls()
    deploy(deployed, HF_TOKEN=TOKEN)
    assert deployed.changes() == []
    deployed.run("service/teardown.sh")
    assert left(deployed) == {"notifications made", "policy:projects/p"}


@pytest.mark.slow
def test_real_gcloud_accepts_every_command(deployed: Cloud, first: First) -> None:
    """gcloud's parser accepts every command, flag and value of the scripts, its printer gives the output of the fake
    gcloud, and its messages hold the service and the alerts.
    """
    deploy(deployed, INVOKERS="group:a@example.org", MODEL="owner/name", WEIGHTS="none", MAX_INSTANCES="2")
    deployed.run("service/teardown.sh", "--with-data")
    calls = first.calls + deployed.calls()
    showing = [c for c in calls if c["rc"] == 0 and "format" in c["flags"] and isinstance(c["resource"], dict | list)]
    shown = [{key: call[key] for key in ("flags", "resource", "out")} for call in showing]
    messages = []
    for path in {word.rpartition("=")[2] for call in calls for word in call["kept"] if word.endswith(".yaml")}:
        document = yaml.safe_load(Path(path).read_text())
        kind = ["", "v1", "Service"] if "kind" in document else ["monitoring", "v3", "AlertPolicy"]
        messages.append({"message": kind, "document": document})
    assert len(messages) >= 4
    commands = sorted({tuple(call["kept"]) for call in calls})
    assert ask_gcloud({"commands": commands, "shown": shown, "messages": messages}) == []


# ── the documentation ─────────────────────────────────────────────────────────────────────────────────────────────────

PAGE = (ROOT / "docs" / "serving.md").read_text()


def test_documentation_lists_every_granted_role() -> None:
    """The page names each role that the service's scripts grant, and each of its settings is in --help."""
    given = set(re.findall(r"roles/[\w.]+", (JOBS / "service" / "deploy.sh").read_text()))
    assert given <= set(re.findall(r"`(roles/[\w.]+)`", PAGE))


@pytest.mark.slow
def test_real_gcloud_accepts_the_commands_of_the_page() -> None:
    """gcloud's parser accepts each command of the page, with its variables filled in."""
    lines = re.findall(r"^\$ (gcloud (?:[^\n]*\\\n)*[^\n]*)", PAGE, re.MULTILINE)
    texts = [re.sub(r"\$\(.*?\)|\$\w+", "1", re.sub(r"\\\n", " ", line)) for line in lines]
    commands = [shlex.split(text, comments=True)[1:] for text in texts]
    assert len(commands) >= 10
    assert ask_gcloud({"commands": commands}) == []
