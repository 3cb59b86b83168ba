"""Scores of tokens equal vLLM's own log-probabilities, never change a token, and become the confidence of words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from engine_runs import Scored

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("plugin", ["true", "false"])
def test_scores_of_realtime_equal_those_of_vllm(
    plugin: str, realtime: Path, realtime_scored: Scored, tmp_path: Path
) -> None:
    """Log-probabilities and entropies equal vLLM's, with the plugin and with the stock model, of chunks together.

    The engine runs three requests at a time.
    """
    from engine_runs import FLOAT32, streamed

    logprobs = realtime_scored.output["logprobs"].values()
    assert len({round(logprob, 3) for chunk in logprobs for logprob in chunk}) > 100
    options = (*FLOAT32, f"prefill_encoder={plugin}", "max_num_seqs=3")
    found = streamed(realtime, realtime_scored.waveforms, tmp_path, *options)
    realtime_scored.check(found)
    confidences = [confidence for words in found["words"].values() for _, confidence in words]
    assert confidences
    assert all(0 <= confidence <= 1 for confidence in confidences)


def test_scores_of_the_instruct_model_equal_those_of_vllm(
    voxtral: Path, voxtral_scored: Scored, tmp_path: Path
) -> None:
    """Scores equal vLLM's for a model without word times too, and the text has the mean probability of its tokens."""
    from engine_runs import FLOAT32, TOLERANCE, streamed

    from voxbatch.vllm.engine.word_times import FIRST_TEXT_ID

    waveforms, stock = voxtral_scored
    options = [option for option in FLOAT32 if not option.startswith("delay_ms")]
    found = streamed(voxtral, waveforms, tmp_path, *options, "max_num_seqs=2", "max_model_len=1024")
    voxtral_scored.check(found)
    for name, tokens in stock["tokens"].items():
        pairs = zip(tokens, stock["logprobs"][name], strict=True)
        said = [float(np.exp(logprob)) for token, logprob in pairs if token >= FIRST_TEXT_ID]
        assert found["confidences"][name] == pytest.approx(np.mean(said), abs=TOLERANCE)
