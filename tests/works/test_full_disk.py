"""Tests for a full disk under OUT or the temporary folder: each command says so, and goes on when there is space."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import Recorder, Voxbatch

from voxbatch.output.verify import verify
from voxbatch.storage import Stores

ENGINE = ("--engine", "scripted", "--log-format", "text", "-q")
CHANGING = {"digests", "parts", "summary.json", "report.html"}
"""Files and folders of OUT with times, or with the number of the merge."""


def contents(out: Path) -> dict[str, bytes]:
    """Return the other files of OUT."""
    names = [path.relative_to(out) for path in out.rglob("*") if path.is_file()]
    return {str(name): (out / name).read_bytes() for name in names if name.parts[0] not in CHANGING}


def damaged(out: Path) -> list[str]:
    """Return the files of OUT that are not as the log gives them."""
    return [problem.file for problem in verify(Stores().out(str(out)))]


def fill(disk: Path, free_kb: int) -> Path:
    """Write a file that leaves so much space on a disk, and return it."""
    filler = disk / "filler"
    filler.write_bytes(bytes(max(0, shutil.disk_usage(disk).free - free_kb * 1024)))
    return filler


@pytest.mark.parametrize(
    "options",
    [
        ("merge", "--formats", "srt,json", "--max-line", "20"),
        ("correct", "--engine", "none"),
        ("correct", "--drop"),
        ("forget", "b.wav"),
        ("report", "--by", "lang"),
    ],
)
def test_a_command_goes_on_after_a_full_disk(
    voxbatch: Voxbatch, recording: Recorder, small_disk: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Wherever the disk is full, the command names the file and the cause, or has done its work. With free space, the
    same command ends in the files of an undisturbed one. A full temporary folder is no obstacle, and `status` needs no
    space."""
    for name, seconds in {"a": 3.2, "b": 2.1}.items():
        recording(f"talks/{name}.wav", seconds)
    assert voxbatch("run", "talks", "-o", "done", "--formats", "srt,json", *ENGINE).returncode == 0
    done, undisturbed = tmp_path / "done", tmp_path / "undisturbed"
    text = done / "srt" / "a.srt"
    text.write_text(text.read_text().replace("w1", "other"))
    shutil.copytree(done, undisturbed)
    name, *others = options
    assert voxbatch(name, undisturbed, *others).returncode == 0
    for free_kb in (0, 12, 40):
        out = shutil.copytree(done, small_disk / f"out{free_kb}")
        filler = fill(small_disk, free_kb)
        full = voxbatch(name, out, *others)
        assert full.returncode == 0 or f"Error: cannot write {out}/" in full.stderr, full.stderr
        assert full.returncode == 0 or "the disk is full: free some space" in full.stderr, full.stderr
        assert full.returncode or free_kb or "--drop" in others  # which may fit into what it deletes
        assert "of 2 items committed" in voxbatch("status", out).stdout
        filler.unlink()
        again = voxbatch(name, out, *others)
        assert again.returncode == 0, again.stderr
        assert (contents(out), damaged(out)) == (contents(undisturbed), damaged(undisturbed))
        shutil.rmtree(out)
    fill(small_disk, 0)
    assert voxbatch(name, done, *others, env={"TMPDIR": str(small_disk)}).returncode == 0
    assert (contents(done), damaged(done)) == (contents(undisturbed), damaged(undisturbed))
