"""Use a child process of an earlier run that has stayed: the side of the owner; see `vacancy` for the other one."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import tempfile
from pathlib import Path

from voxbatch.errors import ConfigError
from voxbatch.process.child import SOCKET_BUFFER, ChildProcess, readable
from voxbatch.process.vacancy import LEAVE, LEAVING_S, OWN, PATIENCE_S, peer

LONGEST_PATH = 100
"""Bytes of the path of a socket. Linux takes 107."""


def place(name: str) -> Path:
    """Return the path of a socket, in a folder in which no other user can make or replace any.

    Raises:
        ConfigError: there is no such folder.
    """
    folder = _folder()
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    path = folder / f"{name}.sock"
    if not _is_private(folder) or len(os.fsencode(path)) > LONGEST_PATH:
        raise ConfigError(
            f"--keep-engine needs a folder for a socket, and {folder} is no folder of user {os.geteuid()} alone (mode "
            f"0700) with a path of at most {LONGEST_PATH - len(path.name) - 1} bytes: set XDG_RUNTIME_DIR to another "
            "one, or leave --keep-engine out"
        )
    return path


def waiting() -> dict[int, Path]:
    """Return the processes that wait for an owner: number → path of the socket. Remove the sockets of those that were
    killed."""
    pids = dict[int, Path]()
    for path in _folder().glob("*.sock") if _is_private(_folder()) else ():
        with contextlib.suppress(OSError):
            connection, pid = _connect(path)
            connection.close()
            pids[pid] = path
    return pids


def dismiss() -> None:
    """End all processes that wait for an owner, also those that hang, and wait until their memory is free."""
    for path in waiting().values():
        with contextlib.suppress(OSError):
            connection, pid = _connect(path)
            with connection, open(os.pidfd_open(pid), "rb") as end:
                try:
                    connection.sendall(LEAVE)
                    if connection.recv(len(LEAVE)) != LEAVE:
                        continue  # it has an owner now
                except TimeoutError:
                    os.killpg(pid, signal.SIGKILL)
                readable([end.fileno()], LEAVING_S)


class KeptProcess(ChildProcess):
    """A process that stayed when an earlier owner ended. See ChildProcess for its methods.

    Args:
        path: its socket.

    Raises:
        OSError: no process of this user waits there.
    """

    def __init__(self, path: Path):
        owner, self.pid = _connect(path)
        self._end = os.pidfd_open(self.pid)
        lifeline_end, self._lifeline = os.pipe()
        output, output_end = os.pipe()
        try:
            socket.send_fds(owner, [OWN], [lifeline_end, output_end])
            if owner.recv(len(OWN)) != OWN:
                raise ConnectionError(f"process {self.pid} has another owner")
        except OSError:
            for file in (self._end, self._lifeline, output):
                os.close(file)
            owner.close()
            raise
        finally:
            os.close(lifeline_end)
            os.close(output_end)
        owner.settimeout(None)
        self._use(owner, open(output, "rb", buffering=0))  # noqa: SIM115 `release` closes it

    def has_ended(self) -> bool:
        """Return whether the process has ended; see ChildProcess."""
        return bool(readable([self._end], 0))

    def kill(self) -> None:
        """Kill the process and all that it started; see ChildProcess."""
        if not self.has_ended():  # otherwise another process may have its number
            super().kill()

    def _wait(self) -> int | None:
        """Wait for the end of the process, and return None: its exit code reaches only its parent."""
        readable([self._end], LEAVING_S)
        return None

    def release(self) -> None:
        """See ChildProcess."""
        super().release()
        os.close(self._end)


def _folder() -> Path:
    """Return the folder of the sockets, which may not exist."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isdir(runtime):
        return Path(runtime, "voxbatch")
    return Path(tempfile.gettempdir(), f"voxbatch-{os.geteuid()}")


def _is_private(folder: Path) -> bool:
    """Return whether only this user can enter a folder, which is no link to another one."""
    with contextlib.suppress(OSError):
        status = folder.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
    return False


def _connect(path: Path) -> tuple[socket.socket, int]:
    """Return a connection to the process that listens at a socket, and its number.

    Raises:
        OSError: nobody listens, or a process that this one may not use; see vacancy.peer.
    """
    client = socket.socket(socket.AF_UNIX)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)
    client.settimeout(PATIENCE_S)
    try:
        client.connect(os.fspath(path))
        return client, peer(client)
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)  # it was killed
        client.close()
        raise
    except OSError:
        client.close()
        raise
