"""The interface of the engines: a stream of Chunks goes in, Hypotheses come out in any order.

An engine pulls a chunk from a Feed whenever it can take one, and yields each result as soon as it is ready. There is no
barrier per recording or per batch. So an engine that works on hundreds of chunks at a time always has enough of them.

To add an engine, write a class with the members of `Engine`, and add a line to `_ENGINES`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from voxbatch.answer_options import AnswerOptions
from voxbatch.engines.feed import Feed
from voxbatch.engines.message import ChunkProgress, EngineMessage
from voxbatch.errors import ConfigError, EngineError
from voxbatch.languages import ISO_639_1, primary_subtag, unknown_language
from voxbatch.records import SAMPLING_RATE, ChunkFailure, Hypothesis
from voxbatch.storage import DEFAULT_STORE_OPTIONS, StoreOptions

if TYPE_CHECKING:
    from voxbatch.storage.columns import Column

__all__ = [
    "ChunkProgress",
    "Engine",
    "EngineCache",
    "EngineMessage",
    "EngineSpec",
    "ExpectedSpeed",
    "Feed",
    "choose",
    "create",
    "expected_speed",
    "install_command",
    "known_details",
    "language_refusal",
    "options_with_kernels",
    "options_with_questions",
    "require_language",
]


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """The properties of an engine that the pipeline needs before the run. They are known without loading the model."""

    name: str
    model: str
    max_chunk_samples: int
    """Length of the longest chunk that the engine takes whole, in samples at `sampling_rate`."""
    concurrency: int
    """Number of chunks that the engine works on at a time."""
    prefetch: int = 0
    """Number of chunks of maximum length that the feed holds for the engine. 0 means the value of `concurrency`."""
    languages: frozenset[str] | None = None
    """Primary language subtags that the engine knows, e.g. {"en"}. None means that the engine decides per chunk whether
    it knows a language."""
    multilingual_model: str = ""
    """Name of a model of the same engine that knows more languages, for messages. Empty if there is none to name."""
    uses_language: bool = True
    """True if the model is told the language of a chunk. Otherwise it recognises the language by itself."""
    word_times: bool = False
    max_recordings: int = 0
    """Number of recordings that a question may have. 0 means that the engine cannot answer questions; see
    `options_with_questions`."""
    max_question_samples: int = 0
    """Length of all recordings of a question together for which the context of the model suffices, in samples."""
    sampling_rate: int = SAMPLING_RATE
    license: str = "unknown"
    origin: str = "given by --model"
    versions: Mapping[str, str] = field(default_factory=dict)
    decoding: Mapping[str, Any] = field(default_factory=dict)
    """The options that influence the text. They are part of a run's identity."""
    workers: tuple[Mapping[str, str], ...] = ()
    """Environment variables of each worker process that this host should run in parallel, e.g.
    {"CUDA_VISIBLE_DEVICES": "0"}. With no entry or one entry, this process does the work alone."""
    warnings: tuple[str, ...] = ()
    """Warnings for the user before a run, e.g. that the run is slower than it could be. They appear in the log and in
    the summary, and are not part of a run's identity."""

    @property
    def only_language(self) -> str | None:
        """Return the language of an engine that knows exactly one, otherwise None."""
        return next(iter(self.languages)) if self.languages and len(self.languages) == 1 else None


@dataclass(frozen=True, slots=True)
class ExpectedSpeed:
    """The calculated speed of an engine."""

    rtfx: float
    """Seconds of audio per second, rounded to two digits."""
    error: float
    """Relative error that `rtfx` may have, e.g. 0.2."""
    of: str
    """The GPU and the way in which it runs the model, as text for people."""

    def __str__(self) -> str:
        error = f"{100 * self.error:.0f} %"
        remedy = "give a measured value with --expected-rtfx"
        return f"calculated for {self.of}, not measured, and may be {error} off; {remedy}"


class Engine(Protocol):
    """The interface that every engine implements."""

    spec: EngineSpec

    def stream(self, feed: Feed) -> Iterator[Hypothesis | ChunkFailure | ChunkProgress | EngineMessage]:
        """Load the model and transcribe chunks until the feed is closed and empty.

        The model is not loaded again if an earlier stream left it loaded. Only one stream may run at a time.

        Each chunk that the engine takes gives exactly one Hypothesis or ChunkFailure, in any order, as soon as it is
        ready. An error in one chunk becomes the ChunkFailure of that chunk.

        Raises:
            EngineError: the engine cannot start, or it died and cannot be started again.
        """

    def gpu_bytes(self) -> int | None:
        """Return the bytes in use now on the fullest GPU that the engine uses, or None without a GPU.

        Any thread may call this method, at any time.
        """

    def close(self) -> None:
        """Unload the model for good. A stream that is still running unloads it at its end."""


@dataclass(frozen=True, slots=True)
class _Entry:
    class_path: str
    """module:class. The module is imported only when the engine is created."""
    needs: tuple[str, ...]
    """Names of the modules that must be installed."""
    install: str
    """The command that installs the engine."""
    speed_path: str = ""
    """module:function that calculates the expected speed; see `expected_speed`. Empty if there is no such function."""
    compiles: bool = False
    """True if the engine compiles kernels, and takes the option kernel_cache."""
    answers: bool = False
    """True if the engine can answer questions, and takes the option task=ask."""


_ENGINES = {
    "faster-whisper": _Entry(
        "voxbatch.engines.faster_whisper:FasterWhisperEngine", ("faster_whisper",), "pip install 'voxbatch[cpu]'"
    ),
    "scripted": _Entry("voxbatch.engines.scripted_test_engine:ScriptedTestEngine", (), "", answers=True),
    "vllm": _Entry(
        "voxbatch.engines.vllm:VllmEngine", ("vllm",), "pip install 'voxbatch[vllm]'",
        "voxbatch.engines.vllm.forecast:expected_speed", True, True,
    ),
}  # fmt: skip
MAX_LISTED_LANGUAGES = 10
"""Largest number of languages that a message lists."""
AUTO_ORDER = ("vllm", "faster-whisper")
"""Engines that `auto` tries, best first. It takes vllm only on a machine with a GPU."""


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine that `choose` selected."""

    name: str
    reason: str
    """One line for people that names the engine and the reason for it."""


def names() -> list[str]:
    return sorted(_ENGINES)


def has_gpu() -> bool:
    """Return whether an NVIDIA driver is loaded. CUDA is not initialised."""
    return os.path.exists("/dev/nvidiactl")


def install_command(name: str) -> str | None:
    """Return the command that installs an engine, or None if all its modules are installed."""
    entry = _ENGINES[name]
    return None if all(importlib.util.find_spec(module) for module in entry.needs) else entry.install


def choose(asked: str) -> EngineChoice:
    """Return the engine to use.

    Args:
        asked: the name of an engine, or "auto" for the best one that is installed.

    Raises:
        ConfigError: the engine is unknown or not installed; or "auto" finds no engine.
    """
    if asked == "auto":
        for name in AUTO_ORDER:
            if install_command(name) is None and (name != "vllm" or has_gpu()):
                return EngineChoice(name, f"{name}: the best one that is installed here")
        if install_command("vllm") is None:
            raise ConfigError(
                "the engine vllm is installed, and this machine shows no NVIDIA GPU: check nvidia-smi, or give the "
                f"container its GPU; without one: {_ENGINES['faster-whisper'].install}"
            )
        commands = " or ".join(f"{_ENGINES[name].install}" for name in AUTO_ORDER)
        raise ConfigError(f"no engine is installed: {commands}")
    if asked not in _ENGINES:
        raise ConfigError(f"engine {asked!r} is unknown; known are auto, {', '.join(names())}")
    if install := install_command(asked):
        raise ConfigError(f"engine {asked} is not installed: {install}")
    return EngineChoice(asked, f"{asked}: asked for")


def known_details(*details: str) -> str:
    """Return the details of a model that are known, in brackets: ("MIT", "unknown") → " (MIT)"."""
    known = [each for each in details if each != "unknown"]
    return f" ({'; '.join(known)})" if known else ""


def language_refusal(spec: EngineSpec, lang: str) -> str | None:
    """Return, as text for people, why an engine refuses a language, or None if the engine accepts it.

    Args:
        lang: a primary subtag.
    """
    if spec.languages is None or lang in spec.languages:
        return None
    if unknown := unknown_language(lang):
        return unknown
    if spec.languages == ISO_639_1:
        return (
            f"model {spec.model} takes the two-letter codes of ISO 639-1, such as en; correct the code or leave it out"
        )
    other = f"--model {spec.multilingual_model}, which knows more" if spec.multilingual_model else "another --model"
    if len(spec.languages) > MAX_LISTED_LANGUAGES:
        return f"it is not among the {len(spec.languages)} languages of model {spec.model}; correct it, or leave it out"
    return f"model {spec.model} knows only {', '.join(sorted(spec.languages))}; take {other}"


def require_language(engine: Engine, lang: str) -> None:
    """Check that an engine accepts a language.

    Args:
        lang: a language tag, e.g. "pt-BR".

    Raises:
        ConfigError: the engine states its languages, and the language is not one of them.
    """
    if reason := language_refusal(engine.spec, primary_subtag(lang)):
        raise ConfigError(f"--language {lang}: {reason}")


def options_with_kernels(name: str, options: Mapping[str, str], kernel_cache: str | None) -> Mapping[str, str]:
    """Return the options of an engine with the place of its compiled kernels, if it compiles any."""
    return {"kernel_cache": kernel_cache, **options} if kernel_cache and _ENGINES[name].compiles else options


def options_with_questions(name: str, options: Mapping[str, str], answer: AnswerOptions) -> Mapping[str, str]:
    """Return the options of an engine that answers questions.

    Args:
        name: the name of the engine.
        options: its options.
        answer: the way in which it answers; an engine may reserve room for the longest answer.

    Raises:
        ConfigError: the engine cannot answer questions.
    """
    if not _ENGINES[name].answers:
        raise ConfigError(
            f"the engine {name} transcribes and cannot answer questions; take --engine vllm, on a machine with a GPU"
        )
    return {**options, "task": "ask", "max_answer_tokens": str(answer.max_tokens)}


def create(
    name: str, model: str | None, options: Mapping[str, str], store_options: StoreOptions = DEFAULT_STORE_OPTIONS
) -> Engine:
    """Return an engine that is ready to stream. Its method `stream` loads the model.

    Args:
        options: the values of `--engine-option NAME=VALUE`, unparsed.
        access: the way to access a bucket, for engines that read a model from a bucket.

    Raises:
        ConfigError: the engine does not accept the model or an option.
        EngineError: the library of the engine is installed but cannot be imported.
    """
    module, _, cls = _ENGINES[name].class_path.partition(":")
    try:
        factory = getattr(importlib.import_module(module), cls)
    except ImportError as e:
        raise EngineError(f"engine {name} cannot be imported: {e}; install it with {_ENGINES[name].install}") from e
    engine: Engine = factory(model, options, store_options)
    return engine


def expected_speed(
    name: str,
    model: str | None,
    options: Mapping[str, str],
    durations: Column | None = None,
    gpu: str | None = None,
    gpus: int = 1,
) -> ExpectedSpeed | None:
    """Return the expected speed of an engine, calculated and not measured, or None if it cannot be calculated.

    The function does not search for the model on the network and does not import the library of the engine.

    Args:
        options: see `create`.
        durations: seconds of each recording of the run. None means infinitely many long recordings.
        gpu: NVML's name of a GPU of another machine. None means the GPU of this machine.
        gpus: number of GPUs that share the work, each with its own engine.

    Raises:
        ConfigError: the engine does not accept an option.
    """
    entry = _ENGINES.get(name)
    if entry is None or not entry.speed_path:
        return None
    module, _, function = entry.speed_path.partition(":")
    found: ExpectedSpeed | None = getattr(importlib.import_module(module), function)(
        model, options, durations, gpu, gpus
    )
    return found


class EngineCache:
    """A cache that holds one engine, the last one created, so that its model stays loaded between runs.

    Args:
        one_run: the cache is closed after one run. An engine may then start in another way for a small job.
    """

    def __init__(self, one_run: bool = False) -> None:
        self.one_run = one_run
        self._engine: Engine | None = None
        self._asked: tuple[Any, ...] = ()

    def get(self, name: str, model: str | None, options: Mapping[str, str], store_options: StoreOptions) -> Engine:
        """Return the cached engine if it was created with equal arguments. Otherwise replace it with a new engine.

        The arguments and exceptions are those of the function `create`.
        """
        asked = (name, model, dict(options), store_options)
        if self._engine is None or asked != self._asked:
            self.close()
            self._engine, self._asked = create(name, model, options, store_options), asked
        return self._engine

    def close(self) -> None:
        """Unload the cached engine, if there is one."""
        if self._engine is not None:
            self._engine.close()
        self._engine = None
