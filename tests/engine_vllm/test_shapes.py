"""The published params.json files are read unchanged, whatever keys they leave out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from shapes import full_size

from voxbatch.engines import gpu
from voxbatch.vllm.engine import compat, prefill
from voxbatch.vllm.engine.arguments import concurrency, llm_arguments
from voxbatch.vllm.engine.checks import check, check_step
from voxbatch.vllm.engine.families.choice import FAMILIES, resolve
from voxbatch.vllm.engine.forecast import expected_speed
from voxbatch.vllm.engine.memory import Footprint
from voxbatch.vllm.engine.model import INSTRUCT, Model, locate

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT.parent / "shared" / "world" / "params"
WEIGHTS = {"mini-3b": 9.36e9, "small-24b": 48.5e9}
"""Bytes of the weights in bfloat16, by the shapes of full_size.py."""
H100 = gpu.GpuInfo("0", "NVIDIA H100 80GB HBM3", 85_899_345_920, 85_000_000_000, 640_000_000, (9, 0))


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the machine has four H100 and vLLM for them."""
    monkeypatch.setattr(compat, "installed", lambda: ("vllm", "0.32.0"))
    monkeypatch.setattr(gpu, "visible_gpus", lambda: [H100] * 4)


def made_ready(model: Model, options: dict[str, str]) -> dict[str, Any]:
    """Do the engine's work before vLLM starts, and return the arguments for `LLM`."""
    settings = resolve(model.family, options)
    plugin = prefill.decide(model.family, settings)
    check(model, settings, plugin)
    requests = concurrency(model, settings, plugin.on)
    check_step(model, FAMILIES[model.family](model, settings), settings, requests)
    return llm_arguments(model, settings, plugin.on, model.path, requests)


@pytest.mark.parametrize("shape", WEIGHTS)
def test_full_size_writes_the_published_params(shape: str) -> None:
    """full_size.py writes the published params.json, key by key and value by value."""
    file = PUBLISHED / f"{shape.replace('-', '_')}.json"
    if not file.is_file():
        pytest.skip(f"the published shapes are absent: {file.name}")
    assert full_size().params(shape) == json.loads(file.read_text())


@pytest.mark.parametrize("shape", WEIGHTS)
def test_the_weights_of_the_instruct_models(shape: str) -> None:
    """The weights take the published 9.36 GB and 48.5 GB, to 1.5 %: the adapter and the norms are left out."""
    footprint = Footprint(full_size().params(shape), max_model_len=1024)
    assert footprint.weights_bytes == pytest.approx(WEIGHTS[shape], rel=0.015)


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(("shape", "sizes"), [("mini-3b", (1, 2, 4)), ("small-24b", (1, 2, 4))])
def test_the_instruct_models_pass_all_checks(tmp_path: Path, shape: str, sizes: tuple[int, ...]) -> None:
    """A folder that full_size.py writes passes all checks before the start of vLLM, with made-up weights."""
    pytest.importorskip("mistral_common")
    full_size().write(tmp_path, shape)
    model = locate(str(tmp_path), None)
    assert model.family == INSTRUCT
    for size in sizes:
        made = made_ready(model, {"load_format": "dummy", "tensor_parallel_size": str(size)})
        assert made["max_num_seqs"] > 32
    assert expected_speed(str(tmp_path), {}, gpu_name=H100.name) is None
