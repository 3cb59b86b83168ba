"""Every error that voxbatch raises on purpose.

    VoxbatchError
    ├── UsageError           what was asked for cannot be done: exit 2, before any GPU work
    │   ├── ConfigError      a flag, a VOXBATCH_* variable or a profile
    │   ├── ManifestError    one or more lines of a manifest; carries them all
    │   ├── MessageError     a message that asks for no run that there can be
    │   └── RunMismatchError OUT belongs to another manifest or another config
    ├── RunError             the run cannot go on: exit 1, resumable
    │   ├── StorageError     a place cannot be read or written (no permission, disk full)
    │   ├── StartError       a cloud's task engine does not start a run
    │   │   └── BusyError    it is busy or out of reach, and may when it is asked again
    │   ├── EngineError      the engine cannot start, or died
    │   ├── QueueError       messages cannot be had, or not be answered
    │   └── LedgerError      the parts contradict each other or the manifest
    └── ItemError            one item fails, the run goes on
        ├── AudioError       the audio cannot be found, read or decoded
        ├── LanguageError    the engine does not know the item's language
        └── TranscriptionError  the engine failed on one of the item's chunks

A message says where, what was seen, what is allowed and what to do, in that order. Anything that is not a VoxbatchError
is a bug and shows its traceback.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class VoxbatchError(Exception):
    exit_code = 1


class UsageError(VoxbatchError):
    exit_code = 2


class ConfigError(UsageError):
    pass


@dataclass(frozen=True, slots=True)
class BadLine:
    """One line of a manifest that cannot be used."""

    line: int
    """1-based; 0 speaks of the manifest as a whole."""
    reason: str
    """What was seen, what is allowed, what to do."""

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}" if self.line else self.reason


class ManifestError(UsageError):
    """A manifest with bad lines: all of them, or the first `LIMIT` and how many more there are."""

    LIMIT = 1000

    def __init__(self, source: str, bad_lines: Sequence[BadLine], total: int | None = None):
        self.source = source
        self.bad_lines = tuple(bad_lines)
        self.total = len(self.bad_lines) if total is None else total
        super().__init__(self._text())

    def _text(self) -> str:
        lines = [f"{self.source}: {bad}" for bad in self.bad_lines]
        if self.total > len(self.bad_lines):
            lines.append(f"{self.source}: … and {self.total - len(self.bad_lines):,} more")
        return "\n".join(lines)


class MessageError(UsageError):
    pass


class RunMismatchError(UsageError):
    pass


class RunError(VoxbatchError):
    pass


class StorageError(RunError):
    pass


class StartError(RunError):
    pass


class BusyError(StartError):
    pass


class EngineError(RunError):
    pass


class QueueError(RunError):
    pass


class LedgerError(RunError):
    pass


class ItemError(VoxbatchError):
    retryable = False


class AudioError(ItemError):
    pass


class LanguageError(ItemError):
    pass


class TranscriptionError(ItemError):
    pass
