"""A project on Google Cloud whose gcloud and terraform are fakes, for the scripts of jobs/cloudrun; and questions to
the real gcloud.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hcl2
import pytest
from conftest import ROOT
from gcloud_stub import Gcloud, Trouble, gcloud
from terraform_stub import Terraform, terraform

JOBS = ROOT / "jobs" / "cloudrun"
TOKEN = "hf_aSecretThatNobodyMaySee"
DIGEST = "sha256:0123"
FOLDER = "gs://p-voxbatch-models/mistralai/Voxtral-Mini-4B-Realtime-2602/0123/"
CURRENT = {"object p-voxbatch-models/mistralai/Voxtral-Mini-4B-Realtime-2602/current": FOLDER}
IMAGE = f"europe-west1-docker.pkg.dev/p/voxbatch/voxbatch@{DIGEST}"
APPLY = "apply -input=false plan"


@dataclass
class Cloud:
    """A project whose gcloud and terraform are fakes."""

    programs: Path
    gcloud: Gcloud
    terraform: Terraform

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

    def deploy(self, script: str = "deploy.sh", *args: str, **settings: str) -> str:
        """Run a deploy.sh, assert that it succeeds, and return its output."""
        done = self.run(script, *args, **settings)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def calls(self) -> list[dict[str, Any]]:
        """Return the gcloud calls since the last call of this method."""
        calls = list(self.gcloud.record)
        self.gcloud.record.clear()
        return calls

    def changes(self) -> list[str]:
        """Return the calls since the last one of `calls` that change something, as command lines, without the settings
        that each deployment remembers.
        """
        lines = [" ".join(call["argv"]) for call in self.calls() if not call["reads"]]
        return [line for line in lines if not line.endswith("/voxbatch/settings")]

    def put(self, **things: Any) -> None:
        self.gcloud.world.things.update(things)

    def trouble(self, at: str, say: str, **when: Any) -> None:
        """Let the next matching gcloud commands fail."""
        self.gcloud.trouble = Trouble(at, say, **when)


@contextmanager
def project(folder: Path) -> Iterator[Cloud]:
    """Create a project that contains only an image."""
    programs = folder / "bin"
    programs.mkdir()
    with gcloud(programs, folder / "files") as stub, terraform(programs) as terraform_stub:
        cloud = Cloud(programs, stub, terraform_stub)
        cloud.put(image={"image_summary": {"digest": DIGEST}})
        yield cloud


def faults_of_calls(calls: list[dict[str, Any]]) -> list[str]:
    """Return the faults that gcloud's own parser finds in recorded commands, and the differences between gcloud's
    output of their resources and the fake's.
    """
    formatted = [call for call in calls if call["rc"] == 0 and "format" in call["flags"]]
    resources = [call for call in formatted if isinstance(call["resource"], dict | list)]
    shown = [{key: call[key] for key in ("flags", "resource", "out")} for call in resources]
    return ask_gcloud({"commands": sorted({tuple(call["kept"]) for call in calls}), "shown": shown})


def ask_gcloud(question: dict[str, Any]) -> list[str]:
    """Return the faults that gcloud's own parser and printer find; skip the test without gcloud."""
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


def declared(module: str) -> set[str]:
    """Return the names of a module's variables."""
    text = (JOBS / "terraform" / module / "variables.tf").read_text(encoding="utf-8")
    return {name.strip('"') for block in hcl2.loads(text)["variable"] for name in block if name != "__is_block__"}


def given(cloud: Cloud, module: str) -> dict[str, str]:
    """Return the variables of the last command in a module, as far as the module has them."""
    sent = [each.variables for each in cloud.terraform.commands if each.module == module][-1]
    return {name: value for name, value in sent.items() if name in declared(module)}
