"""Tests for jobs/cloudrun/build.sh and verify.sh against a fake gcloud, and against the parser of the real one."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cloudrun_deployment import faults_of_calls
from conftest import Voxbatch
from gcloud_stub import Gcloud, Trouble, gcloud

JOBS = Path(__file__).parents[2] / "jobs" / "cloudrun"
TRIAL = """
set -euo pipefail
source settings.sh
source build.sh
source verify.sh
settings
IMAGE="${IMAGE:-$REGION-docker.pkg.dev/$PROJECT/voxbatch/voxbatch:latest}"
MODEL="${MODEL:-}"
WEIGHTS="${WEIGHTS:-bucket}"
SCAN="${SCAN:-no}"
USD_PER_HOUR=1.421
TF_VAR_hub_token="${HAS_TOKEN:-false}"
CALLS
printf '%s\\n' "IMAGE=$IMAGE" "MODEL=$MODEL"
"""
FOLDER = "gs://p-voxbatch-models/mistralai/Voxtral-Mini-4B-Realtime-2602/0123/"
SUMMARY = {"done": 1, "wall_s": 21.5, "usd": 0.0085, "latency": {"wall_s": 3}}


class Project:
    """A project in which an image is."""

    def __init__(self, programs: Path, stub: Gcloud) -> None:
        self.programs, self.stub = programs, stub
        stub.world.things["image"] = {"image_summary": {"digest": "sha256:0123"}}

    def run(self, calls: str, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run functions of the scripts with these settings."""
        environment = {
            "PATH": f"{self.programs}:{os.environ['PATH']}", "HOME": os.environ["HOME"], "RETRY_S": "0",
            "PROJECT": "p", "REGION": "europe-west1", **settings,
        }  # fmt: skip
        return subprocess.run(
            ["bash", "-c", TRIAL.replace("CALLS", calls), "deploy.sh"], cwd=JOBS, env=environment,
            capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60,
        )  # fmt: skip

    def put(self, **things: Any) -> None:
        self.stub.world.things.update(things)

    def calls(self, verb: str) -> list[list[str]]:
        """Return the recorded command lines that start so."""
        return [call["argv"] for call in self.stub.record if " ".join(call["argv"]).startswith(verb)]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    (tmp_path / "bin").mkdir()
    (terraform := tmp_path / "bin" / "terraform").write_text("#!/bin/sh\necho Terraform v1.5.7\n")  # see settings.sh
    terraform.chmod(0o755)
    with gcloud(tmp_path / "bin", tmp_path / "files") as stub:
        yield Project(tmp_path / "bin", stub)


def weights(project: Project) -> None:
    """Put the object that a build leaves beside the weights."""
    project.put(**{f"object {FOLDER.removeprefix('gs://').replace('0123/', 'current')}": FOLDER})


# ── build_image ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_build_gives_an_image_by_digest_and_the_folder_of_its_weights(project: Project) -> None:
    """After a build, IMAGE is what was built, by its digest, and MODEL the folder of the weights in the bucket."""
    weights(project)
    done = project.run("build_image", IMAGE="europe-west1-docker.pkg.dev/p/voxbatch/voxbatch:v2")
    assert done.returncode == 0, done.stderr
    assert "IMAGE=europe-west1-docker.pkg.dev/p/voxbatch/voxbatch@sha256:0123\n" in done.stdout
    assert f"MODEL={FOLDER}\n" in done.stdout
    [submitted] = project.calls("builds submit")
    assert "--service-account=projects/p/serviceAccounts/voxbatch-build@p.iam.gserviceaccount.com" in submitted
    assert "--gcs-source-staging-dir=gs://p-voxbatch-models/source" in submitted
    given = dict(each.split("=") for each in submitted[-1].partition("=")[2].split(","))
    assert given["_IMAGE"] == "europe-west1-docker.pkg.dev/p/voxbatch/voxbatch"
    assert (given["_TAG"], given["_WEIGHTS"]) == ("v2", "bucket")
    assert given["_MODEL"] == "mistralai/Voxtral-Mini-4B-Realtime-2602"


@pytest.mark.parametrize("secret", [False, True])
def test_build_reads_the_token_only_if_there_is_one(project: Project, secret: bool) -> None:
    """The lines of cloudbuild.yaml about a secret are comments without one, because the build could not start."""
    assert project.run("build_image", HAS_TOKEN=str(secret).lower()).returncode == 0
    assert ("availableSecrets" in project.stub.world.things["builds/b-1"]["config"]) == secret


@pytest.mark.parametrize(
    "said",
    [
        (
            "INVALID_ARGUMENT: could not resolve source: googleapi: Error 403: voxbatch-build@p does not have "
            "storage.objects.get access to the Google Cloud Storage object., forbidden"
        ),
        "NOT_FOUND: Service account voxbatch-build@p does not exist.",
    ],
)
def test_new_roles_are_waited_for(project: Project, said: str) -> None:
    """A build that Google refuses because it does not know the new account or its roles yet is tried again."""
    project.stub.trouble = Trouble("builds submit", said, times=2)
    done = project.run("build_image")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("… not yet: ERROR") == 2


@pytest.mark.parametrize(("times", "result"), [(5, 0), (99, 1)])
def test_network_may_fail_while_a_build_is_watched(project: Project, times: int, result: int) -> None:
    """A question about the build that fails is asked again, so that a short outage does not end an hour of waiting."""
    project.stub.trouble = Trouble("builds describe", "There was a problem refreshing your access tokens", times=times)
    done = project.run("build_image")
    assert done.returncode == result
    assert ("could not look: gcloud builds describe b-1" in done.stderr) == bool(result)


def test_failed_build_names_step_and_log(project: Project) -> None:
    """A build that fails stops the deployment with the step that failed, the end of the log, and the way to read it."""
    log = [{"textPayload": "ERROR: no space"}, {"textPayload": "Step 3 : RUN"}]  # the newest line comes first
    project.put(**{"build states": ["WORKING", "FAILURE build-gpu"], "log": log})
    done = project.run("build_image")
    assert done.returncode == 1
    assert (
        "    Step 3 : RUN\n    ERROR: no space\ndeploy.sh: the build ended with FAILURE in step build-gpu"
        in done.stderr
    )
    assert "gcloud logging read 'resource.labels.build_id=\"b-1\"'" in done.stderr


@pytest.mark.parametrize(
    ("settings", "given"),
    [
        ({"MODEL": "openai/whisper-large-v3"}, ("bucket", "openai/whisper-large-v3")),
        ({"MODEL": "gs://mine/model"}, ("none", "")),
        ({"WEIGHTS": "image", "MODEL": "openai/whisper-large-v3"}, ("image", "openai/whisper-large-v3")),
    ],
)
def test_model_of_the_build(project: Project, settings: dict[str, str], given: tuple[str, str]) -> None:
    """A build brings the weights of a model of the hub; an address or a folder needs none. The job is not told the
    model that is in its image, or it would download it.
    """
    done = project.run("build_image", **settings)
    assert done.returncode == 0, done.stderr
    [submitted] = project.calls("builds submit")
    values = dict(each.split("=") for each in submitted[-1].partition("=")[2].split(","))
    assert (values["_WEIGHTS"], values["_MODEL"]) == given
    assert f"MODEL={'' if 'WEIGHTS' in settings else settings['MODEL']}\n" in done.stdout


def test_later_deployments_find_the_weights_of_a_build(project: Project) -> None:
    """MODEL is the folder that an earlier build filled, if this one builds nothing; else it stays."""
    assert "MODEL=\n" in project.run("find_weights").stdout
    weights(project)
    assert f"MODEL={FOLDER}\n" in project.run("find_weights").stdout
    assert "MODEL=\n" in project.run("find_weights", WEIGHTS="image").stdout
    assert "MODEL=o/m\n" in project.run("find_weights", WEIGHTS="none", MODEL="o/m").stdout
    assert "MODEL=gs://mine/model\n" in project.run("find_weights", MODEL="gs://mine/model").stdout


def test_scan(project: Project) -> None:
    """The numbers of known vulnerabilities are printed by severity, and the SBOM is exported. A scan that has not ended
    is no failure. Without SCAN=yes nothing is asked.
    """
    assert project.run("scan_image", IMAGE="r/i@sha256:0123").stdout.startswith("IMAGE=")
    project.put(vulnerabilities=[{"vulnerability": {"effectiveSeverity": each}} for each in ("HIGH", "LOW", "HIGH")])
    done = project.run("scan_image", IMAGE="r/i@sha256:0123", SCAN="yes")
    assert "  vulnerabilities: 2 high, 1 low; gcloud artifacts vulnerabilities list r/i@sha256:0123\n" in done.stdout
    assert len(project.calls("artifacts sbom export --uri=r/i@sha256:0123")) == 1
    project.stub.trouble = Trouble("artifacts", "There is no analysis of it yet", times=99)
    done = project.run("scan_image", IMAGE="r/i@sha256:0123", SCAN="yes")
    assert (done.returncode, done.stdout.count("\n! ")) == (0, 1)
    assert done.stdout.startswith(
        "! no SBOM yet (ERROR: (gcloud.artifacts.sbom.export) There is no analysis of it yet)"
    )


# ── verify_deployment ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_verification_prints_transcript_and_cost(project: Project) -> None:
    """Doctor runs first, then one recording; the output has the transcript, the cost, and the part of the start."""
    outputs = {"txt/weather.txt": "Here is the weather.\n", "summary.json": json.dumps(SUMMARY, indent=2)}
    project.put(**{"outputs of a run": outputs, "log": [{"textPayload": "ready: voxbatch run"}]})
    done = project.run("verify_deployment")
    assert done.returncode == 0, done.stderr
    assert "    ready: voxbatch run\n" in done.stdout
    assert "  transcript:\n    Here is the weather.\n" in done.stdout
    # By hand: 23:59:50 to 00:03:20 are 210 s; 210 × 1.421 / 3600 = 0.083; 21.5 s cost 0.008; twice 210 s cost 0.166.
    assert (
        "  cost: 0.083 USD for 210 s of the job: 0.008 USD for the run (21.5 s), the rest for its start (189 s). "
        in (done.stdout)
    )
    assert "With doctor: 0.166 USD, at 1.421 USD an hour" in done.stdout
    first, second, third = project.calls("run jobs execute")
    assert "--args=doctor" in first
    assert "--tasks=1" in first
    assert any(each.startswith("--update-env-vars=VOXBATCH_OUT=gs://p-voxbatch-out/out/verify/") for each in first)
    assert re.search(
        r"^--args=run,gs://p-voxbatch-in/verify/weather.flac,-o,gs://p-voxbatch-out/out/verify/", second[5]
    )
    assert third[3] == "voxbatch-kernels"
    assert third[5].startswith(
        "--args=run,gs://p-voxbatch-kernels/source/kernels.jsonl,-o,gs://p-voxbatch-kernels/runs/"
    )


def test_trial_reads_the_outputs_of_a_real_run(project: Project, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """The trial's own arguments, given to a real run, leave the files from which it takes transcript and seconds."""
    project.put(log=[{"textPayload": "ready"}])
    assert project.run("verify_deployment").returncode == 1, "the fake cloud runs nothing"
    [given] = [each for each in project.calls("run jobs execute")[1] if each.startswith("--args=")]
    arguments = given.removeprefix("--args=").split(",")
    arguments[1], arguments[3] = str(JOBS.parents[1] / "examples/recordings/weather.flac"), str(tmp_path / "out")
    assert voxbatch(*arguments, "--engine", "scripted").returncode == 0
    names = ("txt/weather.txt", "summary.json")
    project.put(**{"outputs of a run": {name: (tmp_path / "out" / name).read_text() for name in names}})
    done = project.run("verify_deployment")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "txt/weather.txt").read_text().splitlines()[0] in done.stdout
    seconds = json.loads((tmp_path / "out" / "summary.json").read_text())["wall_s"]
    assert f"USD for the run ({seconds} s)" in done.stdout


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        (["Unknown", "False Task t failed: exit code 1"], "Task t failed: exit code 1"),
        (["Unknown", "Retried"], "its first attempt failed, and the others were cancelled"),
    ],
)
def test_failed_verification_says_so_at_the_first_attempt(project: Project, states: list[str], reason: str) -> None:
    """A doctor that fails stops the verification with the reason, the end of its log and the way to read it; the job's
    other attempts, which would fail as well, are cancelled.
    """
    log = [{"textPayload": "not ready: driver 535"}, {"jsonPayload": {"message": "refused", "text": "no model"}}]
    project.put(**{"execution states": states, "log": log})
    done = project.run("verify_deployment")
    assert done.returncode == 1
    assert (
        f"    refused no model\n    not ready: driver 535\ndeploy.sh: execution voxbatch-1 failed: {reason}\n"
        in done.stderr
    )
    assert """gcloud logging read 'labels."run.googleapis.com/execution_name"="voxbatch-1"'""" in done.stderr
    assert len(project.calls("run jobs executions cancel voxbatch-1")) == ("Retried" in states)
    assert len(project.calls("run jobs execute")) == 1


def test_execution_that_does_not_start_is_cancelled(project: Project) -> None:
    """An execution that waits for a GPU too long is cancelled; the message names the quota."""
    project.put(**{"execution states": ["Unknown"]})
    done = project.run("EXECUTION_S=-1; verify_deployment")
    assert done.returncode == 1
    assert "console.cloud.google.com/iam-admin/quotas?project=p" in done.stderr
    assert len(project.calls("run jobs executions cancel")) == 1


def test_dry_run_starts_nothing(project: Project) -> None:
    """--dry-run names the build and the trial, and starts none."""
    done = project.run("DRY_RUN=yes; build_image; verify_deployment; scan_image", SCAN="yes")
    assert done.returncode == 0, done.stderr
    assert [call["argv"] for call in project.stub.record if not call["reads"]] == []
    assert "+ build europe-west1-docker.pkg.dev/p/voxbatch/voxbatch:latest" in done.stdout
    assert "+ run doctor on an L4" in done.stdout


@pytest.mark.slow
def test_real_gcloud_accepts_every_command(project: Project) -> None:
    """gcloud's parser accepts every command of both files, and its printer gives the output of the fake gcloud."""
    outputs = {"txt/weather.txt": "x", "summary.json": json.dumps(SUMMARY, indent=2)}
    project.put(**{"outputs of a run": outputs, "log": [{"textPayload": "a"}]})
    assert project.run("build_image; verify_deployment; scan_image", SCAN="yes", HAS_TOKEN="true").returncode == 0
    project.put(**{"execution states": ["Retried"], "build states": ["WORKING", "FAILURE push"]})
    assert project.run("verify_deployment").returncode == 1
    assert project.run("build_image").returncode == 1
    assert faults_of_calls(project.stub.record) == []
