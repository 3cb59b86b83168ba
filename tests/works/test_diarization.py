"""Tests for diarisation: who talks when in real voices, whatever the blocks, and the clustering beside SciPy's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import hub
import numpy as np
import psutil
import pytest
import soundfile
from conftest import environment
from scipy.cluster.hierarchy import fcluster, linkage

from voxbatch.errors import ConfigError
from voxbatch.records import SAMPLING_RATE, Samples, SpeakerCount, Turn
from voxbatch.speakers import Diarizer, SpeakerWeights, find_weights
from voxbatch.speakers.clustering import CAPACITY, cluster
from voxbatch.speakers.diarizer import PIECE, SpeakerPiece, _label

VOICES = ("1688", "3080")
"""Readers of LibriSpeech, a woman and a man."""
LOUD = 0.05
"""Root mean square from which 10 ms are certain to be speech and no breath: that of each utterance."""


@pytest.fixture(scope="session")
def weights(speaker_networks: Path) -> SpeakerWeights:
    return find_weights(str(speaker_networks))


@pytest.fixture(scope="session")
def conversation(corpus: Path) -> tuple[Samples, list[Turn]]:
    """Return a conversation of two readers who talk by turns, 0.4 s apart, and the turns."""
    with open(corpus / "speech" / "manifest.jsonl", encoding="utf-8") as file:
        paths = [json.loads(line)["audio_filepath"] for line in file]
    pairs = zip(*([path for path in paths if f"/{voice}-" in path][:3] for voice in VOICES), strict=True)
    position, blocks, turns = 0, [], []
    for speaker, path in ((speaker, path) for pair in pairs for speaker, path in enumerate(pair)):
        samples = soundfile.read(corpus / "speech" / path, dtype="float32")[0][: 6 * SAMPLING_RATE]
        samples *= 0.05 / np.sqrt(np.mean(samples**2))
        turns.append(Turn(position / SAMPLING_RATE, (position + len(samples)) / SAMPLING_RATE, speaker))
        blocks += [samples, np.zeros(SAMPLING_RATE * 2 // 5, np.float32)]
        position += len(blocks[-2]) + len(blocks[-1])
    return np.concatenate(blocks), turns


def blocks_of(samples: Samples, size: int) -> Iterator[Samples]:
    for start in range(0, len(samples), size):
        yield samples[start : start + size]


def diarized(diarizer: Diarizer, samples: Samples, size: int) -> list[Turn]:
    for block in blocks_of(samples, size):
        diarizer.add(block)
    return diarizer.turns()


@pytest.mark.slow
def test_two_readers_are_told_apart(weights: SpeakerWeights, conversation: tuple[Samples, list[Turn]]) -> None:
    """Two speakers come out, the time with a wrong speaker is below 2%, and 95% of loud speech is somebody's.

    The turns are the same whatever the blocks, and for the next recording of the same object.
    """
    samples, expected = conversation
    diarizer = Diarizer(weights, SpeakerCount())
    turns = diarized(diarizer, samples, 10 * SAMPLING_RATE)
    assert diarized(diarizer, samples, 7_777) == turns
    assert {turn.speaker for turn in turns} == {0, 1}
    hop = SAMPLING_RATE // 100
    loudness = np.sqrt(np.mean(samples[: len(samples) // hop * hop].reshape(-1, hop) ** 2, axis=1))
    frames = np.zeros((2, 2, len(loudness)), np.bool_)
    for row, listed in enumerate((expected, turns)):
        for turn in listed:
            frames[row, turn.speaker, int(turn.start * 100) : int(turn.end * 100)] = True
    talks: np.ndarray = np.all(frames.any(axis=1), axis=0)
    assert np.logical_xor(frames[0], frames[1])[:, talks].any(axis=0).mean() < 0.02
    assert talks[loudness > LOUD].mean() > 0.95


@pytest.mark.slow
def test_the_number_of_speakers_can_be_given(weights: SpeakerWeights, conversation: tuple[Samples, list[Turn]]) -> None:
    samples = conversation[0][: 13 * SAMPLING_RATE]
    for count in (1, 3):
        turns = diarized(Diarizer(weights, SpeakerCount(count, count)), samples, SAMPLING_RATE)
        assert {turn.speaker for turn in turns} == set(range(count))


@pytest.mark.slow
def test_nobody_talks_in_silence(weights: SpeakerWeights) -> None:
    diarizer = Diarizer(weights, SpeakerCount())
    assert diarizer.turns() == []
    for samples in (np.zeros(100, np.float32), np.zeros(11 * SAMPLING_RATE, np.float32)):
        assert diarized(diarizer, samples, SAMPLING_RATE) == []


@pytest.mark.long
def test_two_hours_take_little_memory(weights: SpeakerWeights, conversation: tuple[Samples, list[Turn]]) -> None:
    """The memory after two hours is at most 60 MB above that after a minute, and the readers are still two."""
    diarizer, memory = Diarizer(weights, SpeakerCount()), psutil.Process().memory_info
    diarizer.add(conversation[0])
    diarizer.add(conversation[0])
    start = memory().rss
    for _ in range(7200 * SAMPLING_RATE // len(conversation[0])):
        diarizer.add(conversation[0])
    assert {turn.speaker for turn in diarizer.turns()} == {0, 1}
    assert memory().rss - start < 60e6


def random_vectors(centres: int, each: int, noise: float) -> np.ndarray:
    generator = np.random.default_rng(1)
    vectors = generator.normal(size=(centres, 1, 32)) + noise * generator.normal(size=(centres, each, 32))
    vectors = vectors.swapaxes(0, 1).reshape(-1, 32).astype(np.float32)
    units: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return units


@pytest.mark.parametrize("similarity", [0.1, 0.3, 0.6])
def test_clusters_are_those_of_scipy(similarity: float) -> None:
    """Average linkage of cosine distances, stopped at a distance or at a number of clusters, is SciPy's."""
    vectors = random_vectors(6, 20, 1.2)
    tree = linkage(vectors, "average", "cosine")
    ours = cluster(vectors, np.ones(len(vectors), int), similarity)
    theirs = fcluster(tree, 1 - similarity, "distance")
    assert partition(ours) == partition(theirs)
    for number in (1, 4):
        forced = cluster(vectors, np.ones(len(vectors), int), similarity, number, number)
        assert partition(forced) == partition(fcluster(tree, number, "maxclust"))


def partition(labels: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in set(labels.tolist())}


@pytest.mark.slow
def test_many_vectors_are_clustered_in_parts() -> None:
    """More vectors than the matrix holds give the same clusters."""
    vectors = random_vectors(5, CAPACITY // 2, 0.4)
    labels = cluster(vectors, np.ones(len(vectors), int), 0.5)
    assert partition(labels) == {frozenset(range(voice, len(vectors), 5)) for voice in range(5)}


def test_a_clear_voice_counts_more_than_the_number_of_the_segmentation() -> None:
    """A piece of 2 s in the midst of another voice keeps its own, although the segmentation gave both one number. A
    piece that is as near to both goes to the voice around it."""
    ann, bob = np.array([1, 0], np.float32), np.array([0.5, 0.75**0.5], np.float32)
    pieces = [SpeakerPiece(at * PIECE, (at + 1) * PIECE, 0, ann) for at in range(7)]
    activity = np.zeros((7 * PIECE, 3), np.bool_)
    activity[:, 0] = True
    for vector, speaker in ((bob, 1), ((ann + bob) / 3**0.5, 0)):
        pieces[3] = replace(pieces[3], vector=vector)
        talks = _label(activity, pieces, np.stack([ann, bob]), 1)
        expected = np.repeat([0, 0, 0, speaker, 0, 0, 0], PIECE)
        np.testing.assert_array_equal(talks, np.eye(2, dtype=np.bool_)[expected])


def test_a_folder_without_the_networks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no segmentation\.onnx there"):
        find_weights(str(tmp_path))
    (tmp_path / "segmentation.onnx").write_bytes(b"no network")
    (tmp_path / "embedding.onnx").write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot load the network"):
        Diarizer(find_weights(str(tmp_path)), SpeakerCount())


def test_a_hub_out_of_reach_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"HF_HUB_OFFLINE is set.* or copy segmentation\.onnx and embedding\.onnx"):
        find_weights(None)


def test_a_hub_that_cannot_be_reached_is_told_once(tmp_path: Path) -> None:
    """Six attempts to reach the hub are one line, and the error says what to do."""
    code = "import huggingface_hub.utils._http as client; client.time.sleep = lambda seconds: None\n"
    code += "from voxbatch.speakers.weights import find_weights; find_weights(None)"
    settings = environment(**hub.variables("http://127.0.0.1:1", tmp_path))
    done = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, check=False)
    warnings, _, error = done.stderr.partition("Traceback")
    assert warnings == "the hub does not answer; it is asked again for half a minute\n"
    assert "the hub http://127.0.0.1:1 cannot be reached" in error
