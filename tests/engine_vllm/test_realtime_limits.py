"""The limit of a Voxtral Realtime context is exact to the sample: all that fits is accepted, and nothing longer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.records import SAMPLING_RATE
from voxbatch.vllm.engine.realtime_limits import (
    SAMPLES_PER_TOKEN,
    delay_tokens,
    longest_chunk,
    max_tokens,
    positions,
    prompt_tokens,
)

DELAYS_MS = (*range(80, 1201, 80), 2400)

delays = st.sampled_from(DELAYS_MS).map(delay_tokens)
samples = st.integers(0, 10**7)


@pytest.mark.parametrize(
    ("delay_ms", "prompt", "longest", "seconds"), [(480, 39, 592_640, 37.04), (2400, 63, 561_920, 35.12)]
)
def test_a_context_of_512_holds_the_published_audio(delay_ms: int, prompt: int, longest: int, seconds: float) -> None:
    """The longest clip fills the context to its last position, as published, and one sample more does not fit."""
    delay = delay_tokens(delay_ms)
    assert prompt_tokens(delay) == prompt
    assert longest_chunk(512, delay) == longest == round(seconds * SAMPLING_RATE)
    assert positions(longest, delay) == 512
    assert positions(longest + 1, delay) == 513


@given(st.integers(1, 200_000), delays, st.integers(0, 64))
def test_the_longest_chunk_is_the_longest(max_model_len: int, delay: int, left_pad: int) -> None:
    """The longest chunk fits, and one sample more does not; if not even the pads fit, there is no longest chunk."""
    longest = longest_chunk(max_model_len, delay, left_pad)
    pads = positions(0, delay, left_pad)
    assert (longest > 0) == (max_model_len > pads)
    if longest > 0:
        assert positions(longest, delay, left_pad) == max_model_len
        assert positions(longest + 1, delay, left_pad) > max_model_len


@given(samples, delays, st.integers(0, 64))
def test_prompt_and_text_leave_one_position_free(num_samples: int, delay: int, left_pad: int) -> None:
    """Prompt and text leave one position free, because a token without audio would kill the engine. The k-th token
    covers the audio up to 80 × (k + 1) ms, and the last tokens reach beyond its end."""
    tokens = max_tokens(num_samples, delay, left_pad)
    assert tokens * SAMPLES_PER_TOKEN >= num_samples
    assert prompt_tokens(delay, left_pad) + tokens <= positions(num_samples, delay, left_pad) - 1
