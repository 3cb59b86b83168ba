"""Start this interpreter in a child process, exchange messages with it, and end it with all processes that it starts.

The parent holds a ChildProcess. The child runs the function `main` of a module, with the connection to the parent as
its argument. The module knows nothing of what the messages say.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from types import FrameType

_PROGRAM = """
import sys
from multiprocessing.connection import Connection
from {module} import main
main(Connection(int(sys.argv[1])))
"""
"""Program of a child. `python -m` is not used: it would run the module as `__main__`, and pickled messages would name
the classes of another module."""
_SOCKET_BUFFER = 4 << 20
"""Bytes of messages that one side can send before the other side reads them."""
_OUTPUT_BLOCK = 1 << 16
_POLL_S = 0.01
STOP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})
"""Signals that ask a process to stop. Some service managers send them to all processes of a run."""


def handle_stop_signals(handler: Callable[[int, FrameType | None], object]) -> None:
    """Handle the stop signals of this child process from now on, with those that were sent while the process started.

    Call this in the main thread, before other threads are started.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


class ChildProcess:
    """Child process that runs `main(connection)` of a module.

    It has a session of its own. Ctrl-C therefore reaches only the parent, which handles it, and `kill` reaches all
    processes that the child started. The child must end when the other end of its connection is closed. It starts with
    the stop signals blocked, so that a signal to all processes does not end it before `main` handles them: see
    handle_stop_signals.
    """

    def __init__(
        self,
        module: str,
        environment: Mapping[str, str],
        files: Sequence[int] = (),
        captures_output: bool = False,
        inherited: Mapping[str, str] | None = None,
    ):
        """Start the process.

        Args:
            module: full name of the module.
            environment: variables that the child has in addition to `inherited`.
            files: open files that the child inherits under the same descriptors.
            captures_output: `printed` yields what the child and its libraries print. Otherwise it is discarded.
            inherited: variables of this process that the child gets; None means all. See child_environment.
        """
        parent_end, child_end = socket.socketpair()
        for end in (parent_end, child_end):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
        inherited = os.environ if inherited is None else inherited
        # the import path of this interpreter, however it was set
        import_path = os.pathsep.join(entry for entry in sys.path if entry)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # the child inherits this thread's mask
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM.format(module=module), str(child_end.fileno())],
                pass_fds=(child_end.fileno(), *files),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if captures_output else subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
                env={**inherited, "PYTHONPATH": import_path, **environment},
                start_new_session=True,
            )
        finally:
            child_end.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self.pid = self._process.pid
        """Number of the process, and of its session."""
        self.connection = Connection(parent_end.detach())
        self.output: int | None = None
        """Descriptor of the child's output. None if it is not captured, and after its end."""
        if self._process.stdout is not None:
            self.output = self._process.stdout.fileno()
            os.set_blocking(self.output, False)
        self._line = b""
        self._last_line = ""
        self.exit_reason = ""
        """Exit code or signal of the process, for messages. Empty before `end`."""
        self.was_killed = False
        """True after `end` if a signal ended the process."""

    def send(self, message: object) -> None:
        """Send a message. A child that has ended is no error here: the next read of `connection` reports it."""
        with contextlib.suppress(OSError):
            self.connection.send(message)

    def has_ended(self) -> bool:
        """Return whether the process has ended. Messages of it may still be waiting."""
        try:  # WNOWAIT leaves a zombie, so that no other process group gets the number of this one before `end`
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # other code of this process has waited for it
            return True

    def is_gone(self) -> bool:
        """Return whether the process has ended and no message is waiting.

        The connection may still be open then, because a process that the child forked may hold the child's end.
        """
        return self.has_ended() and not self.connection.poll()

    def printed(self) -> Iterator[str]:
        """Yield the lines that were printed since the last call."""
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

    def kill(self) -> None:
        """Kill the process and all processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def end(self, patience_s: float = 0.0) -> list[str]:
        """Kill the process and all processes that it started, set `exit_reason`, and return the last printed lines.

        Call this in every case, also if the process has ended. A second call does nothing and returns [].

        Args:
            patience_s: seconds in which the process may end by itself.
        """
        if self.connection.closed:
            return []
        limit = time.monotonic() + patience_s
        while not self.has_ended() and time.monotonic() < limit:
            time.sleep(_POLL_S)
        self.kill()
        code = self._process.wait()
        self.connection.close()
        lines = list(self.printed())
        if self._process.stdout is not None:
            self._process.stdout.close()
            self.output = None
        self.was_killed = code < 0
        if self.was_killed:
            self.exit_reason = f"killed by signal {-code}"
        else:
            self.exit_reason = f"exit code {code}" + (f": {self._last_line}" if self._last_line else "")
        return lines
