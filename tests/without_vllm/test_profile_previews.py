"""Tests for the previews of profiles: what vLLM will be told, without a model, a GPU or vLLM."""

from __future__ import annotations

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import strategies as st

from voxbatch.cli import cli
from voxbatch.profiles import load_profile, profile_names
from voxbatch.settings import settings_of
from voxbatch.vllm.engine.families.choice import resolve
from voxbatch.vllm.engine.forecast import preview_arguments
from voxbatch.vllm.engine.model import DEFAULT_MODEL, DEFAULT_QUESTION_MODEL, DEFAULT_SPEECH_MODEL
from voxbatch.vllm.engine.settings import VllmSettings

ENDPOINT_RULE = "it must be the address of a server, such as https://s3.example.com or http://127.0.0.1:9000"
JSON = st.none() | st.booleans() | st.integers() | st.text(max_size=9)


ADMITTED = "as many as the GPU's memory admits"
VLLM_PROFILES = [name for name in profile_names() if load_profile(name)["engine"] == "vllm"]


@pytest.mark.parametrize(
    ("name", "longest_s", "requests", "mode"),
    [
        ("ctx512", 37.04, 1, "PIECEWISE"),
        ("ctx512-batch", 35.12, ADMITTED, "FULL_AND_PIECEWISE"),
        ("mini-3b", 30.0, ADMITTED, "FULL_AND_PIECEWISE"),
        ("small-24b", 30.0, ADMITTED, "FULL_AND_PIECEWISE"),
        ("whisper", 30.0, 128, "FULL_AND_PIECEWISE"),
        ("tts", None, ADMITTED, "FULL_AND_PIECEWISE"),
    ],
)
def test_profile_preview_shows_engine_arguments(
    name: str, longest_s: float | None, requests: int | str, mode: str
) -> None:
    """`profiles NAME` prints the engine arguments and the longest chunk without a model, a GPU or vLLM."""
    preview = yaml.safe_load(CliRunner().invoke(cli, ["profiles", name]).stdout)
    assert preview.get("longest_chunk_s") == longest_s
    arguments = preview["engine_arguments"]
    assert (arguments["max_num_seqs"], arguments["compilation_config"]["cudagraph_mode"]) == (requests, mode)
    assert arguments.get("limit_mm_per_prompt") == (None if name == "tts" else {"audio": 1})


def test_flashinfer_all_reduce_is_off_for_several_gpus() -> None:
    """FlashInfer's fused all-reduce is off for several GPUs, because it needs multicast memory, without which vLLM
    hangs while it loads.
    """
    alone, shared = (preview_arguments(None, {"tensor_parallel_size": size})["engine_arguments"] for size in ("1", "2"))
    assert "pass_config" not in alone["compilation_config"]
    assert shared["compilation_config"]["pass_config"] == {"fuse_allreduce_rms": False}


def test_every_vllm_profile_is_previewed() -> None:
    """The table above contains every vLLM profile whose model is known without its files, and another one is no
    error."""
    marks = test_profile_preview_shows_engine_arguments.pytestmark  # type: ignore[attr-defined]
    assert sorted([*(row[0] for row in marks[0].args[1]), "transcription"]) == VLLM_PROFILES
    for model in ("/opt/ml/model", load_profile("transcription")["model"]):
        assert preview_arguments(model, {}) == {"engine_arguments": f"known when {model} is read"}


def test_the_task_decides_the_default_model() -> None:
    """The preview without a model is that of the model with which the engine does the task."""
    tasks = ("transcribe", "ask", "speak")
    models = [preview_arguments(None, {"task": task})["engine_arguments"]["model"] for task in tasks]
    assert models == [DEFAULT_MODEL, DEFAULT_QUESTION_MODEL, DEFAULT_SPEECH_MODEL]


@pytest.mark.parametrize(
    ("asked", "attention"),
    [("auto", "CUSTOM with vLLM 0.32, where"), ("true", "CUSTOM with vLLM 0.32, where"), ("false", "None")],
)
def test_encoder_mode_decides_attention(asked: str, attention: str) -> None:
    """Running the encoder once per chunk decides which attention backend is used."""
    arguments = preview_arguments(None, {"prefill_encoder": asked})["engine_arguments"]
    assert str(arguments.get("attention_backend")).startswith(attention)


def test_memory_may_be_given_in_gigabytes() -> None:
    """If the memory is given in gigabytes, the share of the GPU's memory is known only on the GPU."""
    options = {"gpu_memory_gb": "24"}
    share = preview_arguments(None, options)["engine_arguments"]["gpu_memory_utilization"]
    assert share == "24 GB of the GPU, less what vLLM does not count"
    assert resolve("realtime", options).gpu_memory_gb == 24


def test_a_default_of_vllm_is_in_range() -> None:
    """The default of each setting keeps the declared limits."""
    for declared in settings_of(VllmSettings).values():
        assert declared.broken_rule(declared.default) == ""
