"""All errors that voxbatch raises on purpose.

    VoxbatchError
    ├── UsageError           the request cannot be carried out: exit code 2, before any GPU work
    │   ├── ConfigError      a flag, a VOXBATCH_* variable or a profile is wrong
    │   ├── ManifestError    one or more lines of a manifest are wrong; the error carries all of them
    │   ├── MessageError     a message asks for a run that cannot exist
    │   └── RunMismatchError OUT belongs to another manifest or another config
    ├── RunError             the run cannot continue: exit code 1; the same command resumes it
    │   ├── StorageError     a place cannot be read or written (no permission, disk full)
    │   ├── StartError       a cloud platform does not start a run
    │   │   └── BusyError    the platform is busy or unreachable; a retry may succeed
    │   ├── EngineError      the engine cannot start, or has died
    │   ├── QueueError       messages cannot be received or acknowledged
    │   ├── InUseError       another process works on OUT
    │   └── CheckpointError  the parts contradict each other or the manifest
    ├── Cancelled            the caller stopped the work: Python alone
    └── ItemError            one item fails; the run continues
        ├── AudioError       the audio cannot be found, read or decoded
        ├── LanguageError    the engine does not support the item's language
        ├── SpeechError      the text cannot be spoken, or not with this voice
        ├── TranscriptionError  the engine failed on one of the item's chunks
        └── CrashError       one of the item's chunks crashes the engine

A message says, in this order: the place, the value seen, what is allowed, and what to do. Any exception that is not a
VoxbatchError is a bug and shows its traceback.
"""

from __future__ import annotations

import copyreg
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from voxbatch.failure_kinds import FailureKind


class VoxbatchError(Exception):
    """Base class of all errors that voxbatch raises on purpose."""

    exit_code = 1
    """Exit code of the command that ends with this error."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how pickle rebuilds the error. It takes the message and the attributes, not the arguments of
        `__init__`, so that another process raises the same error."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class UsageError(VoxbatchError):
    """A request that cannot be carried out. It is raised before any GPU work."""

    exit_code = 2


class ConfigError(UsageError):
    """A wrong flag, VOXBATCH_* variable or profile."""

    def __init__(self, message: str, options: Sequence[str] = ()):
        """Build the error. `options` are those with which the same command would be right, if they are known."""
        super().__init__(message)
        self.options = tuple(options)


@dataclass(frozen=True, slots=True)
class BadLine:
    """One line of a manifest that cannot be used."""

    line: int
    """1-based line number. 0 means the manifest as a whole."""
    reason: str
    """The value seen, what is allowed, and what to do."""
    shard: str = ""
    """File that the line is counted in, if the manifest has several files."""

    @property
    def place(self) -> str:
        """Place of the line: "line 3", "part-00001.parquet:3", or "" for the manifest as a whole."""
        if self.shard and self.line:
            return f"{self.shard}:{self.line}"
        return f"line {self.line}" if self.line else self.shard

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}" if self.place else self.reason


class ManifestError(UsageError):
    """A manifest with bad lines. It carries all bad lines, or the first `LIMIT` and the total.

    The message shows the first EXAMPLES of them.
    """

    LIMIT = 1000
    EXAMPLES = 3

    def __init__(self, source: str, bad_lines: Sequence[BadLine], total: int | None = None):
        """Build the error. `total` is the number of bad lines if `bad_lines` holds only the first of them."""
        self.source = source
        self.bad_lines = tuple(bad_lines)
        self.total = len(self.bad_lines) if total is None else total
        lines = [f"{source}: {bad}" for bad in self.bad_lines[: self.EXAMPLES]]
        if self.total > self.EXAMPLES:
            num_others = self.total - self.EXAMPLES
            lines.append(f"{source}: … and {num_others:,} more bad lines; voxbatch validate --all lists them")
        super().__init__("\n".join(lines))


class EmptySourceError(ManifestError):
    """A folder, or several sources, without recordings."""

    def __init__(self, source: str, reason: str):
        """Build the error; `reason` says what was found instead."""
        super().__init__(source, [BadLine(0, reason)])


class MessageError(UsageError):
    """A message that asks for a run that cannot exist."""


class RunMismatchError(UsageError):
    """An OUT that belongs to another manifest or another config."""

    def __init__(self, message: str, may_update: bool = False):
        """Build the error. `may_update` says that `--update` would continue the run of OUT."""
        super().__init__(message)
        self.may_update = may_update


class RunError(VoxbatchError):
    """A run that cannot continue. What is committed is safe, and the same command resumes the run."""


class StorageError(RunError):
    """A place that cannot be read or written: no permission, disk full, no answer."""

    kind = FailureKind.UNREACHABLE
    """The kind of the failure of an item whose recording cannot be read, unless the error is built with another."""

    def __init__(self, message: str, kind: FailureKind | None = None):
        super().__init__(message)
        self.kind = kind or self.kind


class StartError(RunError):
    """A cloud platform that does not start a run."""


class BusyError(StartError):
    """A cloud platform that is busy or unreachable. A retry may succeed."""


class EngineError(RunError):
    """An engine that cannot start, or that has died."""


class QueueError(RunError):
    """Messages that cannot be received or acknowledged."""


class CheckpointError(RunError):
    """Parts that contradict each other or the manifest, or another file of OUT that is damaged."""

    def __init__(self, message: str, reason: str = "", present: str = ""):
        super().__init__(message)
        self.reason = reason or message
        """The finding, without the place and the remedy."""
        self.present = present
        """The items that are in parts, such as "3 of 8 items", if that is known."""


class InUseError(RunError):
    """An OUT on which another process works."""


class TakenOverError(RunError):
    """An OUT that another run took over with `--overwrite`, or that was deleted, while this run was in progress."""


class Cancelled(VoxbatchError):
    """Work that its caller has stopped. A cancelled task of asyncio raises asyncio.CancelledError."""


class ItemError(VoxbatchError):
    """A failure of one item. The run continues."""

    kind = FailureKind.UNKNOWN
    """The kind of the failure, unless the error is built with another."""
    retryable = False
    """True if the same item may succeed in another run with nothing changed."""

    def __init__(self, message: str, kind: FailureKind | None = None):
        super().__init__(message)
        self.kind = kind or self.kind


class AudioError(ItemError):
    """Audio that cannot be found, read or decoded."""

    kind = FailureKind.DAMAGED


class LanguageError(ItemError):
    """A language that the engine does not support."""

    kind = FailureKind.LANGUAGE


class SpeechError(ItemError):
    """A text that cannot be spoken, or a voice that does not exist."""

    kind = FailureKind.TEXT


class TranscriptionError(ItemError):
    """A chunk on which the engine failed."""

    kind = FailureKind.ENGINE


class CrashError(ItemError):
    """A chunk that crashes the engine."""

    kind = FailureKind.ENGINE_CRASH
