"""Rehearsal of the GPU scripts on a CPU: a GPU is rented for half an hour only, so the output must be useful there."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest_plugins = ["engine_runs"]
pytestmark = pytest.mark.timeout(600)

SHORT = "max_model_len=128"
"""Options for chunks of at most 7 s."""
GPU = Path(__file__).parents[2] / "benchmarks" / "gpu"


def printed(model: Path, folder: Path, *flags: str) -> list[dict[str, Any]]:
    """Return the lines that bench_plugin.py prints for a model with made-up weights."""
    small = ("--option", "enforce_eager=true", "--option", "max_num_batched_tokens=2048")
    said = ran(folder, "bench_plugin.py", str(model), *small, *flags)
    return [json.loads(line) for line in said.splitlines()]


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
def test_tokens(realtime: Path, tmp_path: Path) -> None:
    """Plugin and stock give the same tokens in float32, in company and alone.

    With the made-up weights tokens vary by the dozen, also within a chunk.
    """
    options = ("--option", "dtype=float32", "--option", "max_model_len=256")
    lines = printed(realtime, tmp_path, "--tokens", "--chunks", "5", "--alone", "1", *options)
    assert [line for line in lines if "failed" in line] == []
    said = [line for line in lines if "distinct_tokens" in line and "how" in line]
    assert [(line["name"], line["how"]) for line in said] == [
        (name, how) for name in ("plugin", "stock") for how in ("in company", "alone")
    ]
    assert all(line["distinct_tokens"] >= 12 and line["said_again"] < 0.95 for line in said)
    pairs = [line for line in lines if "of" in line]
    assert len(pairs) == 6
    assert {line["equal_share"] for line in pairs} == {1.0}
    assert (["plugin in company", "stock in company"], 5) in [(line["of"], line["chunks"]) for line in pairs]


@pytest.mark.long
@pytest.mark.slow
def test_speed(realtime: Path, tmp_path: Path) -> None:
    """Each repeat is printed, then the medians."""
    flags = ("--speed", "--only", "plugin", "--lengths", "2-35", "--rounds", "4", "--repeats", "2")
    lines = printed(realtime, tmp_path, *flags, "--option", "max_num_seqs=4", "--option", SHORT)
    first, second, medians = lines
    assert medians["runs"] == [
        {name: value for name, value in line.items() if name in medians["runs"][0]} for line in (first, second)
    ]
    assert medians["rtfx"] == (first["rtfx"] + second["rtfx"]) / 2
    assert medians["chunks"] == 16


@pytest.mark.long
@pytest.mark.slow
def test_latency(realtime: Path, tmp_path: Path) -> None:
    """Both profiles complete every clip of noise, with ascending percentiles, without a WER and without GPU memory
    here."""
    small = [f"--engine-option={each}" for each in ("enforce_eager=true", "max_num_batched_tokens=2048")]
    flags = ("--clips", "4", "--batch-clips", "12", "--median-s", "3", "--out", str(tmp_path / "lines.jsonl"))
    ran(tmp_path, "bench_latency.py", str(realtime), *flags, *small)
    lines = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert [(line["name"], line["clips"], line["requests"]) for line in lines] == [
        ("ctx512", 4, 4),
        ("ctx512-batch", 12, 12),
    ]
    assert all(line["completion_rate"] == 1 and line["wer"] is line["peak_gb"] is None for line in lines)
    assert all(0 < line["p50_s"] <= line["p90_s"] <= line["p95_s"] for line in lines)
    one = lines[0]
    engine_s = one["audio_s"] / one["rtfx"]
    assert 2 * one["p50_s"] + one["p90_s"] <= 1.02 * engine_s, "one at a time: no request waits for another"


@pytest.mark.long
@pytest.mark.slow
def test_phases(realtime: Path, tmp_path: Path) -> None:
    """The phases of a start come in their order, with the median and the range of two runs."""
    options = ("enforce_eager=true", "max_num_batched_tokens=2048", "max_num_seqs=4", "dtype=float32")
    flags = [f"--engine-option={each}" for each in options]
    said = ran(tmp_path, "bench_phases.py", str(realtime), "--runs", "warm", "warm", *flags)
    rows = [line.split(" | ") for line in said.rpartition("| median s")[2].splitlines()[2:]]
    medians = {phase.removeprefix("| "): float(cell.split()[0]) for phase, cell in rows}
    assert all(re.fullmatch(r"[\d.]+ \([\d.]+ to [\d.]+\) \|", cell) for _, cell in rows)
    order = (
        "voxbatch has begun", "vLLM is imported in the parent", "the engine's process has its arguments",
        "the engine has its configuration", "ready", "first commit", "end",
    )  # fmt: skip
    assert [medians[phase] for phase in order] == sorted(medians[phase] for phase in order)
    assert {"vLLM is imported in the engine's process", "its tokenizer is loaded"} < medians.keys()


@pytest.mark.long
@pytest.mark.slow
def test_speech(tmp_path: Path) -> None:
    """Each part prints its figures: codes do not depend on graphs or padding, and every speech and text is counted."""
    from speaking_model import write_speaker

    write_speaker(tmp_path / "speaker")
    small = ("dtype=float32", "max_num_seqs=4", "enforce_eager=true")
    flags = ("--clients", "1", "2", "--batch-rounds", "2", "--texts", "6", *(f"--option={each}" for each in small))
    lines = [
        json.loads(line) for line in ran(tmp_path, "bench_speech.py", str(tmp_path / "speaker"), *flags).splitlines()
    ]
    assert {line[name] for line in lines if "rows" in line for name in line if name.endswith("differ")} == {0}
    spoken = [(line["name"], line["clients"], line["speeches"]) for line in lines if "latency_p50_s" in line]
    assert spoken == [("graphs", 1, 1), ("graphs", 2, 2), ("graphs", 5, 8), ("eager", 1, 1), ("eager", 2, 2)]
    compared = [line for line in lines if "equal_frames" in line]
    assert [line["equal_frames"] for line in compared] == [line["frames"] for line in compared]
    assert all(line["frames"] for line in compared)
    assert [line["done"] for line in lines if line["name"] == "command"] == [6]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("shape", ["mini-3b", "whisper-large-v3-turbo"])
def test_instruct(shape: str, voxtral: Path, tmp_path: Path) -> None:
    """Each repeat over windows of 30 s is told with its speed, and the medians with what a window was."""
    model = voxtral
    if shape != "mini-3b":
        model = small_whisper(tmp_path / "whisper")
    options = ("enforce_eager=true", "max_num_batched_tokens=2048", "max_num_seqs=2", "gpu_memory_gb=0")
    flags = [part for option in options for part in ("--option", option)]
    few = ("--only", "voxbatch", "--text-tokens", "4", "--repeats", "2")
    said = ran(tmp_path, "bench_instruct.py", str(model), *few, *flags)
    ready, *repeats, medians = (json.loads(line) for line in said.splitlines())
    assert "up to 2 requests at a time" in ready["described"]
    assert ("encoder once a chunk" in ready["described"]) == (shape == "mini-3b")
    assert [line["repeat"] for line in repeats] == [1, 2]
    assert min(line["rtfx"] for line in repeats) <= medians["rtfx"] <= max(line["rtfx"] for line in repeats)
    assert (medians["windows"], medians["text_tokens"], medians["audio_s"]) == (8, 4, 240)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("gpus", [1, 2])
def test_instruct_beside_stock(gpus: int, voxtral: Path, tmp_path: Path) -> None:
    """Each configuration measures windows with the fixed number of tokens, also if two workers share the model."""
    model = tmp_path / "model"
    shutil.copytree(voxtral, model)
    params = json.loads((model / "params.json").read_text())
    params["multimodal"]["whisper_model_args"]["encoder_args"] |= {"n_heads": 2, "head_dim": 32}
    (model / "params.json").write_text(json.dumps(params))
    options = ("enforce_eager=true", "max_num_batched_tokens=2048", "max_num_seqs=2", "gpu_memory_gb=0")
    flags = [part for option in options for part in ("--option", option)]
    flags += ["--option", f"tensor_parallel_size={gpus}", "--text-tokens", "4", "--repeats", "1"]
    names = ["voxbatch", "stock"] if gpus == 2 else ["without plugin, L4 memory", "stock, L4 memory"]
    said = ran(tmp_path, "bench_instruct.py", str(model), "--only", *names, *flags)
    lines = [json.loads(line) for line in said.splitlines()]
    assert [(line["name"], line["windows"], line["text_tokens"]) for line in lines if "windows" in line] == [
        (name, 8, 4) for name in names
    ]


def small_whisper(folder: Path) -> Path:
    """Return the folder of a Whisper with the published vocabulary and narrow layers, without weights."""
    full_size = importlib.import_module("test_shapes").full_size()
    full_size.write(folder, full_size.WHISPER)
    config = json.loads((folder / "config.json").read_text())
    narrow = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    (folder / "config.json").write_text(json.dumps({**config, **narrow, **heads, "dtype": "float32"}))
    return folder


@pytest.mark.long
@pytest.mark.slow
def test_serve(realtime: Path, tmp_path: Path) -> None:
    """Every way of asking a server of Voxtral Realtime is measured, with one token for each 80 ms of audio, and its
    pads. The last message of a live stream is spoken when the recording ends.
    """
    flags: tuple[str, ...] = (
        "--modes",
        "eager",
        "--concurrency",
        "1",
        "3",
        "--waves",
        "1",
        "--seconds",
        "2",
        "--live-seconds",
        "1",
    )
    flags += ("--engine-option", "dtype=float32", "--out", str(tmp_path / "lines.jsonl"))
    ran(tmp_path, "bench_serve.py", str(realtime), *flags)
    start, *lines = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert start["ready_s"] > 0
    assert "voxbatch serve --profile ctx512-batch" in start["command"]
    assert [(line["way"], line["concurrency"], line["requests"]) for line in lines] == [
        (way, clients, requests)
        for way, alone in (("transcriptions", 4), ("realtime", 4), ("live", 1))
        for clients, requests in ((1, alone), (3, 3))
    ]
    assert not any("failed" in line for line in lines)
    assert all(0 < line["p50_s"] <= line["p90_s"] <= line["p95_s"] for line in lines)
    assert {line["tokens"] for line in lines if line["way"] == "transcriptions"} == {2 / 0.08 + 9}
    assert all(line["wall_s"] > 1 and line["rtfx"] < line["concurrency"] for line in lines if line["way"] == "live")
    assert {(line["name"], line["mode"]) for line in lines} == {("ctx512-batch", "eager")}


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted(path.name for path in GPU.glob("bench_*.py")))
def test_scripts_start(script: str) -> None:
    """Each script imports what it needs, and explains its options."""
    pytest.importorskip("vllm")
    done = subprocess.run([sys.executable, GPU / script, "--help"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout[:6]) == (0, "usage:"), done.stderr


def test_lengths_follow_the_published_latencies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lengths of any number of clips have the proportions of the published table."""
    monkeypatch.syspath_prepend(GPU)
    bench = importlib.import_module("bench_latency")
    for clips in (24, 500):
        p50, p90, p95 = np.percentile(bench.lengths(clips, 9.5), [50, 90, 95], method="inverted_cdf")
        assert p50 == pytest.approx(9.5, rel=0.05)
        assert p90 / p50 == pytest.approx(6.26 / 2.64, rel=0.05)
        assert p95 / p50 == pytest.approx(7.73 / 2.64, rel=0.05)
