"""Standard streams that neither keep a process that was told to stop nor end one that works.

A write to a pipe that nobody reads, or to a terminal that was stopped with Ctrl-S, blocks. Python repeats the call
after each signal, so that no signal handler can end it. The streams of this module wait until a write cannot block,
without limit as long as the process may run. After `set_write_deadline`, they drop what nobody takes in time.

Standard error has messages only. If it cannot be written, because its disk is full or its reader has ended, messages
are dropped and the work goes on.
"""

from __future__ import annotations

import contextlib
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
    _DescriptorWriter.deadline = time.monotonic() + seconds


def prepare() -> None:
    """Open the standard streams that this process was started without (`2>&-`), and replace sys.stderr.

    Call this first in a program. Otherwise the next file that is opened, such as an output, gets the descriptor of a
    missing stream, and native code writes its messages into it.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it takes the lowest free descriptor, which is `fd`
            os.set_inheritable(fd, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if fd else "r"))  # noqa: SIM115 it stays open until the end
    sys.stderr = _replacement(sys.stderr, sys.__stderr__, drops_errors=True)


def install() -> None:
    """Replace sys.stdout and sys.stderr, unless other code has replaced them."""
    sys.stdout = _replacement(sys.stdout, sys.__stdout__, drops_errors=False)
    sys.stderr = _replacement(sys.stderr, sys.__stderr__, drops_errors=True)


def text_stream(
    fd: int, encoding: str | None = None, errors: str | None = "replace", drops_errors: bool = True
) -> TextIO:
    """Return a stream of text that writes to a descriptor at once. Closing the stream does not close the descriptor.

    Args:
        drops_errors: drop what cannot be written. Otherwise an OSError is raised.
    """
    return io.TextIOWrapper(_DescriptorWriter(fd, drops_errors), encoding, errors, write_through=True)  # type: ignore[type-var]


def writes_to(stream: TextIO | None, fd: int) -> bool:
    """Return whether a stream writes to a descriptor, and `lead` can change that. It cannot for a file that would close
    its descriptor then."""
    if not isinstance(stream, io.TextIOWrapper):
        return False
    try:
        if stream.fileno() != fd:
            return False
    except (OSError, ValueError):  # it has no descriptor, or is closed
        return False
    raw = _raw(stream)
    return isinstance(raw, _DescriptorWriter) or (isinstance(raw, io.FileIO) and not raw.closefd)


def lead(stream: TextIO, fd: int) -> None:
    """Let a stream for which `writes_to` is true write to another descriptor from now on, with the text in its buffer.

    The object stays the same, because other code may have kept it: `csv.writer(sys.stdout)`, a log handler.
    """
    raw = _raw(stream)
    if isinstance(raw, _DescriptorWriter):
        raw.lead(fd)
    elif isinstance(raw, io.FileIO):
        name = raw.name
        io.FileIO.__init__(raw, fd, "wb", closefd=False)
        raw.name = name
    with contextlib.suppress(OSError):  # the next write raises it again, in the thread that writes
        stream.flush()  # it waits for a thread that writes to the earlier descriptor


def _raw(stream: TextIO) -> object:
    """Return the unbuffered stream below a stream of text."""
    return getattr(stream.buffer, "raw", stream.buffer)


def _replacement(stream: TextIO, original: TextIO | None, drops_errors: bool) -> TextIO:
    if stream is not original or original is None:  # a process may have no standard streams
        return stream
    stream.flush()
    return text_stream(stream.fileno(), stream.encoding, stream.errors, drops_errors)


class _DescriptorWriter(io.RawIOBase):
    """Writes to a descriptor when that does not block."""

    deadline: ClassVar[float] = math.inf
    """time.monotonic() from which no write waits."""

    def __init__(self, fd: int, drops_errors: bool):
        self._drops_errors = drops_errors
        self.lead(fd)

    def lead(self, fd: int) -> None:
        """Write to this descriptor from now on."""
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        self._fd, self._poll = fd, poll

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
        """Write all bytes, or drop the rest after the deadline or an error. Return the number of bytes."""
        view = memoryview(data).cast("B")
        at = 0
        while at < len(view):
            if self._poll.poll(1000 * POLL_INTERVAL_S):
                try:
                    at += os.write(self._fd, view[at : at + select.PIPE_BUF])  # a pipe with room takes as many at least
                except OSError:
                    if not self._drops_errors:
                        raise
                    break
            elif time.monotonic() > self.deadline:
                break
        return len(view)
