"""The interface of the engines: a stream of Chunks goes in, Hypotheses come out in any order.

An engine pulls a chunk from a Feed whenever it can take one, and yields each result as soon as it is ready. There is no
barrier per recording or per batch. So an engine that works on hundreds of chunks at a time always has enough of them.

To add an engine, write a class with the members of `Engine`, and add a record to `ENGINES`. An engine that speaks takes
Chunks with a Piece, yields Speech in place of Hypotheses, and has its record in `SPEECH_ENGINES`.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any, Protocol

from voxbatch.engines.feed import Feed
from voxbatch.engines.results import ChunkProgress, EngineMessage, Result
from voxbatch.errors import ConfigError, EngineError
from voxbatch.records import NO_WINDOWS, SAMPLING_RATE, Windows
from voxbatch.storage import DEFAULT_STORES, Stores

__all__ = [
    "ALIGNERS",
    "ENGINES",
    "SPEECH_ENGINES",
    "ChunkProgress",
    "ConfigError",
    "Engine",
    "EngineCache",
    "EngineMessage",
    "EngineSpec",
    "Feed",
    "create",
    "install_command",
    "known_details",
    "options_with_kernels",
    "uses_gpu",
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
    windows: Windows = NO_WINDOWS
    uses_language: bool = True
    """True if the model is told the language of a chunk. Otherwise it recognises the language by itself."""
    takes_hints: bool = False
    """True if the engine heeds the hints of a chunk."""
    translates: bool = False
    """True if the model was trained to translate into English."""
    word_times: bool = False
    confidence: bool = False
    """True if the engine gives words, or texts without word times, a confidence."""
    own_process: bool = False
    """True if the engine runs native code that may crash. `create` then puts it into a child process: see
    engine_process. Before its model is loaded, such an engine can be pickled."""
    max_recordings: int = 0
    """Number of recordings that a question may have. 0 means that the engine cannot answer questions; see
    runner.asking.options_with_questions."""
    max_question_samples: int = 0
    """Length of all recordings of a question together for which the context of the model suffices, in samples."""
    sampling_rate: int = SAMPLING_RATE
    """Samples per second that the engine takes, or that it speaks."""
    voices: tuple[str, ...] = ()
    """Voices of an engine that speaks, the default one first."""
    scripts: tuple[str, ...] = ()
    """Scripts that an engine that speaks can read, by their names in Unicode."""
    license: str = "unknown"
    origin: str = "given by --model"
    versions: Mapping[str, str] = field(default_factory=dict)
    decoding: Mapping[str, Any] = field(default_factory=dict)
    """The options that influence the text. They are part of a run's identity."""
    workers: tuple[Mapping[str, str], ...] = ()
    """Environment variables of each worker process that this host should run in parallel, e.g.
    {"CUDA_VISIBLE_DEVICES": "0"}. With no entry or one entry, this process does the work alone."""
    torch_device: str | None = None
    """The device on which PyTorch can run further networks beside the engine, e.g. "cuda". None if there is none."""
    warnings: tuple[str, ...] = ()
    """Warnings for the user before a run, e.g. that the run is slower than it could be. They appear in the log and in
    the summary, and are not part of a run's identity."""

    @property
    def only_language(self) -> str | None:
        """Return the language of an engine that knows exactly one, otherwise None."""
        return next(iter(self.languages)) if self.languages and len(self.languages) == 1 else None

    def knows(self, lang: str) -> bool:
        """Return whether the engine accepts a language, given as a primary subtag; see the module `refusals`."""
        return self.languages is None or lang in self.languages


class Engine(Protocol):
    """The interface that every engine implements."""

    spec: EngineSpec

    def stream(self, feed: Feed) -> Iterator[Result]:
        """Load the model and transcribe or speak chunks until the feed is closed and empty.

        The model is not loaded again if an earlier stream left it loaded. Only one stream may run at a time.

        Each chunk that the engine takes gives exactly one Hypothesis, Speech or ChunkFailure, in any order, as soon as
        it is ready. An error in one chunk becomes the ChunkFailure of that chunk.

        Raises:
            EngineError: the engine cannot start, or it died and cannot be started again.
        """

    def gpu_bytes(self) -> int | None:
        """Return the bytes in use now on the fullest GPU that the engine uses, or None without a GPU.

        Any thread may call this method, at any time.
        """

    def close(self) -> None:
        """Unload the model for good. A stream that is still running unloads it at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The entry of an engine in the table, with all that the rest of voxbatch knows about it before it is imported.

    A path is written as module:name. The module is imported only when it is needed.
    """

    class_path: str
    needs: tuple[str, ...] = ()
    """Names of the modules that must be installed."""
    install: str = ""
    use: str = ""
    """The machines that the engine is for, as text for people. Empty if `auto` takes it only for its own models."""
    recognises: str = ""
    """The function that tells by the names of its files whether the engine runs a folder or file: a path. Empty if the
    engine is not chosen by a folder."""
    uses_gpu: bool = False
    """True if the engine needs an NVIDIA GPU. `auto` takes it only on a machine with a GPU."""
    weights: str = "*.safetensors"
    """Pattern of the files that hold the weights of a model, in a folder of the hub's cache."""
    multilingual_model: str = ""
    """Name of a model that knows many languages, for messages. Empty if there is none to name."""
    default_profile: str | None = None
    """The profile whose speed the engine has if no profile is given."""
    speed_path: str = ""
    """The function that calculates the expected speed: a path; see the module `previews`. Empty if there is none."""
    preview_path: str = ""
    """The function that shows the arguments of the engine's library: a path; see `previews`. Empty if there is none."""
    compiles: bool = False
    """True if the engine compiles kernels, and takes the option kernel_cache."""
    answers: bool = False
    """True if the engine can answer questions, and takes the option task=ask."""


ENGINES = {
    "vllm": Registration(
        class_path="voxbatch.engines.vllm:VllmEngine",
        needs=("vllm",),
        install="pip install 'voxbatch[vllm]'",
        use="on NVIDIA GPUs",
        multilingual_model="openai/whisper-large-v3-turbo",
        uses_gpu=True,
        default_profile="ctx512-batch",
        speed_path="voxbatch.engines.vllm.forecast:expected_speed",
        preview_path="voxbatch.engines.vllm.forecast:preview_arguments",
        compiles=True,
        answers=True,
    ),
    "transducers": Registration(
        class_path="voxbatch.engines.transducers:TransducersEngine",
        needs=("torch", "transformers"),
        install="pip install 'voxbatch[parakeet]'",
        use="for Parakeet on NVIDIA GPUs",
        recognises="voxbatch.engines.transducers.model:recognises",
        multilingual_model="parakeet",
        default_profile="parakeet",
        speed_path="voxbatch.engines.transducers.forecast:expected_speed",
        uses_gpu=True,
        compiles=True,
    ),
    "faster-whisper": Registration(
        class_path="voxbatch.engines.faster_whisper:FasterWhisperEngine",
        needs=("faster_whisper",),
        install="pip install 'voxbatch[cpu]'",
        use="on a CPU",
        weights="model.bin",
        multilingual_model="base",
        default_profile="cpu",
    ),
    "onnx-asr": Registration(
        class_path="voxbatch.engines.onnx_asr:OnnxAsrEngine",
        needs=("onnx_asr", "onnxruntime"),
        install="pip install 'voxbatch[onnx]'",
        use="for ONNX on a CPU",
        recognises="voxbatch.engines.onnx_folder:recognises",
        weights="*.onnx",
        multilingual_model="parakeet",
    ),
    "scripted": Registration(
        class_path="voxbatch.engines.scripted_test_engine:ScriptedTestEngine",
        answers=True,
    ),
}
"""The engines by their names, in the order in which `auto` tries them."""
SPEECH_ENGINES = {
    "hibari": Registration(
        class_path="voxbatch.engines.hibari:HibariEngine",
        needs=("hibari", "pyloudnorm", "sentencex"),
        install="pip install 'voxbatch[speak]'",
        use="for English on a CPU",
    ),
    "vllm": Registration(
        class_path="voxbatch.engines.vllm:VllmEngine",
        needs=("vllm", "pyloudnorm", "sentencex"),
        install="pip install 'voxbatch[vllm,speak]'",
        uses_gpu=True,
    ),
}
"""The engines that speak, in the same form."""
ALIGNERS = {
    "pocketsphinx": Registration(
        class_path="voxbatch.engines.align.engines:PocketsphinxEngine",
        needs=("pocketsphinx", "icu4py"),
        install="pip install 'voxbatch[align]'",
        use="for English on a CPU",
    ),
    "ctc": Registration(
        class_path="voxbatch.engines.align.engines:CtcEngine",
        needs=("onnxruntime", "icu4py"),
        install="pip install 'voxbatch[align]'",
    ),
}
"""The engines that find the times of a given text, in the same form."""
_ALL = {**SPEECH_ENGINES, **ALIGNERS, **ENGINES}


def has_gpu() -> bool:
    """Return whether an NVIDIA driver is loaded. CUDA is not initialised."""
    return os.path.exists("/dev/nvidiactl")


def uses_gpu(name: str) -> bool:
    """Return whether an engine needs an NVIDIA GPU. An unknown engine needs none."""
    return name in ENGINES and ENGINES[name].uses_gpu


def install_command(name: str, table: Mapping[str, Registration] | None = None) -> str | None:
    """Return the command that installs an engine, or None if all its modules are installed.

    Args:
        table: the table that has it. None means any.
    """
    engine = (table or _ALL)[name]
    return None if all(importlib.util.find_spec(module) for module in engine.needs) else engine.install


def known_details(*details: str) -> str:
    """Return the details of a model that are known, in brackets: ("MIT", "unknown") → " (MIT)"."""
    known = "; ".join(detail for detail in details if detail != "unknown")
    return f" ({known})" if known else ""


def multilingual_model(engine: str) -> str:
    """Return the name of a model of an engine that knows many languages, for messages; "" if there is none."""
    return ENGINES[engine].multilingual_model if engine in ENGINES else ""


def options_with_kernels(name: str, options: Mapping[str, str], kernel_cache: str | None) -> Mapping[str, str]:
    """Return the options of an engine with the place of its compiled kernels, if it compiles any."""
    return {"kernel_cache": kernel_cache, **options} if kernel_cache and _ALL[name].compiles else options


def create(name: str, model: str | None, options: Mapping[str, str], stores: Stores = DEFAULT_STORES) -> Engine:
    """Return an engine that is ready to stream. Its method `stream` loads the model.

    Args:
        options: the values of `--engine-option NAME=VALUE`, unparsed.

    Raises:
        ConfigError: the engine does not accept the model or an option.
        EngineError: the library of the engine is installed but cannot be imported.
    """
    try:
        factory = resolve_name(_ALL[name].class_path)
    except ImportError as e:
        raise EngineError(f"engine {name} cannot be imported: {e}; install it with {_ALL[name].install}") from e
    engine: Engine = factory(model, options, stores)
    if not engine.spec.own_process:
        return engine
    from voxbatch.engines.engine_process import EngineProcess

    return EngineProcess(engine)


class EngineCache:
    """A cache that holds one engine, the last one created, so that its model stays loaded between runs.

    Args:
        one_run: the cache is closed after one run. An engine may then start in another way for a small job.
    """

    def __init__(self, one_run: bool = False) -> None:
        self.one_run = one_run
        self._engine: Engine | None = None
        self._asked: tuple[Any, ...] = ()

    def get(self, name: str, model: str | None, options: Mapping[str, str], stores: Stores) -> Engine:
        """Return the cached engine if it was created with equal arguments. Otherwise replace it with a new engine.

        The arguments and exceptions are those of the function `create`.
        """
        arguments = (name, model, dict(options), stores)
        if self._engine is None or arguments != self._asked:
            self.close()
            self._engine, self._asked = create(name, model, options, stores), arguments
        return self._engine

    def close(self) -> None:
        """Unload the cached engine, if there is one."""
        if self._engine is not None:
            self._engine.close()
        self._engine = None
