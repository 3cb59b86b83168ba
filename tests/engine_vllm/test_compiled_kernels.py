"""Tests for the cache of compiled kernels with a real vLLM: what one start compiles, the next one fetches."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import soundfile

pytest_plugins = ["engine_runs"]


@pytest.fixture
def one_layer(realtime: Path, tmp_path: Path) -> Path:
    """Return the folder of the tiny Realtime with one layer of the decoder: fewer kernels are to be compiled."""
    from safetensors.numpy import load_file, save_file

    folder = shutil.copytree(realtime, tmp_path / "model", ignore=shutil.ignore_patterns("config.json", "model*"))
    params = json.loads((folder / "params.json").read_text())
    (folder / "params.json").write_text(json.dumps({**params, "n_layers": 1}))
    weights = load_file(folder / "consolidated.safetensors")
    kept = {name: weight for name, weight in weights.items() if not name.startswith("layers.1.")}
    save_file(kept, folder / "consolidated.safetensors")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_second_start_finds_the_kernels_of_the_first(one_layer: Path, tmp_path: Path) -> None:
    """The second of two runs on new machines compiles no kernel: it uses those of the first run."""
    from engine_runs import command
    from sounds import babble

    soundfile.write(tmp_path / "a.wav", babble(4.0, 1), 16_000, subtype="PCM_16")
    (tmp_path / "m.jsonl").write_text(json.dumps({"audio_filepath": "a.wav"}))
    home, archives = tmp_path / "home", tmp_path / "kernels"
    options = [f"--engine-option={each}" for each in ("dtype=float32", "max_num_batched_tokens=2048", "max_num_seqs=2")]
    told: list[list[str]] = []
    compiled: list[dict[Path, int]] = []
    for number in range(2):
        done = command(
            tmp_path, "run", "m.jsonl", "-o", f"out{number}", "--engine", "vllm", "--model", one_layer,
            "--log-format", "text", "--engine-option", "watch=false", *options,
            HOME=str(home), XDG_CACHE_HOME=str(home), VOXBATCH_KERNEL_CACHE=str(archives),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        told.append([line for line in done.stderr.splitlines() if line.startswith("compiled kernels: ")])
        files = [path for path in home.rglob("torch_compile_cache/**/*") if path.is_file()]
        compiled.append({path: path.stat().st_mtime_ns // 10**9 for path in files if path.suffix == ".so"})
        home.rename(tmp_path / f"home{number}")  # vLLM's keys contain the path of the model, which is below it
    (archive,) = archives.iterdir()
    assert f"{archive} is not there yet" in told[0][0]
    assert f"stored {archive}" in told[0][1]
    assert len(told[1]) == 1
    assert f"fetched {archive}" in told[1][0]
    assert compiled[0]
    assert compiled[1] == compiled[0]
