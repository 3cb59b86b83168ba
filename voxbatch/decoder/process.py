"""One worker process, seen from the pool: started, given tasks, listened to, killed."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections import deque
from dataclasses import replace
from multiprocessing.connection import Connection

import numpy as np

from voxbatch.decoder.messages import Message, Task
from voxbatch.records import Chunk
from voxbatch.storage import Access

TASKS_AHEAD = 12
"""Tasks that a worker holds, so that it never waits for its next short recording: one in hand, so many that are being
fetched (ahead.STREAMS), and some that have come out of order."""
HANG_TIMEOUT_S = 120.0
"""A worker that has said nothing for this long while it was listened to is killed; twice ffmpeg's own time limit."""
_SOCKET_BUFFER = 4 << 20
_PROGRAM = "from voxbatch.decoder.worker import main; main()"
"""Not `-m`: that would make this module __main__, and what it pickles another module's."""


class Worker:
    def __init__(self, access: Access) -> None:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
        self.access = access
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # libraries complain of damaged files there; what counts comes as a message
                env=_environment(),
                start_new_session=True,  # Ctrl-C is the parent's to handle
            )
        self.connection = Connection(ours.detach())
        self.tasks: deque[Task] = deque()
        self.greeted = False
        """Whether it has said that it is there; one that dies before could not be started, and no task is to blame."""
        self._heard = time.monotonic()
        with contextlib.suppress(OSError):  # see `give`
            self.connection.send(access)

    def has_room(self) -> bool:
        return len(self.tasks) < TASKS_AHEAD

    def give(self, task: Task) -> None:
        if not self.tasks:
            self._heard = time.monotonic()
        self.tasks.append(task)
        with contextlib.suppress(OSError):  # it died: the end of its stream says so when it is listened to
            self.connection.send(task)

    def receive(self) -> Message | None:
        message: Message | None = self.connection.recv()
        if message is None:
            self.greeted = True
        elif isinstance(message, Chunk):
            message = replace(message, samples=np.frombuffer(self.connection.recv_bytes(), np.float32))
        else:
            self.tasks.popleft()
        self._heard = time.monotonic()
        return message

    def hangs(self) -> bool:
        """Long silent, and not because nobody took what it has to say."""
        return time.monotonic() - self._heard > HANG_TIMEOUT_S and not self.connection.poll()

    def epitaph(self) -> str:
        code = self._process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.connection.close()


class Spares:
    """Workers that idle from one pool's end to the next one's start, and spare it the second that starting takes."""

    def __init__(self) -> None:
        self.are_kept = False
        """Set it where runs follow each other in one process."""
        self._idle: list[Worker] = []

    def hire(self, access: Access) -> Worker:
        """One that has nothing to do. It may have died meanwhile."""
        fitting = next((worker for worker in self._idle if worker.access == access), None)
        if fitting is None:
            return Worker(access)
        self._idle.remove(fitting)
        return fitting

    def dismiss(self, worker: Worker) -> None:
        if self.are_kept and not worker.tasks:
            self._idle.append(worker)
        else:
            worker.kill()

    def close(self) -> None:
        self.are_kept = False
        while self._idle:
            self._idle.pop().kill()


spares = Spares()
"""Of this process."""


def _environment() -> dict[str, str]:
    """This interpreter's import path, whatever made it; and one thread: there is a worker a core."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path}
