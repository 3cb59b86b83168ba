"""Tests for a language that changes within a recording, with a real multilingual model: each sentence is written in its
own language, and recordings in one language are as before.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxbatch.audio.waveforms import decode
from voxbatch.engines.faster_whisper import FasterWhisperEngine
from voxbatch.engines.whisper_input import in_16_bits
from voxbatch.engines.whisper_windows import DecodingOptions, Window, windows
from voxbatch.records import SAMPLING_RATE, Samples
from voxbatch.scoring.counts import count_errors
from voxbatch.storage import Stores

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PAUSE = np.zeros(SAMPLING_RATE // 3, np.float32)
FOLDERS = {"en": "ljspeech_flac", "de": "kerstin_de", "fr": "readalongs_fr"}
Utterance = tuple[str, Samples, str]
"""The language, the samples and the text."""


@pytest.fixture(scope="module")
def model(base_model: Path) -> Any:
    """Return Whisper base, which runs on one core."""
    return FasterWhisperEngine(str(base_model), {"threads": "1"})._load()


def utterances(corpus: Path, language: str, seconds: float) -> list[Utterance]:
    """Return recordings of a speaker, which have about this length together."""
    rows = [json.loads(line) for line in (corpus / "speech" / "manifest.jsonl").read_text().splitlines()]
    taken, total_s = list[Utterance](), 0.0
    for row in rows:
        if row["audio_filepath"].startswith(FOLDERS[language]) and 3 < row["duration"] < 9 and total_s < seconds:
            path = str(corpus / "speech" / row["audio_filepath"])
            samples = np.concatenate([block.samples for block in decode(Stores().recording(path), path)])
            taken.append((language, (samples * 0.06 / samples.std()).astype(np.float32), row["text"]))
            total_s += row["duration"]
    return taken


def joined(talk: Sequence[Utterance]) -> Samples:
    """Return the samples of utterances, with pauses between them, as Whisper takes them."""
    return in_16_bits(np.concatenate([part for _, samples, _ in talk for part in (samples, PAUSE)]))


def written(decoded: Sequence[Window]) -> str:
    """Return the text of windows."""
    return "".join(word.text for window in decoded for word in window.words)


def errors(model: Any, talk: Sequence[Utterance]) -> int:
    """Return the word errors of a talk."""
    text = written(list(windows(model, joined(talk), None, DecodingOptions())))
    return count_errors(" ".join(text for _, _, text in talk), text, "de").errors


@pytest.mark.parametrize(
    ("languages", "seconds"), [(("en", "de"), (13, 4)), (("de", "en"), (13, 13)), (("en", "fr", "en"), (13, 13, 13))]
)
def test_each_sentence_is_written_in_its_language(
    model: Any, corpus: Path, languages: tuple[str, ...], seconds: tuple[float, ...]
) -> None:
    """The windows end where the language changes, and the talk has no more than a tenth more errors than its parts."""
    parts = [utterances(corpus, language, length_s) for language, length_s in zip(languages, seconds, strict=True)]
    talk = [utterance for part in parts for utterance in part]
    decoded = list(windows(model, joined(talk), None, DecodingOptions()))
    heard = [window.language for window in decoded if window.words]
    assert [code for at, code in enumerate(heard) if at == 0 or code != heard[at - 1]] == list(languages)
    borders = np.cumsum([len(joined(part)) / SAMPLING_RATE for part in parts])[:-1]
    for border in borders:
        assert min(abs(window.end - border) for window in decoded) < 0.6
    assert sum(window.end - window.start for window in decoded) == pytest.approx(
        len(joined(talk)) / SAMPLING_RATE, abs=0.02
    )
    alone = sum(errors(model, part) for part in parts)
    assert count_errors(" ".join(text for _, _, text in talk), written(decoded), "de").errors <= 1.1 * alone + 1


def test_a_short_last_window_is_in_its_language(model: Any, corpus: Path) -> None:
    """A sentence of 4 s that follows a whole window is in its own language."""
    talk = [*utterances(corpus, "en", 20), *utterances(corpus, "de", 4)]
    decoded = list(windows(model, joined(talk), None, DecodingOptions()))
    assert [window.language for window in decoded if window.words] == ["en", "de"]


def test_one_language_is_decoded_as_before(model: Any, corpus: Path) -> None:
    """Recordings whose language is less certain have the text that they have with the language given."""
    for name in ("asterisk_en/vm-options.wav", "librispeech_test_other/3080-5032-0009.flac"):
        path = str(corpus / "speech" / name)
        samples = np.concatenate([block.samples for block in decode(Stores().recording(path), path)])
        detected, given = (list(windows(model, in_16_bits(samples), lang, DecodingOptions())) for lang in (None, "en"))
        assert detected == given


def test_a_given_language_is_kept(model: Any, corpus: Path) -> None:
    """With a language given, nothing is detected."""
    talk = [*utterances(corpus, "en", 10), *utterances(corpus, "de", 5)]
    assert {window.language for window in windows(model, joined(talk), "en", DecodingOptions())} == {"en"}
