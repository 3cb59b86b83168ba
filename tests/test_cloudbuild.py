"""Tests for cloudbuild.yaml against Cloud Build's published schema, and for its scripts with fakes of docker and
gcloud.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import discovery
import pytest
import yaml

ROOT = Path(__file__).parents[1]
BUILT_IN = {"PROJECT_ID", "COMMIT_SHA"}
DOCKER = """#!/bin/sh
printf '%s\\n' "docker $*" >>"$RECORD"
case "$*" in
    *doctor) printf '%s\\n' "$DOCTOR"; exit "${DOCTOR_CODE:-0}" ;;
    create*) echo container-1 ;;
    *inspect*) echo registry/voxbatch@sha256:1 ;;
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


def test_the_schema_finds_faults() -> None:
    """The schema check finds a wrong name, type, choice and duration, and a step without its image."""
    wrong = {"step": [], "timeout": "1h", "options": {"machineType": "E3"}, "steps": [{"args": "run"}], "id": "x"}
    assert len(discovery.api("cloudbuild.v1").faults(wrong, "Build")) == 6


@pytest.mark.parametrize("token", [False, True])
def test_substitutions(token: bool) -> None:
    """Exactly the used substitutions are declared, as Cloud Build requires, and scripts get them as environment
    variables.
    """
    built = config(token)
    declared = set(built["substitutions"])
    values = [*built["substitutions"].values(), *(value for step in built["steps"] for value in step.get("env", ()))]
    used = set(re.findall(r"\$\{(\w+)\}", "\n".join([*values, json.dumps(built.get("availableSecrets", {}))])))
    assert used - BUILT_IN == declared
    for step in built["steps"]:
        given = {each.partition("=")[0] for each in step.get("env", ())} | set(step.get("secretEnv", ()))
        taken = set(re.findall(r"\$\{?([A-Z_]+)\b", step["script"]))
        assert taken <= given | {"HF_TOKEN"}, step["id"]


def test_token() -> None:
    """Only the step that may need the token reads it; no line of the file and no argument of a command contains it."""
    built = config(token=True)
    assert [step["id"] for step in built["steps"] if "secretEnv" in step] == ["build-gpu"]
    assert built["availableSecrets"]["secretManager"][0]["env"] == "HF_TOKEN"
    assert "availableSecrets" not in config()


@pytest.mark.parametrize("name", list(steps()))
def test_scripts_are_clean(name: str) -> None:
    """shellcheck finds no fault in the script of a step."""
    beside = Path(sys.executable).parent / "shellcheck"
    program = str(beside) if beside.exists() else shutil.which("shellcheck")
    if not program:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([program, "-"], input=steps()[name]["script"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


class Machine:
    """A build machine whose docker and gcloud only record their arguments."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.record = folder, folder / "record"
        (folder / "bin").mkdir()
        for name, text in (("docker", DOCKER), ("gcloud", DOCKER.replace("docker", "gcloud"))):
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)

    def run(self, name: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a step with Cloud Build's substitutions and additional variables."""
        built = config(token=True)
        values = {**built["substitutions"], "PROJECT_ID": "p", "COMMIT_SHA": "c0ffee", "_IMAGE": "registry/voxbatch"}
        given = [re.sub(r"\$\{(\w+)\}", lambda found: str(values[found[1]]), each) for each in steps()[name]["env"]]
        variables = {**dict(each.split("=", 1) for each in given), **env}
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            ["bash", "-c", steps()[name]["script"]], capture_output=True, text=True, cwd=self.folder,
            env={**variables, "PATH": path, "RECORD": str(self.record)},
        )  # fmt: skip

    def told(self) -> list[str]:
        """Return the recorded command lines."""
        return self.record.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_builds(machine: Machine) -> None:
    """Both targets are built with version and commit; the larger one uses no base, model or token by default."""
    assert machine.run("build-cpu").returncode == 0
    assert machine.run("build-gpu").returncode == 0
    about = "--build-arg VERSION=latest --build-arg REVISION=c0ffee"
    model = "--build-arg MODEL= --build-arg MODEL_REVISION=main"
    assert machine.told() == [
        f"docker build --target cpu --tag registry/voxbatch:latest-cpu {about} .",
        f"docker build --target gpu --tag registry/voxbatch:latest {about} {model} .",
    ]


def test_builds_with_a_model(machine: Machine) -> None:
    """A token reaches the builder as a secret of one step, and never as an argument."""
    done = machine.run("build-gpu", BASE_IMAGE="base@sha256:2", MODEL="o/m", HF_TOKEN="hf_secret")
    assert done.returncode == 0
    [told] = machine.told()
    assert "--build-arg BASE_IMAGE=base@sha256:2 --build-arg MODEL=o/m" in told
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
        ("ok       vllm                   0.26.0\nfailed   engine                 no GPU", "1", 0),
        ("ok       vllm                   0.26.0", "0", 0),
        ("missing  vllm                   pip install\nfailed   engine                 no GPU", "1", 1),
        ("failed   vllm                   0.99\nfailed   engine                 no GPU", "1", 1),
        ("ok       vllm                   0.26.0\nfailed   ffmpeg                 no ffmpeg", "1", 1),
        ("ok       vllm                   0.26.0", "139", 1),
    ],
)
def test_tries_the_large_image(machine: Machine, said: str, code: str, result: int) -> None:
    """A missing engine is expected on a machine without a GPU; any other missing or failed finding ends the build."""
    assert machine.run("try-gpu", DOCTOR=said, DOCTOR_CODE=code).returncode == result


def test_deploys_what_was_pushed(machine: Machine) -> None:
    """With _DEPLOY=yes, deploy.sh gets project, region and the image by its digest; with no, nothing is deployed."""
    assert machine.run("push").returncode == 0
    script = machine.folder / "jobs" / "cloudrun" / "deploy.sh"
    script.parent.mkdir(parents=True)
    script.write_text('echo "$PROJECT $REGION $IMAGE"\n')
    assert machine.run("deploy", DEPLOY="yes").stdout == "p europe-west4 registry/voxbatch@sha256:1\n"
    assert machine.run("deploy").stdout == "not deployed: _DEPLOY=no\n"
    assert machine.run("deploy", DEPLOY="maybe").returncode == 2


def test_order() -> None:
    """The steps run one by one: images are pushed after both were tried, and deployed after the push."""
    order = ["build-cpu", "try-cpu", "build-gpu", "try-gpu", "repository", "push", "deploy"]
    assert list(steps()) == order
    assert not [step for step in config()["steps"] if "waitFor" in step or "allowFailure" in step]
