"""8-bit arithmetic is off unless it is requested by part, is refused if it is impossible, and is always announced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from shapes import H200, L4, params

from voxbatch.engines import gpu
from voxbatch.errors import ConfigError
from voxbatch.vllm import engine as vllm
from voxbatch.vllm.engine import compat, fp8, prefill
from voxbatch.vllm.engine.arguments import concurrency, llm_arguments
from voxbatch.vllm.engine.checks import check, check_fp8
from voxbatch.vllm.engine.families.realtime import Realtime
from voxbatch.vllm.engine.model import INSTRUCT, REALTIME, WHISPER, Model
from voxbatch.vllm.engine.settings import VllmSettings

A100 = gpu.GpuInfo("0", "NVIDIA A100", 85_899_345_920, 85_000_000_000, 600_000_000, (8, 0))
B200 = gpu.GpuInfo("0", "NVIDIA B200", 192_000_000_000, 190_000_000_000, 900_000_000, (10, 0))


@pytest.fixture
def on_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return on_gpus(card, …) → a model on a machine with these cards and vLLM 0.32."""
    (tmp_path / "params.json").write_text(json.dumps(params()))
    monkeypatch.setattr(compat, "installed", lambda: ("vllm", "0.32.0"))
    monkeypatch.setattr("voxbatch.vllm.plugin.is_installed", lambda: True)

    def model(*cards: gpu.GpuInfo, family: str = REALTIME) -> Model:
        monkeypatch.setattr(gpu, "visible_gpus", lambda: list(cards))
        return Model("a model", tmp_path, family, is_mistral=family != WHISPER)

    return model


def prefilled(model: Model, settings: VllmSettings) -> bool:
    """Return whether the encoder runs once per chunk."""
    return prefill.decide(model.family, settings).on


def checked(model: Model, settings: VllmSettings) -> None:
    """Run the checks of the settings."""
    check(model, settings, prefill.decide(model.family, settings))


def asked(parts: str, **others: Any) -> VllmSettings:
    """Return settings with these parts in 8 bits."""
    return VllmSettings(**{"prefill_encoder": "true", "fp8": parts, **others})


def test_options_are_parsed() -> None:
    """Parts may be in any order, with spaces; the default is none, and any other name is refused. So is a block size
    that is no multiple of 16 positions."""
    assert VllmSettings().fp8_parts == frozenset()
    assert VllmSettings(fp8="kv, decoder").fp8_parts == {"kv", "decoder"}
    assert VllmSettings(block_size=64).block_size == 64
    for options, message in (
        ({"fp8": "weights,kv"}, "fp8=weights,kv: 'weights' is not a part; give some of decoder, encoder, kv"),
        ({"block_size": 40}, "block_size=40: it must be a multiple of 16"),
        ({"block_size": -16}, "block_size=-16: it must be at least 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            VllmSettings(**options)


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ("", {}),
        ("kv", {"kv_cache_dtype": "fp8"}),
        ("decoder,encoder", {"quantization": "fp8_per_channel"}),
        ("decoder", {"quantization": "fp8_per_channel", "quantization_config": {"ignore": ["re:.*whisper_encoder"]}}),
        ("encoder", {"quantization": "fp8_per_channel", "quantization_config": {"ignore": ["re:.*language_model"]}}),
    ],
)
def test_arguments_for_vllm(parts: str, told: dict[str, Any]) -> None:
    """vLLM gets the names of all parts that stay in 16 bits, because it would quantise all otherwise."""
    names = ("quantization", "quantization_config", "kv_cache_dtype")
    assert {name: value for name, value in Realtime.arguments(VllmSettings(fp8=parts)).items() if name in names} == told


@pytest.mark.parametrize(
    ("card", "options", "backend"),
    [
        (H200, {}, "CUSTOM"),
        (L4, {}, "CUSTOM"),
        (B200, {}, "CUSTOM"),
        (L4, {"fp8": "decoder"}, "CUSTOM"),
        (H200, {"fp8": "", "dtype": "float32"}, None),
        (H200, {"attention_backend": "TRITON_ATTN"}, "TRITON_ATTN"),
    ],
)
def test_the_attention_backend_reads_the_cache(
    on_gpus: Any, card: gpu.GpuInfo, options: dict[str, str], backend: str | None
) -> None:
    """With the plugin its own attention reads a K/V cache of 8 or 16 bits, unless the settings name another backend."""
    model, settings = on_gpus(card), asked(**{"parts": options.pop("fp8", "kv"), **options})
    assert llm_arguments(model, settings, prefilled(model, settings), model.path, 8).get("attention_backend") == backend


def test_more_parts_in_8_bits_admit_more_requests(on_gpus: Any) -> None:
    """More parts in 8 bits admit more requests on an L4."""
    model = on_gpus(L4)
    found = [concurrency(model, asked(parts), True) for parts in ("", "encoder", "decoder", "kv", "decoder,encoder,kv")]
    assert found == sorted(set(found))


@pytest.mark.parametrize("card", [L4, H200, B200])
@pytest.mark.parametrize("parts", ["decoder", "encoder", "kv", "decoder,encoder,kv"])
def test_all_parts_are_available_from_ada_on(on_gpus: Any, card: gpu.GpuInfo, parts: str) -> None:
    """All parts are available on Ada, Hopper and later cards."""
    checked(on_gpus(card), asked(parts))
    checked(on_gpus(card), asked(parts, prefill_encoder="auto"))


def test_kv_needs_the_plugin(on_gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An 8-bit K/V cache is refused with the reason why the plugin is off; the other parts run with the stock model."""
    model = on_gpus(L4)
    monkeypatch.setattr(compat, "installed", lambda: ("vllm", "0.33.0"))
    with pytest.raises(ConfigError, match=r"fp8=kv: kv needs the plugin, .*: vllm 0\.33\.0 is installed"):
        checked(model, asked("kv", prefill_encoder="auto"))
    checked(model, asked("decoder", prefill_encoder="auto"))


@pytest.mark.parametrize(
    ("cards", "parts", "others", "message"),
    [
        ([A100], "decoder", {}, "NVIDIA A100 has compute capability 8.0, and 8 bits need 8.9 (L4, L40S) or 9.0"),
        ([H200, A100], "kv", {}, "NVIDIA A100 has compute capability 8.0"),
        ([], "decoder", {}, "no NVIDIA GPU is visible"),
        ([L4], "decoder", {"dtype": "float32"}, "vLLM has no such kernels with dtype=float32; give dtype=bfloat16"),
        ([L4], "decoder", {"quantization": "fp8"}, "quantization=fp8 is given too; give one of the two"),
        (
            [L4],
            "kv",
            {"prefill_encoder": "false"},
            "kv needs the plugin, because without it the encoder has a K/V cache too",
        ),
        ([L4], "kv", {"attention_backend": "flash_attn"}, "FLASH_ATTN reads a K/V cache in 8 bits on H100 and H200"),
    ],
)
def test_impossible_settings_are_refused(
    on_gpus: Any, cards: list[gpu.GpuInfo], parts: str, others: dict[str, str], message: str
) -> None:
    """An impossible setting is refused with the reason and a solution."""
    with pytest.raises(ConfigError) as caught:
        checked(on_gpus(*cards), asked(parts, **others))
    assert str(caught.value).startswith(f"engine option fp8={parts}: {message}")


def test_other_models(on_gpus: Any) -> None:
    """Voxtral's instruct models have the same parts, and an encoder without a K/V cache; Whisper has other parts.
    FlashInfer is refused for Voxtral Realtime, whose encoder cannot be built on it, and accepted for other models."""
    checked(on_gpus(L4, family=INSTRUCT), asked("decoder,kv", prefill_encoder="auto"))
    with pytest.raises(ConfigError, match="this option knows the parts of Voxtral only, and a model is none"):
        check_fp8(on_gpus(L4, family=WHISPER), asked("decoder"), prefill.Decision(on=False), [L4])
    with pytest.raises(ConfigError, match="attention_backend=FLASHINFER: vLLM cannot build the encoder of a model on"):
        checked(on_gpus(H200), VllmSettings(attention_backend="FLASHINFER"))
    checked(on_gpus(H200, family=INSTRUCT), VllmSettings(attention_backend="FLASHINFER"))


def test_weights_in_8_bits_are_not_rounded_again(on_gpus: Any) -> None:
    """A published checkpoint whose weights are quantised runs as it is; a part that would round them again is refused,
    and an 8-bit K/V cache is not."""
    model = on_gpus(L4)
    quantised = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    (model.path / "params.json").write_text(json.dumps({**params(), "quantization": quantised}))
    checked(model, asked("kv"))
    checked(model, VllmSettings())
    with pytest.raises(ConfigError, match=r"has `quantization`, so that its weights are quantised already, .*; leave"):
        checked(model, asked("decoder"))


def test_fp8_is_part_of_the_runs_identity(on_gpus: Any) -> None:
    """The parts are in a run's identity and in its warning, in one order; without them the identity is the same as
    before the option existed."""
    family: Any = Realtime
    one, other, none = (vllm._decoding(on_gpus(L4), asked(parts), family) for parts in ("kv,decoder", "decoder,kv", ""))
    assert one == other == {**none, "fp8": "decoder,kv"}
    assert "fp8" not in none
    assert fp8.warning(frozenset({"kv", "decoder"})).startswith("fp8=decoder,kv: the effect of 8 bits on the text was")
