"""Tests for examples/orchestrators/: the snippets run with the real packages of their orchestrators, if there are any,
and their requests are what the clouds and voxbatch accept.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from cloudrun_deployment import ask_gcloud
from clouds import Call, CloudRunApi, SageMakerApi, ServiceModel, served
from conftest import ROOT, environment, understood
from servers import Reply

SNIPPETS = ROOT / "examples" / "orchestrators"
PYTHON = sorted(path.stem for path in SNIPPETS.glob("*.py"))
WORKFLOWS = sorted(SNIPPETS.glob("*.yml"))
ON_CLOUD_RUN = [name for name in PYTHON if name.endswith("cloud_run")]
REAL = os.environ.get("VOXBATCH_TEST_ORCHESTRATORS", "")
"""Interpreter with apache-airflow and its providers google and amazon, dagster, prefect and check-jsonschema."""
JOB = "projects/PROJECT/locations/europe-west1/jobs/voxbatch"
ARGS = ["run", "gs://PROJECT-voxbatch-in/days/2026-11-20.jsonl", "-o", "gs://PROJECT-voxbatch-out/days/2026-11-20"]


def real(*args: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the interpreter that has the orchestrators, or skip the test without one."""
    if not REAL:
        pytest.skip("takes Airflow, Dagster and Prefect: an interpreter that has them, in VOXBATCH_TEST_ORCHESTRATORS")
    command = [REAL, *map(str, args)]
    return subprocess.run(command, env=environment(PYTHONPATH=""), cwd=cwd, capture_output=True, text=True, timeout=300)


class EndingCloudRun(CloudRunApi):
    """Cloud Run whose executions end at once; the first `failures` of them with a failed task."""

    failures = 0

    def _run(self, job: str, body: dict[str, Any]) -> Reply:
        operation = json.loads(super()._run(job, body).body)
        execution = operation["metadata"]
        failed = int(len(self.executions) <= self.failures)
        ended = {"job": "voxbatch", "failedCount": failed, "succeededCount": execution["taskCount"] - failed}
        operation |= {"done": True, "response": {**execution, **ended}}
        return Reply(200, (("Content-Type", "application/json"),), json.dumps(operation).encode())


class EndingSageMaker(SageMakerApi):
    """SageMaker whose jobs are completed when they are looked at."""

    def _answer(self, call: Call, raw: bytes) -> Reply:
        if not call.headers["x-amz-target"].endswith(".DescribeProcessingJob"):
            return super()._answer(call, raw)
        name = call.body["ProcessingJobName"]
        known = name in self.jobs
        body = {"ProcessingJobName": name, "ProcessingJobStatus": "Completed"}
        missing = {"__type": "ValidationException", "message": "Could not find requested job with name"}
        headers = (("Content-Type", "application/x-amz-json-1.1"),)
        return Reply(200 if known else 400, headers, json.dumps(body if known else missing).encode())


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_CLOUD_RUN)
def test_real_orchestrator_executes_the_job(name: str, tmp_path: Path) -> None:
    """The real orchestrator executes the job on Cloud Run with the real client. The request is valid by Google's
    discovery document, and voxbatch understands its arguments.
    """
    api = EndingCloudRun(JOB)
    with served(api.endpoint):
        done = real(ROOT / "tests" / "support" / "orchestrators_real.py", name, api.endpoint.url, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert api.endpoint.wrong == []
    (body,) = [call.body for call in api.endpoint.calls if call.method == "POST"]
    assert body["overrides"] == {"containerOverrides": [{"args": ARGS}], "taskCount": 2}
    understood(*ARGS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_CLOUD_RUN)
def test_real_orchestrator_notices_failed_tasks(name: str, tmp_path: Path) -> None:
    """An execution with a failed task fails the step of the orchestrator, which retries it by its own rules."""
    api = EndingCloudRun(JOB)
    api.failures = 9
    with served(api.endpoint):
        done = real(ROOT / "tests" / "support" / "orchestrators_real.py", name, api.endpoint.url, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search("tasks (of .* )?failed", done.stdout + done.stderr, re.IGNORECASE)


@pytest.mark.slow
def test_real_airflow_creates_the_processing_job(tmp_path: Path) -> None:
    """The real Airflow creates the job on SageMaker with the real boto3. The request is valid by AWS's service
    model.
    """
    api = EndingSageMaker()
    with served(api.endpoint):
        script = ROOT / "tests" / "support" / "orchestrators_real.py"
        done = real(script, "airflow_sagemaker", api.endpoint.url, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert api.endpoint.wrong == []
    assert list(api.jobs) == ["voxbatch-2026-11-20"]
    (body,) = api.jobs.values()
    args = body["AppSpecification"]["ContainerArguments"]
    assert args == ["run", "s3://IN/days/2026-11-20.jsonl", "-o", "s3://OUT/days/2026-11-20", "--exit-zero"]
    understood(*args)


@pytest.mark.slow
@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_matches_the_published_schema(tmp_path: Path, workflow: Path) -> None:
    """Each workflow is valid by the schema of GitHub Actions."""
    done = real("-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", workflow, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


# ── without the orchestrators ─────────────────────────────────────────────────────────────────────────────────────────


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
