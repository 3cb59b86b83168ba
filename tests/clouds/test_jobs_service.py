"""Tests for jobs/cloudrun/service and the module terraform/service.

The scripts run with a fake gcloud and a fake terraform. The numbers are compared with voxbatch's own. That the
resources are valid by Google's API descriptions is tested in test_terraform.py.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cloudrun_deployment import (
    APPLY,
    CURRENT,
    FOLDER,
    IMAGE,
    TOKEN,
    Cloud,
    ask_gcloud,
    faults_of_calls,
    given,
    project,
)  # fmt: skip
from cloudrun_plan import PROJECT, bindings, container, of_kind, planned, variables_of
from conftest import ROOT, environment

from voxbatch.cli import cli
from voxbatch.engines.gpu_specs import GPU_SPECS
from voxbatch.vllm.engine.memory import UNCOUNTED_BYTES, StreamingFootprint
from voxbatch.vllm.plugin.server_middleware import PERIODS, Rate

SERVICE = "run services/voxbatch-serve"


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    with project(tmp_path) as made:
        yield made


@pytest.mark.slow
def test_deploy_applies_the_modules_with_every_setting(cloud: Cloud) -> None:
    """deploy.sh applies the foundation and the service, with a variable for each setting, and says how to call it."""
    cloud.put(**CURRENT)
    said = cloud.deploy(
        "service/deploy.sh",
        PROFILE="mini-3b",
        CONCURRENCY="16",
        MAX_INSTANCES="2",
        INGRESS="internal",
        RATE_LIMIT="60/minute",
    )
    assert cloud.terraform.made() == [f"foundation {APPLY}", f"service {APPLY}"]
    assert given(cloud, "service") == {
        "project": "p", "region": "europe-west1", "image": IMAGE, "model": FOLDER, "hub_token": "false",
        "bucket_models": "p-voxbatch-models", "profile": "mini-3b", "invokers": "['user:me@example.org']",
        "engine_options": "", "concurrency": "16", "max_instances": "2", "start_delay": "0", "rate_limit": "60/minute",
        "ingress": "INGRESS_TRAFFIC_INTERNAL_ONLY", "alerts": "true", "channel": "projects/p/notificationChannels/1",
    }  # fmt: skip
    assert "https://voxbatch-serve-42.europe-west1.run.app/v1/models" in said


@pytest.mark.slow
def test_settings_live_with_the_service(cloud: Cloud) -> None:
    """One setting changes nothing else, also where the jobs are not deployed; another profile has its own options, and
    --defaults forgets the settings."""
    cloud.put(**CURRENT)
    settings = {"REGION": "us-central1", "CONCURRENCY": "16", "RATE_LIMIT": "60/minute", "INGRESS": "internal"}
    cloud.deploy("service/deploy.sh", **settings)
    before = given(cloud, "service")
    output = cloud.deploy("service/deploy.sh", MAX_INSTANCES="4")
    assert given(cloud, "service") == before | {"max_instances": "4"}
    assert "= settings of the last deployment, except MAX_INSTANCES=4 (was 1)" in output
    cloud.deploy("service/deploy.sh", PROFILE="mini-3b")
    assert given(cloud, "service") == before | {"max_instances": "4", "profile": "mini-3b", "engine_options": ""}
    cloud.deploy("service/deploy.sh", "--defaults")
    kept = given(cloud, "service")
    assert (kept["region"], kept["rate_limit"], kept["profile"]) == ("europe-west1", "", "ctx512")


@pytest.mark.slow
def test_only_named_members_may_call_the_service(cloud: Cloud) -> None:
    """INVOKERS is the list of callers: others lose the role. Without INVOKERS, the callers stay, also those that a
    person added by hand. allUsers is refused, with the command for those who want it.
    """
    cloud.deploy("service/deploy.sh", INVOKERS="group:a@example.org,serviceAccount:b@p.iam.gserviceaccount.com")
    two = "['group:a@example.org', 'serviceAccount:b@p.iam.gserviceaccount.com']"
    assert given(cloud, "service")["invokers"] == two
    cloud.put(**{SERVICE: [{"role": "roles/run.invoker", "members": ["allUsers"]}]})
    assert "callers: allUsers" in cloud.deploy("service/deploy.sh")
    assert given(cloud, "service")["invokers"] == "['allUsers']"
    done = cloud.run("service/deploy.sh", INVOKERS="user:a@example.org,allUsers")
    assert (done.returncode, "--member=allUsers --role=roles/run.invoker" in done.stderr) == (1, True)


@pytest.mark.slow
def test_account_reads_the_weights_and_nothing_else() -> None:
    """The account of the service has one role: it reads the weights. If each start downloads from the hub, it reads the
    hub token instead, and with weights in the image it reads neither. Only the named members may call the service.
    """
    call = ("user:me@example.org", "roles/run.invoker", SERVICE)
    weights = ("voxbatch-serve", "roles/storage.objectViewer", f"storage buckets/{PROJECT}-voxbatch-models")
    token = ("voxbatch-serve", "roles/secretmanager.secretAccessor", "secrets/voxbatch-hf-token")
    for variables, role in (
        ({}, {weights}),
        ({"model": "owner/name", "hub_token": True}, {token}),
        ({"model": ""}, set()),
    ):
        plan = planned("service", **variables)
        assert bindings(plan) == {call} | role
        (service,) = of_kind(plan, "google_cloud_run_v2_service")
        assert ("HF_TOKEN" in variables_of(service)) == (role == {token})


@pytest.mark.slow
def test_service_scales_to_zero_and_starts_as_soon_as_it_can() -> None:
    """The service has no instance without requests, and an L4 for each. The first probe comes at once, and a start has
    seven minutes, also if the first probe is put off.
    """
    (service,) = of_kind(planned("service"), "google_cloud_run_v2_service")
    (template,) = service["template"]
    assert template["scaling"] == [{"min_instance_count": 0, "max_instance_count": 1}]
    assert (template["node_selector"], template["timeout"]) == ([{"accelerator": "nvidia-l4"}], "3600s")
    only = container(service)
    assert only["resources"][0]["limits"] == {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"}
    (started,), (alive,) = only["startup_probe"], only["liveness_probe"]
    assert started["initial_delay_seconds"] == 0
    assert started["failure_threshold"] * started["period_seconds"] == 420
    for probe in (started, alive):
        assert probe["http_get"] == [{"path": "/health", "port": only["ports"][0]["container_port"]}]
        assert probe["timeout_seconds"] <= probe["period_seconds"]
    (late,) = of_kind(planned("service", start_delay=180), "google_cloud_run_v2_service")
    assert container(late)["startup_probe"][0]["failure_threshold"] == 24


@pytest.mark.slow
def test_cloud_run_sends_as_many_requests_as_vllm_runs() -> None:
    """The concurrency is one number for Cloud Run and vLLM. An L4 holds that many sessions by voxbatch's calculation.
    The image's entry point is voxbatch, and the server takes its port from Cloud Run's PORT.
    """
    (service,) = of_kind(planned("service"), "google_cloud_run_v2_service")
    options = dict(each.split("=", 1) for each in variables_of(service)["VOXBATCH_ENGINE_OPTION"].split())
    assert service["template"][0]["max_instance_request_concurrency"] == int(options["max_num_seqs"]) == 8
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
    assert StreamingFootprint(params, int(options["max_model_len"])).fitting(plan) == 8
    assert any("PORT" in (param.envvar or ()) for param in cli.commands["serve"].params)
    assert 'ENTRYPOINT ["/usr/bin/tini", "--", "voxbatch"]' in (ROOT / "Dockerfile").read_text()
    assert container(service)["args"] == ["serve", "--host", "0.0.0.0", "--profile", "ctx512"]


@pytest.mark.slow
def test_rate_limit_reaches_the_server() -> None:
    """`voxbatch serve` reads the limit, of any period, from its variable; test_serve.py has the callers."""
    (plain,) = of_kind(planned("service"), "google_cloud_run_v2_service")
    assert not {"VOXBATCH_RATE_LIMIT", "FORWARDED_ALLOW_IPS"} & variables_of(plain).keys()
    (limited,) = of_kind(planned("service", rate_limit="60/minute"), "google_cloud_run_v2_service")
    variables = variables_of(limited)
    assert any("VOXBATCH_RATE_LIMIT" in (param.envvar or ()) for param in cli.commands["serve"].params)
    assert Rate.parse(variables["VOXBATCH_RATE_LIMIT"]) == Rate(60, 60)
    for period, seconds in PERIODS.items():
        (other,) = of_kind(planned("service", rate_limit=f"5/{period}"), "google_cloud_run_v2_service")
        assert Rate.parse(variables_of(other)["VOXBATCH_RATE_LIMIT"]) == Rate(5, seconds)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"CONCURRENCY": "0"}, "CONCURRENCY=0: it is a number from 1 to 1000"),
        ({"MAX_INSTANCES": "many"}, "MAX_INSTANCES=many: it is a number from 1 to 100"),
        ({"START_DELAY": "300"}, "START_DELAY=300: it is a number from 0 to 240"),
        ({"PROFILE": "ctx513"}, "PROFILE=ctx513: see voxbatch profiles"),
        ({"RATE_LIMIT": "60"}, "RATE_LIMIT=60: it is N/PERIOD, such as 60/minute"),
        ({"INGRESS": "none"}, "INGRESS=none: it is one of: all internal internal-and-cloud-load-balancing"),
        ({"ENGINE_OPTIONS": "max_num_seqs=4"}, "ENGINE_OPTIONS=max_num_seqs=4: max_num_seqs is CONCURRENCY: set that"),
        ({"ENGINE_OPTIONS": 'a="b"'}, 'ENGINE_OPTIONS=a="b": it is NAME=VALUE NAME=VALUE'),
        ({"INVOKERS": "me@example.org"}, "INVOKERS: me@example.org is no member: it is user:ADDRESS"),
        ({"INVOKERS": "allAuthenticatedUsers"}, "INVOKERS: allAuthenticatedUsers would let every caller use your GPU"),
    ],
)
def test_invalid_setting_is_refused(cloud: Cloud, setting: dict[str, str], said: str) -> None:
    """An invalid setting is refused with its permitted values, before any change."""
    done = cloud.run("service/deploy.sh", **setting)
    assert (done.returncode, cloud.changes()) == (1, [])
    assert done.stderr.startswith(f"deploy.sh: {said}")


@pytest.mark.slow
def test_one_command_builds_and_deploys(cloud: Cloud) -> None:
    """BUILD=yes goes from an empty project to a service, with the weights of the build; --dry-run changes nothing."""
    cloud.put(**CURRENT)
    cloud.deploy("service/deploy.sh", "--dry-run", BUILD="yes")
    assert (cloud.changes(), cloud.terraform.made()) == ([], [])
    cloud.deploy("service/deploy.sh", BUILD="yes", HF_TOKEN=TOKEN)
    assert any(change.startswith("builds submit") for change in cloud.changes())
    assert given(cloud, "service")["model"] == FOLDER


@pytest.mark.slow
def test_jobs_and_service_share_and_leave_each_other_alone(cloud: Cloud) -> None:
    """With the jobs beside it, teardown.sh of the service leaves what they share, and that of the jobs leaves the
    service; the second of the two destroys the foundation. Weights stay unless --with-data is given.
    """
    for first, second in (("service/", ""), ("", "service/")):
        cloud.deploy()
        cloud.deploy("service/deploy.sh")
        cloud.put(**{"objects/p-voxbatch-models": [FOLDER]})
        assert "use them" in cloud.run(f"{first}teardown.sh").stdout
        assert len(cloud.terraform.applied) == 2
        cloud.calls()
        said = cloud.run(f"{second}teardown.sh").stdout
        assert "bucket p-voxbatch-models stays: there is something in it" in said
        assert cloud.terraform.made("state rm")[-1] == "foundation state rm google_storage_bucket.models"
        assert cloud.terraform.applied == {}
        assert cloud.changes() == ["storage rm --recursive gs://p-voxbatch-state"]


@pytest.mark.slow
def test_real_gcloud_accepts_every_command(cloud: Cloud) -> None:
    """gcloud's parser accepts every command, flag and value, and its printer gives the output of the fake gcloud."""
    cloud.put(**{SERVICE: [{"role": "roles/run.invoker", "members": ["user:a@example.org"]}]})
    cloud.deploy("service/deploy.sh", HF_TOKEN=TOKEN)
    cloud.run("service/teardown.sh", "--with-data")
    assert faults_of_calls(cloud.calls()) == []


# ── the documentation ─────────────────────────────────────────────────────────────────────────────────────────────────

PAGE = (ROOT / "docs" / "serving.md").read_text()


@pytest.mark.slow
def test_documentation_lists_every_granted_role() -> None:
    """The page names each role that the module of the service grants."""
    granted = {role for _, role, _ in bindings(planned("service")) | bindings(planned("service", model="owner/name"))}
    assert granted <= set(re.findall(r"`(roles/[\w.]+)`", PAGE))


RECORDER = "#!/bin/bash\nprintf '%s\\0' $# \"$@\" >>recorded\n"
"""A gcloud that records its arguments, behind their number."""


@pytest.mark.slow
def test_real_gcloud_accepts_the_commands_of_the_page(tmp_path: Path) -> None:
    """gcloud's parser accepts each command of the page, with its variables filled in, and of its script that limits
    requests.
    """
    lines = re.findall(r"^\$ (gcloud (?:[^\n]*\\\n)*[^\n]*)", PAGE, re.MULTILINE)
    texts = [re.sub(r"\$\(.*?\)|\$\w+", "1", re.sub(r"\\\n", " ", line)) for line in lines]
    commands = [shlex.split(text, comments=True)[1:] for text in texts]
    (host, script) = re.findall(r"^\$ HOST=(\S+) (jobs/\S+)", PAGE, re.MULTILINE)[0]
    (tmp_path / "gcloud").write_text(RECORDER)
    (tmp_path / "gcloud").chmod(0o755)
    env = environment(PATH=f"{tmp_path}:/usr/bin:/bin", HOST=host)
    subprocess.run([ROOT / script], cwd=tmp_path, env=env, check=True)
    words = iter((tmp_path / "recorded").read_text().split("\0")[:-1])
    commands += [[next(words) for _ in range(int(count))] for count in words]
    assert len(commands) >= 16
    assert ask_gcloud({"commands": commands}) == []
