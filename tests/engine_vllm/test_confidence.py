"""Scores of tokens equal vLLM's own log-probabilities, never change a token, and become the confidence of words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import sounds

if TYPE_CHECKING:
    from engine_runs import Spoken

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOLERANCE = 1e-4
"""Difference of log-probabilities and entropies in float32, between batches of other sizes and other formulas."""


@pytest.fixture(scope="module")
def few(realtime_spoken: Spoken) -> dict[str, np.ndarray]:
    """Return five chunks of 0.5 to 5 s."""
    return {
        name: each[: (8 + 18 * i) * 1_000] for i, (name, each) in enumerate([*realtime_spoken.waveforms.items()][:5])
    }


def reference(model: Path, waveforms: dict[str, np.ndarray], folder: Path) -> dict[str, Any]:
    """Return the tokens and the scores of stock vLLM, one request at a time."""
    from engine_runs import HERE, PATIENCE_S

    sounds.save(folder / "chunks.npz", waveforms)
    command: list[str | Path] = [
        sys.executable,
        HERE / "scored.py",
        model,
        folder / "chunks.npz",
        folder / "scored.json",
    ]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "VLLM_"))}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=folder, env=kept)
    assert ended.returncode == 0, ended.stderr[-4_000:]
    found: dict[str, Any] = json.loads((folder / "scored.json").read_text())
    return found


def check_scores(found: dict[str, Any], stock: dict[str, Any]) -> None:
    """Check that tokens, log-probabilities and entropies equal those of stock vLLM."""
    assert found["failures"] == {}
    assert found["tokens"] == {name: [each] for name, each in stock["tokens"].items()}
    for name in stock["tokens"]:
        for scores in ("logprobs", "entropies"):
            np.testing.assert_allclose(found[scores][name][0], stock[scores][name], atol=TOLERANCE, rtol=0)


def test_scores_of_realtime_equal_those_of_vllm(realtime: Path, few: dict[str, np.ndarray], tmp_path: Path) -> None:
    """Log-probabilities and entropies equal vLLM's, with the plugin and with the stock model, of chunks together.

    The engine runs three requests at a time. Without confidences the tokens are the same, and no word has one.
    """
    from engine_runs import FLOAT32, streamed

    stock = reference(realtime, few, tmp_path)
    assert len({round(each, 3) for name in few for each in stock["logprobs"][name]}) > 100
    for plugin in ("true", "false"):
        folder = tmp_path / plugin
        folder.mkdir()
        found = streamed(realtime, few, folder, *FLOAT32, f"prefill_encoder={plugin}", "max_num_seqs=3")
        check_scores(found, stock)
        confidences = [confidence for words in found["words"].values() for _, confidence in words]
        assert confidences
        assert all(0 <= each <= 1 for each in confidences)
    (tmp_path / "without").mkdir()
    found = streamed(realtime, few, tmp_path / "without", *FLOAT32, "max_num_seqs=3", "confidence=false")
    assert found["tokens"] == {name: [each] for name, each in stock["tokens"].items()}
    assert not found["logprobs"]
    assert {confidence for words in found["words"].values() for _, confidence in words} == {None}


def test_scores_of_the_instruct_model_equal_those_of_vllm(
    voxtral: Path, voxtral_spoken: Spoken, tmp_path: Path
) -> None:
    """Scores equal vLLM's for a model without word times too, and the text has the mean probability of its tokens."""
    from engine_runs import FLOAT32, streamed

    from voxbatch.engines.vllm.word_times import FIRST_TEXT_ID

    few = dict([*voxtral_spoken.waveforms.items()][:2])
    stock = reference(voxtral, few, tmp_path)
    options = [option for option in FLOAT32 if not option.startswith("delay_ms")]
    found = streamed(voxtral, few, tmp_path, *options, "max_num_seqs=2", "max_model_len=1024")
    check_scores(found, stock)
    for name, tokens in stock["tokens"].items():
        pairs = zip(tokens, stock["logprobs"][name], strict=True)
        said = [float(np.exp(logprob)) for token, logprob in pairs if token >= FIRST_TEXT_ID]
        assert found["confidences"][name] == pytest.approx(np.mean(said), abs=TOLERANCE)
