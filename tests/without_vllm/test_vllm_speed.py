"""The estimated speed of a card agrees with measurements, and an improvement never lowers it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shapes import full_size

from voxbatch.engines.gpu_specs import GPU_SPECS
from voxbatch.profiles import load_profile
from voxbatch.vllm.engine import forecast, speed
from voxbatch.vllm.engine.families.choice import resolve
from voxbatch.vllm.engine.memory import BYTES, StreamingFootprint, kv_numbers
from voxbatch.vllm.engine.model import DEFAULT_PARAMS as PARAMS

H200 = GPU_SPECS["NVIDIA H200"]
MODEL = speed.model_sizes(PARAMS)
STOCK = {"lift_encoder_cache": "false", "max_num_batched_tokens": "0", "prefill_encoder": "false", "delay_ms": "0"}
PLUGIN = {"prefill_encoder": "true", "delay_ms": "0"}
L4_MEMORY = {"gpu_memory_gb": "22.94"}
ONE_AT_A_TIME = {name: str(value) for name, value in load_profile("ctx512")["engine_options"].items()}
RUNS = {
    "ctx512": (3.6, 30, 3, ONE_AT_A_TIME),
    "stock, 128 requests": (497.7, 30, 384, {**STOCK, "max_num_seqs": "128", "max_num_batched_tokens": "65536"}),
    "stock in 22 GB": (256.5, 30, 128, {**STOCK, "gpu_memory_gb": "23.84", "max_num_seqs": "64"}),
    "voxbatch's scheduler": (509.2, 30, 2600, {"prefill_encoder": "false"}),
    "plugin, 20 to 35 s": (2267, 27.5, 6144, PLUGIN),
    "plugin, 30 s": (2245, 30, 2048, PLUGIN),
    "plugin, 2 to 35 s": (2118, 18.5, 2048, PLUGIN),
    "plugin in an L4's memory": (1599, 27.5, 945, {**PLUGIN, **L4_MEMORY}),
    "plugin, 512 requests": (2090, 30, 1536, {**PLUGIN, "max_num_seqs": "512"}),
    "plugin, 2,048 requests": (2221, 27.5, 8192, {**PLUGIN, "max_num_seqs": "2048"}),
    "voxbatch run, 32 hours": (2034, 35.3, 3264, PLUGIN),
}
"""Runs of RESULTS.md on an H200: RTFx, mean seconds of a chunk, chunks, engine options."""
STEPS = ((1, 2.90), (32, 3.20), (64, 3.44), (128, 4.09), (256, 5.72), (384, 7.79), (512, 9.61))
"""Requests, and milliseconds of GPU time of a step that only decodes, at about 105 positions."""
WALKS = ((512, 220, 3.26), (512, 100, 1.72), (221, 220, 1.64), (64, 220, 0.74))
"""Requests, positions, and milliseconds of our own kernel for the decoder's attention in all layers."""


@pytest.mark.parametrize("name", RUNS)
def test_estimates_agree_with_measured_runs(name: str) -> None:
    """The estimate is within a fifth of each whole run. No constant was fitted to these runs."""
    rtfx, seconds, chunks, options = RUNS[name]
    settings = resolve("realtime", options)
    mode = forecast.run_mode(PARAMS, settings, "NVIDIA H200", settings.prefill_encoder == "true", seconds)
    assert speed.rtfx(H200, MODEL, mode, seconds, chunks) == pytest.approx(rtfx, rel=0.2)


def test_estimates_agree_with_the_fitted_steps() -> None:
    """The estimate is within a tenth for steps of 1 to 512 requests, for our own attention, and for the encoder."""
    for requests, ms in STEPS:
        assert 1000 * speed.decoder_s(H200, MODEL.decoder, requests, 105) == pytest.approx(ms, rel=0.1), requests
    for requests, positions, ms in WALKS:
        seconds = speed.own_attention_s(H200, MODEL.decoder, requests, positions)
        assert 1000 * seconds == pytest.approx(ms, rel=0.1), requests
    assert 1000 * speed.encoding_s(H200, MODEL, 424, speed.SHARED) == pytest.approx(5.79, rel=0.1)  # 30 s of audio


def test_sizes_of_the_published_model() -> None:
    """The model's shape has the weights of `memory` and the published parameters that full_size.py writes.

    970 M and 3.43 G numbers of 2 bytes are 8.8 GB.
    """
    assert MODEL.encoder.weights == pytest.approx(0.97e9, rel=0.01)
    assert MODEL.decoder.weights == pytest.approx(3.43e9, rel=0.01)
    assert 2 * (MODEL.encoder.weights + MODEL.decoder.weights) == pytest.approx(
        StreamingFootprint(PARAMS, 512).weights_bytes, rel=0.01
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
