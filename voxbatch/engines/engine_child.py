"""The child process of an engine: its messages, its start, and its end, unless it stays for a later run.

A child belongs to one owner at a time. The owner sends the engine, and then the messages below. An owner that ends may
let its child stay (`process.vacancy`): the next one, a process of another run, continues with the same messages.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from voxbatch.engines.interface import Engine
from voxbatch.errors import VoxbatchError
from voxbatch.process.child import ChildProcess
from voxbatch.process.kept import KeptProcess, dismiss
from voxbatch.process.vacancy import Stay

STAY_TIMEOUT_S = 5.0
"""Seconds within which a child answers that it stays."""


@dataclass(frozen=True, slots=True)
class BeginStream:
    """The chunks that follow belong to a new stream."""

    is_last: bool
    """See Feed."""


@dataclass(frozen=True, slots=True)
class CloseFeed:
    """The stream gets no further chunk."""

    discard: bool
    """See Feed.close."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded, and the engine asks for its first chunk."""


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """The last message of a stream, with the error that ended it."""

    error: VoxbatchError | None


@dataclass(frozen=True, slots=True)
class Staying:
    """The answer to a Stay: the child no longer ends with its owner."""


class EngineChild:
    """The child process of an engine, at most one at a time.

    Args:
        engine: not loaded, and picklable. Each child gets a copy.
        stay: lets the child stay after `leave`, and takes one that stays. None ends it.
    """

    def __init__(self, engine: Engine, stay: Stay | None = None):
        self._engine, self._stay = engine, stay
        self._process: ChildProcess | None = None
        self.is_idle = False
        """True if the child has loaded its model and has no chunks."""

    @property
    def pid(self) -> int | None:
        """Number of the child. None if there is none."""
        return None if self._process is None else self._process.pid

    def process(self) -> ChildProcess:
        """Return the child if it lives, otherwise one that stayed, or a new one."""
        if self._process is not None and self._process.has_ended():
            self.end()
        if self._process is None:
            self._process = self._kept() or self._new()
        self.is_idle = False
        return self._process

    def _kept(self) -> ChildProcess | None:
        """Return the process that an earlier run has left with this engine. If there is none, end all others, which may
        have the memory that this engine needs."""
        if self._stay is not None:
            with contextlib.suppress(OSError):
                return KeptProcess(self._stay.path)
            dismiss()
        return None

    def _new(self) -> ChildProcess:
        process = ChildProcess(
            "voxbatch.engines.engine_program",
            self._engine.spec.environment,
            captures_output=True,
            dies_with_parent=True,
        )
        process.send(self._engine)
        return process

    def leave(self) -> None:
        """Let the child stay, if it shall and can. Otherwise kill it."""
        process = self._process
        if process is not None and self._stay is not None and self.is_idle:
            process.send(self._stay)
            with contextlib.suppress(EOFError, OSError):
                while process.connection.poll(STAY_TIMEOUT_S):
                    if isinstance(process.connection.recv(), Staying):
                        process.release()
                        self._process = None
                        return
        self.end()

    def end(self) -> None:
        """Kill the child, if there is one."""
        if self._process is not None:
            self._process.end()
        self._process, self.is_idle = None, False
