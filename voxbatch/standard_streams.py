"""Standard output and error whose writes do not keep a process that was told to stop.

A write to a pipe that nobody reads, or to a terminal that was stopped with Ctrl-S, blocks. Python repeats the call
after each signal, so that no signal handler can end it. The streams of this module wait until a write cannot block,
without limit as long as the process may run. After `set_write_deadline`, they drop what nobody takes in time.
"""

from __future__ import annotations

import io
import math
import os
import select
import sys
import time
from typing import TYPE_CHECKING, ClassVar, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

POLL_INTERVAL_S = 0.1
"""Longest time in which a deadline goes unnoticed."""


def set_write_deadline(seconds: float) -> None:
    """Let all writes from now on, and those that wait already, drop what cannot be written within `seconds`."""
    _Writer.deadline = time.monotonic() + seconds


def install() -> None:
    """Replace sys.stdout and sys.stderr, unless other code has replaced them."""
    sys.stdout = _replacement(sys.stdout, sys.__stdout__)
    sys.stderr = _replacement(sys.stderr, sys.__stderr__)


def text_stream(fd: int, encoding: str | None = None, errors: str | None = "replace") -> TextIO:
    """Return a stream of text that writes to a descriptor at once. Closing the stream does not close the descriptor."""
    return io.TextIOWrapper(_Writer(fd), encoding, errors, write_through=True)  # type: ignore[type-var]


def _replacement(stream: TextIO, original: TextIO | None) -> TextIO:
    if stream is not original or original is None:  # a process may have no standard streams
        return stream
    stream.flush()
    return text_stream(stream.fileno(), stream.encoding, stream.errors)


class _Writer(io.RawIOBase):
    """Writes to a descriptor when that does not block."""

    deadline: ClassVar[float] = math.inf
    """time.monotonic() from which no write waits."""

    def __init__(self, fd: int):
        self._fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def isatty(self) -> bool:
        """Return whether the descriptor is a terminal."""
        return os.isatty(self._fd)

    def write(self, data: ReadableBuffer) -> int:
        """Write all bytes, or drop the rest after the deadline. Return the number of bytes."""
        view = memoryview(data).cast("B")
        at = 0
        while at < len(view):
            if self._poll.poll(1000 * POLL_INTERVAL_S):
                at += os.write(self._fd, view[at : at + select.PIPE_BUF])  # a pipe with room takes as many at least
            elif time.monotonic() > self.deadline:
                break
        return len(view)
