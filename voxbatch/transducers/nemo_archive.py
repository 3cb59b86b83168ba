"""Read a .nemo archive: NVIDIA's format for models of its toolkit NeMo.

    parakeet.nemo: ./model_config.yaml, ./model_weights.ckpt, ./…_tokenizer.model  →  NemoModel

The archive is a tar file, since NeMo 1.7 without compression. Nothing in it is executed, and nothing is written to a
path that it names: classes are compared with known names (`nemo_config`), the weights are loaded as tensors only
(`weights_only`), and the vocabulary is read out of SentencePiece's protobuf.
"""

from __future__ import annotations

import contextlib
import pickle
import re
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import yaml

from voxbatch.errors import ConfigError
from voxbatch.storage.temporary_files import temporary_errors
from voxbatch.transducers.nemo_config import Config, refused, translated

if TYPE_CHECKING:
    import torch

CONFIG, WEIGHTS = "model_config.yaml", "model_weights.ckpt"
MAX_MEMBERS, MAX_BYTES = 1_000, 32 * 2**30
"""Largest archive, unpacked. Parakeet 1.1B in float32 has 4.3 GB."""
MAX_SMALL_BYTES = 32 * 2**20
"""Largest configuration or tokenizer."""
_BLOCK_BYTES = 1 << 20
_ZIP, _GZIP = b"PK\x03\x04", b"\x1f\x8b"
_NAMES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^encoder\.pre_encode\.conv\.", "encoder.subsampling.layers."),
        (r"^encoder\.pre_encode\.out\.", "encoder.subsampling.linear."),
        (r"\.conv\.batch_norm\.", ".conv.norm."),
        (r"\.self_attn\.linear_([qkv])\.", r".self_attn.\1_proj."),
        (r"\.self_attn\.linear_out\.", ".self_attn.o_proj."),
        (r"\.self_attn\.linear_pos\.", ".self_attn.relative_k_proj."),
        (r"\.self_attn\.pos_bias_([uv])$", r".self_attn.bias_\1"),
        (r"^decoder\.decoder_layers\.0\.", "ctc_head."),
        (r"^joint\.enc\.", "encoder_projector."),
        (r"^joint\.pred\.", "decoder.decoder_projector."),
        (r"^joint\.joint_net\.[12]\.", "joint.head."),  # 1 without dropout
        (r"^decoder\.prediction\.embed\.", "decoder.embedding."),
        (r"^decoder\.prediction\.dec_rnn\.lstm\.", "decoder.lstm."),
    )
)
"""NeMo's names of tensors → transformers'."""
_LEFT_OUT = ("preprocessor.", "ctc_decoder.")
"""Tensors that are not needed: window and filters, which are computed, and the CTC branch of a hybrid model."""
_LOAD_ERRORS = (
    pickle.UnpicklingError, zipfile.BadZipFile, RuntimeError, EOFError, ValueError, LookupError, TypeError,
    AttributeError,
)  # fmt: skip
"""The errors of `torch.load` for a file that is not what it seems."""


@dataclass(frozen=True, slots=True, eq=False)
class NemoModel:
    """The content of an archive, in transformers' terms."""

    architecture: str
    """tdt, rnnt or ctc."""
    config: Config
    """Values for transformers' ParakeetTDTConfig, ParakeetRNNTConfig or ParakeetCTCConfig."""
    state: dict[str, torch.Tensor]
    """The weights under transformers' names."""
    pieces: tuple[str, ...]
    """The vocabulary in the order of the ids. The last one is blank."""
    features: Config
    """Values for transformers' ParakeetFeatureExtractor."""


def summary(path: Path) -> tuple[Config, Config]:
    """Return `config` and `features` of an archive without reading its weights or importing PyTorch.

    Raises:
        ConfigError: it is no .nemo archive, or its model is not one that voxbatch runs.
    """
    with _opened(path) as archive:
        return translated(path, archive.config())


def read(path: Path) -> NemoModel:
    """Return the model of an archive.

    Raises:
        ConfigError: it is no .nemo archive, or its model is not one that voxbatch runs.
    """
    with _opened(path) as archive:
        nemo = archive.config()
        config, features = translated(path, nemo)
        pieces = archive.pieces(nemo)
        if (blank := config["vocab_size"] - 1) != len(pieces):
            raise refused(path, f"its tokenizer has {len(pieces)} pieces", f"{blank} with the sizes in {CONFIG}")
        state = archive.state(config)
    return NemoModel(config["model_type"].removeprefix("parakeet_"), config, state, (*pieces, "<blank>"), features)


class _Archive:
    """An open archive."""

    def __init__(self, path: Path, tar: tarfile.TarFile, is_compressed: bool):
        self._path, self._tar, self._is_compressed = path, tar, is_compressed
        self._members: dict[str, tarfile.TarInfo] = {}
        size = 0
        for count, member in enumerate(tar, 1):
            self._members[member.name.removeprefix("./")] = member
            size += member.size
            if count > MAX_MEMBERS or size > MAX_BYTES:
                allowed = f"archives of up to {MAX_MEMBERS:,} members and {MAX_BYTES:,} bytes"
                raise self._error(f"it has {count:,} members with {size:,} bytes, or more", allowed)

    def config(self) -> Config:
        """Return the content of model_config.yaml."""
        try:
            config = yaml.safe_load(self._small(CONFIG))
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as e:
            raise self._error(f"{CONFIG} cannot be read ({_first_line(e)})", "models with plain YAML there") from e
        if not isinstance(config, dict):
            raise self._error(f"{CONFIG} holds a {type(config).__name__}", "models with a mapping there")
        return config

    def pieces(self, config: Config) -> list[str]:
        """Return the vocabulary of the tokenizer, in the order of the ids."""
        section = config.get("tokenizer")
        section = section if isinstance(section, dict) else {}
        if section.get("type") != "bpe":
            raise self._error(f"tokenizer.type is {section.get('type')!r}", "models with SentencePiece (bpe)")
        name = str(section.get("model_path")).removeprefix("nemo:")
        try:
            return [next(_fields(piece, 1), b"").decode() for piece in _fields(self._small(name), 1)]
        except (ValueError, IndexError) as e:
            raise self._error(f"{name} cannot be read ({e})", "models with a SentencePiece model there") from e

    def state(self, config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the weights under transformers' names: all that the model needs, and no others."""
        import torch
        import transformers

        names = {"parakeet_tdt": "ParakeetForTDT", "parakeet_rnnt": "ParakeetForRNNT", "parakeet_ctc": "ParakeetForCTC"}
        cls = getattr(transformers, names[config["model_type"]])
        with torch.device("meta"):
            wanted = cls(cls.config_class(**config)).state_dict()
        found = {_renamed(name): each for name, each in self._tensors().items() if not name.startswith(_LEFT_OUT)}
        other = {name for name in wanted.keys() & found.keys() if wanted[name].shape != found[name].shape}
        for problem, tensors in (
            ("it lacks weights", wanted.keys() - found.keys()),
            (f"it has weights that {CONFIG} does not tell of", found.keys() - wanted.keys()),
            (f"it has weights of another shape than {CONFIG} tells", other),
        ):
            if tensors:
                shown = f"{min(tensors)} and {len(tensors) - 1} more" if len(tensors) > 1 else min(tensors)
                raise self._error(f"{problem}: {shown}", "complete models of the Parakeet family")
        return found

    def _error(self, seen: str, allowed: str) -> ConfigError:
        return refused(self._path, seen, allowed)

    def _member(self, name: str) -> tuple[IO[bytes], int]:
        """Return an open member and its size."""
        member = self._members.get(name)
        file = self._tar.extractfile(member) if member and member.isreg() else None
        if member is None or file is None:
            raise self._error(f"it has no file {name}", f"archives with {CONFIG}, {WEIGHTS} and a tokenizer")
        return file, member.size

    def _small(self, name: str) -> bytes:
        file, size = self._member(name)
        if size > MAX_SMALL_BYTES:
            raise self._error(f"{name} has {size:,} bytes", f"models where it has up to {MAX_SMALL_BYTES:,}")
        return file.read()

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Return the weights under NeMo's names."""
        import torch

        with tempfile.TemporaryFile() as copy:
            file, _ = self._member(WEIGHTS)
            if self._is_compressed:  # a zip file is read from its end
                while block := file.read(_BLOCK_BYTES):
                    with temporary_errors(WEIGHTS):
                        copy.write(block)
                file = copy
                file.seek(0)
            if file.read(len(_ZIP)) != _ZIP:
                seen = f"{WEIGHTS} is no zip file: a pickle of PyTorch before 1.6, or damaged"
                raise self._error(seen, "models that NeMo 1.0 or later saved (`restore_from`, `save_to`)")
            file.seek(0)
            try:
                with zipfile.ZipFile(file) as records:
                    if any(record.compress_type != zipfile.ZIP_STORED for record in records.infolist()):
                        raise ValueError("compressed records")
                file.seek(0)
                tensors = torch.load(file, map_location="cpu", weights_only=True)
            except _LOAD_ERRORS as e:
                seen = f"{WEIGHTS} holds other things than tensors, or is damaged ({_first_line(e)})"
                raise self._error(seen, "nothing that is not a tensor") from e
        if not isinstance(tensors, dict) or not all(isinstance(each, torch.Tensor) for each in tensors.values()):
            raise self._error(f"{WEIGHTS} holds no mapping of names to tensors", "weights as NeMo saves them")
        return tensors


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_Archive]:
    try:
        with path.open("rb") as file:
            is_compressed = file.read(len(_GZIP)) == _GZIP
        with tarfile.open(path, "r:gz" if is_compressed else "r:") as tar:
            yield _Archive(path, tar, is_compressed)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as e:
        raise ConfigError(
            f"--model {path}: it cannot be read as a .nemo archive, a tar file with {CONFIG} and {WEIGHTS} "
            f"({_first_line(e)}); copy or download it again"
        ) from e


def _renamed(name: str) -> str:
    """Return transformers' name of a tensor."""
    for pattern, replacement in _NAMES:
        name = pattern.sub(replacement, name)
    return name


def _fields(message: bytes, number: int) -> Iterator[bytes]:
    """Yield the texts or messages of a field of a protobuf message. In SentencePiece's ModelProto, field 1 has the
    pieces, and in a piece its text.

    Raises:
        ValueError, IndexError: it is no such message.
    """
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        if kind == 0:
            _, place = _varint(message, place)
            continue
        if kind not in (1, 2, 5):
            raise ValueError(f"a field of type {kind}")
        size, place = _varint(message, place) if kind == 2 else (8 if kind == 1 else 4, place)
        if place + size > len(message):
            raise ValueError("it ends too early")
        if kind == 2 and key >> 3 == number:
            yield message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Return a number in groups of seven bits, the lowest first, and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = message[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise ValueError("a number of more than ten bytes")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:200]
