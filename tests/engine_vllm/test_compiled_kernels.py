"""Tests for the cache of compiled kernels with a real vLLM: what one start compiles, the next one fetches."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import soundfile
from conftest import Voxbatch
from stream import ENVIRONMENT

pytest_plugins = ["engine_runs"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_second_start_finds_the_kernels_of_the_first(realtime: Path, tmp_path: Path, voxbatch: Voxbatch) -> None:
    """The second of two runs on new machines compiles nothing: it gets vLLM's compiled graphs from the first one."""
    from sounds import babble

    soundfile.write(tmp_path / "a.wav", babble(4.0, 1), 16_000, subtype="PCM_16")
    (tmp_path / "m.jsonl").write_text(json.dumps({"audio_filepath": "a.wav"}))
    options = [f"--engine-option={each}" for each in ("dtype=float32", "max_num_batched_tokens=2048", "max_num_seqs=2")]
    told, seconds = [], []
    for number, folder in enumerate(("one", "two")):
        began = time.monotonic()
        done = voxbatch(
            "run", "m.jsonl", "-o", f"out{number}", "--engine", "vllm", "--model", realtime, "--log-format", "text",
            "--engine-option", "watch=false", *options, timeout=400,
            env={
                **ENVIRONMENT, "HOME": str(tmp_path / folder), "XDG_CACHE_HOME": str(tmp_path / folder),
                "VOXBATCH_KERNEL_CACHE": str(tmp_path / "kernels"),
            },
        )  # fmt: skip
        seconds.append(time.monotonic() - began)
        assert done.returncode == 0, done.stderr[-3000:]
        told.append([line for line in done.stderr.splitlines() if line.startswith("compiled kernels: ")])
    print(seconds, told)
    (archive,) = (tmp_path / "kernels").iterdir()
    assert f"{archive} is not there yet" in told[0][0]
    assert f"stored {archive}" in told[0][1]
    assert len(told[1]) == 1
    assert f"fetched {archive}" in told[1][0]
    graphs = [sorted((tmp_path / each).rglob("torch_*compile*/*/")) for each in ("one", "two")]
    assert graphs[0]
    assert [path.relative_to(tmp_path / "two") for path in graphs[1]] == [
        path.relative_to(tmp_path / "one") for path in graphs[0]
    ]
