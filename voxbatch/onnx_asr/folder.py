"""Find the files of a model in the layout of onnx-asr, and check what they say, without importing onnxruntime.

    encoder-model.onnx, decoder_joint-model.onnx, vocab.txt, config.json      →  OnnxModel("nemo-conformer-tdt", …)

`config.json` names the kind of the model, by onnx-asr's names. Files in 8 bits have ".int8" before their suffix.
Weights of more than 2 GB are in files beside them, such as encoder-model.onnx.data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from voxbatch.errors import ConfigError

INT8, FLOAT32 = "int8", "float32"
BLANK = "<blk>"
BESIDE = "?data"
"""Appended to the name of a network, the pattern of the file with its weights: encoder-model.onnx.data or _data."""
WHISPER_EN_END = 50_256
"""Token that ends a text of an English-only Whisper; in the vocabulary of the others it is a word."""
SMALL_FILES = ("config.json", "*vocab*.txt", "vocab.json", "added_tokens.json", "*/tokens.txt", "README.md")
"""Patterns of the files from which `read_folder` makes a model."""
NEMO_FEATURES = ("80", "128")


@dataclass(frozen=True, slots=True)
class ModelKind:
    """A kind of model that onnx-asr runs."""

    networks: tuple[str, ...]
    """Patterns of its ONNX files, where `*` stands for what only some exports have."""
    vocabulary: str
    longest_s: int = 30
    """Length of the longest clip in seconds. A second of a clip of 60 s costs Parakeet 14 % more than one of 30 s, and
    in longer ones it may go blank for good."""
    has_times: bool = True
    """True if its tokens have times."""
    needs_language: bool = False
    """True if the model takes English where no language is given."""


_NEMO = "vocab.txt"
_TRANSDUCER = ModelKind(("encoder-model", "decoder_joint-model"), _NEMO)
_GIGAAM_S = 25
"""Seconds that GigaAM's own `transcribe` takes at most."""
KINDS: Mapping[str, ModelKind] = {
    "nemo-conformer-ctc": ModelKind(("model",), _NEMO),
    "nemo-conformer-rnnt": _TRANSDUCER,
    "nemo-conformer-tdt": _TRANSDUCER,
    "nemo-conformer-aed": ModelKind(("encoder-model", "decoder-model"), _NEMO, has_times=False, needs_language=True),
    **{
        f"gigaam-{version}-{kind}": ModelKind(networks, "v?_vocab.txt", _GIGAAM_S)
        for version in ("v2", "v3")
        for kind, networks in {
            "ctc": ("v?_ctc",),
            "rnnt": ("v?_rnnt_encoder", "v?_rnnt_decoder", "v?_rnnt_joint"),
        }.items()
    },
    "gigaam-v3-e2e-ctc": ModelKind(("v3_e2e_ctc",), "v3_e2e_ctc_vocab.txt", _GIGAAM_S),
    "gigaam-v3-e2e-rnnt": ModelKind(
        ("v3_e2e_rnnt_encoder", "v3_e2e_rnnt_decoder", "v3_e2e_rnnt_joint"), "v3_e2e_rnnt_vocab.txt", _GIGAAM_S
    ),
    "gigaam-multilingual-ctc": ModelKind(("multilingual*_ctc",), "multilingual_vocab.txt", _GIGAAM_S),
    "kaldi-rnnt": ModelKind(("*/encoder", "*/decoder", "*/joiner"), "*/tokens.txt"),
    "whisper-ort": ModelKind(("whisper-*_beamsearch",), "vocab.json", has_times=False),
    "whisper": ModelKind(("**/encoder_model", "**/decoder_model_merged"), "vocab.json", has_times=False),
}
"""The kinds, by onnx-asr's names for them."""
_OTHER_NAMES = {"vosk": "kaldi-rnnt", "gigaam-multilingual-large-ctc": "gigaam-multilingual-ctc"}
INT8_S = 20
"""Longest clip of Parakeet in 8 bits, in seconds. The published int8 encoder loses words in longer clips (onnx-asr
126): its numbers have one scale for the whole clip."""


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A model whose small files were read."""

    kind_name: str
    """A key of KINDS."""
    folder: Path
    config: Mapping[str, Any]
    pieces: tuple[str, ...]
    """The vocabulary by id. Empty for Whisper, whose tokens onnx-asr decodes."""
    languages: tuple[str, ...]
    """Languages that the model has a token for. Empty if it takes no language."""

    @property
    def kind(self) -> ModelKind:
        """Return the properties of the kind."""
        return KINDS[self.kind_name]

    @property
    def is_nemo(self) -> bool:
        """Return whether the model is an export of NeMo."""
        return self.kind_name.startswith("nemo")

    @property
    def is_transducer(self) -> bool:
        """Return whether the model is an RNN-T or TDT model of NeMo, with decoder and joint network in one file."""
        return self.kind is _TRANSDUCER

    def longest_s(self, quantization: str) -> int:
        """Return the length of the longest clip in seconds."""
        return min(self.kind.longest_s, INT8_S) if quantization == INT8 and self.is_nemo else self.kind.longest_s

    def patterns(self, quantization: str) -> list[str]:
        """Return the patterns of the files of the networks, with those that hold weights beside them."""
        names = self.networks(quantization)
        return [*names, *(f"{name}{BESIDE}" for name in names)]

    def networks(self, quantization: str) -> list[str]:
        """Return the patterns of the files of the networks."""
        middle = "?int8" if quantization == INT8 else ""
        networks = [network.removeprefix("**/") for network in self.kind.networks]
        prefixes = ["", "*/"] if self.kind_name == "whisper" else [""]
        return [f"{prefix}{network}{middle}.onnx" for network in networks for prefix in prefixes]

    def has(self, quantization: str, names: list[str] | None = None) -> bool:
        """Return whether there is a file for each network.

        Args:
            names: the names of all files. None means those of the folder.
        """
        names = names or [path.relative_to(self.folder).as_posix() for path in self.folder.glob("**/*.onnx")]
        middle = "?int8" if quantization == INT8 else ""
        patterns = [f"{network.removeprefix('**/')}{middle}.onnx" for network in self.kind.networks]
        return all(any(fnmatch(name, p) or fnmatch(name, f"*/{p}") for name in names) for p in patterns)


def recognises(folder: Path) -> bool:
    """Return whether a folder seems to hold a model for onnx-asr, by the names of its files and its config.json."""
    if not any(folder.glob("*.onnx")) and not any(folder.glob("*/*.onnx")):
        return False
    name = _kind_name(_config(folder), "")
    kinds = [KINDS[name]] if name in KINDS else list(KINDS.values())
    return any(
        all(any(folder.glob(f"{network}*.onnx")) for network in kind.networks) and any(folder.glob(kind.vocabulary))
        for kind in kinds
    )


def read_folder(folder: Path, name: str, kind_name: str = "") -> OnnxModel:
    """Read config.json and the vocabulary.

    Args:
        folder: has the files of SMALL_FILES, and perhaps the networks.
        name: the value of --model, for messages.
        kind_name: onnx-asr's name of the kind. Empty means that config.json has it.

    Raises:
        ConfigError: the kind is unknown, or a file is missing or contradicts another one.
    """
    config = _config(folder)
    found = _kind_name(config, kind_name)
    if found in ("t-one-ctc", "t-tech/t-one"):
        raise ConfigError(
            f"--model {name}: T-one takes audio at 8,000 Hz, and voxbatch gives 16,000 Hz; take another one"
        )
    if found not in KINDS:
        where = f"the option type is {kind_name!r}" if kind_name else f"config.json has the model_type {found!r}"
        raise ConfigError(
            f"--model {name}: {where}; known are {', '.join(sorted(KINDS))}. Give --engine-option type=KIND, or "
            "correct config.json"
        )
    files = sorted(folder.glob(KINDS[found].vocabulary))
    if len(files) != 1:
        seen = ", ".join(file.name for file in files) or "none"
        raise ConfigError(
            f"--model {name}: a model of the kind {found} has one {KINDS[found].vocabulary}; seen: {seen}"
        )
    if found.startswith("whisper"):
        tokens = _json(files[0]) | _json(folder / "added_tokens.json")
        is_english_only = tokens.get("<|endoftext|>") == WHISPER_EN_END
        return OnnxModel(found, folder, config, (), ("en",) if is_english_only else _languages(tokens))
    pieces = _pieces(files[0], name)
    model = OnnxModel(found, folder, config, pieces, _languages(pieces) if found == "nemo-conformer-aed" else ())
    _check(model, name, files[0].name)
    return model


def _check(model: OnnxModel, name: str, file: str) -> None:
    """Check the vocabulary and the configuration of a model.

    Raises:
        ConfigError: they contradict each other, or what onnx-asr can compute.
    """
    if model.kind.has_times and BLANK not in model.pieces:
        raise ConfigError(
            f"--model {name}: {file} has no {BLANK}, the token between the others; export the model again"
        )
    if not model.is_nemo:
        return
    if model.kind.has_times and model.pieces[-1] != BLANK:
        raise ConfigError(
            f"--model {name}: {file} has {BLANK} as number {model.pieces.index(BLANK)} of {len(model.pieces)}; NeMo's "
            "exports have it last. Remove what was added after it"
        )
    if str(model.config.get("features_size", 80)) not in NEMO_FEATURES:
        raise ConfigError(
            f"--model {name}: config.json has features_size {model.config['features_size']!r}; onnx-asr computes "
            f"{' or '.join(NEMO_FEATURES)}"
        )


def _config(folder: Path) -> dict[str, Any]:
    return _json(folder / "config.json")


def _json(path: Path) -> dict[str, Any]:
    """Return an object that a file holds; nothing if there is none, or the file cannot be read."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _kind_name(config: Mapping[str, Any], given: str) -> str:
    name = given or str(config.get("model_type", ""))
    return _OTHER_NAMES.get(name, name)


def _pieces(path: Path, name: str) -> tuple[str, ...]:
    """Return the pieces of a vocab.txt by their ids. A line is "▁the 5"; the piece may be a space itself."""
    rows = dict[int, str]()
    try:
        for line in path.read_text(encoding="utf-8").rstrip("\n").split("\n"):
            piece, _, number = line.rpartition(" ")
            rows[int(number)] = piece
    except (OSError, ValueError) as e:
        raise ConfigError(f"--model {name}: {path.name} is no list of pieces with their numbers ({e})") from e
    if sorted(rows) != list(range(len(rows))):
        raise ConfigError(
            f"--model {name}: {path.name} has {len(rows)} pieces, whose numbers are not 0 to {len(rows) - 1}"
        )
    return tuple(rows[number] for number in range(len(rows)))


def _languages(tokens: Any) -> tuple[str, ...]:
    """Return the languages that have a token: <|de|> → de."""
    return tuple(
        token[2:-2] for token in tokens if token.startswith("<|") and 6 <= len(token) <= 7 and token[2:-2].isalpha()
    )
