"""Tests that the examples for Airflow and Dagster which run on their own machine do so, with the real packages."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Recorder, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
DAGSTER = """
import runpy, dagster
result = dagster.materialize([runpy.run_path("dags/example.py")["transcripts"]])
assert result.asset_materializations_for_node("transcripts")[0].metadata["failed"].value == 0
"""
RUN = {
    "airflow": ("-m airflow db migrate", "-m airflow dags reserialize", "-m airflow dags test transcribe_calls"),
    "dagster": ("once.py",),
}
"""Arguments of Python that run an example once."""


@pytest.fixture(params=RUN)
def orchestrator(request: pytest.FixtureRequest) -> str:
    """Return the name of an orchestrator that is installed."""
    name: str = request.param
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"no {name}: pip install {'apache-airflow' if name == 'airflow' else name}")
    return name


def run_example(orchestrator: str, folder: Path) -> None:
    """Run an example once over the folder `calls`."""
    text = (ROOT / "examples" / "orchestrators" / f"{orchestrator}_local.py").read_text()
    for name in ("dags", "bin"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "dags" / "example.py").write_text(text.replace("/data/", f"{folder}/"))
    (folder / "once.py").write_text(DAGSTER)
    command = folder / "bin" / "voxbatch"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m voxbatch "$@"\n')
    command.chmod(0o755)
    airflow = {"HOME": f"{folder}/airflow", "_CORE__LOAD_EXAMPLES": "False", "_CORE__DAGS_FOLDER": f"{folder}/dags"}
    variables = environment(PATH=f"{command.parent}:{os.environ['PATH']}") | {
        f"AIRFLOW_{name}": value for name, value in airflow.items()
    }
    for arguments in RUN[orchestrator]:
        program = [sys.executable, *arguments.split()]
        done = subprocess.run(program, cwd=folder, env=variables, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def test_an_example_runs_and_a_retry_does_nothing_twice(orchestrator: str, tmp_path: Path, recording: Recorder) -> None:
    """The step transcribes the folder. Run once more, it transcribes only what is new, and no file is replaced."""
    calls = tmp_path / "calls"
    calls.mkdir()
    recording("first.wav", 2).rename(calls / "first.wav")
    run_example(orchestrator, tmp_path)
    out = tmp_path / "calls.voxbatch"
    parts = {path: path.stat().st_mtime_ns for path in (out / "parts").rglob("*.jsonl")}
    assert json.loads((out / "summary.json").read_text())["done"] == 1
    recording("second.wav", 3).rename(calls / "second.wav")
    run_example(orchestrator, tmp_path)
    assert json.loads((out / "summary.json").read_text())["done"] == 2
    assert {path: path.stat().st_mtime_ns for path in parts} == parts
    assert (out / "items.parquet").exists() == (orchestrator == "airflow")
