"""Tests for `voxbatch doctor` on machines with GPUs: its findings, warnings and failures."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import machines
import pytest
from click.testing import CliRunner
from conftest import Recorder, Voxbatch

from voxbatch import doctor, engines
from voxbatch.cli import cli
from voxbatch.doctor import Finding
from voxbatch.engines.vllm import gpu


@pytest.fixture
def hub() -> Iterator[None]:
    """Let huggingface_hub be imported again, in the test and after it: it reads its environment when it is imported."""

    def forget() -> dict[str, Any]:
        return {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "huggingface_hub"}

    before = forget()
    yield
    forget()
    sys.modules.update(before)


@pytest.fixture
def diagnosed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: None) -> Any:
    """Return a function: diagnosed(driver="535.216.03", …) gives the findings on such a machine (machines.gpu_machine)
    by name.
    """

    def diagnose(**machine: Any) -> dict[str, Finding]:
        packages = machines.gpu_machine(tmp_path / "packages", **machine)
        environment = {**machines.hub_cache(tmp_path / "cache"), "PYTHONPATH": machines.path(packages)}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.syspath_prepend(packages)
        monkeypatch.setitem(sys.modules, "pynvml", None)  # monkeypatch restores the module at the end
        del sys.modules["pynvml"]
        monkeypatch.setattr(engines, "has_gpu", lambda: True)
        return {each.name: each for each in doctor.findings()}

    return diagnose


def test_plugin_is_on_with_the_vllm_of_the_extra(diagnosed: Any) -> None:
    """With the vLLM of the extra, the plugin runs the encoder once per chunk."""
    assert diagnosed()["vllm-plugin"].state == "ok"


def test_plugin_that_is_off_is_a_warning(diagnosed: Any) -> None:
    """A vLLM with which `auto` does not use the plugin is a warning with the cost and the remedy, not a failure."""
    found = diagnosed(vllm="0.32.0")
    assert found["vllm"].state == "ok"
    assert found["vllm-plugin"].state == "warning"
    assert "about 5 times slower" in found["vllm-plugin"].detail
    assert "pip install 'voxbatch[vllm]'" in found["vllm-plugin"].detail
    assert found["engine"].state == "ok"


def test_unknown_vllm_gives_no_finding_about_the_plugin(diagnosed: Any) -> None:
    """There is no finding about the plugin for a vLLM that voxbatch does not know."""
    assert "vllm-plugin" not in diagnosed(vllm="0.40.0")


def test_working_gpu_is_ok(diagnosed: Any) -> None:
    """A working GPU is one on which PyTorch allocated a tensor with the installed driver."""
    found = diagnosed()
    assert found["cuda"] == Finding(
        "cuda", "ok", "driver 580.95.05 runs CUDA 13.0, and PyTorch for CUDA 13.0 allocates memory on each GPU"
    )
    assert found["engine"].state == "ok"


def test_too_old_driver_fails_the_engine(diagnosed: Any) -> None:
    """With a driver that is too old the engine fails, as a run would, and the finding gives the installed and the
    required driver.
    """
    found = diagnosed(driver="535.216.03", cuda=12020, fault="CUDA error 35")
    assert found["cuda"].state == "failed"
    assert found["cuda"].detail.startswith(
        "driver 535.216.03 runs CUDA 12.2, and this PyTorch is built for CUDA 13.0 (RuntimeError: CUDA error 35): "
        "install driver 580 or later"
    )
    assert found["engine"] == Finding("engine", "failed", "vllm is installed and cannot start here: see cuda above")


def test_compatibility_libraries_make_an_old_driver_ok(diagnosed: Any) -> None:
    """With CUDA's compatibility libraries, an old driver is no fault: memory can be allocated."""
    found = diagnosed(driver="535.216.03", cuda=12020)
    assert (found["cuda"].state, found["engine"].state) == ("ok", "ok")


@pytest.mark.parametrize(
    ("machine", "detail"),
    [
        ({"fault": "CUDA error 803"}, "cannot use the GPU with driver 580.95.05 (RuntimeError: CUDA error 803): check"),
        ({"torch_cuda": None, "fault": "not compiled with CUDA"}, "this PyTorch is a build without CUDA: pip install"),
        ({"hang": 60.0}, "cannot use the GPU with driver 580.95.05 (no answer within 2 s)"),
    ],
)
def test_errors_of_pytorch_fail_the_engine(
    diagnosed: Any, monkeypatch: pytest.MonkeyPatch, machine: dict[str, Any], detail: str
) -> None:
    """Any error of PyTorch, also a hang, is reported, and the engine fails."""
    monkeypatch.setattr(gpu.probe, "__defaults__", (2.0,))
    found = diagnosed(**machine)
    assert found["cuda"].state == "failed"
    assert detail in found["cuda"].detail
    assert found["engine"].state == "failed"


def test_driver_without_a_visible_gpu_fails_the_engine(diagnosed: Any) -> None:
    """A driver without a visible GPU cannot start vLLM either."""
    found = diagnosed(cards=0)
    assert (found["gpu"].state, found["cuda"].state) == ("missing", "ok")
    assert found["engine"].detail == "vllm is installed and cannot start here: see gpu above"


def test_exit_code_is_1_only_if_the_engine_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code is 1 if the engine fails; a warning alone does not change it."""
    for state, code in (("ok", 0), ("failed", 1)):
        found = [Finding("vllm-plugin", "warning", "slow"), Finding("engine", state, "")]
        monkeypatch.setattr(doctor, "findings", lambda found=found: iter(found))
        assert CliRunner().invoke(cli, ["doctor"]).exit_code == code


def test_last_line_is_the_verdict() -> None:
    """The verdict is that of the engine, with its remedy; other faults are named as limits."""
    engine = Finding("engine", "ok", "faster-whisper")
    assert doctor.verdict([engine]) == "ready: voxbatch run FOLDER transcribes a folder of recordings"
    assert doctor.verdict([Finding("ffmpeg", "failed", "gone"), engine]).startswith("ready, with limits: see ffmpeg ab")
    assert doctor.verdict([Finding("boto3", "missing", "for s3://"), engine]).startswith("ready: ")
    failed = Finding("engine", "failed", "no engine is installed: pip install 'voxbatch[cpu]'")
    assert doctor.verdict([failed]) == "not ready: no engine is installed: pip install 'voxbatch[cpu]'"


def test_an_extra_is_listed_with_its_use(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A package that is missing stands beside its use and the command that installs it; that is no failure."""
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib import metadata\n"
        "real = metadata.version\n"
        "def version(name):\n"
        "    if name == 'boto3':\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "metadata.version = version\n"
    )
    done = voxbatch("doctor", env={"PYTHONPATH": machines.path(tmp_path)})
    use = "for s3:// addresses and SageMaker: pip install 'voxbatch[s3]'"
    assert f"missing  boto3                  {use}\n" in done.stdout


def test_run_gives_the_same_message_as_doctor(tmp_path: Path, voxbatch: Voxbatch, recording: Recorder) -> None:
    """A run ends with 1 before a model is loaded, with the same message."""
    recording("a.wav", 0.5)
    (tmp_path / "m.jsonl").write_text('{"audio_filepath": "a.wav"}\n')
    machines.small_files(tmp_path / "model")
    packages = machines.gpu_machine(tmp_path / "packages", driver="535.216.03", cuda=12020, fault="CUDA error 35")
    env = {"PYTHONPATH": machines.path(packages), "CUDA_VISIBLE_DEVICES": "0"}
    done = voxbatch("run", "m.jsonl", "--engine", "vllm", "--model", "model", env=env)
    assert done.returncode == 1
    assert "driver 535.216.03 runs CUDA 12.2, and this PyTorch is built for CUDA 13.0: install" in done.stderr
