"""Voxtral Realtime in Hugging Face's format gives the same output as the same model in Mistral's format."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from voxbatch.vllm.engine.huggingface import AUDIO, MEL, TEXT

if TYPE_CHECKING:
    from engine_runs import Spoken

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_defaults_are_those_of_transformers() -> None:
    """A key that config.json leaves out has the default of transformers."""
    from transformers import VoxtralRealtimeConfig, VoxtralRealtimeFeatureExtractor

    found, mel = VoxtralRealtimeConfig(text_config={}, audio_config={}), VoxtralRealtimeFeatureExtractor()
    for defaults, part in ((TEXT, found.text_config), (AUDIO, found.audio_config)):
        theirs = {**part.to_dict(), **part.rope_parameters}
        assert defaults == {name: theirs[name] for name in defaults}
    assert (found.downsample_factor, found.tie_word_embeddings) == (4, True)
    theirs = {"sampling_rate": mel.sampling_rate, "hop_length": mel.hop_length, "window_size": mel.win_length}
    assert {**MEL, **theirs, "global_log_mel_max": mel.global_log_mel_max} == MEL


@pytest.fixture(scope="module")
def saved(realtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save the tiny Realtime with transformers' save_pretrained, in several files, beside its tekken.json."""
    from engine_runs import once

    def save(folder: Path) -> None:
        import torch
        from transformers import VoxtralRealtimeForConditionalGeneration

        model = VoxtralRealtimeForConditionalGeneration.from_pretrained(realtime, dtype=torch.float32)
        model.save_pretrained(folder, max_shard_size="300KB")
        shutil.copy(realtime / "tekken.json", folder)

    folder = once(tmp_path_factory, "realtime_saved", save)
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    assert not (folder / "params.json").exists()
    return folder


@pytest.fixture(scope="module")
def published(saved: Path, realtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the model in one file, with the published names and a copy of the tied embedding as the output matrix."""
    from safetensors.numpy import load_file, save_file

    folder = tmp_path_factory.mktemp("published")
    for name in ("config.json", "tekken.json"):
        shutil.copy(saved / name, folder)
    levels = {"model.language_model.": "language_model.model.", "model.": ""}
    written = {}
    for name, tensor in load_file(realtime / "model.safetensors").items():
        level = next(each for each in levels if name.startswith(each))
        written[levels[level] + name.removeprefix(level)] = tensor
    written["language_model.lm_head.weight"] = written["language_model.model.embed_tokens.weight"].copy()
    save_file(written, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(("files", "prefilled"), [("published", "true"), ("saved", "false")])
def test_tokens_equal_those_of_mistrals_files(
    files: str, prefilled: str, request: pytest.FixtureRequest, realtime_spoken: Spoken, tmp_path: Path
) -> None:
    """Chunks of all lengths, many at a time, give the tokens of stock vLLM with Mistral's files, one at a time.

    This holds with the plugin's encoder and with stock's. The folder stays unchanged.
    """
    from engine_runs import FLOAT32, streamed

    model: Path = request.getfixturevalue(files)
    before = sorted(path.name for path in model.iterdir())
    chunks = dict([*realtime_spoken.waveforms.items()][::3])
    options = (*FLOAT32, "ignore_eos=false", "max_num_seqs=12", f"prefill_encoder={prefilled}")
    found = streamed(model, chunks, tmp_path, *options)
    assert found["failures"] == {}
    assert found["tokens"] == {name: [realtime_spoken.tokens[name]] for name in chunks}
    assert ("encoder once a chunk" in found["notices"][1]) is (prefilled == "true")
    assert sorted(path.name for path in model.iterdir()) == before


def test_tokens_equal_those_of_transformers(saved: Path, realtime: Path, realtime_spoken: Spoken) -> None:
    """transformers reads the same files and chooses the same tokens, except for near ties."""
    import generate
    from huggingface import Reference

    tokenizer, reference = generate.tokenizer(realtime), Reference(saved)
    for name in list(realtime_spoken.waveforms)[:5]:
        encoded, tokens = generate.encode(tokenizer, realtime_spoken.waveforms[name]), realtime_spoken.tokens[name]
        logits = reference.logits(encoded.tokens, encoded.audios[0].audio_array, tokens, 6)
        assert (logits.max(axis=1) - logits[np.arange(len(tokens)), tokens]).max() < 1e-4


def test_dummy_weights_need_only_small_files(saved: Path, tmp_path: Path) -> None:
    """load_format=dummy needs only the small files."""
    from engine_runs import FLOAT32, streamed
    from sounds import chunks

    some = chunks(2, 1.0, 2.0)
    small = tmp_path / "small"
    small.mkdir()
    for name in ("config.json", "tekken.json"):
        shutil.copy(saved / name, small)
    found = streamed(small, some, tmp_path / "work", *FLOAT32, "ignore_eos=true", "load_format=dummy")
    assert found["failures"] == {}
    assert set(found["tokens"]) == set(some)
