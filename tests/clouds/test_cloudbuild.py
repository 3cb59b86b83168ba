"""Tests for cloudbuild.yaml against Cloud Build's published schema, and for its scripts with a fake docker.

The step that brings the weights runs for real, with a hub and a Cloud Storage of this machine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import discovery
import hub
import images
import pytest
import yaml
from servers import GoogleServer, google_server

ROOT = Path(__file__).parents[2]
BUILT_IN = {"PROJECT_ID", "COMMIT_SHA", "LOCATION"}
SENT = tuple(re.findall(r"(_[A-Z_]+)=", (ROOT / "jobs/cloudrun/build.sh").read_text().split("--substitutions=")[1]))
"""Substitutions on the command line of deploy.sh."""
DOCKER = """#!/bin/sh
printf '%s\\n' "docker $*" >>"$RECORD"
case "$*" in
    *doctor) printf '%s\\n' "$DOCTOR"; exit "${DOCTOR_CODE:-0}" ;;
    create*) echo container-1 ;;
    "image inspect"*) for name; do :; done; echo "${name%%[:@]*}@sha256:1" ;;
    *"--entrypoint python3"*) while [ "$1" != - ]; do shift; done; exec "$PYTHON" "$@" ;;
esac
"""


def config(token: bool = False) -> dict[str, Any]:
    """Return the parsed file, or with the lines for a token uncommented, as the head of the file explains."""
    text = (ROOT / "cloudbuild.yaml").read_text()
    if token:
        text = re.sub(r"^( *)# (.*)  # token$", r"\1\2", text, flags=re.MULTILINE)
    return dict(yaml.safe_load(text))


def steps(token: bool = False) -> dict[str, dict[str, Any]]:
    return {step["id"]: step for step in config(token)["steps"]}


@pytest.mark.parametrize("token", [False, True])
def test_schema(token: bool) -> None:
    """Every field exists in Cloud Build's API and has its type, with and without the lines for a token."""
    assert discovery.api("cloudbuild.v1").faults(config(token), "Build") == []


def unused(built: dict[str, Any], sent: dict[str, str]) -> set[str]:
    """Return the substitutions that Cloud Build refuses, because nothing of the build that is sent uses them: `key
    "_X" in the substitution data is not matched in the template`.

    Args: built: the file. sent: the substitutions of a command line, which replace the file's own.
    """
    merged = {**built["substitutions"], **sent}
    text = json.dumps([merged, {name: part for name, part in built.items() if name != "substitutions"}])
    return set(merged) - set(re.findall(r"\$\{(\w+)\}", text))


@pytest.mark.parametrize("token", [False, True])
@pytest.mark.parametrize("sent", [(), SENT], ids=["by hand", "deploy.sh"])
def test_substitutions(token: bool, sent: tuple[str, ...]) -> None:
    """Cloud Build accepts the substitutions that are really sent: each one is used, also if the command line replaces
    those whose defaults name another one. Scripts get them as environment variables.
    """
    built = config(token)
    assert unused(built, dict.fromkeys(sent, "x")) == set()
    used = set(re.findall(r"\$\{(\w+)\}", json.dumps(built)))
    assert used - BUILT_IN == set(built["substitutions"])
    for step in built["steps"]:
        given = {each.partition("=")[0] for each in step.get("env", ())} | set(step.get("secretEnv", ()))
        taken = set(re.findall(r"\$\{?([A-Z_]+)\b", step["script"]))
        assert taken <= given | {"HF_TOKEN"}, step["id"]


def test_token() -> None:
    """Only the steps that may need the token read it; no line of the file and no argument of a command contains it."""
    built = config(token=True)
    assert [step["id"] for step in built["steps"] if "secretEnv" in step] == ["weights", "build-gpu"]
    assert built["availableSecrets"]["secretManager"][0]["env"] == "HF_TOKEN"
    assert "availableSecrets" not in config()


@pytest.mark.parametrize("name", list(steps()))
def test_scripts_are_clean(name: str) -> None:
    """shellcheck finds no fault in the script of a step."""
    done = subprocess.run(
        [images.tool("shellcheck"), "-"], input=steps()[name]["script"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")


class Machine:
    """A build machine whose docker records its arguments; this machine's Python is that of its containers."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.record = folder, folder / "record"
        (folder / "bin").mkdir()
        (folder / "bin" / "docker").write_text(DOCKER)
        (folder / "bin" / "docker").chmod(0o755)
        (folder / "jobs").symlink_to(ROOT / "jobs")
        (folder / "Dockerfile").symlink_to(ROOT / "Dockerfile")

    def run(self, name: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a step with Cloud Build's substitutions and additional variables."""
        built = config(token=True)
        values = {**built["substitutions"], "PROJECT_ID": "p", "COMMIT_SHA": "c0ffee", "_IMAGE": "registry/voxbatch"}
        given = steps()[name]["env"]
        for _ in range(2):  # the value of a substitution may name another one
            given = [re.sub(r"\$\{(\w+)\}", lambda found: str(values[found[1]]), each) for each in given]
        variables = {**dict(each.split("=", 1) for each in given), **env}
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            ["bash", "-c", steps()[name]["script"]], capture_output=True, text=True, cwd=self.folder,
            env={**variables, "PATH": path, "RECORD": str(self.record), "PYTHON": sys.executable},
        )  # fmt: skip

    def told(self) -> list[str]:
        """Return the recorded command lines."""
        return self.record.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_builds(machine: Machine) -> None:
    """Both targets are built with version and commit, on bases that are resolved to digests once, which their labels
    give. The larger one has no weights and no token by default.
    """
    assert machine.run("build-cpu", COMMIT="c0ffee").returncode == 0
    assert machine.run("build-gpu", COMMIT="c0ffee").returncode == 0
    about = "--build-arg VERSION=latest --build-arg REVISION=c0ffee --build-arg PYTHON_IMAGE=python@sha256:1"
    label = "--label org.opencontainers.image.base"
    given = dict(re.findall(r"^ARG (PYTHON_IMAGE|BASE_IMAGE)=(.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    python, base = given["PYTHON_IMAGE"], given["BASE_IMAGE"]
    assert [line for line in machine.told() if "inspect" not in line] == [
        f"docker pull --quiet {python}",
        (
            f"docker build --target cpu --tag registry/voxbatch:latest-cpu {about} {label}.name={python} "
            f"{label}.digest=sha256:1 ."
        ),
        f"docker pull --quiet {base}",
        (
            f"docker build --target gpu --tag registry/voxbatch:latest {about} "
            f"--build-arg BASE_IMAGE=vllm/vllm-openai@sha256:1 {label}.name={base} {label}.digest=sha256:1 "
            "--build-arg MODEL= --build-arg MODEL_REVISION=main ."
        ),
    ]


def test_builds_with_a_model(machine: Machine) -> None:
    """A token reaches the builder as a secret of one step, and never as an argument. A base that is given by its digest
    stays.
    """
    (machine.folder / "python-image.txt").write_text("python@sha256:1\n")
    done = machine.run("build-gpu", BASE_IMAGE="base@sha256:1", WEIGHTS="image", MODEL="o/m", HF_TOKEN="hf_secret")
    assert done.returncode == 0
    told = machine.told()[-1]
    assert "--build-arg BASE_IMAGE=base@sha256:1 " in told
    assert " --build-arg MODEL=o/m " in told
    assert told.endswith("--secret id=hf_token,env=HF_TOKEN .")
    assert "hf_secret" not in told + done.stdout + done.stderr


def test_tries_the_small_image(machine: Machine) -> None:
    """The small image transcribes the examples, and its exit code is that of the step."""
    assert machine.run("try-cpu").returncode == 0
    assert [line.split()[1] for line in machine.told()] == ["run", "create", "cp", "start", "rm"]
    assert machine.run("try-cpu", DOCTOR_CODE="1").returncode == 1


@pytest.mark.parametrize(
    ("said", "code", "result"),
    [
        ("ok       vllm                   0.32.0\nfailed   engine                 no GPU", "1", 0),
        ("ok       vllm                   0.32.0", "0", 0),
        ("missing  vllm                   pip install\nfailed   engine                 no GPU", "1", 1),
        ("failed   vllm                   0.99\nfailed   engine                 no GPU", "1", 1),
        ("ok       vllm                   0.32.0\nfailed   ffmpeg                 no ffmpeg", "1", 1),
        ("ok       vllm                   0.32.0", "139", 1),
    ],
)
def test_tries_the_large_image(machine: Machine, said: str, code: str, result: int) -> None:
    """A missing engine is expected on a machine without a GPU; any other missing or failed finding ends the build."""
    assert machine.run("try-gpu", DOCTOR=said, DOCTOR_CODE=code).returncode == result


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return the folder of a model with weights in both formats."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("params.json", "consolidated.safetensors", "model.safetensors", "picture.png"):
        (folder / name).write_text(f"content of {name}")
    return folder


@pytest.fixture
def store() -> Iterator[GoogleServer]:
    with google_server() as server:
        server.make("p-voxbatch-models")
        yield server


def contents(store: GoogleServer) -> dict[str, str]:
    """Return the objects of the models bucket."""
    client = store.client
    return {blob.name: blob.download_as_bytes().decode() for blob in client.list_blobs("p-voxbatch-models")}


@pytest.mark.slow
def test_weights_go_into_a_folder_of_their_commit(
    machine: Machine, model: Path, store: GoogleServer, tmp_path: Path
) -> None:
    """The step puts one format into OWNER/NAME/COMMIT and leaves the address beside it. A second build uploads nothing;
    one that was cut off is completed.
    """
    with hub.serving({"o/m": model}, tmp_path / "home") as served:
        where = {**served.environment, **store.settings(store.url), "MODEL": "o/m", "HOME": str(tmp_path)}
        done = machine.run("weights", **where)
        assert done.returncode == 0, done.stderr
        folder = f"o/m/{hub.COMMIT}/"
        expected = {
            f"{folder}params.json": "content of params.json",
            f"{folder}consolidated.safetensors": "content of consolidated.safetensors",
            "o/m/current": f"gs://p-voxbatch-models/{folder}",
        }
        assert contents(store) == expected

        before = len(served.asked)
        done = machine.run("weights", **where)
        assert (done.returncode, ": 0 files uploaded, 2 were there, 57 bytes" in done.stdout) == (0, True)
        assert [each for each in served.asked[before:] if "/api/" not in each] == []

        store.remove("p-voxbatch-models", f"{folder}params.json")
        store.put("p-voxbatch-models", f"{folder}consolidated.safetensors", b"cut off")
        assert machine.run("weights", **where).returncode == 0
        assert contents(store) == expected


@pytest.mark.slow
def test_damaged_weights_are_not_uploaded(machine: Machine, model: Path, store: GoogleServer, tmp_path: Path) -> None:
    """Weights whose SHA-256 is not that of the hub end the build, before anything is in the bucket."""
    with hub.serving({"o/m": model}, tmp_path / "home", damaged="consolidated.safetensors") as served:
        where = {**served.environment, **store.settings(store.url), "MODEL": "o/m", "HOME": str(tmp_path)}
        done = machine.run("weights", **where)
    assert done.returncode == 1
    assert f"weights.py: o/m/consolidated.safetensors at {hub.COMMIT}: SHA-256 is" in done.stderr
    assert contents(store) == {}


def test_weights_elsewhere(machine: Machine) -> None:
    """The step does nothing for weights in the image or on the hub, and refuses another word."""
    assert machine.run("weights", WEIGHTS="image").stdout == "nothing for the bucket: _WEIGHTS=image\n"
    assert machine.run("weights", WEIGHTS="none").returncode == 0
    assert machine.run("weights", WEIGHTS="yes").returncode == 2


def test_order() -> None:
    """The steps run one by one: the images are tried before Cloud Build pushes them, which it does after all steps."""
    assert list(steps()) == ["build-cpu", "try-cpu", "weights", "build-gpu", "try-gpu"]
    assert not [step for step in config()["steps"] if "waitFor" in step or "allowFailure" in step]


def test_pushes_with_provenance_and_nothing_else() -> None:
    """Cloud Build itself pushes both images, so that it records their provenance, and fails without it. No step pushes,
    deploys, or makes a repository: the account of the build may not.
    """
    built = config()
    assert built["images"] == ["${_IMAGE}:${_TAG}", "${_IMAGE}:${_TAG}-cpu"]
    assert built["options"]["requestedVerifyOption"] == "VERIFIED"
    assert {step["name"] for step in built["steps"]} == {"gcr.io/cloud-builders/docker"}
    scripts = "".join(step["script"] for step in built["steps"])
    assert not re.search(r"docker push|gcloud|deploy\.sh", scripts)
