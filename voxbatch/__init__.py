"""Batch transcription: recordings or a manifest go in; transcripts, subtitles and a word error rate come out.

    import voxbatch

    transcript = voxbatch.transcribe("talk.mp3")
    summary = voxbatch.run("recordings/", "out")

one recording: transcribe, transcribe_async, stream, Transcriber
many recordings: run, start, read_results, ask; speak for texts; estimate without a run
word error rates: score, compare

`help(voxbatch.run)` explains a function and its options. docs/python.md describes the Python interface.
Importing this package imports nothing else: each name below is loaded when it is first used.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from voxbatch.analysis.compare import ChangedItem, Compared, Comparison
    from voxbatch.analysis.results import Result
    from voxbatch.api import (
        BackgroundRun,
        SegmentStream,
        Transcriber,
        compare,
        estimate,
        read_results,
        run,
        score,
        start,
        stream,
        transcribe,
        transcribe_async,
    )
    from voxbatch.errors import (
        AudioError,
        Cancelled,
        ConfigError,
        CrashError,
        EngineError,
        InUseError,
        ItemError,
        LanguageError,
        ManifestError,
        RunError,
        RunMismatchError,
        StorageError,
        TranscriptionError,
        UsageError,
        VoxbatchError,
    )
    from voxbatch.failure_kinds import FailureKind
    from voxbatch.output.summary import Summary
    from voxbatch.records import Failure, Flag, Segment, Transcript, Word
    from voxbatch.runner import Progress
    from voxbatch.runner.forecast import RunEstimate
    from voxbatch.scoring.corpus import CorpusScore
    from voxbatch.works.ask.api import ask
    from voxbatch.works.speak.api import speak

_MODULES = {
    "voxbatch.api": (
        "BackgroundRun", "SegmentStream", "Transcriber", "compare", "estimate", "read_results", "run", "score", "start",
        "stream", "transcribe", "transcribe_async",
    ),
    "voxbatch.errors": (
        "AudioError", "Cancelled", "ConfigError", "CrashError", "EngineError", "InUseError", "ItemError",
        "LanguageError", "ManifestError", "RunError", "RunMismatchError", "StorageError", "TranscriptionError",
        "UsageError", "VoxbatchError",
    ),
    "voxbatch.analysis.compare": ("ChangedItem", "Compared", "Comparison"),
    "voxbatch.analysis.results": ("Result",),
    "voxbatch.failure_kinds": ("FailureKind",),
    "voxbatch.output.summary": ("Summary",),
    "voxbatch.records": ("Failure", "Flag", "Segment", "Transcript", "Word"),
    "voxbatch.runner": ("Progress",),
    "voxbatch.runner.forecast": ("RunEstimate",),
    "voxbatch.scoring.corpus": ("CorpusScore",),
    "voxbatch.works.ask.api": ("ask",),
    "voxbatch.works.speak.api": ("speak",),
}  # fmt: skip
"""Module of each name that this package offers."""
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AudioError",
    "BackgroundRun",
    "Cancelled",
    "ChangedItem",
    "Compared",
    "Comparison",
    "ConfigError",
    "CorpusScore",
    "CrashError",
    "EngineError",
    "Failure",
    "FailureKind",
    "Flag",
    "InUseError",
    "ItemError",
    "LanguageError",
    "ManifestError",
    "Progress",
    "Result",
    "RunError",
    "RunEstimate",
    "RunMismatchError",
    "Segment",
    "SegmentStream",
    "StorageError",
    "Summary",
    "Transcriber",
    "Transcript",
    "TranscriptionError",
    "UsageError",
    "VoxbatchError",
    "Word",
    "__version__",
    "ask",
    "compare",
    "estimate",
    "read_results",
    "run",
    "score",
    "speak",
    "start",
    "stream",
    "transcribe",
    "transcribe_async",
]


def __getattr__(name: str) -> Any:
    """Load a name of the Python interface when it is first used (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    """Return the names for a program, without the modules that were imported meanwhile."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
