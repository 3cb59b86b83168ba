"""Options at their limits: whatever vLLM would refuse, voxbatch refuses or completes before anything is loaded."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from shapes import full_size
from speech_models import MODELS

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SHORTEST = {
    "mini-4b-realtime": ("104", "512"),
    "mini-3b": ("831", "1024"),
    "whisper-large-v3-turbo": ("225", "448"),
    "GlmAsrForConditionalGeneration": ("64", "0"),
}
"""By shape or class: the smallest `max_model_len`, and that of the profile."""
REQUESTS = ("1", "3", "7")
STEPS = ("0", "1", "1500", "65536")
"""Values of `max_num_batched_tokens`."""


@pytest.mark.parametrize("shape", SHORTEST)
def test_vllm_accepts_what_voxbatch_accepts(shape: str, tmp_path: Path) -> None:
    """Each combination of few requests, short contexts and small steps is refused by voxbatch, or accepted by vLLM."""
    from engine_runs import with_engine

    folder = tmp_path / shape
    if shape in MODELS:
        folder.mkdir()
        MODELS[shape](folder)
    else:
        full_size().write(folder, shape)
    lengths = product(REQUESTS, STEPS, SHORTEST[shape])
    variants = [
        {"max_num_seqs": requests, "max_num_batched_tokens": step, "max_model_len": length}
        for requests, step, length in lengths
    ]
    found = with_engine(tmp_path, "limits.refusals", folder, variants, options=["load_format=dummy"])
    assert [(options, vllms) for options, (_, vllms) in zip(variants, found, strict=True) if vllms] == []
    accepted = [options for options, (ours, _) in zip(variants, found, strict=True) if not ours]
    assert {options["max_num_seqs"] for options in accepted} == {*REQUESTS}
    assert {options["max_num_batched_tokens"] for options in accepted} >= {"0", "65536"}
