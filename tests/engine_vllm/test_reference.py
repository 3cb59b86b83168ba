"""transformers' own Voxtral Realtime says the same as vLLM's: two implementations that share no code.

transformers is fed vLLM's tokens and asked for its choice at each position, so that one near tie does not make all
that follows differ.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:  # both are imported later: one needs what only vLLM brings, the other is a plugin, which pytest loads
    from huggingface import Reference
    from support import Spoken

pytest_plugins = ["support"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DELAY_TOKENS = 6
# In float32 the two differ by 1e-5 in log-probability at most (measured over 8,630 positions); ten times that is a tie.
TIE = 1e-4

Judge = Callable[..., tuple[np.ndarray, np.ndarray]]


@pytest.fixture(scope="module")
def reference(realtime: Path) -> Reference:
    """The tiny Realtime in transformers."""
    from huggingface import Reference

    return Reference(realtime)


@pytest.fixture
def judge(realtime: Path, realtime_spoken: Spoken, reference: Reference) -> Judge:
    """judge(delay_tokens=6, late=0) → for every position that vLLM spoke at: do both agree, and transformers' lead.

    The lead is how far its best logit is above that of vLLM's token. `late` shifts the audio, in samples.
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
    """Both choose the same token at 99 % of positions or more, and elsewhere transformers has a near tie."""
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
    """The comparison is no empty one: another delay, or audio 10 ms late, changes many a choice."""
    agree, lead = judge(**wrong)
    assert agree.mean() < 0.95
    assert lead.max() > 100 * TIE


@pytest.mark.parametrize("window", [749, 751, 10_000])
def test_a_wrong_window_shows(judge: Judge, reference: Reference, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoder that looked back one frame less or more than 750, or without limit, would choose otherwise."""
    monkeypatch.setattr(reference.model.config.audio_config, "sliding_window", window)
    _, lead = judge()
    assert lead.max() > 10 * TIE
