"""Tests that the CI workflows and the pre-commit hooks name existing targets, versions and programs."""

from __future__ import annotations

import os
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
    assert set(targets) == {"lint", "docs", "test-vllm", "test-long", "demo", "check", "test"}
    for target in targets:
        done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_ci_runs_what_a_stranger_runs(tmp_path: Path) -> None:
    """`.ci/run` runs `make test` with the system's PATH, its oldest Python from 3.11 on, and no variable but those by
    which package registries are reached. It installs no Python package itself, and has the exit code of `make test`.
    """
    script, system = (ROOT / ".ci" / "run").read_text(), tmp_path / "system"
    assert "pip install" not in script
    assert script.count("path=/usr/local/bin:/usr/bin:/bin\n") == 1
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_text(script.replace("path=/usr/local/bin:/usr/bin:/bin", f"path={system}"))
    system.mkdir()
    programs = dict.fromkeys(re.findall(r"^has ([a-z0-9+-]+) ", script, re.MULTILINE), "") | {
        "make": 'echo "$@"; pwd; /usr/bin/env; exit 3',
        "python3.11": "exit 1",  # it has no module `venv`
        "python3.12": f'exec "{sys.executable}" "$@"',
        "python3": f'exec "{sys.executable}" "$@"',
    }
    for name, text in programs.items():
        (system / name).write_text(f"#!/bin/sh\n{text}\n")
        (system / name).chmod(0o755)
    network = {"PIP_INDEX_URL": "https://packages.example", "https_proxy": "http://proxy.example\n:1"}
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": "de_DE", "PYTHONUNBUFFERED": "1", **network}
    done = subprocess.run(["bash", tmp_path / ".ci" / "run"], env=env, capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    called, folder, *variables = done.stdout.splitlines()
    assert (called, folder) == ("test PYTHON=python3.12", str(tmp_path))
    assert {line.partition("=")[0] for line in variables} - {"PWD", "SHLVL", "_", ":1"} == {
        "HOME",
        "LANG",
        "PATH",
        *network,
    }
    assert {"LANG=C.UTF-8", f"PATH={system}", f"HOME={tmp_path}"} <= set(variables)


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
    (command,) = [run for run in commands() if run.startswith("python -m hatchling build")]
    program = [sys.executable, *command.split()[1:], "--directory", str(tmp_path)]
    subprocess.run(program, cwd=ROOT, check=True, capture_output=True)
    wheel = f"voxbatch-{__version__}-py3-none-any.whl"
    assert sorted(path.name for path in tmp_path.iterdir()) == [wheel, f"voxbatch-{__version__}.tar.gz"]
    assert "voxbatch/cli/__init__.py" in zipfile.ZipFile(tmp_path / wheel).namelist()


def test_the_long_tests_are_scheduled() -> None:
    """A workflow runs the tests that `make test` leaves out each week."""
    assert WORKFLOWS["long"][True]["schedule"], "YAML reads the key `on` as true"


def test_a_fresh_machine_runs_all_commands() -> None:
    """A workflow runs the commands of the README and of CONTRIBUTING in images of distributions, with their own PATH
    and none of the runner's variables. No step but that of the system's programs has another shell.
    """
    assert WORKFLOWS["fresh"][True]["schedule"], "YAML reads the key `on` as true"
    job = WORKFLOWS["fresh"]["jobs"]["all"]
    images = [system["image"] for system in job["strategy"]["matrix"]["include"]]
    assert images == ["debian:12", "ubuntu:24.04", "debian:13", "fedora:latest"]
    steps = [step["run"] for step in job["steps"] if "run" in step]
    assert {"make demo", "make check", "make docs", "make test"} <= set(steps)
    shell = "env -i HOME=/root PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 bash -euo pipefail {0}"
    for job in WORKFLOWS["fresh"]["jobs"].values():
        assert job["defaults"]["run"]["shell"] == shell
        assert [step["run"].split()[0] for step in job["steps"] if "shell" in step] in (["${{"], ["dnf"])


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
