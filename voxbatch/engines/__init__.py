"""Chunks → Hypotheses, behind one small seam: a stream of chunks in, results out as each is ready, in any order.

An engine pulls chunks from a Feed whenever it has room for one and yields a result whenever it has one; there is no
barrier per recording or per batch, so an engine that keeps hundreds of chunks in flight stays full. To add one: write a
class with the members of `Engine`, and a line in `_ENGINES`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from voxbatch.engines.feed import Feed
from voxbatch.engines.languages import ISO_639_1
from voxbatch.engines.notice import Notice
from voxbatch.errors import ConfigError, EngineError
from voxbatch.records import SAMPLING_RATE, ChunkFailure, Hypothesis
from voxbatch.storage import USUAL, Access

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "Choice",
    "Engine",
    "EngineSpec",
    "Feed",
    "Kept",
    "Notice",
    "Speed",
    "choose",
    "create",
    "expected",
    "missing",
    "primary",
    "refusal",
    "require_language",
]


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What the pipeline must know of an engine before it runs, without loading its model."""

    name: str
    model: str
    max_chunk_samples: int
    """The longest chunk it takes whole, in samples at `sampling_rate`."""
    concurrency: int
    """How many chunks it works on at a time."""
    prefetch: int = 0
    """How many of its longest chunks the feed holds for it; 0 means as many as it works on."""
    languages: frozenset[str] | None = None
    """Primary language subtags it knows, e.g. {"en"}; None where it decides itself."""
    uses_language: bool = True
    """Whether the model is told the language of a chunk; if not, it recognises the language by itself."""
    word_times: bool = False
    sampling_rate: int = SAMPLING_RATE
    license: str = "unknown"
    origin: str = "given by --model"
    versions: Mapping[str, str] = field(default_factory=dict)
    decoding: Mapping[str, Any] = field(default_factory=dict)
    """The options that decide what text comes out: part of a run's identity."""
    workers: tuple[Mapping[str, str], ...] = ()
    """What each process that this host should run side by side has in its environment, e.g. {"CUDA_VISIBLE_DEVICES":
    "0"}; none or one: this process does it alone."""
    warnings: tuple[str, ...] = ()
    """What a user should know before a run, e.g. that it is slower than it could be: in the log and in the summary, no
    part of a run's identity."""

    @property
    def only_language(self) -> str | None:
        """The language of an engine that knows just one."""
        return next(iter(self.languages)) if self.languages and len(self.languages) == 1 else None


@dataclass(frozen=True, slots=True)
class Speed:
    """What an engine ought to reach, by arithmetic."""

    rtfx: float
    """Audio seconds a second, to two digits."""
    error: float
    """Share by which that may be wrong."""
    of: str
    """For people: the card, and how the model is run on it."""

    def __str__(self) -> str:
        return f"worked out for {self.of}, not measured, and may be {100 * self.error:.0f} % off: --expected-rtfx"


class Engine(Protocol):
    spec: EngineSpec

    def stream(self, feed: Feed) -> Iterator[Hypothesis | ChunkFailure | Notice]:
        """Load the model, unless an earlier stream has left it loaded, then transcribe what the feed gives until it is
        closed and empty. One stream at a time.

        Every chunk taken gives exactly one result, in any order, each as soon as it is ready. What fails on one chunk
        is that chunk's ChunkFailure.

        Raises:
            EngineError: the engine cannot start, or died and will not come back.
        """

    def gpu_bytes(self) -> int | None:
        """Return the bytes in use now on the fullest GPU that the engine uses, or None without a GPU. Any thread may
        call this, at any time."""

    def close(self) -> None:
        """Unload what the last stream left loaded, for good; a stream that still runs does so at its end."""


@dataclass(frozen=True, slots=True)
class _Entry:
    where: str
    """module:class; None of it is imported before it is used."""
    needs: tuple[str, ...]
    """Modules that must be installed."""
    install: str
    speed: str = ""
    """module:function that works out how fast it ought to be; see expected."""


_ENGINES = {
    "faster-whisper": _Entry(
        "voxbatch.engines.faster_whisper:FasterWhisper", ("faster_whisper",), "pip install 'voxbatch[cpu]'"
    ),
    "scripted": _Entry("voxbatch.engines.scripted:Scripted", (), ""),
    "vllm": _Entry(
        "voxbatch.engines.vllm:Vllm", ("vllm",), "pip install 'voxbatch[vllm]'",
        "voxbatch.engines.vllm.forecast:expected",
    ),
}  # fmt: skip
AUTO_ORDER = ("vllm", "faster-whisper")
"""What `auto` tries, best first; vllm only where there is a GPU."""


@dataclass(frozen=True, slots=True)
class Choice:
    name: str
    reason: str
    """One line for people: which engine, and why."""


def names() -> list[str]:
    return sorted(_ENGINES)


def has_gpu() -> bool:
    """Whether an NVIDIA driver is loaded; CUDA is not touched."""
    return os.path.exists("/dev/nvidiactl")


def missing(name: str) -> str | None:
    """The command that installs what an engine lacks here, None where it lacks nothing."""
    entry = _ENGINES[name]
    return None if all(importlib.util.find_spec(module) for module in entry.needs) else entry.install


def choose(asked: str) -> Choice:
    """Resolve "auto".

    Raises:
        ConfigError: no such engine, or it is not installed.
    """
    if asked == "auto":
        for name in AUTO_ORDER:
            if missing(name) is None and (name != "vllm" or has_gpu()):
                return Choice(name, f"{name}: the best one that is installed here")
        commands = " or ".join(f"{_ENGINES[name].install}" for name in AUTO_ORDER)
        raise ConfigError(f"no engine is installed: {commands}")
    if asked not in _ENGINES:
        raise ConfigError(f"engine {asked!r} is unknown; known are auto, {', '.join(names())}")
    if install := missing(asked):
        raise ConfigError(f"engine {asked} is not installed: {install}")
    return Choice(asked, f"{asked}: asked for")


def primary(lang: str) -> str:
    """ "pt-BR" → "pt": engines know primary subtags."""
    return lang.replace("_", "-").split("-")[0].lower()


def refusal(spec: EngineSpec, lang: str) -> str | None:
    """Return why an engine does not take a language, for people; None where it takes it.

    Args:
        lang: a primary subtag.
    """
    if spec.languages is None or lang in spec.languages:
        return None
    if spec.languages == ISO_639_1:
        return f"model {spec.model} takes the two-letter codes of ISO 639-1, such as en; correct it or leave it out"
    return f"model {spec.model} knows only {', '.join(sorted(spec.languages))}; choose another with --model"


def require_language(engine: Engine, lang: str) -> None:
    """Raises ConfigError where the engine states its languages and this is none of them."""
    if reason := refusal(engine.spec, primary(lang)):
        raise ConfigError(f"--language {lang}: {reason}")


def create(name: str, model: str | None, options: Mapping[str, str], access: Access = USUAL) -> Engine:
    """An engine ready to stream; its model is loaded by `stream`.

    Args:
        options: what `--engine-option NAME=VALUE` gave, unparsed.
        access: how the bucket of a model is entered, for engines that take one.

    Raises:
        ConfigError: a model or an option that it does not take.
        EngineError: its library is there but does not import.
    """
    module, _, cls = _ENGINES[name].where.partition(":")
    try:
        factory = getattr(importlib.import_module(module), cls)
    except ImportError as e:
        raise EngineError(f"engine {name} does not load: {e}; {_ENGINES[name].install}") from e
    engine: Engine = factory(model, options, access)
    return engine


def expected(
    name: str,
    model: str | None,
    options: Mapping[str, str],
    durations: NDArray[np.float32] | None = None,
    gpu: str | None = None,
    gpus: int = 1,
) -> Speed | None:
    """How fast an engine ought to be where nobody has measured it; None where that cannot be worked out. No model is
    looked for, and no library of the engine's imported.

    Args:
        options: see create.
        durations: seconds of the recordings, all of which are to be done; None: endlessly many long ones.
        gpu: NVML's name of a card elsewhere; None means the one that is here.
        gpus: cards that share the work, an engine each.

    Raises:
        ConfigError: an option that it does not take.
    """
    entry = _ENGINES.get(name)
    if entry is None or not entry.speed:
        return None
    module, _, function = entry.speed.partition(":")
    found: Speed | None = getattr(importlib.import_module(module), function)(model, options, durations, gpu, gpus)
    return found


class Kept:
    """An engine that stays loaded from run to run: the one that was asked for last."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._asked: tuple[Any, ...] = ()

    def create(self, name: str, model: str | None, options: Mapping[str, str], access: Access) -> Engine:
        """As `create`: the engine that is there, or in its place another."""
        asked = (name, model, dict(options), access)
        if self._engine is None or asked != self._asked:
            self.close()
            self._engine, self._asked = create(name, model, options, access), asked
        return self._engine

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        self._engine = None
