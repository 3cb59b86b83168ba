"""Tests for the transcripts of voxbatch beside recordings, which are no references."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from conftest import Recorder, Voxbatch

SCRIPTED = ("--engine", "scripted", "--decoders", "1")


def score(out: Path) -> object:
    return json.loads((out / "summary.json").read_text())["score"]


@pytest.mark.parametrize("source", ["talks/talk.wav", "talks"])
def test_a_transcript_in_a_file_beside_its_recording_is_no_reference(
    recording: Recorder, voxbatch: Voxbatch, tmp_path: Path, source: str
) -> None:
    """`voxbatch run talk.wav > talk.txt` leaves the transcript beside the recording. Neither the same run nor one with
    another model is scored against it, and a note says so. The same text from before the run is a reference."""
    recording("talks/talk.wav", 2)
    text = tmp_path / "talks/talk.txt"
    done = voxbatch("run", source, *SCRIPTED)
    assert done.returncode == 0, done.stderr
    out = tmp_path / ("talks/talk.voxbatch" if source.endswith("wav") else "talks.voxbatch")
    text.write_bytes((out / "txt/talk.txt").read_bytes())
    for options in ((), ("--model", "other", "-o", "other")):
        again = voxbatch("run", source, *SCRIPTED, *options)
        assert again.returncode == 0, again.stderr
        assert "talk.txt is the transcript of an earlier run, and no reference" in again.stderr
    assert score(out) is score(tmp_path / "other") is None
    os.utime(text, (1.0, 1.0))
    assert voxbatch("run", source, *SCRIPTED, "-o", "third").returncode == 0
    assert score(tmp_path / "third") is not None
