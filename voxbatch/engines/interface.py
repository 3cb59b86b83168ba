"""Define what the pipeline knows of an engine: its properties before the run, and the stream of its results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from voxbatch.engines.feed import Feed
from voxbatch.engines.results import Result
from voxbatch.records import NO_WINDOWS, SAMPLING_RATE, Windows


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
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of that child process, in addition to those of its parent."""
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
        it is ready. An error in one chunk becomes the ChunkFailure of that chunk. Whatever an engine does, `supervised`
        brings each chunk to one result: it may call this method several times for one feed.

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
    windows: Windows = NO_WINDOWS
    """The windows of its models, as far as they are known without their files."""
    default_profile: str | None = None
    """The profile whose speed the engine has if no profile is given."""
    speed_path: str = ""
    """The function that calculates the expected speed: a path; see the module `previews`. Empty if there is none."""
    preview_path: str = ""
    """The function that shows the arguments of the engine's library: a path; see `previews`. Empty if there is none."""
    checks_path: str = ""
    """The module of what `voxbatch doctor` checks for the engine: an EngineChecks of the module `checks`. Empty if
    there is none."""
    compiles: bool = False
    """True if the engine compiles kernels, and takes the option kernel_cache."""
    answers: bool = False
    """True if the engine can answer questions, and takes the option task=ask."""
    package: str = ""
    """The name and version of the package that registers the engine. Empty if voxbatch does. Set by `entry_points`."""
