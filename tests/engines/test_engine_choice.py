"""Tests for the table of engines, and for the choice among several that are installed."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from voxbatch import engines
from voxbatch.engines import choice
from voxbatch.errors import ConfigError
from voxbatch.profiles import load_profile


@pytest.mark.parametrize("name", engines.ENGINES)
def test_a_registration_is_complete(name: str) -> None:
    """Each path in the table of engines leads to an object, and the default profile is one for this engine."""
    registration = engines.ENGINES[name]
    for path in filter(None, (registration.class_path, registration.speed_path, registration.preview_path)):
        module, _, attribute = path.partition(":")
        assert hasattr(importlib.import_module(module), attribute)
    if registration.default_profile:
        assert load_profile(registration.default_profile)["engine"] == name


def test_auto_with_vllm_and_without_a_gpu_names_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an image that has vLLM alone, `auto` without a GPU says that the GPU is missing, not an engine."""
    monkeypatch.setattr(engines, "install_command", lambda name, *_: None if name == "vllm" else "pip install it")
    monkeypatch.setattr(engines, "has_gpu", lambda: False)
    with pytest.raises(ConfigError, match="vllm is installed, and this machine shows no NVIDIA GPU"):
        choice.choose("auto")


@pytest.mark.parametrize(
    ("model", "has_gpu", "installed", "chosen"),
    [
        ("parakeet", True, {"transducers", "vllm", "faster-whisper"}, "transducers"),
        ("nvidia/parakeet-tdt-0.6b-v3", True, {"transducers", "vllm"}, "transducers"),
        ("base", True, {"transducers", "vllm", "faster-whisper"}, "faster-whisper"),
        ("openai/whisper-large-v3", True, {"vllm", "faster-whisper"}, "vllm"),
        ("owner/unknown", True, {"vllm", "faster-whisper"}, "vllm"),
        ("owner/unknown", False, {"vllm", "faster-whisper"}, "faster-whisper"),
        (None, True, {"transducers", "vllm"}, "vllm"),
    ],
)
def test_auto_chooses_by_the_model_and_the_machine(
    monkeypatch: pytest.MonkeyPatch, model: str | None, has_gpu: bool, installed: set[str], chosen: str
) -> None:
    """`auto` takes the engine that runs the model here, and says which one and why."""
    monkeypatch.setattr(engines, "has_gpu", lambda: has_gpu)
    monkeypatch.setattr(engines, "install_command", lambda name, *_: None if name in installed else "pip install it")
    selected = choice.choose("auto", model=model)
    assert selected.name == chosen
    reason = f"it runs {model}" if model in ("parakeet", "base") else ""
    assert reason in selected.reason


def test_auto_knows_a_folder_of_parakeet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder is recognised by its config.json, and an archive by its name."""
    monkeypatch.setattr(engines, "has_gpu", lambda: True)
    monkeypatch.setattr(engines, "install_command", lambda *_: None)
    (tmp_path / "config.json").write_text('{"model_type": "parakeet_tdt"}')
    assert choice.choose("auto", model=str(tmp_path)).name == "transducers"
    (tmp_path / "model.nemo").write_bytes(b"")
    assert choice.choose("auto", model=str(tmp_path / "model.nemo")).name == "transducers"
    (tmp_path / "config.json").write_text('{"model_type": "whisper"}')
    assert choice.choose("auto", model=str(tmp_path)).name == "vllm"


def test_a_model_for_gpus_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that only a GPU's engine runs is refused before the hub is asked, with what to do."""
    monkeypatch.setattr(engines, "has_gpu", lambda: False)
    with pytest.raises(ConfigError, match="openai/whisper-large-v3, and this machine shows no NVIDIA GPU: check"):
        choice.choose("auto", model="openai/whisper-large-v3")
