"""Tests that the CI workflows and the pre-commit hooks name existing targets, versions and programs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT

from voxbatch import __version__

WORKFLOWS: dict[str, dict[Any, Any]] = {
    path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")
}
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())


def commands() -> list[str]:
    jobs = [job for workflow in WORKFLOWS.values() for job in workflow["jobs"].values()]
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


def test_every_supported_python_is_tested() -> None:
    """The matrix has the Python versions that pyproject.toml names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [found[1] for each in project["classifiers"] if (found := re.search(r":: (3\.\d+)$", each))]
    assert WORKFLOWS["ci"]["jobs"]["checks"]["strategy"]["matrix"]["python"] == named


def test_the_workflows_call_targets_that_exist() -> None:
    """Each target of a workflow exists; the jobs run lint, the documentation, the vLLM and the long tests."""
    targets = [found[1] for command in commands() if (found := re.match(r"make ([a-z-]+)", command))]
    assert set(targets) == {"lint", "docs", "test-vllm", "test-long"}
    for target in targets:
        done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_workflows_may_only_read() -> None:
    """The token of a workflow cannot write to the repository. Only two jobs of a release may do more: the one makes
    the release, and the other proves to PyPI which workflow it is.
    """
    assert [workflow["permissions"] for workflow in WORKFLOWS.values()] == [{"contents": "read"}] * len(WORKFLOWS)
    more = {
        job: settings["permissions"]
        for workflow in WORKFLOWS.values()
        for job, settings in workflow["jobs"].items()
        if "permissions" in settings
    }
    assert more == {"github": {"contents": "write"}, "pypi": {"id-token": "write"}}
    release = WORKFLOWS["release"]["jobs"]
    assert [release[job]["needs"] for job in more] == ["build", "build"], "what was not checked is not published"


@pytest.mark.slow
def test_a_release_builds_what_pip_installs(tmp_path: Path) -> None:
    """The build command of a release makes a wheel and an sdist of this version, with the package in the wheel."""
    (command,) = [run for run in commands() if "hatchling build" in run]
    program = [sys.executable, *command.split()[1:], "--directory", str(tmp_path)]
    subprocess.run(program, cwd=ROOT, check=True, capture_output=True)
    wheel = f"voxbatch-{__version__}-py3-none-any.whl"
    assert sorted(path.name for path in tmp_path.iterdir()) == [wheel, f"voxbatch-{__version__}.tar.gz"]
    assert "voxbatch/cli/__init__.py" in zipfile.ZipFile(tmp_path / wheel).namelist()


def test_the_long_tests_are_scheduled() -> None:
    """A workflow runs the tests that `make test` leaves out each week."""
    assert WORKFLOWS["long"][True]["schedule"], "YAML reads the key `on` as true"


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
