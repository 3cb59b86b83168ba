"""Tests for examples/orchestrators/: their requests are what the clouds and voxbatch accept."""

from __future__ import annotations

import ast
import json
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from cloudrun_deployment import ask_gcloud
from clouds import CloudRunApi, ServiceModel
from conftest import ROOT, understood
from servers import Reply
from web_server import served

SNIPPETS = ROOT / "examples" / "orchestrators"
PYTHON = sorted(path.stem for path in SNIPPETS.glob("*.py") if not path.stem.endswith("_local"))
"""The examples that start a job in a cloud. test_orchestrators_local.py has the others."""
WORKFLOWS = sorted(SNIPPETS.glob("*.yml"))
JOB = "projects/PROJECT/locations/europe-west1/jobs/voxbatch"
DAY = "2026-11-20"
ARGS = ["run", f"gs://PROJECT-voxbatch-in/days/{DAY}.jsonl", "-o", f"gs://PROJECT-voxbatch-out/days/{DAY}"]


class EndingCloudRun(CloudRunApi):
    """Cloud Run whose executions end at once, with so many failed tasks."""

    failed = 0

    def _run(self, job: str, body: dict[str, Any]) -> Reply:
        operation = json.loads(super()._run(job, body).body)
        execution = operation["metadata"]
        ended = {"failedCount": self.failed, "succeededCount": execution["taskCount"] - self.failed}
        operation |= {"done": True, "response": {**execution, "job": "voxbatch", **ended}}
        return Reply(200, (("Content-Type", "application/json"),), json.dumps(operation).encode())


def unchanged(function: Any) -> Any:
    """Stand in for the decorators of Dagster and Prefect, which run the function that they decorate."""
    return function


PACKAGES = {
    "dagster": SimpleNamespace(
        asset=lambda **_: unchanged, DailyPartitionsDefinition=str, RetryPolicy=dict, AssetExecutionContext=object,
        MaterializeResult=dict, Failure=RuntimeError, Definitions=dict,
    ),
    "prefect": SimpleNamespace(flow=unchanged, task=lambda **_: unchanged),
}  # fmt: skip


def run_snippet(package: str, api: CloudRunApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the snippet of Dagster or Prefect for a day, with the real client of Cloud Run."""
    from google.cloud import run_v2
    from google.cloud.run_v2.services.jobs import transports
    from google.oauth2.credentials import Credentials

    host = api.endpoint.url.removeprefix("http://")
    transport = transports.JobsRestTransport(host=host, url_scheme="http", credentials=Credentials("TOKEN"))
    client = run_v2.JobsClient(transport=transport)
    monkeypatch.setattr(run_v2, "JobsClient", lambda: client)
    monkeypatch.setitem(sys.modules, package, PACKAGES[package])
    snippet = runpy.run_path(str(SNIPPETS / f"{package}_cloud_run.py"))
    with served(api.endpoint):
        if package == "dagster":
            snippet["transcripts"](SimpleNamespace(partition_key=DAY))
        else:
            assert snippet["transcribe"](DAY) == ARGS[-1]


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_snippet_executes_the_job(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is valid by Google's discovery document, and voxbatch understands its arguments."""
    api = EndingCloudRun(JOB)
    run_snippet(package, api, monkeypatch)
    assert api.endpoint.wrong == []
    (body,) = [call.body for call in api.endpoint.calls if call.method == "POST"]
    assert body["overrides"] == {"containerOverrides": [{"args": ARGS}], "taskCount": 2}
    understood(*ARGS)


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_failed_tasks_fail_the_step(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An execution with a failed task fails the step, which the orchestrator retries by its own rules."""
    api = EndingCloudRun(JOB)
    api.failed = 1
    with pytest.raises(RuntimeError, match=r"1 tasks of .* failed: a retry continues their work"):
        run_snippet(package, api, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_matches_the_published_schema(workflow: Path) -> None:
    """Each workflow is valid by the schema of GitHub Actions."""
    pytest.importorskip("check_jsonschema", reason="check-jsonschema is not installed")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(workflow)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def literals(name: str, keyword: str) -> Any:
    """Return the value of a keyword argument in a snippet, with the names that the snippet assigns."""
    tree = ast.parse((SNIPPETS / f"{name}.py").read_text())
    (value,) = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == keyword]
    names: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            for target, each in zip(targets, values, strict=True):
                if isinstance(target, ast.Name):
                    names[target.id] = eval(compile(ast.Expression(each), name, "eval"), {}, names)
    return eval(compile(ast.Expression(value), name, "eval"), {}, names)


@pytest.mark.parametrize("name", PYTHON)
def test_snippet_compiles_and_is_short(name: str) -> None:
    """A snippet compiles, waits for the end of an execution without a limit, and is as short as it is said to be."""
    text = (SNIPPETS / f"{name}.py").read_text()
    compile(text, name, "exec")
    assert len(text.splitlines()) <= 30
    assert ".result(timeout=None)" in text or name.startswith("airflow")


def test_request_of_airflow_matches_cloud_run() -> None:
    """Google's own message takes the overrides, and voxbatch their arguments."""
    from google.cloud import run_v2

    overrides = literals("airflow_cloud_run", "overrides")
    message = run_v2.RunJobRequest(name=JOB, overrides=overrides)
    assert message.overrides.task_count == 2
    understood(*message.overrides.container_overrides[0].args)


def test_request_of_airflow_matches_sagemaker() -> None:
    """The service model of SageMaker takes the job, and voxbatch its arguments."""
    config = json.loads(json.dumps(literals("airflow_sagemaker", "config")).replace("{{ ds }}", "2026-11-20"))
    assert ServiceModel("sagemaker").faults("CreateProcessingJob", config) == []
    understood(*config["AppSpecification"]["ContainerArguments"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_stores_no_key_and_runs_no_input(path: Path) -> None:
    """A workflow exchanges GitHub's token, holds no secret, and passes an input to the shell only as a variable. That
    of Terraform only plans.
    """
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read", "id-token": "write"}
    assert "secrets." not in path.read_text()
    (job,) = workflow["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert not [command for command in commands if "${{" in command]
    if path.stem.endswith("terraform"):
        assert [command.split()[:2] for command in commands] == [["terraform", "init"], ["terraform", "plan"]]


@pytest.mark.slow
def test_real_gcloud_accepts_the_commands() -> None:
    """gcloud's own parser accepts the command of the workflow and those of the page."""
    (step,) = [
        step["run"]
        for step in yaml.safe_load((SNIPPETS / "github-actions.yml").read_text())["jobs"]["transcribe"]["steps"]
        if "run" in step
    ]
    page = (ROOT / "docs" / "orchestrators.md").read_text()
    blocks = [step, *(block.removeprefix("bash\n") for block in page.split("```")[1::2] if block.startswith("bash\n"))]
    commands = [
        line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.startswith("gcloud")
    ]
    assert len(commands) >= 6
    split = [shlex.split(line.replace("PROJECT", "my-project"))[1:] for line in commands]
    assert ask_gcloud({"commands": split}) == []
