"""Tests that a command in a fork behaves as the command that a user starts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from conftest import Recorder, environment
from fork_server import ForkServer

CRASHING_CHILDREN = [
    word for option in ("workers=2", "own_process=true", "crash_items=0") for word in ("--engine-option", option)
]
COMMANDS = {
    "result": ("--version",),
    "usage": ("status", "nothing"),
    "all-done": ("run", "r.wav", "--engine", "scripted", "-o", "out"),
    "some-failed": ("run", "m.jsonl", "--engine", "scripted", "-o", "other", *CRASHING_CHILDREN),
    "killed": ("run", "r.wav", "--engine", "scripted", "-o", "last", "--engine-option", "kill_after=1"),
}
WITH_SECONDS = ("RTFx", "latency", "of audio in")
"""Parts of the lines that have seconds."""


def test_fork_equals_a_started_process(fork_server: ForkServer, recording: Recorder, tmp_path: Path) -> None:
    """The exit code, the lines of both streams and the files are the same; only seconds and folders differ."""
    results = []
    for way in ("fork", "process"):
        folder = tmp_path / way
        recording("r.wav", 1, folder)
        (folder / "m.jsonl").write_text('{"audio_filepath": "r.wav"}\n{"audio_filepath": "gone.wav"}\n')
        ended = []
        for command in COMMANDS.values():
            if way == "fork":
                done = fork_server.run(command, environment(), folder, 60)
            else:
                program = [sys.executable, "-m", "voxbatch", *command]
                done = subprocess.run(program, env=environment(), cwd=folder, capture_output=True, text=True)
            stdout, stderr = (
                [line for line in stream.splitlines() if not any(word in line for word in WITH_SECONDS)]
                for stream in (done.stdout, re.sub(rf"{folder}|[0-9a-f]{{16}}", "…", done.stderr))
            )
            ended.append((done.returncode, stdout, stderr))
        results.append((dict(zip(COMMANDS, ended, strict=True)), sorted(os.listdir(folder / "out"))))
    assert results[0] == results[1]
    codes = {name: code for name, (code, _, _) in results[0][0].items()}
    assert codes == {"result": 0, "usage": 2, "all-done": 0, "some-failed": 3, "killed": -signal.SIGKILL}


def test_variables_that_python_reads_when_it_starts_need_a_process(fork_server: ForkServer) -> None:
    """A changed import path or hash seed reaches only a process that is started."""
    assert fork_server.can_run(environment(VOXBATCH_MODEL="m", CLOUD_RUN_JOB="j"))
    assert not fork_server.can_run(environment(PYTHONPATH="/elsewhere"))
    assert not fork_server.can_run(environment(PYTHONHASHSEED="1"))
