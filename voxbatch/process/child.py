"""Start this interpreter in a child process, exchange messages with it, and end it with all processes that it starts.

The parent holds a ChildProcess. The child runs the function `main` of a module, with the connection to the parent as
its argument. The module knows nothing of what the messages say.

`for_voxbatch` and `for_program` choose the variables that child processes get, so that a secret reaches no process
without a use for it.

| process | variables |
|---|---|
| worker, and the process of an engine | all: they read the model, the recordings and OUT |
| decoder | settings of Python, voxbatch, the network and the stores; credentials unless requests are anonymous |
| counter of errors | the same without credentials |
| ffmpeg | those that any program may need |

A decoder gets the variables of a list and no others, because no list of names can hold all secrets (DATABASE_URL, JWT).
This keeps secrets out of core dumps and logs of code that parses untrusted files. It is no sandbox: see `confinement`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from types import FrameType, MappingProxyType
from typing import IO

from voxbatch.process import lifeline

_PROGRAM = """
import sys
from voxbatch.process.child import run_main
run_main("{module}", int(sys.argv[1]), {lifeline})
"""
"""Program of a child. `python -m` is not used: it would run the module as `__main__`, and pickled messages would name
the classes of another module."""
ONE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""Variable with which NumPy multiplies matrices in the calling thread. All cores have work of their own, and OpenBLAS's
other threads only wait for one, in loops: 17 % of the CPU time of 60 short clips."""
SOCKET_BUFFER = 4 << 20
"""Bytes of messages that one side can send before the other side reads them."""
_OUTPUT_BLOCK = 1 << 16
_POLL_S = 0.01
STOP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})
"""Signals that ask a process to stop. Some service managers send them to all processes of a run."""


def readable(files: Iterable[int], timeout_s: float) -> set[int]:
    """Wait until a file can be read, or its other end is closed. Return all such files; none if the time is over.

    multiprocessing's `wait` makes a selector and an object for each file in every call, which takes ten times as long.
    """
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    return {file for file, _ in poll.poll(timeout_s * 1000)}


def run_main(module: str, connection_fd: int, lifeline_fd: int | None) -> None:
    """Run the function `main` of a module in this child process."""
    threading.excepthook = _end_process
    if lifeline_fd is not None:
        lifeline.tie(lifeline_fd)
    importlib.import_module(module).main(Connection(connection_fd))


def _end_process(error: threading.ExceptHookArgs) -> None:
    """End this process because of an exception in a thread. Without that thread, the others may wait for ever."""
    threading.__excepthook__(error)
    sys.stderr.flush()
    os._exit(1)


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
        environment: Mapping[str, str] = MappingProxyType({}),
        files: Sequence[int] = (),
        captures_output: bool = False,
        inherited: Mapping[str, str] | None = None,
        dies_with_parent: bool = False,
    ):
        """Start the process.

        Args:
            module: full name of the module.
            environment: variables that the child has in addition to `inherited`.
            files: open files that the child inherits under the same descriptors.
            captures_output: `printed` yields what the child and its libraries print. Otherwise it is discarded.
            inherited: variables of this process that the child gets; None means all. See `for_voxbatch`.
            dies_with_parent: the kernel kills the child as soon as this process has ended, whatever the child does.
        """
        parent_end, child_end = socket.socketpair()
        for end in (parent_end, child_end):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)
        self._lifeline: int | None = None
        lifeline_end: int | None = None
        if dies_with_parent:
            lifeline_end, self._lifeline = os.pipe()
        inherited = os.environ if inherited is None else inherited
        # the import path of this interpreter, however it was set
        import_path = os.pathsep.join(entry for entry in sys.path if entry)
        program = _PROGRAM.format(module=module, lifeline=lifeline_end)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # the child inherits this thread's mask
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", program, str(child_end.fileno())],
                pass_fds=(child_end.fileno(), *([] if lifeline_end is None else [lifeline_end]), *files),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if captures_output else subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
                env={**inherited, "PYTHONPATH": import_path, **ONE_BLAS_THREAD, **environment},
                start_new_session=True,
            )
        except OSError:  # a limit of processes
            parent_end.close()
            if self._lifeline is not None:
                os.close(self._lifeline)
            raise
        finally:
            child_end.close()
            if lifeline_end is not None:
                os.close(lifeline_end)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self.pid = self._process.pid
        """Number of the process, and of its session."""
        self._use(parent_end, self._process.stdout)

    def _use(self, parent_end: socket.socket, output: IO[bytes] | None) -> None:
        """Exchange messages through a socket, and read an output."""
        self.connection = Connection(parent_end.detach())
        self._output = output
        self.output: int | None = None
        """Descriptor of the child's output. None if it is not captured, and after its end."""
        if output is not None:
            self.output = output.fileno()
            os.set_blocking(self.output, False)
        self._line = b""
        self._last_line = ""
        self.exit_reason = ""
        """Exit code or signal of the process, for messages. Empty before `end`."""
        self.exit_code: int | None = None
        """Exit code of the process, or the negative number of its signal. None before `end`."""
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
        code = self.exit_code = self._wait()
        lines = list(self.printed())
        self.release()
        self.was_killed = code is not None and code < 0
        if code is not None and code < 0:
            self.exit_reason = f"killed by signal {-code}"
        else:
            self.exit_reason = f"exit code {code}" + (f": {self._last_line}" if self._last_line else "")
        return lines

    def _wait(self) -> int | None:
        """Wait for the end of the process, and return its exit code."""
        return self._process.wait()

    def release(self) -> None:
        """Close what this process has of the child. Call it in place of `end` for a child that stays."""
        self.connection.close()
        if self._lifeline is not None:
            os.close(self._lifeline)
        if self._output is not None:
            self._output.close()
            self.output = None


_SECRET = re.compile(
    r"SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|(^|_)(TOKENS?|KEYS?|APIKEY|PAT|AUTH|AUTHORIZATION)(_|$)"
)
"""Names of variables that hold secrets, among those of the stores and of voxbatch: AWS_SECRET_ACCESS_KEY, …"""
_STORES = ("AWS_", "GOOGLE_", "CLOUDSDK_", "HF_")
"""Prefixes of the variables from which the clients of Cloud Storage, S3 and the hub take credentials."""
_ANY_PROGRAM = re.compile(r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TZ|TMPDIR|LD_LIBRARY_PATH|LD_PRELOAD")
"""Names of variables that a program may need to start. ffmpeg takes all settings from its arguments."""
_PYTHON_PROCESS = re.compile(
    rf"{_ANY_PROGRAM.pattern}|(AWS|BOTO|CLOUDSDK|GCE|GOOGLE|HF|MALLOC|OMP|PYTHON|SSL_CERT|VOXBATCH)\w+|\w+_PROXY"
    r"|(CURL|REQUESTS)_CA_BUNDLE|NO_GCE_CHECK|STORAGE_EMULATOR_HOST",
    re.IGNORECASE,
)
"""Names of variables that a process of voxbatch may need: those above, and the settings of Python, its libraries, the
network and the stores. Names of proxies may be in lower case."""


def for_voxbatch(environ: Mapping[str, str], keeps_stores: bool = False) -> dict[str, str]:
    """Return the variables that a process of voxbatch may need, without those that hold secrets.

    Args:
        keeps_stores: keep the credentials of Cloud Storage, S3 and the Hugging Face hub.
    """
    return {
        name: value
        for name, value in environ.items()
        if _PYTHON_PROCESS.fullmatch(name)
        and (not _SECRET.search(name.upper()) or (keeps_stores and name.startswith(_STORES)))
    }


def for_program(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a program such as ffmpeg may need, and no others."""
    return {name: value for name, value in environ.items() if _ANY_PROGRAM.fullmatch(name)}
