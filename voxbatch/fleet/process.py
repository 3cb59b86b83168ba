"""One worker process as the fleet holds it: started, given orders, listened to, stopped, and swept up with all that it
started."""

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
from voxbatch.fleet.worker import Failed, Message, Order, Stopped, Word
from voxbatch.pipeline import Progress
from voxbatch.reach import Known

_PROGRAM = "from voxbatch.fleet.worker import main; main()"
"""Not `-m`: see voxbatch.decoder.process."""
_OUTPUT_BLOCK = 1 << 16


class Worker:
    """A worker process, started with an open file that it inherits. `end` it, whatever it came to."""

    def __init__(self, number: int, environment: Mapping[str, str], fd: int):
        self.number = number
        self.name = f"worker {number} ({', '.join(f'{name}={value}' for name, value in environment.items())})"
        self.progress = Progress(0)
        self.notices: list[Notice] = []
        """What its engine had to say, and nobody has passed on yet."""
        self.known = Known()
        """What it has learnt of places."""
        self.word: Word | None = None
        """The last of its present order; None while it is at work."""
        self.reason = ""
        """Why it ended without having done its work, once it has ended."""
        self._line = b""
        self._last_line = ""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno())],
                pass_fds=(theirs.fileno(), fd),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,  # what is said goes through the socket; these are libraries
                env=_environment(environment),
                start_new_session=True,  # Ctrl-C is the fleet's to handle; and a group of its own can be swept up
            )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self.connection = Connection(ours.detach())
        self.output: int | None = self._process.stdout.fileno()
        """What its libraries print comes here; None when that has ended."""

    def give(self, order: Order) -> None:
        self.progress, self.known, self.word = Progress(0), Known(), None
        with contextlib.suppress(OSError):  # it died: the end of its stream says so when it is listened to
            self.connection.send(order)

    def hear(self) -> bool:
        """Take in one message. False when there will be no more: it has ended."""
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
        """Whether it has ended, though what it forked may hold its end of the socket, and there is nothing to hear."""
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return ended and not self.connection.poll()

    def printed(self) -> Iterator[str]:
        """The lines that it, or a library in it, has printed meanwhile."""
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
        """Ask it to commit what is in hand and leave."""
        with contextlib.suppress(OSError):
            self.connection.send(None)

    def kill(self) -> None:
        """With all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> list[str]:
        """Sweep up, find the reason, and give the last lines that it printed. Again, it does nothing."""
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
    """This interpreter's import path, whatever made it, and what makes the worker this one."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry), **extra}
