"""`voxbatch doctor` on machines with GPUs: what it finds, what it warns of, and when it fails."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import machines
import pytest

from voxbatch import doctor, engines
from voxbatch.doctor import Finding


@pytest.fixture
def diagnosed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """diagnosed(driver="535.216.03", …) → the findings on such a machine (see machines.gpu_machine), by name."""

    def diagnose(**machine: Any) -> dict[str, Finding]:
        packages = machines.gpu_machine(tmp_path / "packages", **machine)
        environment = {**machines.hub_cache(tmp_path / "cache"), "PYTHONPATH": machines.path(packages)}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.syspath_prepend(packages)
        monkeypatch.setitem(sys.modules, "pynvml", None)  # taken back in the end, with what is imported in its place
        del sys.modules["pynvml"]
        monkeypatch.setattr(engines, "has_gpu", lambda: True)
        return {each.name: each for each in doctor.findings()}

    return diagnose


def test_the_plugin(diagnosed: Any) -> None:
    """With the vLLM that the extra installs, the encoder runs once a chunk."""
    assert diagnosed()["vllm-plugin"].state == "ok"


def test_the_plugin_is_off(diagnosed: Any) -> None:
    """A vLLM with which `auto` takes stock is a warning, with the cost and what to do, and no failure."""
    found = diagnosed(vllm="0.32.0")
    assert found["vllm"].state == "ok"
    assert found["vllm-plugin"].state == "warning"
    assert "about 5 times slower" in found["vllm-plugin"].detail
    assert "pip install 'voxbatch[vllm]'" in found["vllm-plugin"].detail
    assert found["engine"].state == "ok"


def test_no_gpu_build(diagnosed: Any) -> None:
    """Of a vLLM that voxbatch does not know, nothing more is said."""
    assert "vllm-plugin" not in diagnosed(vllm="0.40.0")
