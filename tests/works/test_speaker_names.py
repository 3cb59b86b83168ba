"""Tests for --speaker-names: speakers whose voice is known get their name, and others stay numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from conftest import Voxbatch

from voxbatch.errors import ConfigError
from voxbatch.records import SAMPLING_RATE, Samples
from voxbatch.speakers import Voice, find_weights
from voxbatch.speakers.enrolment import enrol
from voxbatch.speakers.voices import KNOWN, recognised
from voxbatch.storage import DEFAULT_STORES

PRESENT, UNKNOWN, ABSENT = "1688", "3080", "533"
"""Readers of LibriSpeech."""


def spoken(corpus: Path, reader: str, number: int) -> Samples:
    """Return up to 4 s of an utterance of a reader, at a loudness common to all."""
    with open(corpus / "speech" / "manifest.jsonl", encoding="utf-8") as file:
        paths = [path for line in file if f"/{reader}-" in (path := json.loads(line)["audio_filepath"])]
    samples: Samples = soundfile.read(corpus / "speech" / paths[number], dtype="float32")[0][: 4 * SAMPLING_RATE]
    return np.asarray(samples * 0.05 / np.sqrt(np.mean(samples**2)), np.float32)


def test_a_known_voice_gets_its_name(corpus: Path, speaker_networks: Path, tmp_path: Path, voxbatch: Voxbatch) -> None:
    """One of two readers is known by other utterances, the other one is not, and a third one is known and absent. The
    identity has the samples, and not their place.
    """
    pause = np.zeros(SAMPLING_RATE // 2, np.float32)
    turns = [(spoken(corpus, reader, number), pause) for number in (0, 1) for reader in (UNKNOWN, PRESENT)]
    soundfile.write(tmp_path / "talk.wav", np.concatenate([part for turn in turns for part in turn]), SAMPLING_RATE)
    for path, reader, number in (("Ann/1.wav", PRESENT, 3), ("Ann/2.flac", PRESENT, 4), ("Zoe.wav", ABSENT, 0)):
        (tmp_path / "voices" / path).parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(tmp_path / "voices" / path, spoken(corpus, reader, number), SAMPLING_RATE)
    options = ("--engine", "scripted", "--speakers", "--speaker-model", speaker_networks, "--speaker-names")
    done = voxbatch("run", "talk.wav", "-o", "out", *options, "voices")
    assert done.returncode == 0, done.stderr
    line = json.loads((tmp_path / "out" / "transcripts.jsonl").read_text())
    assert list(dict.fromkeys(word["speaker"] for word in line["words"] if "speaker" in word)) == ["Speaker 1", "Ann"]
    identity = json.loads((tmp_path / "out" / "run.json").read_text())["identity"]
    assert {name: len(digest) for name, digest in identity["voices"].items()} == {"Ann": 16, "Zoe": 16}
    assert not any("voices" in str(value) for value in identity.values())


def test_the_most_similar_pair_comes_first() -> None:
    """Each voice and each speaker counts once, and a voice that is not similar enough is nobody's."""
    voices = [
        Voice(name, np.array(vector, np.float32).tobytes(), "")
        for name, vector in (("Ann", (1, 0, 0)), ("Bob", (0, 1, 0)), ("Eve", (0, 0, 1)))
    ]
    second = np.sqrt(1 - KNOWN**2)
    speakers = np.array([(0.8, 0.6, 0), (1, 0, 0), (0, second, KNOWN - 0.01)], np.float32)
    assert recognised(speakers, voices) == {1: "Ann", 2: "Bob"}
    assert recognised(speakers, []) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Ann.wav", r"Ann\.wav holds no speech; give ten seconds of one voice"),
        ("Speaker 2.wav", "'Speaker 2' is the label of an unknown speaker; give another name"),
    ],
)
def test_unfit_samples_are_refused(name: str, message: str, speaker_networks: Path, tmp_path: Path) -> None:
    """A sample without speech, and a name that would be taken for a number."""
    soundfile.write(tmp_path / name, np.zeros(SAMPLING_RATE, np.float32), SAMPLING_RATE)
    with pytest.raises(ConfigError, match=message):
        enrol(str(tmp_path), find_weights(str(speaker_networks)), DEFAULT_STORES)
