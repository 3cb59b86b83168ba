"""`voxbatch ask --engine vllm` as a user starts it: killed and resumed, each row valid under a JSON schema."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LINES = 15
WAIT_S = 400
SCHEMA = {
    "type": "object",
    "properties": {"count": {"type": "integer", "minimum": 0, "maximum": 99}, "loud": {"type": "boolean"}},
    "required": ["count", "loud"],
    "additionalProperties": False,
}


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Write a manifest of LINES questions about recordings of 1 to 35 s; every fifth line has two."""
    from sounds import babble

    rows = []
    for i, seconds in enumerate(np.linspace(1, 35, LINES)):
        soundfile.write(tmp_path / f"r{i}.wav", babble(float(seconds), i), 16_000, subtype="PCM_16")
        names = [f"r{i}.wav", f"r{i // 2}.wav"][: 2 if i % 5 == 4 else 1]
        rows.append({"id": f"q{i}", "audio_filepaths": names, "prompt": f"Question {i}?"})
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    return tmp_path / "m.jsonl"


def test_a_killed_run_resumes_with_the_same_bytes(
    start_fork: Callable[..., subprocess.Popen[str]], questions: Path, voxtral: Path, tmp_path: Path
) -> None:
    from engine_runs import command

    given = ("dtype=float32", "enforce_eager=true", "max_num_batched_tokens=2048", "max_model_len=4096")
    options = [flag for option in (*given, "max_num_seqs=2") for flag in ("--engine-option", option)]
    options += ["--json-schema", str(tmp_path / "schema.json"), "--max-tokens", "40", "--part-items", "4"]
    asked = ["ask", questions, "--engine", "vllm", "--model", str(voxtral), *options, "--part-seconds", "0.5"]
    peace, war = tmp_path / "peace", tmp_path / "war"
    whole = command(tmp_path, *asked, "-o", peace)
    assert whole.returncode == 0, whole.stderr[-3000:]
    run, end = start_fork(*asked, "-o", war), time.monotonic() + WAIT_S
    while not list(war.glob("parts/*/part-*.jsonl")) and run.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.02)
    run.kill()
    assert run.wait() == -9
    assert not (war / "summary.json").exists()
    again = command(tmp_path, *asked, "-o", war)
    assert again.returncode == 0, again.stderr[-3000:]
    assert "done before" in again.stderr
    lines = (peace / "transcripts.jsonl").read_bytes()
    assert (war / "transcripts.jsonl").read_bytes() == lines
    rows = [json.loads(line) for line in lines.splitlines()]
    assert len(rows) == LINES
    for i, row in enumerate(rows):
        answer = json.loads(row["answer"])
        assert set(answer) == {"count", "loud"}
        assert 0 <= answer["count"] <= 99
        assert isinstance(answer["loud"], bool)
        assert row["finish_reason"] == "stop"
        assert (row["prompt_tokens"] > 750) == (i % 5 == 4 or row["audio_duration"] > 30)
