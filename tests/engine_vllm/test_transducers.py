"""Tests for the engine for Parakeet and its family: the tokens, times and confidences of transformers, on a CPU."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import parakeets  # noqa: E402

from voxbatch.engines.transducers import model as models  # noqa: E402
from voxbatch.engines.transducers.loading import load  # noqa: E402
from voxbatch.engines.transducers.network import Network  # noqa: E402

LENGTHS = (320, 800, 8000, 16_000, 16_159, 20_480, 23_456, 40_000, 64_000, 32_000, 4_000, 1_279)
"""Samples of the clips of most tests: from the shortest one to four seconds, whole frames and others."""


@pytest.fixture(scope="module", params=parakeets.KINDS)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return a kind of model, and its folder."""
    return request.param, parakeets.folder(tmp_path_factory.mktemp(request.param), request.param)


def tokens_of(folder: Path, clips: list[Any], **given: Any) -> list[list[tuple[int, int, int, float]]]:
    """Return the tokens of clips in the form of `parakeets.reference`."""
    located = models.locate(str(folder))
    network, _ = load(located, "cpu", torch.float32)
    net = Network(located, network, given.get("row_frames", (40, 60, 80)), given.get("rows", 4), len(clips))
    decoded = net.decode(net.prepare(clips))
    return [
        list(zip(*(column.tolist() for column in (t.ids, t.starts, t.frames, t.probabilities)), strict=True))
        for t in decoded
    ]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    """Compare tokens, frames and durations exactly, and probabilities to four digits: the features are rounded in
    another order, and the random encoders amplify that."""
    assert [token[:3] for token in found] == [token[:3] for token in expected]
    assert [token[3] for token in found] == pytest.approx([token[3] for token in expected], abs=1e-4)


def test_tokens_times_and_confidences_are_those_of_transformers(family: tuple[str, Path]) -> None:
    """Clips in company, in any order and packed into rows, give what transformers gives for each alone."""
    kind, folder = family
    network = parakeets.network(kind)
    clips = [parakeets.chunk(i, parakeets.sound(length, i)) for i, length in enumerate(LENGTHS)]
    expected = [parakeets.reference(network, kind, clip.samples, 101) for clip in clips]
    assert sum(map(len, expected)) > 50
    order = list(range(len(clips)))
    for seed in range(3):
        random.Random(seed).shuffle(order)
        found = tokens_of(folder, [clips[i] for i in order], rows=1 + seed)
        for i, tokens in zip(order, found, strict=True):
            assert_same(tokens, expected[i])


def test_a_clip_alone_gives_the_same(family: tuple[str, Path]) -> None:
    """A clip alone gives the bits that it gives in company."""
    _, folder = family
    clips = [parakeets.chunk(i, parakeets.sound(length, i)) for i, length in enumerate(LENGTHS)]
    together = tokens_of(folder, clips)
    for clip, tokens in zip(clips, together, strict=True):
        assert_same(tokens_of(folder, [clip])[0], tokens)


def test_features_are_those_of_transformers() -> None:
    """The features of packed clips are those of transformers' extractor to six digits."""
    import transformers

    from voxbatch.engines.transducers.features import LogMel
    from voxbatch.engines.transducers.model import FeatureSettings

    lengths = (16_000, 12_345, 320)
    extractor = transformers.ParakeetFeatureExtractor(feature_size=80)
    samples = np.zeros((1, 160 * 241), np.float32)
    clips = np.full((1, 240), -1, np.int8)
    ends, starts = [], (0, 17 * 1280 - 1280 * 2, 28 * 1280)
    for number, (length, start) in enumerate(zip(lengths, starts, strict=True)):
        samples[0, start : start + length] = parakeets.sound(length, number)
        clips[0, start // 160 : start // 160 + length // 160] = number
        ends.append(start + length)
    log_mel = LogMel(FeatureSettings(feature_size=80), torch.device("cpu"))
    features = log_mel(*map(torch.from_numpy, (samples, np.array(ends), clips)))[0]
    for number, (length, start) in enumerate(zip(lengths, starts, strict=True)):
        alone = extractor([parakeets.sound(length, number)], sampling_rate=16_000, return_tensors="pt")
        count = length // 160
        torch.testing.assert_close(
            features[start // 160 : start // 160 + count], alone["input_features"][0, :count], atol=2e-4, rtol=1e-4
        )
    assert not features[torch.from_numpy(clips[0] < 0)].any()
