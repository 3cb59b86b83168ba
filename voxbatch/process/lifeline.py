"""End a process with its parent, or let it stay: a pipe whose other end the parent holds."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal

_tied: list[int] = []
"""The descriptor of the pipe to which this process is tied. Empty if it is tied to none."""


def tie(fd: int) -> None:
    """Let the kernel kill this process and all that it started when the other end of a pipe is closed, also if native
    code holds the interpreter lock then. A kernel that cannot do so leaves it to the closed connection."""
    _tied.append(fd)
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)


def untie() -> None:
    """Let this process stay when its parent ends."""
    while _tied:
        os.close(_tied.pop())
