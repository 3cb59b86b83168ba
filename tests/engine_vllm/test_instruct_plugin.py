"""The instruct models with the plugin give the output of stock vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from engine_runs import Spoken

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TEXT_TOKENS = 448
"""Maximum number of tokens that the engine asks of an instruct model."""


@pytest.mark.parametrize(
    "options", [("max_num_batched_tokens=2048",), ("max_num_batched_tokens=500", "scheduler_cls=together.Watched")]
)
def test_tokens_of_bursts_equal_stock(
    options: tuple[str, ...], voxtral: Path, voxtral_spoken: Spoken, tmp_path: Path
) -> None:
    """Windows that are admitted in bursts, with six at a time, give the tokens that stock vLLM gives for each alone.

    This also holds if a step cannot take two prompts, so that a prompt is computed in two steps, and if a request is
    preempted and its window is encoded again.
    """
    from engine_runs import FLOAT32, streamed

    found = streamed(
        voxtral, voxtral_spoken.waveforms, tmp_path, *FLOAT32, "max_model_len=1024", "prefill_encoder=true",
        "max_num_seqs=6", *options,
    )  # fmt: skip
    assert found["failures"] == {}
    assert found["tokens"] == {name: [tokens[:TEXT_TOKENS]] for name, tokens in voxtral_spoken.tokens.items()}
    assert "encoder once a chunk" in found["notices"][1]
