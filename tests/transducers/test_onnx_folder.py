"""Tests for the folders of onnx-asr and for its decoding, without networks: the files of a folder say what it is, and
the loop follows NeMo's rule.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.errors import ConfigError
from voxbatch.onnx_asr.decoding import Transducer
from voxbatch.onnx_asr.folder import FLOAT32, INT8, KINDS, read_folder, recognises
from voxbatch.transducers.tokens import Tokens, ctc_tokens

BLANK = 3
"""The last of four tokens."""
PIECES = "<unk> 0\n▁a 1\nb 2\n<blk> 3\n"


def write(folder: Path, config: dict[str, Any] | None, *names: str, vocabulary: str = PIECES) -> Path:
    """Write the files of a model, whose networks are empty."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(vocabulary if name.endswith(".txt") else "{}")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


TDT = {"model_type": "nemo-conformer-tdt", "features_size": 128, "subsampling_factor": 8}
NETWORKS = "encoder-model.onnx", "decoder_joint-model.onnx"


@pytest.mark.parametrize(
    ("config", "names", "expected"),
    [
        (TDT, (*NETWORKS, "vocab.txt"), True),
        (TDT, ("encoder-model.int8.onnx", "decoder_joint-model.int8.onnx", "vocab.txt"), True),
        (None, (*NETWORKS, "vocab.txt"), True),
        (None, ("model.onnx", "vocab.txt"), True),
        ({"model_type": "whisper"}, ("onnx/encoder_model.onnx", "onnx/decoder_model_merged.onnx", "vocab.json"), True),
        (None, ("v3_e2e_ctc.onnx", "v3_e2e_ctc_vocab.txt"), True),
        (TDT, NETWORKS, False),
        (TDT, ("vocab.txt",), False),
        ({"model_type": "parakeet_tdt"}, ("model.safetensors", "vocab.txt"), False),
        (None, ("model.onnx", "vocab.json", "preprocessor_config.json"), False),  # the engine ctc takes it
        (None, (), False),
    ],
)
def test_recognises(config: dict[str, Any] | None, names: Sequence[str], expected: bool, tmp_path: Path) -> None:
    """The names of the files tell the folder of onnx-asr from that of another engine."""
    assert recognises(write(tmp_path, config, *names)) is expected


def test_a_folder_is_read(tmp_path: Path) -> None:
    """The pieces are in the order of their numbers, and the files in 8 bits are told from the others."""
    folder = write(tmp_path, TDT, *NETWORKS, "vocab.txt", vocabulary="b 2\n▁ 1\n<blk> 3\n<unk> 0\n")
    model = read_folder(folder, "m")
    assert model.pieces == ("<unk>", "▁", "b", "<blk>")
    assert (model.has(FLOAT32), model.has(INT8)) == (True, False)
    assert (model.longest_s(FLOAT32), model.longest_s(INT8)) == (30, 20)
    assert model.has(INT8, ["encoder-model.int8.onnx", "decoder_joint-model.int8.onnx"])
    assert "encoder-model?int8.onnx?data" in model.patterns(INT8)


def test_languages_are_those_with_tokens(tmp_path: Path) -> None:
    """Canary and Whisper know the languages that have a token; Parakeet takes none."""
    vocabulary = "<unk> 0\n<|de|> 1\n<|yue|> 2\n<|pnc|> 3\n<|endoftext|> 4\n"
    canary = {"model_type": "nemo-conformer-aed", "features_size": 128}
    folder = write(tmp_path, canary, "encoder-model.onnx", "decoder-model.onnx", "vocab.txt", vocabulary=vocabulary)
    assert set(read_folder(folder, "m").languages) >= {"de", "yue"}
    assert read_folder(write(tmp_path / "t", TDT, *NETWORKS, "vocab.txt"), "m").languages == ()


def test_each_kind_is_one_of_onnx_asr() -> None:
    """The kinds and the names of their files are those of onnx-asr."""
    loader = pytest.importorskip("onnx_asr.loader")
    for name, kind in KINDS.items():
        resolver = loader.create_asr_resolver(name, "/nowhere", offline=True)
        files = resolver.model_type._get_model_files()
        networks = {pattern.removesuffix(".onnx") for pattern in files.values() if pattern.endswith(".onnx")}
        assert networks == set(kind.networks), name
        assert kind.vocabulary in files.values(), name


def test_short_names_are_those_of_onnx_asr() -> None:
    """The short names mean the repositories that onnx-asr lists."""
    resolver = pytest.importorskip("onnx_asr.resolver")
    from voxbatch.engines.known_models import KNOWN_MODELS

    hubs = {model.hub for model in KNOWN_MODELS if model.engine == "onnx-asr"}
    assert hubs
    assert hubs <= set(resolver.model_repos.values())


class Joint:
    """A decoder that gives a written list of (token, place of the duration) at each frame, then blank."""

    def __init__(self, integers: str, durations: int):
        self.integers, self.durations = integers, durations

    def get_inputs(self) -> list[Any]:
        """Return the inputs as onnxruntime does."""
        state = {"type": "tensor(float)", "shape": [1, "batch", 1]}
        rows: dict[str, dict[str, Any]] = {
            "encoder_outputs": {"type": "tensor(float)", "shape": ["batch", 2, 1]},
            "targets": {"type": f"tensor({self.integers})", "shape": ["batch", 1]},
            "target_length": {"type": f"tensor({self.integers})", "shape": ["batch"]},
            "input_states_1": state,
            "input_states_2": state,
        }
        return [SimpleNamespace(name=name, **row) for name, row in rows.items()]

    def run(self, _: list[str], inputs: dict[str, Any]) -> list[Any]:
        """Give the token and the duration that the frame names, with the number of tokens so far as the state."""
        assert inputs["targets"].dtype == inputs["target_length"].dtype == np.dtype(self.integers)
        frames = inputs["encoder_outputs"][:, :, 0].astype(int)
        scores = np.zeros((len(frames), 1, 1, BLANK + 1 + self.durations), np.float32)
        scores[np.arange(len(frames)), 0, 0, frames[:, 0]] = 9
        if self.durations:
            scores[np.arange(len(frames)), 0, 0, BLANK + 1 + frames[:, 1]] = 9
        return [scores, inputs["input_states_1"] + 1, inputs["input_states_2"] + 1]


def decoded(frames: Sequence[tuple[int, int]], durations: Sequence[int] | None, max_symbols: int = 10) -> Tokens:
    clip = np.array(frames, np.float32).reshape(-1, 2)
    transducer = Transducer(Joint("int32", len(durations or ())), BLANK + 1, durations, max_symbols)
    return transducer.decode([clip])[0]


def by_nemo(
    frames: Sequence[tuple[int, int]], durations: Sequence[int] | None, max_symbols: int
) -> list[tuple[int, ...]]:
    """Return the tokens of NeMo's label looping, written as it is described: one token after another."""
    found, at, symbols = list[tuple[int, ...]](), 0, 0
    while at < len(frames):
        token, place = frames[at]
        jump = durations[place] if durations else 0
        if token != BLANK:
            found.append((token, at, at + (jump if durations else 1)))
        symbols += 1
        if token == BLANK and jump == 0:
            jump = 1
        if jump == 0 and symbols >= max_symbols:
            jump = 1
        at, symbols = at + jump, 0 if jump else symbols
    return found


frames_of_clips = st.lists(st.tuples(st.integers(0, BLANK), st.integers(0, 3)), max_size=12)


@given(st.lists(frames_of_clips, min_size=1, max_size=4), st.integers(1, 4), st.sampled_from([None, (0, 1, 2, 4)]))
def test_the_loop_follows_nemo(
    clips: list[list[tuple[int, int]]], max_symbols: int, durations: tuple[int, ...] | None
) -> None:
    """Clips that are decoded together have the tokens of NeMo's rule: durations of 0, the limit of tokens at a frame,
    and durations by their values."""
    transducer = Transducer(Joint("int64", len(durations or ())), BLANK + 1, durations, max_symbols)
    for clip, tokens in zip(
        clips, transducer.decode([np.array(c, np.float32).reshape(-1, 2) for c in clips]), strict=True
    ):
        rows = list(zip(tokens.ids.tolist(), tokens.starts.tolist(), tokens.ends.tolist(), strict=True))
        assert rows == by_nemo(clip, durations, max_symbols)
        assert ((tokens.probabilities > 0.9) & (tokens.probabilities <= 1)).all()


def test_ten_tokens_end_a_frame() -> None:
    """The decoder moves on after max_symbols tokens at the same frame."""
    assert decoded([(1, 0), (2, 1)], (0, 1)).starts.tolist() == [0] * 10 + [1]


def test_tokens_of_ctc() -> None:
    """Equal tokens in a row are one, unless blank is between them; the probability is the mean over its frames."""
    best = [3, 1, 1, 3, 1, 2, 3]
    chances = np.full((len(best), 4), 0.1, np.float32)
    chances[np.arange(len(best)), best] = [0.7, 0.7, 0.5, 0.7, 0.6, 0.4, 0.7]
    tokens = ctc_tokens(chances.argmax(-1), chances.max(-1), BLANK)
    assert list(zip(tokens.ids.tolist(), tokens.starts.tolist(), tokens.ends.tolist(), strict=True)) == [
        (1, 1, 3), (1, 4, 5), (2, 5, 6),
    ]  # fmt: skip
    assert tokens.probabilities.tolist() == pytest.approx([0.6, 0.6, 0.4])
    assert len(ctc_tokens(np.zeros(0, np.int64), np.zeros(0, np.float32), BLANK).ids) == 0


@pytest.mark.parametrize("name", [None, "nothing", "./nothing", "a/b/c"])
def test_models_that_are_not_there(name: str | None) -> None:
    """A name that is none is refused with what to give."""
    pytest.importorskip("onnx_asr")
    from voxbatch.onnx_asr import OnnxAsrEngine

    with pytest.raises(ConfigError, match=r"--model|needs --model"):
        OnnxAsrEngine(name, {})


@pytest.mark.parametrize(
    ("version", "refused"), [("1.25.1", True), ("1.24.1", True), ("1.24.2", False), ("1.31.1", False)]
)
def test_versions_of_onnxruntime(version: str, refused: bool) -> None:
    """The versions that onnx-asr excludes are refused before they give wrong numbers."""
    from voxbatch.onnx_asr import _require_version

    if refused:
        with pytest.raises(ConfigError, match=f"onnxruntime {version} is installed, which onnx-asr excludes"):
            _require_version(version)
    else:
        _require_version(version)
