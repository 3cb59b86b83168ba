"""Let a child process stay when its parent ends, and wait for the next owner: the side of the child; see `kept`.

A child that stays listens at a Unix socket in a folder that only its user can enter. It takes one owner at a time, with
the messages that it took from its parent, and is then killed with it as a child is. Between two owners it ends by
itself: after its time, when the program that started its owner ends (a shell at log-out), when its socket is gone
(systemd deletes the folder at log-out), or when others need memory, of the machine or of the GPU.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from voxbatch.process import lifeline
from voxbatch.process.child import SOCKET_BUFFER, readable
from voxbatch.process.confinement import restrictions

PATIENCE_S = 5.0
"""Seconds within which both sides of a socket answer."""
LEAVING_S = 10
"""Seconds within which a process that has to end has ended, and its memory is free."""
LOOK_S = 0.5
"""Seconds between two looks at the reasons to end."""
LEAST_FREE = 0.1
"""Share of the machine's memory below which a process that nobody uses ends."""
MORE_GPU_BYTES = 256 << 20
"""Bytes by which the memory in use on the GPU grows when another program needs it: its context alone takes more."""
OWN, LEAVE = b"own", b"end"
"""The wishes of a process that has connected: to become the owner, or that the other one ends."""


@dataclass(frozen=True, slots=True)
class Stay:
    """The message with which an owner lets a process stay."""

    path: Path
    """The socket at which it waits."""
    seconds: float
    """Longest time that it waits for the next owner."""
    starter: int | None
    """Number of the process that started the owner, with whose end it ends. None if it is unknown."""


def peer(connected: socket.socket) -> int:
    """Return the number of the process at the other end.

    Raises:
        PermissionError: it is of another user, or under restrictions of its own. Both sides run what they get from the
            other one, and a decoder that a recording has taken over must reach neither.
    """
    pid, user, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.geteuid() or restrictions(pid) != restrictions(os.getpid()):
        raise PermissionError(f"process {pid} of user {user} may not use an engine of user {os.geteuid()}")
    return int(pid)


class Vacancy:
    """The time without an owner, which begins when the object is made. The process no longer ends with its owner then.

    Raises:
        OSError: the socket cannot be made.
    """

    def __init__(self, stay: Stay):
        self._path, self._until = stay.path, time.monotonic() + stay.seconds
        self._starter = None if stay.starter is None else os.pidfd_open(stay.starter)
        self._listener = socket.socket(socket.AF_UNIX)
        own = stay.path.with_suffix(f".{os.getpid()}")
        own.unlink(missing_ok=True)  # of an earlier process with this number
        self._listener.bind(os.fspath(own))
        own.chmod(0o600)
        self._inode = own.lstat().st_ino
        self._listener.listen()
        own.replace(stay.path)  # an engine with this name, which is there already, loses it and ends
        signal.alarm(int(stay.seconds) + 2 * LEAVING_S)  # the kernel ends a process that hangs
        lifeline.untie()
        _print_to(os.open(os.devnull, os.O_RDWR))

    def next_owner(self, gpu_bytes: Callable[[], int | None]) -> Connection | None:
        """Wait for the next owner, and return the connection to it. None means that this process has to end.

        Args:
            gpu_bytes: see `Engine.gpu_bytes`.
        """
        wish, owner, most = b"", None, (gpu_bytes() or 0) + MORE_GPU_BYTES
        while wish == b"" and self._is_due() and (gpu_bytes() or 0) <= most:
            if readable([self._listener.fileno()], LOOK_S):
                owner, _ = self._listener.accept()
                wish = _wish(owner)
        with contextlib.suppress(OSError):
            if self._path.lstat().st_ino == self._inode:
                self._path.unlink()
        self._listener.close()
        if self._starter is not None:
            os.close(self._starter)
        if wish != OWN or owner is None:
            return None
        signal.alarm(0)
        return Connection(owner.detach())

    def _is_due(self) -> bool:
        """Return whether this process may go on waiting."""
        if time.monotonic() > self._until or _free_share() < LEAST_FREE:
            return False
        if self._starter is not None and readable([self._starter], 0):
            return False
        with contextlib.suppress(OSError):
            return self._path.lstat().st_ino == self._inode
        return False


def _wish(owner: socket.socket) -> bytes:
    """Return what a process asks for that has connected, and tie this process to it if it becomes the owner. Return
    b"" for one that asks for nothing, and close the connection."""
    wish = b""
    owner.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)
    owner.settimeout(PATIENCE_S)
    with contextlib.suppress(OSError):  # the other process has ended, or is none that may ask
        peer(owner)
        asked, files, _, _ = socket.recv_fds(owner, len(OWN), 2)
        if (asked, len(files)) == (OWN, 2):
            lifeline.tie(files[0])
            _print_to(files.pop())
        elif asked != LEAVE:
            asked = b""
        wish = asked
        owner.sendall(wish)
        owner.settimeout(None)
    if not wish:
        owner.close()
    return wish


def _print_to(fd: int) -> None:
    """Let this process print to a descriptor from now on, and close the descriptor itself."""
    for stream in (1, 2):
        os.dup2(fd, stream)
    os.close(fd)


def _free_share() -> float:
    """Return the share of the machine's memory that programs can still have."""
    with open("/proc/meminfo", encoding="ascii") as file:
        sizes = {name: int(value.split()[0]) for name, value in (line.split(":") for line in file)}
    return sizes["MemAvailable"] / sizes["MemTotal"]
