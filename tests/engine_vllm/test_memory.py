"""How many requests a card admits follows from the model's published shape."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.engines.vllm.memory import MOST, admitted, burst_bytes, request_bytes, weights_bytes

KIB, MIB = 1 << 10, 1 << 20


def params(**encoder: Any) -> dict[str, Any]:
    """Voxtral-Mini-4B-Realtime-2602."""
    shape = {"dim": 1280, "n_layers": 32, "head_dim": 64, "hidden_dim": 5120, "n_heads": 32, "n_kv_heads": 32}
    return {
        "dim": 3072, "n_layers": 26, "head_dim": 128, "hidden_dim": 9216, "n_heads": 32, "n_kv_heads": 8,
        "vocab_size": 131_072, "tied_embeddings": True,
        "multimodal": {"whisper_model_args": {"encoder_args": {
            **shape, "ffn_type": "swiglu", "sliding_window": 750, **encoder}}},
    }  # fmt: skip


def test_the_weights() -> None:
    """8.86 GB in bfloat16, to 3 %."""
    assert weights_bytes(params()) == pytest.approx(8.86e9, rel=0.03)


def test_a_position() -> None:
    """104 KiB of decoder cache and 10 KiB of encoder cache; 1 MiB of the encoder's own, as far as it looks back."""
    per_position = (request_bytes(params(), True, 4096) - request_bytes(params(), True, 2048)) / 2048
    assert per_position == (104 + 10) * KIB
    in_window = (request_bytes(params(), True, 100) - request_bytes(params(), True, 50)) / 50
    assert in_window == 1 * MIB + (104 + 10) * KIB
    assert request_bytes(params(), True, 512) == 512 * 114 * KIB + 189 * MIB
    assert request_bytes(params(), False, 512) == 512 * 114 * KIB


def test_a_position_when_the_encoder_runs_once_a_chunk() -> None:
    """104 KiB of decoder cache and 6 KiB of what the encoder left, and none of its own; a burst of it works in some
    0.4 GB."""
    assert request_bytes(params(), True, 512, prefilled=True) == 512 * 110 * KIB
    assert burst_bytes(params()) == pytest.approx(0.4e9, rel=0.1)


def test_cards_when_the_encoder_runs_once_a_chunk() -> None:
    """22 GB take some 220 at a time where stock's way takes 50, an 80 GB card as many as there may be."""
    assert 200 < admitted(params(), True, 512, 22e9, prefilled=True) < 230
    assert 40 < admitted(params(), True, 512, 22e9) < 60
    assert admitted(params(), True, 512, 0.9 * 80e9, prefilled=True) == MOST


def test_cards() -> None:
    """An L4 takes some fifty at a time, an H200 some 450, a card that is too small still one."""
    assert 40 < admitted(params(), True, 512, 0.9 * 24e9) < 60
    assert 440 < admitted(params(), True, 512, 0.9 * 141e9) < 460
    assert admitted(params(), True, 512, 1e12) == MOST
    assert admitted(params(), True, 512, 4e9) == 1


budgets = st.floats(0, 1e12)


@given(budgets, budgets, st.integers(1, 200_000), st.booleans(), st.booleans())
def test_more_memory_admits_more(
    one: float, other: float, max_model_len: int, is_realtime: bool, prefilled: bool
) -> None:
    """From 1 to MOST, whatever the budget; what is admitted fits, where more than one is."""
    small, large = (
        admitted(params(), is_realtime, max_model_len, budget, prefilled) for budget in sorted((one, other))
    )
    assert 1 <= small <= large <= MOST
    used = weights_bytes(params()) + large * request_bytes(params(), is_realtime, max_model_len, prefilled)
    assert large == 1 or used <= max(one, other)


@given(budgets, st.integers(1, 100_000), st.integers(1, 100_000))
def test_a_longer_context_admits_fewer(budget: float, short: int, long: int) -> None:
    """Or as many."""
    short, long = sorted((short, long))
    assert admitted(params(), True, long, budget) <= admitted(params(), True, short, budget)
