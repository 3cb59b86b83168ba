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


def tables(folder: Path, lines: list[dict[str, Any]]) -> str:
    """Return the tables that tables.py prints for these lines."""
    (folder / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command: list[str | Path] = [sys.executable, GPU / "tables.py", folder / "lines.jsonl"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


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
    assert "| plugin in company | stock in company | 5 |" in tables(tmp_path, lines)


@pytest.mark.slow
def test_soak(realtime: Path, tmp_path: Path) -> None:
    """A soak run prints twenty stretches with their speed and memory, then the changes. Its engine is a separate
    process."""
    lines = printed(realtime, tmp_path, "--soak", "0.005", "--option", "max_num_seqs=8", "--option", SHORT)
    ready, *stretches, drift = lines
    assert ready["ready_s"] > 0
    assert [line["stretch"] for line in stretches] == list(range(1, 21))
    assert all(line["rtfx"] > 0 and line["this_rss"] > 0 and line["engine_rss"] > 0 for line in stretches)
    assert drift["ratio"] > 0
    assert set(drift["growth_last_half"]) == {"this_rss", "engine_rss", "gpu_used"}
    assert "Last quarter beside the second" in tables(tmp_path, lines)


@pytest.mark.slow
def test_idle(realtime: Path, tmp_path: Path) -> None:
    """The causes of idle time are asked of an engine in a separate process, in the middle of a run."""
    flags = ("--idle", "--lengths", "2-35", "--option", "max_num_seqs=4", "--option", SHORT)
    [line] = lines = printed(realtime, tmp_path, *flags)
    assert 0 < line["busy_ms"] <= line["wall_ms"]
    assert line["gaps"]["over 0 us"][0] >= line["gaps"]["over 20 us"][0]
    assert len(line["longest"]) == 12
    assert line["audio_s"] > 0
    assert "| `plugin` | 2-35 |" in tables(tmp_path, lines)


@pytest.mark.slow
def test_speed(realtime: Path, tmp_path: Path) -> None:
    """Each repeat is printed, then the medians, and with --look the GPU's work in one more run."""
    flags = ("--speed", "--look", "--only", "plugin", "--lengths", "2-35", "--rounds", "4", "--repeats", "2")
    lines = printed(realtime, tmp_path, *flags, "--option", "max_num_seqs=4", "--option", SHORT)
    first, second, medians, look = lines
    assert medians["runs"] == [
        {name: value for name, value in line.items() if name in medians["runs"][0]} for line in (first, second)
    ]
    assert medians["rtfx"] == (first["rtfx"] + second["rtfx"]) / 2
    assert medians["chunks"] == 16
    assert look["look"]["busy_ms"] > 0
    assert "| `plugin` | 2-35 | 16 |" in tables(tmp_path, lines)


@pytest.mark.slow
def test_parts(realtime: Path, tmp_path: Path) -> None:
    """A part that works only with another has a line with the speeds of two engines; both lack the other part."""
    options = ("enforce_eager=true", "max_num_batched_tokens=2048", "max_num_seqs=4", SHORT)
    flags = [part for option in options for part in ("--option", option)]
    few = ("--without", "silence", "--turns", "1", "--lengths", "2-35", "--rounds", "2")
    said = ran(tmp_path, "bench_parts.py", str(realtime), *few, *flags)
    with_it, without_it, part = [json.loads(line) for line in said.splitlines()]
    assert [line["without"] for line in (with_it, without_it)] == [["encoder_graphs"], ["encoder_graphs", "silence"]]
    assert (part["with"], part["without"]) == (with_it["rtfx"], without_it["rtfx"])
    assert min(part["ready_s"]) > 0


@pytest.mark.slow
def test_latency(realtime: Path, tmp_path: Path) -> None:
    """Both profiles complete every clip of noise, with ascending percentiles.

    The table has both profiles beside the published line, without a WER and without GPU memory here.
    """
    small = [f"--engine-option={each}" for each in ("enforce_eager=true", "max_num_batched_tokens=2048")]
    flags = ("--clips", "4", "--batch-clips", "12", "--median-s", "3", "--out", str(tmp_path / "lines.jsonl"))
    said = ran(tmp_path, "bench_latency.py", str(realtime), *flags, *small)
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
    assert "| `ctx512-batch` | 12 | 100.0% | 12 | — |" in said
    assert tables(tmp_path, lines).partition("### latency\n\n")[2] in said


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


@pytest.mark.slow
def test_phases_of_a_run_that_takes_too_long(realtime: Path, tmp_path: Path) -> None:
    """A run that exceeds its limit is told to end, and the message has its log and the engine's."""
    with pytest.raises(AssertionError) as failed:
        ran(tmp_path, "bench_phases.py", str(realtime), "--runs", "warm", "--limit-s", "10")
    said = str(failed.value)
    assert re.search(r"exit code 143 after \d+ s", said)
    assert "vLLM is loading" in said
    assert "engine.log:" in said


@pytest.mark.slow
def test_confidence(realtime: Path, tmp_path: Path) -> None:
    """The three parts find the kernel right and the tokens the same, and compare the speed with and without scores."""
    options = ("enforce_eager=true", "max_num_batched_tokens=2048", "max_num_seqs=4", SHORT)
    flags = [part for option in options for part in ("--option", option)]
    said = ran(tmp_path, "bench_confidence.py", str(realtime), *flags, "--chunks", "5", "--pairs", "2")
    lines = [json.loads(line) for line in said.splitlines()]
    assert [line for line in lines if "failed" in line or not line.get("right", True)] == []
    by_part = {part: [line for line in lines if line["part"] == part] for part in ("kernel", "tokens", "speed")}
    assert all(line["largest_error"] < 2e-4 and line["score_ms"] > 0 for line in by_part["kernel"])
    [told] = by_part["tokens"]
    assert told["same_tokens"]
    assert told["distinct_tokens"] >= 12
    assert told["scored"] == told["positions"]
    _, *runs, last = by_part["speed"]
    assert [line["scores"] for line in runs] == [False, True, True, False]
    assert last["ratio"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["mini-3b", "whisper-large-v3-turbo"])
def test_instruct(shape: str, voxtral: Path, tmp_path: Path) -> None:
    """Each repeat over windows of 30 s is told with its speed, and the medians with what a window was."""
    model = voxtral
    if shape != "mini-3b":
        model = small_whisper(tmp_path / "whisper")
    options = ("enforce_eager=true", "max_num_batched_tokens=2048", "max_num_seqs=2", "gpu_memory_gb=0")
    flags = [part for option in options for part in ("--option", option)]
    few = ("--only", "voxbatch", "--text-tokens", "4", "--repeats", "2", "--look")
    said = ran(tmp_path, "bench_instruct.py", str(model), *few, *flags)
    ready, *repeats, medians, look = (json.loads(line) for line in said.splitlines())
    assert "up to 2 requests at a time" in ready["described"]
    assert ("encoder once a chunk" in ready["described"]) == (shape == "mini-3b")
    assert [line["repeat"] for line in repeats] == [1, 2]
    assert min(line["rtfx"] for line in repeats) <= medians["rtfx"] <= max(line["rtfx"] for line in repeats)
    assert (medians["windows"], medians["text_tokens"], medians["audio_s"]) == (8, 4, 240)
    assert look["look"]["kinds_ms"]["matrix products"] > 0


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
    said = ran(tmp_path, "bench_serve.py", str(realtime), *flags)
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
    assert "| `ctx512-batch` | eager | live, 1 s | 3 | 3 |" in said
    assert "ready in" in tables(tmp_path, [start, *lines])


def test_lengths_follow_the_published_latencies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lengths of any number of clips have the proportions of the published table."""
    monkeypatch.syspath_prepend(GPU)
    bench = importlib.import_module("bench_latency")
    for clips in (24, 500):
        p50, p90, p95 = np.percentile(bench.lengths(clips, 9.5), [50, 90, 95], method="inverted_cdf")
        assert p50 == pytest.approx(9.5, rel=0.05)
        assert p90 / p50 == pytest.approx(6.26 / 2.64, rel=0.05)
        assert p95 / p50 == pytest.approx(7.73 / 2.64, rel=0.05)


def test_weights_are_made_by_name() -> None:
    """The same name gives the same numbers, and another name gives others.

    In float32 the numbers are those of bfloat16. A matrix keeps the size of its inputs.
    """
    code = f"""
import sys; sys.path.insert(0, {str(GPU)!r})
import torch, bench_plugin
def made(name, dtype=torch.bfloat16):
    return bench_plugin._made(name, torch.empty(64, 256, dtype=dtype)).float()
one = made("layers.0.mlp.gate_up_proj.weight")
assert torch.equal(one, made("layers.0.mlp.gate_up_proj.weight", torch.float32))
assert not torch.equal(one, made("layers.1.mlp.gate_up_proj.weight"))
assert 0.9 < float(one.std()) * 256 ** 0.5 < 1.1
assert float(one.mean(dim=1).abs().max()) < 1e-3
print("right")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert ended.stdout == "right\n", ended.stderr[-2_000:]


def test_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each length gets as many chunks as were asked for it, and the last number holds for all further lengths."""
    monkeypatch.syspath_prepend(GPU)
    bench = importlib.import_module("bench_plugin")
    assert list(bench.with_rounds(["30", "20-35", "2-35"], [3.0, 2.0])) == [("30", 3), ("20-35", 2), ("2-35", 2)]


def test_idle_time_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle time is attributed to the work that follows it; work that overlaps other work has none."""
    monkeypatch.syspath_prepend(GPU)
    bench = importlib.import_module("bench_plugin")
    busy, gaps = bench._waits([(0, 10, "a"), (12, 20, "b"), (15, 18, "c"), (25, 30, "b")])
    assert (busy, gaps) == (23, [(2, "a", "b"), (5, "b", "b")])
    assert bench._by_next(gaps) == {"b": 7}
    assert bench._waits([]) == (0, [])
