"""Tests that the first commands of each reader of docs/index.md and docs/scoring.md work, with real models."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import servers
from conftest import ROOT, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

INDEX = (ROOT / "docs" / "index.md").read_text()


def section(page: str, heading: str) -> str:
    """Return the text below a heading."""
    (text,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return str(text)


def commands(text: str) -> list[list[str]]:
    """Return the arguments of each voxbatch command of a text."""
    return [shlex.split(line, comments=True) for line in re.findall(r"^\$ voxbatch (.*)$", text, re.MULTILINE)]


def python(text: str) -> str:
    """Return the Python code of a text."""
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return str(code)


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """Return a folder with the recordings and the manifest of the examples, as the pages name them."""
    shutil.copytree(ROOT / "examples" / "recordings", tmp_path / "recordings")
    shutil.copy(ROOT / "examples" / "manifest.jsonl", tmp_path / "test.jsonl")
    return tmp_path


def run(arguments: list[str], folder: Path, **variables: str) -> str:
    """Run a command in a folder, and return its standard output."""
    done = subprocess.run(arguments, cwd=folder, env=environment(**variables), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def voxbatch(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "voxbatch", *arguments]


def test_every_reader_is_one_click_away() -> None:
    """The table of docs/index.md leads each reader to a section that begins with commands, or to a page."""
    rows = re.findall(r"^\| .* \| .* \| \[[^\]]*\]\(([^)]*)\)", section(INDEX, "Find your page"), re.MULTILINE)
    headings = ["Recordings on your computer", "Thousands of hours in a bucket", "A word error rate", "Python"]
    assert rows[:4] == [f"#{heading.lower().replace(' ', '-')}" for heading in headings]
    for heading in headings:
        text = section(INDEX, heading)
        assert text.startswith("\n```console\n$ pip install")
        assert "Next: [" in text


def test_recordings_on_a_computer(desk: Path) -> None:
    """The commands write a subtitle file and a text file for each recording."""
    (command,) = commands(section(INDEX, "Recordings on your computer"))
    assert "9 done + 0 failed = 9 items" in run(voxbatch(*command), desk)
    for kind in ("srt", "txt"):
        assert len(list((desk / "recordings.voxbatch" / kind).iterdir())) == 9


def test_a_bucket(google: servers.Server, tmp_path: Path) -> None:
    """The commands try a part of a bucket, estimate the whole, transcribe it, and show how far it is."""
    for bucket in ("calls", "done"):
        google.make(bucket)
    for path in (ROOT / "examples" / "recordings").iterdir():
        google.put("calls", f"day1/{path.name}", path.read_bytes())
    variables = google.settings(f"http://127.0.0.1:{google.port}")
    shown = [
        run(voxbatch(*command), tmp_path, **variables)
        for command in commands(section(INDEX, "Thousands of hours in a bucket"))
    ]
    assert "4 done + 0 failed = 4 items" in shown[0]
    assert re.search(r"^items +9$", shown[1], re.MULTILINE)
    assert "9 done + 0 failed = 9 items" in shown[2]
    assert "9 of 9 items committed, finished" in shown[3]


def test_a_word_error_rate(desk: Path) -> None:
    """The commands check the manifest, transcribe it, and print the rate of the run."""
    *_, score = [run(voxbatch(*command), desk) for command in commands(section(INDEX, "A word error rate"))]
    assert re.search(r'^  "wer": 0\.0\d+,$', score, re.MULTILINE)


def test_two_models_are_compared(desk: Path, base_model: Path) -> None:
    """The commands transcribe with two models, and compare the two runs."""
    text, _, _ = (ROOT / "docs" / "compare.md").read_text().partition("\n## ")
    manifest = (desk / "test.jsonl").read_text().splitlines(keepends=True)
    (desk / "manifest.jsonl").write_text("".join(manifest[:3]))
    *runs, compare = [[str(base_model) if each == "base" else each for each in command] for command in commands(text)]
    assert len(runs) == 2
    for command in runs:
        assert "WER " in run(voxbatch(*command), desk)
    shown = run(voxbatch(*compare), desk)
    assert re.search(r"^model +tiny.en +\S", shown, re.MULTILINE)
    assert "3 items in common, 0 only in A, 0 only in B" in shown
    assert "WER of B − WER of A: " in shown


def test_python(desk: Path) -> None:
    """The lines of Python print a transcript and the number of recordings that a run transcribed."""
    printed = run([sys.executable, "-c", python(section(INDEX, "Python"))], desk).splitlines()
    assert printed[0].startswith("Here is the weather for the north coast.")
    assert printed[1:] == ["9 done"]
