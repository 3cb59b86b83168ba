"""transformers' own Voxtral Realtime agrees with vLLM's: two implementations that share no code.

transformers gets vLLM's tokens, and is asked for its choice at each position. So one near tie does not change
everything after it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:  # imported later: one needs packages that vLLM brings, the other is a plugin that pytest loads
    from engine_runs import Spoken
    from huggingface import Reference

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DELAY_TOKENS = 6
# In float32 both differ by at most 1e-5 in log-probability (measured over 8,630 positions); ten times that is a tie.
TIE = 1e-4

Judge = Callable[..., tuple[np.ndarray, np.ndarray]]


@pytest.fixture(scope="module")
def reference(realtime: Path) -> Reference:
    """Return the tiny Realtime in transformers."""
    from huggingface import Reference

    return Reference(realtime)


@pytest.fixture
def judge(realtime: Path, realtime_spoken: Spoken, reference: Reference) -> Judge:
    """Return judge(delay_tokens=6, late=0) → agreement and lead at every position of vLLM's output.

    Agreement tells whether both choose the same token. The lead is the distance from transformers' best logit to that
    of vLLM's token. `late` shifts the audio, in samples.
    """
    import generate

    tokenizer = generate.tokenizer(str(realtime))

    def run(delay_tokens: int = DELAY_TOKENS, late: int = 0) -> tuple[np.ndarray, np.ndarray]:
        agree, lead = [], []
        for name, waveform in realtime_spoken.waveforms.items():
            encoded, tokens = generate.encode(tokenizer, waveform), realtime_spoken.tokens[name]
            audio = np.roll(encoded.audios[0].audio_array, late)
            logits = reference.logits(encoded.tokens, audio, tokens, delay_tokens)
            agree.append(logits.argmax(axis=1) == tokens)
            lead.append(logits.max(axis=1) - logits[np.arange(len(tokens)), tokens])
        return np.concatenate(agree), np.concatenate(lead)

    return run


def test_transformers_agrees(judge: Judge) -> None:
    """Both choose the same token at 99 % of positions or more, and transformers has a near tie at the others."""
    agree, lead = judge()
    assert len(agree) > 2_000
    assert agree.mean() > 0.99
    assert lead.max() < TIE, f"{(lead >= TIE).sum()} of {len(agree)} positions differ by more than rounding"


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"delay_tokens": 7}, id="delay"),
        pytest.param({"late": 160}, id="audio 10 ms late"),
    ],
)
def test_a_wrong_input_shows(judge: Judge, wrong: dict[str, int]) -> None:
    """A wrong input shows: another delay, or audio 10 ms late, changes many choices."""
    agree, lead = judge(**wrong)
    assert agree.mean() < 0.95
    assert lead.max() > 100 * TIE


@pytest.mark.parametrize("window", [749, 751, 10_000])
def test_a_wrong_window_shows(judge: Judge, reference: Reference, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong window shows: one frame less or more than 750, or no limit, changes the choices."""
    monkeypatch.setattr(reference.model.config.audio_config, "sliding_window", window)
    _, lead = judge()
    assert lead.max() > 10 * TIE
