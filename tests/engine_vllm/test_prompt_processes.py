"""Prompts of the processes that make them are those of the process that asks, bit for bit, and no death loses one."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from warm_python import run_code

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ASKED = """
import queue, signal, socket
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import speech_models
import torch
from sounds import noise
from vllm.engine.arg_utils import EngineArgs
from vllm.renderers import renderer_from_config

from voxbatch.engines import create
from voxbatch.engines.pieces import Piece
from voxbatch.vllm.engine.vllm_process import VllmProcess
from voxbatch.vllm.plugin import prompts

def plain(value):
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().flatten().to(torch.float64).tolist()
    if hasattr(value, "items"):
        return {name: plain(part) for name, part in value.items() if name not in ("mm_hashes", "arrival_time")}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    fields = getattr(value, "__dataclass_fields__", None)
    return {name: plain(getattr(value, name)) for name in fields} if fields else value

kind = MODEL
speech_models.MODELS[kind](Path(kind))
engine = create("vllm", kind, {"dtype": "bfloat16", "max_model_len": "640", "enforce_eager": "true"})
arguments = engine._family.arguments(engine._settings)
config = EngineArgs(model=kind, **arguments).create_engine_config()
pairs = [socket.socketpair() for _ in range(2)]
prompts.fork([end for _, end in pairs])
process, renderer = object.__new__(VllmProcess), renderer_from_config(config)
process._engine, process._prompt_sockets = SimpleNamespace(renderer=renderer), queue.SimpleQueue()
for own, _ in pairs:
    prompts.send(own, config)
    process._prompt_sockets.put(own)
lang, names = min(engine._family.languages), []
for length in (8_000, 16_000, 100_001, engine._family.max_chunk_samples):
    prompt = engine._family.request(Piece(noise(length), lang)).prompt
    made, expected = process._rendered(dict(prompt)), prompts.rendered(renderer, dict(prompt))
    assert plain(made) == plain(expected), length
    names += [*made["mm_hashes"]["audio"], *expected["mm_hashes"]["audio"]]
assert len(set(names)) == 8, names  # by its name, the engine would take the audio of another request
assert process._prompt_sockets.qsize() == 2
wrong = {**prompt, "multi_modal_data": {"video": np.zeros(3)}}
refusals = []
for make in (process._rendered, lambda prompt: prompts.rendered(renderer, prompt)):
    try:
        make(dict(wrong))
    except Exception as e:
        refusals.append(str(e))
assert len(refusals) == 2 and refusals[0].endswith(refusals[1]), refusals
assert process._prompt_sockets.qsize() == 2
for child in psutil.Process().children():
    child.send_signal(signal.SIGKILL)
    assert plain(process._rendered(dict(prompt))) == plain(expected)
assert process._prompt_sockets.qsize() == 0
assert plain(process._rendered(dict(prompt))) == plain(expected)
"""


@pytest.mark.parametrize(
    ("model", "needs"),
    [
        ("GlmAsrForConditionalGeneration", "transformers"),
        pytest.param("GraniteSpeechForConditionalGeneration", "torchaudio", marks=pytest.mark.long),
        pytest.param("Qwen3ASRForConditionalGeneration", "torchvision", marks=pytest.mark.long),
    ],
)
def test_a_process_makes_the_prompts_of_this_process(model: str, needs: str, tmp_path: Path) -> None:
    """Prompts of several lengths are equal, and no two name their audio alike. A refusal has the same text. If the
    processes are killed one after another, this process makes the prompts."""
    if find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed, which this class needs")
    run_code(ASKED.replace("MODEL", repr(model), 1), tmp_path)
