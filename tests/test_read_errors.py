"""Tests for recordings whose file cannot be read: a read error is a failure that can be retried, never a shorter
transcript.

strace makes the reads of one file fail with EIO, as a broken disk or a network file system does.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from conftest import Recorder, environment

from voxbatch.audio.ffmpeg import executable

pytestmark = pytest.mark.slow

DECODE = """
import contextlib, sys
from voxbatch.audio import decode
from voxbatch.errors import VoxbatchError
from voxbatch.storage import open_recording
path, warnings = sys.argv[1], []
with contextlib.closing(open_recording(path)) as recording:
    try:
        samples = sum(len(block.samples) for block in decode(recording, path, warn=warnings.append))
        print("decoded", samples / 16_000, warnings)
    except VoxbatchError as error:
        print(type(error).__name__, error, warnings)
"""


def failing(*paths: Path, faults: tuple[str, ...]) -> list[str]:
    """Return the beginning of a command in which reads of the files fail as the faults say, such as "read,5+": the
    fifth read and all later ones of each process.
    """
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("there is no strace on PATH: apt-get install strace")
    command = [strace, "-f", "-qq", "-o", "/dev/null", "-e", "trace=read,pread64"]
    for path in paths:
        command += ["-P", str(path)]
    for fault in faults:
        call, when = fault.split(",")
        command += ["-e", f"inject={call}:error=EIO:when={when}"]
    if subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("strace may not trace processes here")
    return command


@pytest.fixture
def speech(tmp_path: Path) -> Path:
    """Return a WAV file of 60 s of noise."""
    soundfile.write(tmp_path / "a.wav", np.random.default_rng(0).normal(0, 0.1, 60 * 48_000), 48_000)
    return tmp_path / "a.wav"


@pytest.mark.parametrize(
    ("name", "when"),
    [("a.wav", 1), ("a.m4a", 1), ("a.m4a", 2)]
    + [(f"a.{suffix}", 6) for suffix in ("wav", "flac", "ogg", "mp3", "aiff", "m4a", "webm", "wma", "ac3", "wv")],
)
def test_read_error_is_no_end_of_the_file(speech: Path, ffmpeg: dict[str, str], name: str, when: int) -> None:
    """A file that cannot be read, from its start or from a later place on, is neither damaged nor short, whichever
    decoder reads it.
    """
    path = speech.with_name(name)
    if path != speech:
        subprocess.run([executable(), "-y", "-loglevel", "error", "-i", speech, path], check=True)
    command = [*failing(path, faults=(f"read,{when}+", f"pread64,{when}+")), sys.executable, "-c", DECODE, str(path)]
    done = subprocess.run(command, env=environment(**ffmpeg), capture_output=True, text=True)
    assert done.stdout.startswith("LocalReadError Input/output error"), done.stdout + done.stderr
    assert done.stdout.endswith("[]\n"), done.stdout


def test_truncated_file_is_no_read_error(speech: Path, ffmpeg: dict[str, str]) -> None:
    """A truncated file gives its first part, also if ffmpeg reports its end as a read error."""
    for name in ("a.wv", "a.webm", "a.wma", "a.ac3"):
        path = speech.with_name(name)
        subprocess.run([executable(), "-y", "-loglevel", "error", "-i", speech, path], check=True)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        command = [sys.executable, "-c", DECODE, str(path)]
        done = subprocess.run(command, env=environment(**ffmpeg), capture_output=True, text=True)
        assert done.stdout.startswith("decoded "), done.stdout + done.stderr


@pytest.mark.parametrize("unreadable", [1, 3])
def test_unreadable_recording_is_a_retryable_failure(tmp_path: Path, recording: Recorder, unreadable: int) -> None:
    """A recording that cannot be read fails, and a retry is worthwhile, if others of its file system can be read. If
    none can be read, the run stops, and can be resumed.
    """
    folder = tmp_path / "calls"
    for i in range(3):
        recording(f"{i}.wav", 20.0, folder)
    (manifest := tmp_path / "m.jsonl").write_text(
        "".join(json.dumps({"audio_filepath": f"calls/{i}.wav"}) + "\n" for i in range(3))
    )
    paths = [folder / f"{i}.wav" for i in range(unreadable)]
    run = [sys.executable, "-m", "voxbatch", "run", str(manifest), "--engine", "scripted", "--log-format", "text"]
    options = ["-o", str(tmp_path / "out"), "--engine-option", "max_chunk_s=15"]
    command = [*failing(*paths, faults=("read,3+", "pread64,1+")), *run, *options]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    if unreadable < 3:
        assert done.returncode == 3, done.stderr
        (failure,) = (tmp_path / "out" / "failures.jsonl").read_text().splitlines()
        row = json.loads(failure)
        assert row["retryable"]
        assert row["message"].startswith(f"cannot read {paths[0]}: Input/output error at byte ")
    else:
        assert done.returncode == 1, done.stderr
        assert ".wav: Input/output error" in done.stderr
        assert "nothing arrived from /" in done.stderr
        again = subprocess.run([*run, *options], env=environment(), capture_output=True, text=True)
        assert again.returncode == 0, again.stderr
