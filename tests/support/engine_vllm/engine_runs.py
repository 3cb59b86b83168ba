"""Shared parts of the vLLM engine's tests: tiny checkpoints, and stock vLLM's output for them.

A test module of tests/engine_vllm uses the fixtures with `pytest_plugins = ["engine_runs"]`. This module is no
conftest.py, because tests/*.py import from their own conftest by that name, and would find this one when both folders
are named on one command line.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import sounds

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


FLOAT32 = ("dtype=float32", "enforce_eager=true", "max_num_batched_tokens=2048", "delay_ms=0", "watch=false")
"""Options with which two ways of running a model give the same tokens."""


INTERPRETER = ROOT / "tests" / "support" / "triton_interpreter"
"""Folder on the path of a process in which vLLM's CPU build can take its second model runner."""
SECOND_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
"""vLLM's variable, which is 1 in such a process."""
PATIENCE_S = 560
"""Timeout of a process that loads vLLM once, or an engine several times: ten times the duration on an idle machine."""
TOKENS = "tokens.json"


class Spoken(NamedTuple):
    """Waveforms, and the tokens that stock vLLM generates from them, by the chunk's name."""

    waveforms: dict[str, np.ndarray]
    tokens: dict[str, list[int]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of the modules that use this plugin if vLLM is not installed, and say so."""
    if find_spec("vllm"):
        return
    for item in items:
        if "engine_runs" in getattr(getattr(item, "module", None), "pytest_plugins", ()):
            item.add_marker(pytest.mark.skip(reason="vLLM is not installed"))


@pytest.fixture(params=["first", "second"])
def runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the model runner of vLLM that the schedulers of modelless schedule for."""
    import modelless

    monkeypatch.setitem(modelless.PLUGIN_ON, SECOND_RUNNER, str(int(request.param == "second")))
    found: str = request.param
    return found


@pytest.fixture(scope="session")
def realtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny Voxtral Realtime (delay 480 ms), in Mistral's format and in transformers'."""
    from checkpoints import write_realtime

    return once(tmp_path_factory, "realtime", lambda folder: write_realtime(folder, hf=True))


@pytest.fixture(scope="session")
def voxtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny Voxtral of the instruct kind, in Mistral's format."""
    from checkpoints import write_voxtral

    return once(tmp_path_factory, "voxtral", write_voxtral)


@pytest.fixture(scope="session")
def realtime_spoken(realtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Spoken:
    """Return 40 chunks of 0.3 to 36 s, with the output of the tiny Realtime in stock vLLM, one at a time."""
    from sounds import chunks

    return _spoken(tmp_path_factory, realtime, _on_16_bits(chunks(40, 0.3, 36.0)))


@pytest.fixture(scope="session")
def voxtral_spoken(voxtral: Path, tmp_path_factory: pytest.TempPathFactory) -> Spoken:
    """Return ten chunks, each within one window of 30 s, with the output of the tiny instruct model in stock vLLM."""
    from sounds import chunks

    return _spoken(tmp_path_factory, voxtral, _on_16_bits(chunks(10, shortest=1.0, longest=30.0)))


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that `make` filled. It is filled once for all test processes, by the first one that asks for
    it."""
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, finished = base / name, base / f"{name}.finished"
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            folder.mkdir()
            make(folder)
            finished.touch()
    return folder


def _spoken(factory: pytest.TempPathFactory, model: Path, waveforms: dict[str, np.ndarray]) -> Spoken:
    folder = once(factory, f"{model.name}_spoken", lambda folder: stock(model, waveforms, folder))
    return Spoken(waveforms, json.loads((folder / TOKENS).read_text()))


def _on_16_bits(waveforms: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Round the samples to 16 bits, as the official way to a prompt does. Ours does not round, so both get the same
    samples."""
    return {name: (np.rint(each * 32_767) / 32_768).astype(np.float32) for name, each in waveforms.items()}


def caches(folder: Path) -> dict[str, str]:
    """Return environment variables that put voxbatch's cache into the folder, and leave vLLM's cache in its usual
    place.

    vLLM keeps facts about a model's class there, which it otherwise finds by a process of its own.
    """
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return {"XDG_CACHE_HOME": str(folder), "VLLM_CACHE_ROOT": str(usual / "vllm")}


def installed(folder: Path) -> Path:
    """Return a folder for the path in which voxbatch's entry points are installed, as pyproject.toml defines them.

    The tests' environment holds vLLM but not voxbatch, which is imported from the checkout.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / "site" / f"{project['name']}-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
    groups = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in each.items())
              for group, each in project["entry-points"].items()]  # fmt: skip
    (info / "entry_points.txt").write_text("\n".join(groups))
    return info.parent


def stock(model: Path, waveforms: dict[str, np.ndarray], folder: Path) -> None:
    """Run generate.py in its own process. Its files go to `folder`."""
    sounds.save(folder / "chunks.npz", waveforms)
    command: list[str | Path] = [sys.executable, HERE / "generate.py", model, folder / "chunks.npz", folder / TOKENS]
    # PYTHONPATH may lead to other packages, and VLLM_* would change the stock model.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "VLLM_"))}
    process = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=folder, env=kept)
    assert process.returncode == 0, process.stderr[-4_000:]


def streamed(
    model: Path,
    waveforms: dict[str, np.ndarray],
    folder: Path,
    *options: str,
    root: Path = ROOT,
    program: str = "stream.py",
    **environment: str,
) -> dict[str, Any]:
    """Run stream.py in its own process, and return its result: voxbatch's engine with all chunks at once.

    Args:
        root: the folder that holds the package voxbatch.
        program: another program with the same arguments.
    """
    sounds.save(folder / "chunks.npz", waveforms)
    command: list[str | Path] = [
        sys.executable,
        HERE / program,
        model,
        folder / "chunks.npz",
        folder / "out.json",
        *options,
    ]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VOXBATCH_", "VLLM_"))}
    kept |= {
        "PYTHONPATH": f"{f'{INTERPRETER}:' if SECOND_RUNNER in environment else ''}{root}:{HERE}:{installed(folder)}",
        **caches(folder),
        **environment,
    }
    process = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=folder, env=kept)
    assert process.returncode == 0, process.stderr[-4_000:]
    found: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return found
