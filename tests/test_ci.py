"""Tests that the CI workflow and the pre-commit hooks name existing targets, versions and programs."""

from __future__ import annotations

import re
import subprocess
import tomllib
from typing import Any

import yaml
from conftest import ROOT

WORKFLOW: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())


def commands() -> list[str]:
    return [step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step]


def test_every_supported_python_is_tested() -> None:
    """The matrix has the Python versions that pyproject.toml names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [found[1] for each in project["classifiers"] if (found := re.search(r":: (3\.\d+)$", each))]
    assert WORKFLOW["jobs"]["checks"]["strategy"]["matrix"]["python"] == named


def test_the_workflow_calls_targets_that_exist() -> None:
    """Each target of the workflow exists; the jobs run lint, the tests, the documentation and the vLLM tests."""
    targets = [found[1] for command in commands() if (found := re.match(r"make ([a-z-]+)", command))]
    assert set(targets) == {"lint", "docs", "test-vllm"}
    for target in targets:
        done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_workflow_may_only_read() -> None:
    """The token of the workflow cannot write to the repository."""
    assert WORKFLOW["permissions"] == {"contents": "read"}


def test_the_hooks_use_the_locked_programs() -> None:
    """Each hook runs a program of .venv that requirements-dev.lock pins, and downloads nothing."""
    locked = (ROOT / "requirements-dev.lock").read_text()
    hooks = [hook for repo in HOOKS["repos"] for hook in repo["hooks"]]
    assert {repo["repo"] for repo in HOOKS["repos"]} == {"local"}
    for hook in hooks:
        program = hook["entry"].split()[0]
        assert program.startswith(".venv/bin/")
        assert program == ".venv/bin/python" or re.search(
            rf"^{program.removeprefix('.venv/bin/')}==", locked, re.MULTILINE
        )
