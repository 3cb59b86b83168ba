"""The estimated speed of a card agrees with measurements, and an improvement never lowers it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripts import imported
from shapes import full_size

from voxbatch.engines.vllm import speed
from voxbatch.engines.vllm.gpu_specs import GPU_SPECS
from voxbatch.engines.vllm.memory import BYTES, Footprint, kv_numbers
from voxbatch.engines.vllm.model import DEFAULT_PARAMS as PARAMS

ROOT = Path(__file__).parents[1]
H200, L4 = GPU_SPECS["NVIDIA H200"], GPU_SPECS["NVIDIA L4"]
MODEL = speed.model_sizes(PARAMS)


MEASURED: Any = imported(ROOT / "benchmarks" / "gpu" / "model.py")


@pytest.mark.parametrize("run", MEASURED.RUNS, ids=lambda run: run.name)
def test_estimates_agree_with_measured_runs(run: Any) -> None:
    """The estimate is within a fifth of each whole run, and has its number of requests. No constant was fitted to these
    runs."""
    requests, rtfx = MEASURED.predicted(run)
    assert rtfx == pytest.approx(run.rtfx, rel=MEASURED.BAR)
    assert run.running is None or requests == pytest.approx(run.running, rel=0.1)


def test_estimates_agree_with_the_fitted_steps() -> None:
    """The estimate is within a tenth for steps of 1 to 512 requests, for our own attention, and for the encoder."""
    for requests, ms in MEASURED.STEPS:
        seconds = speed.decoder_s(H200, MODEL.decoder, requests, MEASURED.CONTEXT)
        assert 1000 * seconds == pytest.approx(ms, rel=0.1), requests
    for requests, positions, ms in MEASURED.WALKS:
        assert 1000 * speed.own_attention_s(H200, MODEL.decoder, requests, positions) == pytest.approx(ms, rel=0.1), (
            requests
        )
    encoded = speed.encoding_s(H200, MODEL, MEASURED.ENCODING[0], speed.SHARED)
    assert 1000 * encoded == pytest.approx(MEASURED.ENCODING[1], rel=0.1)


def test_the_tables_are_those_of_the_results() -> None:
    """The tables that the script prints are in RESULTS.md, line for line."""
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text().splitlines()
    for table in (MEASURED.runs, MEASURED.steps, MEASURED.cards):
        assert [line for line in table() if line not in results] == []


def test_sizes_of_the_published_model() -> None:
    """The model's shape has the weights of `memory` and the published parameters that full_size.py writes.

    970 M and 3.43 G numbers of 2 bytes are 8.8 GB.
    """
    assert MODEL.encoder.weights == pytest.approx(0.97e9, rel=0.01)
    assert MODEL.decoder.weights == pytest.approx(3.43e9, rel=0.01)
    assert 2 * (MODEL.encoder.weights + MODEL.decoder.weights) == pytest.approx(
        Footprint(PARAMS, True, 512).weights_bytes, rel=0.01
    )
    assert MODEL.decoder.position_bytes == BYTES * kv_numbers(PARAMS) == 104 << 10
    assert speed.model_sizes(full_size().params()) == MODEL


cards = st.builds(
    lambda spec, memory, compute: replace(
        spec, bytes_per_s=spec.bytes_per_s * memory, flops=spec.flops * compute
    ),
    st.sampled_from(list(GPU_SPECS.values())), st.floats(0.1, 10), st.floats(0.1, 10),
)  # fmt: skip
modes = st.builds(speed.RunMode, st.integers(1, 1024), st.sampled_from([6, 30]), st.booleans(), st.booleans())
lengths = st.floats(1, 35)


def ratio(one: float, other: float) -> float:
    """Return one divided by the other, less a tolerance for rounding."""
    return one / other - 1e-9


@given(cards, modes, lengths)
def test_a_short_run_is_not_faster_than_an_endless_one(spec: Any, mode: speed.RunMode, seconds: float) -> None:
    """A short run is not faster than an endless one, because fewer requests run at its end; a long run comes near."""
    endless = speed.rtfx(spec, MODEL, mode, seconds)
    assert math.isfinite(endless)
    assert ratio(speed.rtfx(spec, MODEL, mode, seconds, 3 * mode.requests), endless) <= 1
    assert speed.rtfx(spec, MODEL, mode, seconds, 1e6 * mode.requests) == pytest.approx(endless, rel=1e-3)
