"""Voxtral Realtime's config.json and tensors are translated from Hugging Face's format to Mistral's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxbatch.errors import ConfigError, EngineError
from voxbatch.vllm import plugin as vllm_plugin
from voxbatch.vllm.engine.checks import check_installed
from voxbatch.vllm.engine.families.realtime import Realtime
from voxbatch.vllm.engine.huggingface import params
from voxbatch.vllm.engine.model import REALTIME, WHISPER, Model
from voxbatch.vllm.engine.settings import VllmSettings
from voxbatch.vllm.plugin import LOAD_FORMAT
from voxbatch.vllm.plugin.weights import mistral_name, translated

MISTRAL = "mm_streams_embeddings.embedding_module"
CONFIG = Path("config.json")


# -- config.json -------------------------------------------------------------------------------------------------------


def config(**audio: Any) -> dict[str, Any]:
    """Return a config.json with the values of the published model that differ from transformers' defaults."""
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    return {"audio_config": {**rope, **audio}}


def test_nulls_are_read_as_transformers_reads_them() -> None:
    """tie_word_embeddings and a head_dim of null are read as transformers reads them."""
    found = params({**config(), "tie_word_embeddings": False, "text_config": {"head_dim": None}}, CONFIG)
    assert (found["tied_embeddings"], found["head_dim"]) == (False, 96)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, "has a quantization_config, and voxbatch loads Voxtral"),
        ({"audio_config": {}}, "audio_config.rope_theta is 10000.0, and vLLM's encoder computes with 1000000.0"),
        (config(rms_norm_eps=1e-6), "audio_config.rms_norm_eps is 1e-06, and vLLM's encoder computes with 1e-05"),
    ],
)
def test_values_that_vllm_cannot_compute_are_refused(content: dict[str, Any], message: str) -> None:
    """A setting that vLLM cannot compute is refused by name, because the text would be wrong."""
    with pytest.raises(ConfigError) as caught:
        params(content, CONFIG)
    assert str(caught.value).startswith("config.json")
    assert message in str(caught.value)


# -- vLLM's settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "load_format"), [("", LOAD_FORMAT), ("auto", LOAD_FORMAT), ("safetensors", LOAD_FORMAT), ("dummy",) * 2]
)
def test_arguments_use_mistrals_format(given: str, load_format: str) -> None:
    """vLLM reads params.json and tekken.json, and the weights by the plugin's load format, whatever the user's settings
    say."""
    arguments = Realtime.arguments(
        VllmSettings(load_format=given, config_format="hf", tokenizer_mode="auto"), is_translated=True
    )
    assert [arguments[name] for name in ("config_format", "tokenizer_mode")] == ["mistral", "mistral"]
    assert arguments["load_format"] == load_format


def test_a_missing_plugin_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing plugin is reported before a GPU is used; made-up weights need no plugin."""
    model = Model("a model", tmp_path, REALTIME, is_mistral=False, is_translated=True)
    monkeypatch.setattr(vllm_plugin, "is_installed", lambda: False)
    with pytest.raises(EngineError, match="a model is in Hugging Face's format, which voxbatch's plugin translates"):
        check_installed(model, VllmSettings())
    check_installed(model, VllmSettings(load_format="dummy"))
    check_installed(Model("a model", tmp_path, REALTIME, is_mistral=True), VllmSettings())
    monkeypatch.setattr(vllm_plugin, "is_installed", lambda: True)
    check_installed(model, VllmSettings())


@pytest.mark.parametrize(
    ("load_format", "extra"), [("fastsafetensors", "fastsafetensors"), ("runai_streamer", "runai")]
)
def test_a_missing_reader_of_weights_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load_format: str, extra: str
) -> None:
    """A load format whose package is missing is refused with the extra of vLLM that installs it."""
    model, settings = Model("a model", tmp_path, WHISPER, is_mistral=False), VllmSettings(load_format=load_format)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EngineError, match=rf"load_format={load_format}: .* pip install 'vllm\[{extra}\]', or leave"):
        check_installed(model, settings)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    check_installed(model, settings)


# -- names and layout --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("language_model.model.embed_tokens.weight", f"{MISTRAL}.tok_embeddings.weight"),
        ("model.language_model.norm.weight", "norm.weight"),
        ("language_model.model.model.layers.25.input_layernorm.weight", "layers.25.attention_norm.weight"),
        ("model.language_model.layers.1.ada_rms_norm.linear2.weight", "layers.1.ada_rms_norm_t_cond.2.weight"),
        ("audio_tower.layers.0.self_attn.q_proj.bias",
         f"{MISTRAL}.whisper_encoder.transformer.layers.0.attention.wq.bias"),
        ("model.audio_tower.embedder.conv2.weight", f"{MISTRAL}.whisper_encoder.conv_layers.1.conv.weight"),
        ("multi_modal_projector.linear_1.weight", f"{MISTRAL}.audio_language_projection.0.weight"),
        ("lm_head.weight", "output.weight"),
        ("language_model.lm_head.weight", "output.weight"),
    ],
)  # fmt: skip
def test_tensor_names_of_all_transformers_versions(name: str, found: str) -> None:
    """The names of all versions of transformers are known."""
    assert mistral_name(name) == found


@pytest.mark.parametrize("name", ["model.vision_tower.norm.weight", "language_model.model.layers.0.mlp.experts.weight"])
def test_a_tensor_of_another_model_is_refused(name: str) -> None:
    """A tensor of another model is refused by name."""
    with pytest.raises(ValueError, match=f"{name}: Voxtral Realtime in Hugging Face's format has no such tensor"):
        mistral_name(name)


def test_a_second_output_matrix_must_equal_the_embedding() -> None:
    """A second output matrix is passed on for vLLM to compare; if the embedding is tied, a different one is refused."""
    embedding = np.ones((3, 2))
    names = ["lm_head.weight", "model.language_model.embed_tokens.weight"]
    tied, untied = params(config(), CONFIG), params({**config(), "tie_word_embeddings": False}, CONFIG)
    for shape, second in ((tied, embedding), (untied, embedding), (untied, embedding + 1)):
        found = dict(translated([(names[0], second), (names[1], embedding)], shape))
        assert list(found) == ["output.weight", f"{MISTRAL}.tok_embeddings.weight"]
        assert found["output.weight"] is second
    with pytest.raises(ValueError, match=r"lm_head\.weight is not equal to embed_tokens\.weight"):
        list(translated([(names[0], embedding + 1), (names[1], embedding)], tied))
