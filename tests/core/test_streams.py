"""Tests for standard streams: a run without them, or whose log cannot be written, does its work all the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ManifestWriter, Starter, environment

ENGINES = ("own_process=false", "own_process=true", "workers=2")
REDIRECTIONS = ("2>/dev/full", "2>&-", ">&-", "<&-", "<&- >&- 2>&-", ">&- 2>/dev/full")


def run(redirection: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run voxbatch with the standard streams that a shell gives it."""
    command = f'exec "$0" -m voxbatch run "$@" --engine scripted --decoders 1 {redirection}'
    words = ["sh", "-c", command, sys.executable, *map(str, arguments)]
    return subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=120)


def check_outputs(out: Path, items: int) -> None:
    """Check that a run is complete, and that nothing else was written into its outputs."""
    assert json.loads((out / "summary.json").read_text())["done"] == items
    assert len([json.loads(line) for line in (out / "transcripts.jsonl").read_text().splitlines()]) == items


@pytest.mark.slow
@pytest.mark.parametrize(
    ("redirection", "engine"),
    [
        *((redirection, engine) for redirection, engine in zip(REDIRECTIONS, 2 * ENGINES, strict=True)),
        *(pytest.param(REDIRECTIONS[-2], engine, marks=pytest.mark.long) for engine in (ENGINES[0], ENGINES[2])),
    ],
)
def test_a_run_does_not_need_its_streams(
    redirection: str, engine: str, manifest: ManifestWriter, tmp_path: Path
) -> None:
    """A full log disk or a closed stream costs messages only, whatever processes the engine has."""
    done = run(redirection, manifest(1.2, 1.3, 1.1), "-o", tmp_path / "out", "--engine-option", engine)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    check_outputs(tmp_path / "out", 3)


@pytest.mark.slow
def test_a_log_in_json_may_be_on_a_full_disk(manifest: ManifestWriter, tmp_path: Path) -> None:
    """Many lines of a log that cannot be written stop nothing."""
    done = run(
        "2>/dev/full", manifest(*[0.7] * 30), "-o", tmp_path / "out", "--log-format", "json", "--part-items", "1"
    )
    assert done.returncode == 0
    check_outputs(tmp_path / "out", 30)


@pytest.mark.forks_children
def test_a_run_goes_on_without_the_reader_of_its_log(manifest: ManifestWriter, start: Starter, tmp_path: Path) -> None:
    """The process that reads the log ends, as a `tee` may: the run goes on."""
    slow = ("--engine-option", "delay_s=0.2", "--engine-option", "concurrency=1", "--log-format", "json")
    running = start("run", manifest(*[0.7] * 10), "-o", "out", "--engine", "scripted", "--part-items", "1", *slow)
    assert running.stderr is not None
    assert running.stderr.readline()
    running.stderr.close()
    assert running.wait(60) == 0
    check_outputs(tmp_path / "out", 10)


@pytest.mark.slow
def test_a_full_disk_for_results_is_an_error(tmp_path: Path) -> None:
    """Only messages may be dropped: results that cannot be written end a command with an error."""
    command = 'exec "$0" -m voxbatch models > /dev/full'
    done = subprocess.run(["sh", "-c", command, sys.executable], env=environment(), capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "Error: cannot write to standard output: No space left on device\n"
