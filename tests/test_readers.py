"""Tests that the first commands of each reader of docs/index.md and docs/scoring.md work."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import servers
from conftest import ROOT, Voxbatch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

INDEX = (ROOT / "docs" / "index.md").read_text()
SOME = ("weather.flac", "recipe.mp3", "platform-four.ogg")
"""The examples that are transcribed."""


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
    """Return a folder with some recordings and their manifest, as the pages name them."""
    (tmp_path / "recordings").mkdir()
    for name in SOME:
        shutil.copy(ROOT / "examples" / "recordings" / name, tmp_path / "recordings")
    rows = (ROOT / "examples" / "manifest.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "test.jsonl").write_text("".join(row for row in rows if any(name in row for name in SOME)))
    return tmp_path


@pytest.fixture
def run(voxbatch: Voxbatch) -> Callable[..., str]:
    """Return a function that runs a command without error, and returns its standard output."""

    def begin(*arguments: str, **variables: str) -> str:
        done = voxbatch(*arguments, env=variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return begin


def test_every_reader_is_one_click_away() -> None:
    """The table of docs/index.md leads each reader to a section that begins with commands, or to a page."""
    rows = re.findall(r"^\| .* \| .* \| \[[^\]]*\]\(([^)]*)\)", section(INDEX, "Find your page"), re.MULTILINE)
    headings = ["Recordings on your computer", "Thousands of hours in a bucket", "A word error rate", "Python"]
    assert rows[:4] == [f"#{heading.lower().replace(' ', '-')}" for heading in headings]
    for heading in headings:
        text = section(INDEX, heading)
        assert text.startswith("\n```console\n$ pip install")
        assert "Next: [" in text


def test_recordings_on_a_computer(desk: Path, run: Callable[..., str]) -> None:
    """The commands write a subtitle file and a text file for each recording."""
    (command,) = commands(section(INDEX, "Recordings on your computer"))
    assert "3 done + 0 failed = 3 items" in run(*command, VOXBATCH_ENGINE="scripted")
    for kind in ("srt", "txt"):
        assert len(list((desk / "recordings.voxbatch" / kind).iterdir())) == 3


def test_a_bucket(google: servers.Server, desk: Path, run: Callable[..., str]) -> None:
    """The commands try a part of a bucket, estimate the whole, transcribe it, and show how far it is. The engine is not
    a real one."""
    for bucket in ("calls", "done"):
        google.make(bucket)
    for path in (desk / "recordings").iterdir():
        for folder in ("day1/morning", "day1/evening"):
            google.put("calls", f"{folder}/{path.name}", path.read_bytes())
    variables = {**google.settings(f"http://127.0.0.1:{google.port}"), "VOXBATCH_ENGINE": "scripted"}
    shown = [run(*command, **variables) for command in commands(section(INDEX, "Thousands of hours in a bucket"))]
    assert "4 done + 0 failed = 4 items" in shown[0]
    assert re.search(r"^items +6$", shown[1], re.MULTILINE)
    assert "6 done + 0 failed = 6 items" in shown[2]
    assert "6 of 6 items committed, finished" in shown[3]


@pytest.mark.usefixtures("desk")
def test_a_word_error_rate(run: Callable[..., str]) -> None:
    """The commands check the manifest, transcribe it, and print the rate of the run."""
    *_, score = [run(*command) for command in commands(section(INDEX, "A word error rate"))]
    assert re.search(r"^all  \d\.\d\d% ", score, re.MULTILINE)


def test_two_models_are_compared(desk: Path, run: Callable[..., str]) -> None:
    """The commands transcribe with two models, and compare the two runs. The engine is not a real one."""
    text, _, _ = (ROOT / "docs" / "compare.md").read_text().partition("\n## ")
    (desk / "test.jsonl").rename(desk / "manifest.jsonl")
    *runs, compare = commands(text)
    assert len(runs) == 2
    for command in runs:
        assert "WER " in run(*command, VOXBATCH_ENGINE="scripted")
    shown = run(*compare)
    assert re.search(r"^model +count +base", shown, re.MULTILINE)
    assert "3 items in common, 0 only in A, 0 only in B" in shown
    assert "WER of B − WER of A: " in shown


def test_python(desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The lines of Python print a transcript and the number of recordings that a run transcribed. The engine is not a
    real one."""
    monkeypatch.chdir(desk)
    exec(re.sub(r"\b(transcribe|run)\((.*?\")\)", r'\1(\2, engine="scripted")', python(section(INDEX, "Python"))), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("w0 w1 w2 ")
    assert printed[1:] == ["3 done"]
