"""Send the standard streams of a thread, and of the processes that it starts, to a file."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from voxbatch.log import STDERR_LOCK
from voxbatch.process.streams import lead, writes_to


@contextlib.contextmanager
def outputs_to(path: Path) -> Iterator[None]:
    """Send standard output and error to a file within this context: those of processes that start within it, of native
    code here, and of Python code in this thread.

    What other threads print still reaches the user, also through an object that kept a stream, and what they printed
    before and is still in a buffer.
    """
    with path.open("a", buffering=1) as log, _output_to(log, 1, "stdout"), _output_to(log, 2, "stderr"):
        yield


@contextlib.contextmanager
def _output_to(log: TextIO, fd: int, name: str) -> Iterator[None]:
    """Send one standard stream to a file; see `outputs_to`.

    Args:
        log: the file.
        fd: descriptor of the stream.
        name: name of the stream in `sys`.
    """
    usual, user = getattr(sys, name), os.dup(fd)
    streams = [stream for stream in (usual, getattr(sys, f"__{name}__")) if writes_to(stream, fd)]
    split = _SplitByThread(log, usual)
    for stream in streams:
        lead(stream, user)
    with STDERR_LOCK:
        os.dup2(log.fileno(), fd)
        setattr(sys, name, split)
    try:
        yield
    finally:
        with STDERR_LOCK:
            os.dup2(user, fd)
            if getattr(sys, name) is split:  # otherwise another thread has replaced it meanwhile
                setattr(sys, name, usual)
            split.release()
        for stream in streams:
            lead(stream, fd)
        with STDERR_LOCK:  # no thread is writing a line to it
            os.close(user)


class _SplitByThread:
    """A standard stream that writes the text of this thread to a file and the text of all other threads to the usual
    stream, whose other attributes it has."""

    def __init__(self, of_this_thread: TextIO, usual: TextIO | None):
        self._thread, self._of_this_thread, self._usual = threading.get_ident(), of_this_thread, usual

    def write(self, text: str) -> int:
        stream = self._of_this_thread if threading.get_ident() == self._thread else self._usual
        return len(text) if stream is None else stream.write(text)  # a program may have no standard streams

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if self._usual is not None:
            self._usual.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._usual, name)

    def release(self) -> None:
        """Write everything to the usual stream from now on: a library's log handler may have kept this object."""
        self._thread = 0
