"""Tests for the engine for Parakeet and its family: the tokens, times and confidences of transformers, on a CPU."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import nemo_reference  # noqa: E402
import parakeets  # noqa: E402

from voxbatch.transducers import model as models  # noqa: E402
from voxbatch.transducers.loading import load  # noqa: E402
from voxbatch.transducers.network import Network  # noqa: E402

TABLE = json.loads(Path(nemo_reference.__file__).with_suffix(".json").read_text())
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
        list(zip(*(column.tolist() for column in (t.ids, t.starts, t.ends - t.starts, t.probabilities)), strict=True))
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


def test_a_group_keeps_its_tokens_while_the_next_one_is_decoded(family: tuple[str, Path]) -> None:
    """The words of a group are made while the network works on another one."""
    _, folder = family
    located = models.locate(str(folder))
    network, _ = load(located, "cpu", torch.float32)
    net = Network(located, network, (40, 60, 80), 4, 4)
    groups = [[parakeets.chunk(0, parakeets.sound(40_000, seed))] for seed in range(2)]
    first = net.decode(net.prepare(groups[0]))[0]
    kept = first.probabilities.tolist()
    second = net.decode(net.prepare(groups[1]))[0]
    assert first.probabilities.tolist() == kept != second.probabilities.tolist()


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

    from voxbatch.transducers.features import LogMel
    from voxbatch.transducers.model import FeatureSettings

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


def nemo_network(architecture: str) -> Any:
    """Return transformers' model with the weights of the table that NeMo made."""
    import transformers
    from tiny_weights import tiny_model

    made = tiny_model(architecture)  # type: ignore[arg-type]
    cls = getattr(transformers, f"ParakeetFor{architecture.upper()}")
    network = cls(cls.config_class(**made.config)).eval()
    network.load_state_dict({name: torch.from_numpy(values) for name, values in made.weights.items()})
    return network


@pytest.mark.parametrize("architecture", ["tdt", "rnnt"])
def test_greedy_decoding_is_that_of_nemo(architecture: str) -> None:
    """Tokens, frames, durations and confidences are NeMo 3.0's (tests/support/engine_vllm/nemo_reference.json), also
    where a clip reaches the limit of tokens at a frame, alone and in company. NeMo's max_prob is (pV - 1) / (V - 1)."""
    from tiny_weights import BLANK, DURATIONS, encoder_outputs

    from voxbatch.transducers.greedy import TransducerDecoder

    table = TABLE["decoding"][architecture]
    network, clips = nemo_network(architecture), encoder_outputs(table["seed"])
    longest, size = max(map(len, clips)), BLANK + 1
    with torch.inference_mode():
        decoder = TransducerDecoder(
            network.decoder, network.joint, network.encoder_projector, DURATIONS if architecture == "tdt" else (),
            BLANK, len(clips), longest,
        )  # fmt: skip
        frames = torch.zeros(len(clips), longest, clips[0].shape[1])
        for row, clip in zip(frames, clips, strict=True):
            row[: len(clip)] = torch.from_numpy(clip)
        together = decoder.decode(decoder.project(frames), [len(clip) for clip in clips])
        alone = [decoder.decode(decoder.project(torch.from_numpy(clip)[None]), [len(clip)])[0] for clip in clips]
    for expected, *found in zip(table["clips"], together, alone, strict=True):
        for tokens in found:
            assert tokens.ids.tolist() == expected["tokens"]
            assert tokens.starts.tolist() == expected["starts"]
            if architecture == "tdt":
                assert (tokens.ends - tokens.starts).tolist() == expected["durations"]
            confidences = (tokens.probabilities * size - 1) / (size - 1)
            assert confidences.tolist() == pytest.approx(expected["confidences"], abs=2e-4)


@pytest.mark.parametrize("architecture", ["tdt", "rnnt", "ctc"])
def test_samples_become_the_tokens_of_nemo(architecture: str) -> None:
    """Features, encoder and decoding together give NeMo's tokens and frames for packed clips."""
    from tiny_weights import BLANK, audio

    from voxbatch.transducers.model import FeatureSettings, TransducerModel

    located = TransducerModel("", Path(), architecture, FeatureSettings(), 0.08, None, {}, "", "")
    clips = [parakeets.chunk(index, samples) for index, samples in enumerate(audio())]
    network = Network(located, nemo_network(architecture), (60, 100), 4, len(clips))
    decoded = network.decode(network.prepare(clips))
    for tokens, expected in zip(decoded, TABLE["whole"][architecture]["clips"], strict=True):
        if architecture == "ctc":
            ids = expected["ids"]
            starts = [i for i, token in enumerate(ids) if token != BLANK and (not i or ids[i - 1] != token)]
            assert (tokens.ids.tolist(), tokens.starts.tolist()) == ([ids[i] for i in starts], starts)
        else:
            assert (tokens.ids.tolist(), tokens.starts.tolist()) == (expected["tokens"], expected["starts"])


def test_an_archive_of_nemo_gives_the_tokens_of_its_folder(tmp_path: Path) -> None:
    """A .nemo archive runs as the same weights in a folder do."""
    import nemo_archives
    from tiny_weights import tiny_model

    archive = tmp_path / "model.nemo"
    made = tiny_model("tdt")
    nemo_archives.write_archive(archive, nemo_archives.nemo_config(made), nemo_archives.nemo_weights(made))
    located = models.locate(str(archive))
    assert (located.architecture, located.frame_s) == ("tdt", 0.08)
    network, pieces = load(located, "cpu", torch.float32)
    assert len(pieces) == network.config.vocab_size
    direct = nemo_network("tdt")
    for name, weight in direct.state_dict().items():
        torch.testing.assert_close(network.state_dict()[name], weight)
