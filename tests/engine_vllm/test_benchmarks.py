"""Rehearsal of the GPU scripts on a CPU: a GPU is rented for half an hour only, so the output must be useful there."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["engine_runs"]
pytestmark = pytest.mark.timeout(600)

GPU = Path(__file__).parents[2] / "benchmarks" / "gpu"
FEW = "--option enforce_eager=true --option max_num_batched_tokens=2048 --option max_num_seqs=2"
SPEED = f"--speed --rounds 2 --repeats 2 {FEW} --only"
PHASES = FEW.replace("--option ", "--engine-option=") + " --engine-option=dtype=float32 --runs warm kept kept"
REPRODUCIBLE = f"{FEW.replace('--option ', '--engine-option=')} --engine-option=reproducible=true"
SERVE = "--modes eager --concurrency 1 3 --waves 1 --seconds 2 --engine-option dtype=float32"


def ran(folder: Path, script: str, *arguments: str) -> str:
    """Run a script in an environment that has the plugin, and return what it prints."""
    from engine_runs import PATIENCE_S, caches, installed
    from stream import ENVIRONMENT

    command: list[str | Path] = [sys.executable, GPU / script, *arguments]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VOXBATCH_", "VLLM_"))}
    kept |= {"PYTHONPATH": str(installed(folder)), **caches(folder), **ENVIRONMENT}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=folder, env=kept)
    assert ended.returncode == 0, f"{ended.stdout[-4_000:]}{ended.stderr[-4_000:]}"
    return ended.stdout


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "model", "flags"),
    [
        ("bench_plugin.py", "realtime", f"--tokens --chunks 5 --alone 1 {FEW} --option max_model_len=256"),
        ("bench_plugin.py", "realtime", f"{SPEED} plugin --lengths 2-35 --option max_model_len=128"),
        ("bench_plugin.py", "voxtral", f"{SPEED} plugin stock --text-tokens 4"),
        ("bench_plugin.py", "small_whisper", f"{SPEED} stock --text-tokens 4"),
        (
            "bench_reproducible.py",
            "small_whisper",
            f"--run a=reproducible=true --clips 2 --repeats 1 --text-tokens 4 {FEW}",
        ),
        ("bench_run.py", "realtime", "--hours 0.05 " + FEW.replace("--option ", "--engine-option=")),
        ("bench_run.py", "realtime", f"--hours 0.03 --compare --skip-alone --workers 1 2 {REPRODUCIBLE}"),
        ("bench_phases.py", "realtime", PHASES),
        ("bench_serve.py", "realtime", SERVE),
    ],
)
def test_rehearsal(script: str, model: str, flags: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Each script measures to its end with made-up weights, and no line tells of a failure. A second run with
    --keep-engine uses the engine of the first one."""
    said = ran(tmp_path, script, str(request.getfixturevalue(model)), *flags.split())
    assert said
    assert '"failed": "' not in said
    assert '"error": "' not in said
    assert "kept kept" not in flags or said.count('"an earlier engine is used":') == 1
    assert "--compare" not in flags or '"name": "equal transcripts"' in said


@pytest.mark.slow
def test_reading_needs_no_engine(tmp_path: Path) -> None:
    """The cost of reading results is measured over real tokens, and a second measurement has equal hypotheses."""
    assert "equal hypotheses" in ran(tmp_path, "bench_reading.py", "--chunks", "3", "--times", "2")


@pytest.mark.long
@pytest.mark.slow
def test_speech(tmp_path: Path) -> None:
    """Each part prints its figures, and every speech and text is counted."""
    from speaking_model import write_speaker

    write_speaker(tmp_path / "speaker")
    small = ("dtype=float32", "max_num_seqs=4", "enforce_eager=true")
    flags = ("--clients", "1", "2", "--batch-rounds", "2", "--texts", "6", *(f"--option={each}" for each in small))
    lines = [
        json.loads(line) for line in ran(tmp_path, "bench_speech.py", str(tmp_path / "speaker"), *flags).splitlines()
    ]
    spoken = [(line["name"], line["clients"], line["speeches"]) for line in lines if "latency_p50_s" in line]
    assert spoken == [("graphs", 1, 1), ("graphs", 2, 2), ("graphs", 5, 8), ("eager", 1, 1), ("eager", 2, 2)]
    assert [line["done"] for line in lines if line["name"] == "command"] == [6]


@pytest.fixture
def small_whisper(tmp_path: Path) -> Path:
    """Return the folder of a Whisper with the published vocabulary and narrow layers, without weights."""
    folder = tmp_path / "whisper"
    full_size = importlib.import_module("test_shapes").full_size()
    full_size.write(folder, full_size.WHISPER)
    config = json.loads((folder / "config.json").read_text())
    narrow = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    (folder / "config.json").write_text(json.dumps({**config, **narrow, **heads, "dtype": "float32"}))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted(path.name for path in GPU.glob("bench_*.py")))
def test_scripts_start(script: str) -> None:
    """Each script imports what it needs, and explains its options."""
    pytest.importorskip("vllm")
    done = subprocess.run([sys.executable, GPU / script, "--help"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout[:6]) == (0, "usage:"), done.stderr
