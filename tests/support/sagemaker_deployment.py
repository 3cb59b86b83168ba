"""The scripts of jobs/sagemaker against a server, and the files of a SageMaker host."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloudformation import Stack, load
from conftest import ROOT, environment
from fake_aws import PSEUDO, FakeAws

SAGEMAKER = ROOT / "jobs" / "sagemaker"
ACCOUNT, REGION = "123456789012", "eu-central-1"
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/1"
LOOKS = ("get-", "describe-", "list-", "head-")
EMAIL = "speech@example.org"
DIGEST = f"sha256:{'0' * 64}"
HOSTS = ["algo-10", "algo-2", "algo-1"]


def jobs_stack(**parameters: str) -> Stack:
    """Return the stack of the jobs with these parameters."""
    needed = {"InBucket": "calls-in", "OutBucket": "calls-out", "ModelsBucket": "calls-models", "AlertEmail": EMAIL}
    return Stack(load(SAGEMAKER / "template.yaml"), {**needed, "ImageDigest": DIGEST, **parameters}, PSEUDO)


def pipeline_of(stack: Stack) -> dict[str, Any]:
    """Return the definition of the stack's pipeline."""
    found: dict[str, Any] = json.loads(stack.resources["Pipeline"][1]["PipelineDefinition"]["PipelineDefinitionBody"])
    return found


def step_of(pipeline: dict[str, Any], **parameters: Any) -> dict[str, Any]:
    """Return the request of the pipeline's step with these parameters. Others have their defaults, or are "x"."""
    values = {parameter["Name"]: parameter.get("DefaultValue", "x") for parameter in pipeline["Parameters"]}
    return dict(_filled(pipeline["Steps"][0]["Arguments"], {**values, **parameters}))


def _filled(node: Any, given: Mapping[str, Any]) -> Any:
    """Return `node` with each {"Get": "Parameters.X"} replaced; other computed values are not supported here."""
    if isinstance(node, dict) and set(node) == {"Get"}:
        return given[node["Get"].removeprefix("Parameters.")]
    if isinstance(node, dict):
        assert not any(key.startswith("Std:") for key in node)
        return {key: _filled(value, given) for key, value in node.items()}
    return [_filled(each, given) for each in node] if isinstance(node, list) else node


class Deployment:
    """The scripts deploy.sh and teardown.sh, run against a server with a fake `aws` program."""

    def __init__(self, endpoint: str, path: str = "", fake: FakeAws | None = None):
        self.endpoint, self.path, self.fake = endpoint, path, fake or FakeAws(endpoint)
        self.client = self.fake.client

    def run(self, script: str, *arguments: str, code: int = 0, **settings: str) -> list[str]:
        """Run a script, check its exit code, and return the lines of its output."""
        env = environment(
            PATH=f"{self.path}:{os.environ['PATH']}" if self.path else os.environ["PATH"],
            AWS_ENDPOINT_URL=self.endpoint, AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b", AWS_REGION=REGION,
            AWS_CONFIG_FILE="/dev/null", AWS_SHARED_CREDENTIALS_FILE="/dev/null", POLL_SECONDS="0",
            **{"ALERT_EMAIL": EMAIL, **settings},
        )  # fmt: skip
        command = [str(SAGEMAKER / script), *arguments]
        done = subprocess.run(command, env=env, capture_output=True, stdin=subprocess.DEVNULL, text=True, timeout=240)
        assert done.returncode == code, done.stdout + done.stderr
        return (done.stdout + done.stderr).splitlines()

    def changes(self) -> list[list[str]]:
        """Return the commands since the last call of this method that change something."""
        commands = [command for command in self.fake.log if not command[1].startswith(LOOKS)]
        self.fake.log.clear()
        return commands

    def push(self) -> str:
        """Put an image into the repository, as docker does, and return its digest."""
        manifest = {"schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json"}
        digest = f"sha256:{os.urandom(32).hex()}"
        body = json.dumps({**manifest, "config": {"digest": digest, "size": 1, "mediaType": "x"}, "layers": []})
        name = {"repositoryName": "voxbatch", "imageTag": "latest", "imageDigest": digest}
        put = self.client("ecr").put_image(**name, imageManifest=body)
        return str(put["image"]["imageId"]["imageDigest"])


def did(lines: list[str]) -> list[str]:
    """Return the lines that report a resource as made, changed or removed."""
    return [line for line in lines if line.startswith(("made", "changed", "gone"))]


def container(root: Path, current: str = "algo-10", hosts: Any = HOSTS, **job: Any) -> str:
    """Write the configuration files of a SageMaker host and return their root."""
    (root / "config").mkdir(parents=True)
    (root / "config" / "resourceconfig.json").write_text(json.dumps({"current_host": current, "hosts": hosts}))
    if job:
        (root / "config" / "processingjobconfig.json").write_text(json.dumps(job))
    return str(root)
