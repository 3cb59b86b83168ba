"""Parakeet, Canary, GigaAM, Whisper and others as ONNX networks, through onnx-asr and onnxruntime: an engine for CPUs.

onnx-asr computes the features and runs the encoders. The text does not come from it, because it removes the spaces
before "¿", "$" and others: `transducers.words` makes the words of the tokens. Transducers of NeMo are decoded by
`onnx_decoding`.

Each clip is encoded alone, on one core. In 8 bits, a batch would have one scale for all its clips, so that the text of
one depended on the others; in 32 bits, a batch is not faster. All threads use the same networks, so that their weights
are in memory once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from voxbatch.engines import EngineSpec, Feed, hub
from voxbatch.engines.known_models import WHISPER_CODES, named
from voxbatch.engines.model_files import fingerprint, local_path
from voxbatch.engines.pieces import Piece, joined, recut
from voxbatch.engines.results import EngineMessage, Result, failure_of, from_threads
from voxbatch.engines.suspect_text import PieceText, flags, reasons, suspicions, weight
from voxbatch.errors import ConfigError
from voxbatch.onnx_asr.folder import BESIDE, FLOAT32, INT8, KINDS, SMALL_FILES, OnnxModel, read_folder
from voxbatch.onnx_asr.networks import OnnxNetwork, check_decoder, load
from voxbatch.records import SAMPLING_RATE, Chunk, ChunkFailure, Hypothesis
from voxbatch.settings import check_settings, parse, setting
from voxbatch.storage import DEFAULT_STORES, Stores

NAME = "onnx-asr"
MIN_SAMPLES = SAMPLING_RATE // 40
"""Samples of the shortest clip that a network gets: 25 ms. The features of less than 20 ms are NaN, because they are
divided by the number of frames less one."""
GROUP = 8
"""Clips of a thread that are decoded together; see `onnx_decoding`."""
EXCLUDED = ("1.24.1", "1.25.", "1.26.0")
"""Versions of onnxruntime that onnx-asr excludes, and pip's resolver does not know of without its extra `cpu`."""


@dataclass(frozen=True, slots=True)
class OnnxAsrOptions:
    """The engine options of onnx-asr."""

    quantization: str = setting(
        "auto",
        choices=("auto", INT8, FLOAT32),
        help="`int8` or `float32`; `auto` takes int8 if the model has its files",
    )
    threads: int = setting(0, minimum=0, help="clips at a time, each on one core; 0: one for each core")
    type: str = setting("", help="kind of the model, such as `gigaam-v3-e2e-rnnt`, if its config.json names none")
    watch: bool = setting(True, help="transcribe a chunk with suspect text a second time")


class OnnxAsrEngine:
    """The engine: see `Engine` for its methods."""

    def __init__(self, model: str | None, options: Mapping[str, str], stores: Stores = DEFAULT_STORES):
        self._options = parse(OnnxAsrOptions, NAME, options)
        check_settings(self._options)
        _require_version(metadata.version("onnxruntime"))
        self._located = located = _locate(model, self._options, stores)
        self._threads = self._options.threads or len(os.sched_getaffinity(0))
        self._network: OnnxNetwork | None = None
        check_decoder(located.model, located.name, located.quantization)
        kind, languages = located.model.kind, located.languages
        needs_language = kind.needs_language and len(languages or ()) > 1
        self.spec = EngineSpec(
            name=NAME,
            model=located.name,
            max_chunk_samples=located.model.longest_s(located.quantization) * SAMPLING_RATE,
            concurrency=(self._threads + 1) * self._group,
            languages=languages,
            uses_language=bool(located.model.languages),
            word_times=kind.has_times,
            confidence=kind.has_times,
            own_process=True,
            license=located.license,
            origin=located.origin,
            versions={name: metadata.version(name) for name in ("onnx-asr", "onnxruntime")},
            decoding={"quantization": located.quantization, "kind": located.model.kind_name, **located.identity},
            warnings=(f"{located.name} takes English where no language is given: give --language, or lang",)
            if needs_language
            else (),
        )

    @property
    def _group(self) -> int:
        """Return the number of clips that a thread takes at a time. In 8 bits it is one, as for the encoder."""
        return GROUP if self._located.model.is_transducer and self._located.quantization == FLOAT32 else 1

    def stream(self, feed: Feed) -> Iterator[Result]:
        """Transcribe the chunks of the feed in `threads` threads; see `Engine.stream`."""
        yield from self._located.downloaded()
        located = self._located
        network = self._network = self._network or load(located.model, located.name, located.quantization)

        def transcribe_all() -> Iterator[Result]:
            while chunks := self._take(feed):
                yield from _transcribed(network, chunks, feed, self.spec, self._options.watch)

        yield from from_threads(self._threads, NAME, transcribe_all)

    def _take(self, feed: Feed) -> list[Chunk]:
        """Return the chunks that a thread transcribes together: its share of those that wait, at least one. Nothing at
        the end of the feed."""
        chunks = [chunk] if (chunk := feed.get()) else []
        share = min(self._group, 1 + feed.num_waiting() // self._threads)
        while chunks and len(chunks) < share and (chunk := feed.get(wait=False)):
            chunks.append(chunk)
        return chunks

    def gpu_bytes(self) -> None:
        """Return None, because there is no GPU."""

    def close(self) -> None:
        """Unload the model; see `Engine.close`."""
        self._network = None


# ── the text of chunks ────────────────────────────────────────────────────────────────────────────────────────────────


def _transcribed(
    network: OnnxNetwork, chunks: Sequence[Chunk], feed: Feed, spec: EngineSpec, watch: bool
) -> Iterator[Hypothesis | ChunkFailure]:
    """Yield the results of chunks. An error in one becomes its ChunkFailure. A run that is stopped gets nothing more.

    Raises:
        EngineError: a limit of this machine is to blame, and not the chunk.
    """
    encoded, pieces = list[Any](), list[tuple[Chunk, Piece]]()
    for chunk in chunks:
        if feed.discarded:
            return
        piece = Piece(chunk.samples, chunk.lang)
        try:
            encoded.append(network.encode(piece) if _is_long_enough(piece) else None)
            pieces.append((chunk, piece))
        except Exception as e:  # noqa: BLE001 any error in one chunk fails that chunk only
            yield failure_of(NAME, chunk, e)
    try:
        texts = network.read([piece for _, piece in pieces], encoded)
    except Exception as e:  # noqa: BLE001 likewise, of those that are decoded together
        yield from (failure_of(NAME, chunk, e) for chunk, _ in pieces)
        return
    for (chunk, piece), text in zip(pieces, texts, strict=True):
        if feed.discarded:
            return
        try:
            yield _judged(network, chunk, piece, text, spec, watch)
        except Exception as e:  # noqa: BLE001 likewise
            yield failure_of(NAME, chunk, e)


def _judged(
    network: OnnxNetwork, chunk: Chunk, piece: Piece, text: PieceText, spec: EngineSpec, watch: bool
) -> Hypothesis:
    """Return the result of a chunk. If its text is suspect, the audio is cut otherwise, and the better text is kept."""
    doubts, warnings = suspicions(chunk.samples, text), tuple[str, ...]()
    if doubts and watch:
        parts = recut(piece, spec.max_chunk_samples)
        encoded = [network.encode(part) if _is_long_enough(part) else None for part in parts]
        second = joined(parts, network.read(parts, encoded))
        second_doubts, first_reasons, ordinal = suspicions(chunk.samples, second), reasons(doubts), "first"
        if weight(second_doubts) < weight(doubts):
            text, doubts, ordinal = second, second_doubts, "second"
        method = f"decoded again {'in two halves' if len(parts) > 1 else 'behind a little silence'}"
        warnings = (f"{first_reasons}: {method}, and the {ordinal} text was kept",)
    language = chunk.lang if spec.uses_language and text.text.strip() else None
    return Hypothesis(chunk.item, chunk.index, text.text, text.words, warnings, language, flags(doubts))


def _is_long_enough(piece: Piece) -> bool:
    return len(piece.samples) >= MIN_SAMPLES


# ── models ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Located:
    """A model whose small files are on this machine."""

    name: str
    model: OnnxModel
    quantization: str
    license: str
    origin: str
    repository: str = ""
    """Name on the hub, if the model comes from there."""
    identity: Mapping[str, str] = field(default_factory=dict)
    """Revision or fingerprint of the model."""
    languages: frozenset[str] | None = None

    def downloaded(self) -> Iterator[EngineMessage]:
        """Bring the networks here, if they are not. Yield the progress."""
        if self.repository and not self.model.has(self.quantization):
            networks = self.model.networks(self.quantization)
            weights = [f"{network}{BESIDE}" for network in networks]
            yield from hub.download(self.repository, self.model.folder.name, networks, first=weights)


def _locate(name: str | None, options: OnnxAsrOptions, stores: Stores) -> _Located:
    """Find a model, and bring its small files here.

    Args:
        name: the value of --model.

    Raises:
        ConfigError: there is no such model, it is of an unknown kind, or it has no files in this quantization.
        EngineError: the hub cannot be reached.
        StorageError: the bucket cannot be read.
    """
    if name is None:
        raise ConfigError(
            "the engine onnx-asr needs --model: a folder, gs:// or s3://, a hub name, or a name such as parakeet"
        )
    path = local_path(name, stores)
    if path.is_dir():
        model = read_folder(path, name, options.type)
        quantization = _quantization(model, name, options.quantization)
        files = {"model_files": fingerprint(model.folder, [*model.patterns(quantization), *SMALL_FILES[:-1]])}
        license_ = hub.license_of(model.folder)
        return _Located(name, model, quantization, license_, "given by --model", "", files, _languages(model))
    repository, known = named(name, NAME, "no such folder; give a folder with ONNX files, or a hub name")
    folder = hub.snapshot(repository, None, SMALL_FILES)
    model = read_folder(folder, name, options.type)
    is_here = any(model.has(quantization) for quantization in (INT8, FLOAT32))
    names = None if is_here else list(hub.file_sizes(repository, folder.name, ["*.onnx"]))
    quantization = _quantization(model, name, options.quantization, names)
    return _Located(
        name,
        model,
        quantization,
        known.license if known else hub.license_of(folder),
        f"{repository}, revision {folder.name}",
        repository,
        {"revision": folder.name},
        frozenset(known.languages) if known else _languages(model),
    )


def _languages(model: OnnxModel) -> frozenset[str] | None:
    """Return the languages of a model, with the codes that others write for those of Whisper. None if it names none."""
    others = {code for code, whisper_code in WHISPER_CODES.items() if whisper_code in model.languages}
    return frozenset({*model.languages, *others}) or None


def _quantization(model: OnnxModel, name: str, asked: str, names: list[str] | None = None) -> str:
    """Return the quantization to take.

    Args:
        names: the names of the model's files on the hub. None means those of its folder.

    Raises:
        ConfigError: the model does not have it.
    """
    there = [quantization for quantization in (INT8, FLOAT32) if model.has(quantization, names)]
    if asked in there or (asked == "auto" and there):
        return there[0] if asked == "auto" else asked
    wanted = ", ".join(f"{network}.onnx" for network in KINDS[model.kind_name].networks)
    has = (
        f"it has the files of {' and '.join(there)}" if there else f"a model of the kind {model.kind_name} has {wanted}"
    )
    raise ConfigError(
        f"--model {name}: no files for quantization={asked}; {has}, with .int8 before .onnx for int8. Correct --model "
        "or --engine-option quantization"
    )


def _require_version(version: str) -> None:
    """Check the version of onnxruntime.

    Raises:
        ConfigError: onnx-asr excludes it.
    """
    if any(version.startswith(excluded) for excluded in EXCLUDED):
        raise ConfigError(f"onnxruntime {version} is installed, which onnx-asr excludes: pip install 'voxbatch[onnx]'")
