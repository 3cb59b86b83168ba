"""Tests for a loss of power: whenever it comes, the same command continues, and its outputs are those of an undisturbed
run."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import power_loss
import pytest
from conftest import Recorder, Voxbatch, environment

ENGINE = ("--engine", "scripted", "--decoders", "1", "--formats", "srt", "--part-items", "2", "--log-format", "text")
LONG = ("plain", "overwrite", "update", "grown", "retry")


def files(out: Path) -> dict[str, bytes]:
    """Return the outputs that are the same in each run: the transcripts, the failures and the subtitles."""
    names = [*out.glob("*.jsonl"), *out.glob("srt/*")]
    return {str(path.relative_to(out)): path.read_bytes() for path in names}


@pytest.fixture
def calls(tmp_path: Path, recording: Recorder) -> Path:
    """Return a folder with two recordings and a file that is no audio."""
    for i in range(2):
        recording(f"{i}.wav", 0.5 + i / 10, tmp_path / "calls")
    (tmp_path / "calls" / "broken.wav").write_bytes(b"no audio")
    return tmp_path / "calls"


@pytest.mark.parametrize(
    ("kind", "stride"),
    [("plain", 4), ("overwrite", 4), *(pytest.param(kind, 1, marks=pytest.mark.long) for kind in LONG)],
)
def test_run_continues_after_a_loss_of_power(
    tmp_path: Path, calls: Path, recording: Recorder, voxbatch: Voxbatch, kind: str, stride: int
) -> None:
    """Whenever the power is lost, in a first run or in one that changes a finished OUT, the same command ends with the
    bytes of an undisturbed run. What a finished run has reported is on the disk."""
    manifest, out = tmp_path / "m.jsonl", tmp_path / "out"
    manifest.write_text("".join(f'{{"audio_filepath": "calls/{path.name}"}}\n' for path in sorted(calls.iterdir())))
    source = str(manifest if kind == "update" else calls)
    out.mkdir()
    extra = {"update": ["--update"], "retry": ["--retry-failed", "all"], "overwrite": ["--overwrite"]}.get(kind, [])
    if kind != "plain":
        assert voxbatch("run", source, "-o", out, *ENGINE).returncode == 3
    if kind in ("update", "grown"):
        recording("new.wav", 0.4, calls)
    if kind == "update":
        manifest.write_text(manifest.read_text() + '{"audio_filepath": "calls/new.wav"}\n')
    if kind == "retry":
        shutil.copy(calls / "0.wav", calls / "broken.wav")
    arguments = ["run", source, "-o", str(out), *ENGINE, *extra]
    code, states = power_loss.states([sys.executable, "-m", "voxbatch", *arguments], out, environment())
    expected = files(out)
    assert (code, len(expected)) == {"plain": (3, 4), "overwrite": (3, 4), "retry": (0, 4)}.get(kind, (3, 5))
    assert len(states) > 10
    assert {os.path.relpath(path, out) for path in states[-1]} >= {*expected, "run.json", "summary.json"}
    assert states[-1][str(out / "summary.json")]
    for state in states[::-stride]:
        power_loss.restore(state, out)
        done = voxbatch(*arguments)
        left = sorted((os.path.relpath(path, out), len(content)) for path, content in state.items())
        assert done.returncode == code, (left, done.stderr)
        assert files(out) == expected, left
