"""The fleet's side of one worker process: start it, send it orders, receive its messages, stop it, and kill it with
all its child processes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection

from voxbatch.engines import Notice
from voxbatch.runner.pipeline import Progress
from voxbatch.runner.workers.worker import Failed, Message, Order, Stopped, Word
from voxbatch.storage.circuit_breaker import Known

_PROGRAM = "from voxbatch.runner.workers.worker import main; main()"
"""Program of the process, started without `-m`; see voxbatch.decoding.process."""
_OUTPUT_BLOCK = 1 << 16


class Worker:
    """A worker process. It inherits the open file `fd`. Call `end` in every case, also if the process died."""

    def __init__(self, number: int, environment: Mapping[str, str], fd: int):
        self.number = number
        self.name = f"worker {number} ({', '.join(f'{name}={value}' for name, value in environment.items())})"
        self.progress = Progress(0)
        self.notices: list[Notice] = []
        """Notices of the worker's engine that were not logged yet."""
        self.known = Known()
        """Knowledge of the worker about places."""
        self.word: Word | None = None
        """Last message of the current order. None while the worker is busy with the order."""
        self.reason = ""
        """Reason why the process ended without finishing its order. Empty before `end`, and if the order is done."""
        self._line = b""
        self._last_line = ""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno())],
                pass_fds=(theirs.fileno(), fd),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,  # messages use the socket; these two carry the output of libraries
                env=_environment(environment),
                start_new_session=True,  # the fleet handles Ctrl-C; and it can kill the whole process group
            )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self.connection = Connection(ours.detach())
        self.output: int | None = self._process.stdout.fileno()
        """Descriptor of the output that the worker's libraries print. None after the end of the output."""

    def give(self, order: Order) -> None:
        """Send an order."""
        self.progress, self.known, self.word = Progress(0), Known(), None
        with contextlib.suppress(OSError):  # the worker died, and `hear` will report that
            self.connection.send(order)

    def hear(self) -> bool:
        """Receive one message. Return False if the connection is closed and no further message can come."""
        try:
            message: Message = self.connection.recv()
        except (EOFError, OSError):
            return False
        if isinstance(message, Progress):
            self.progress = message
        elif isinstance(message, Notice):
            self.notices.append(message)
        elif isinstance(message, Known):
            self.known = message
        else:
            self.word = message
        return True

    def is_gone(self) -> bool:
        """Return whether the process has ended and no message is waiting.

        The connection may still be open then, because a process that the worker forked may hold the worker's end.
        """
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return ended and not self.connection.poll()

    def printed(self) -> Iterator[str]:
        """Yield the lines that the worker or its libraries printed since the last call."""
        while self.output is not None:
            try:
                block = os.read(self.output, _OUTPUT_BLOCK)
            except BlockingIOError:
                return
            if not block:
                self.output = None
            *lines, self._line = (self._line + (block or b"\n")).split(b"\n")
            for line in lines:
                if text := line.decode(errors="replace").rstrip().rpartition("\r")[2]:  # a progress bar's last state
                    self._last_line = text
                    yield text

    def stop(self) -> None:
        """Ask the worker to commit its finished items and to end."""
        with contextlib.suppress(OSError):
            self.connection.send(None)

    def kill(self) -> None:
        """Kill the worker and all processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> list[str]:
        """Kill the worker if it still runs, find the reason of its end, and return the last lines that it printed.

        A second call does nothing and returns [].
        """
        if self.connection.closed:
            return []
        self.kill()
        code = self._process.wait()
        self.connection.close()
        lines = list(self.printed())
        assert self._process.stdout is not None
        self._process.stdout.close()
        self.output = None
        self.reason = self._why(code)
        return lines

    def _why(self, code: int) -> str:
        if isinstance(self.word, Failed):
            return self.word.reason
        if isinstance(self.word, Stopped):
            return "told to stop"
        if self.word is not None:
            return ""
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}: {self._last_line or 'it said nothing'}"


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with this interpreter's import path, whatever set it, and the worker's own
    variables."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry), **extra}
