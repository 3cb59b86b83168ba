"""Tests for `voxbatch forget`: nothing of an item is left in OUT, whenever it is killed, and no run brings it back."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import killed_at
import pytest
import servers
from conftest import Recorder, Voxbatch

from voxbatch.analysis.find.index import index_path
from voxbatch.output.verify import verify
from voxbatch.storage import Store, Stores

ENGINE = ("--engine", "scripted", "--log-format", "text", "-q")
FORMATS = "srt,vtt,vtt-words,ass,ttml,txt,json,textgrid,ctm"
SECRETS = (b"anna", b"Anna", b"ANNA")
"""Texts that only the recording of one person has: her name in the names of files, in references, speakers and
corrections."""


def run_of_talks(voxbatch: Voxbatch, *options: str) -> str:
    """Run the recordings of the fixture `out` once more, and return the messages."""
    done = voxbatch("run", "talks", "-o", "out", "--formats", FORMATS, "--beside", *ENGINE, *options)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture
def out(recording: Recorder, voxbatch: Voxbatch, tmp_path: Path) -> Path:
    """Return the OUT of a finished run of three talks with references, one of which is Anna's, and has a correction by
    hand."""
    for name, seconds in {"calls/anna": 3.2, "b": 2.1, "c": 1.2}.items():
        recording(f"talks/{name}.wav", seconds)
        (tmp_path / "talks" / f"{name}.txt").write_text("anna" if "anna" in name else "w0 w1 w2")
    run_of_talks(voxbatch, "--part-items", "2")
    text = tmp_path / "out" / "srt" / "calls" / "anna.srt"
    text.write_text(text.read_text().replace("w3", "Anna"))
    assert voxbatch("correct", "out", "--engine", "none").returncode == 0
    return tmp_path / "out"


def leaks(place: Store | Path) -> list[str]:
    """Return the files whose names or bytes have one of the secrets."""
    if isinstance(place, Path):
        place = Stores().out(str(place))
    return [
        name
        for name in place.names("")
        if any(secret in name.encode() or secret in (place.read(name) or b"") for secret in SECRETS)
    ]


def read_lines(path: Path) -> dict[str, dict[str, Any]]:
    """Return the lines of a merged output by their ids."""
    return {line["id"]: line for line in map(json.loads, path.read_text().splitlines())}


def test_no_byte_of_an_item_is_left(out: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Texts, corrections, references and names are gone from all files of OUT, from those beside the recordings and
    from the index; the other items keep their bytes, and every command tells of the item once."""
    assert voxbatch("find", "out", "Anna").stdout.count("anna") > 0
    index = index_path(Stores().out(str(out)))
    assert index.exists()
    others = {path: path.read_bytes() for path in out.rglob("[bc].*") if path.is_file()}
    assert len(leaks(out)) > 11
    shown = voxbatch("forget", "out", "calls/anna.wav", "--dry-run")
    assert shown.stdout.startswith("1 item to forget\n  write again: parts/"), shown.stderr
    assert "\n  delete: srt/calls/anna.srt\n" in shown.stdout
    assert f"\n  delete: {tmp_path}/talks/calls/anna.srt\n" in shown.stdout
    assert len(leaks(out)) > 11
    done = voxbatch("forget", "out", "calls/anna.wav")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "1 item forgotten"), done.stderr
    assert "2 done + 1 failed = 3 items (1 forgotten)" in done.stdout
    assert leaks(out) == []
    assert not (out / "srt" / "calls").exists()
    assert [path.name for path in (tmp_path / "talks" / "calls").glob("*[!t]")] == ["anna.wav"]
    assert not index.exists()
    assert {path: path.read_bytes() for path in others} == others
    assert verify(Stores().out(str(out))) == []
    (line,) = read_lines(out / "failures.jsonl").values()
    assert (line["error_kind"], line["id"]) == ("forgotten", line["audio_filepath"])
    assert "2 done + 1 failed (1 forgotten)" in voxbatch("status", "out").stdout
    assert "deletions" not in voxbatch("score", "out").stderr
    again = voxbatch("forget", "out", "calls/anna.wav")
    assert (again.returncode, again.stdout) == (0, done.stdout)
