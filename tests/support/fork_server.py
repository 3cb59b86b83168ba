"""A server process that has imported a program and runs it in forks of itself.

`python -m voxbatch` spends 0.7 to 2 CPU seconds on imports. A fork saves them and is a process all the same: it has its
own environment, folder, standard streams, signals and exit code. At its end, it does not take the modules apart.

`engine_vllm/warm_python.py` has another program, which has imported vLLM.

Each command has a supervisor, which is also a fork: it waits for the command and reports the exit status. The server
itself never waits, so that it runs several commands at a time. The child processes of a command may be forks, too: see
forked_children.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

_PRELOADED = (
    "boto3", "faster_whisper", "google.cloud.pubsub_v1", "google.cloud.storage", "imageio_ffmpeg", "jinja2", "numpy",
    "pygal", "rapidfuzz", "rich.live", "rich.progress", "soundfile", "soxr",
    "urllib3", "voxbatch.cli.session", "voxbatch.engines.faster_whisper", "scripted_engine",
    "voxbatch.analysis.compare", "voxbatch.output.erase", "voxbatch.analysis.score", "voxbatch.analysis.status",
    "voxbatch.output.verify", "voxbatch.report.page", "voxbatch.runner.forecast", "voxbatch.runner.transcribe",
    "voxbatch.runner.validation", "voxbatch.scoring.english", "yaml",
)  # fmt: skip
"""Modules that commands import, besides voxbatch.cli. None of them starts a thread."""
READ_AT_START = (
    "PYTHON",
    "LANG",
    "LC_",
    "LD_",
    "TZ",
    "OMP_",
    "OPENBLAS_",
    "MALLOC_",
    "HF_",
    "XDG_",
    "HOME",
    "GRPC_",
    "TMPDIR",
    "MKL_",
    "KMP_",
    "CT2_",
)
"""Beginnings of the variables that the interpreter or an imported module reads before the command starts. Some
libraries set variables of these names when they are imported: scikit-learn KMP_*, vLLM LD_*."""
_FORKS_CHILDREN = "TEST_FORKS_CHILDREN"
"""Variable of a command whose child processes are forks."""
_SET_CHILD_SUBREAPER = 36
"""Number of the call of prctl by which this process gets the children of ended commands."""
_MESSAGE_BYTES = 1 << 17
_NUMBER_BYTES = 4


class ForkServer:
    """Runs commands in forks of one server process."""

    def __init__(self, environment: Mapping[str, str], program: str = __file__):
        """Start the server process with these variables.

        Args:
            program: file of the server. It imports what the commands need, calls `serve`, and then runs the command
                whose arguments are in sys.argv.
        """
        self._at_start = read_at_start(environment)
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, program, str(theirs.fileno())]
            quiet = subprocess.DEVNULL
            self._process = subprocess.Popen(
                command, pass_fds=(theirs.fileno(),), env=environment, stdin=quiet, stdout=quiet
            )

    def can_run(self, environment: Mapping[str, str]) -> bool:
        """Return whether a command with these variables may run in a fork of this server."""
        return read_at_start(environment) == self._at_start

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], cwd: Path, timeout: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `voxbatch` with these arguments to its end. Its child processes are forks.

        Raises:
            subprocess.TimeoutExpired: the command took longer than `timeout`, and was killed.
        """
        pipe = subprocess.PIPE
        with self.start(arguments, environment, cwd, stdout=pipe, stderr=pipe, forks_children=True) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout)
            finally:
                process.kill()
            return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        stdout: int,
        stderr: int,
        forks_children: bool = False,
    ) -> ForkedProcess:
        """Start `voxbatch` with these arguments, and with one decoder: each takes half a CPU second to start.

        Args:
            forks_children: the child processes are forks, and have no command lines of their own.
        """
        assert self.can_run(environment), "the command needs a process of its own"
        command = ["voxbatch", *arguments]
        variables = {"VOXBATCH_DECODERS": "1", **environment, **({_FORKS_CHILDREN: "1"} if forks_children else {})}
        return ForkedProcess(self._requests, command, env=variables, cwd=cwd, stdout=stdout, stderr=stderr)

    def close(self) -> None:
        """End the server process."""
        self._requests.close()
        self._process.wait()


class ForkedProcess(subprocess.Popen[str]):
    """A command in a fork, with the methods and streams of a started process. Its standard input is empty."""

    def __init__(self, requests: socket.socket, command: list[str], **settings: Any):
        self._requests = requests
        super().__init__(command, stdin=subprocess.DEVNULL, text=True, **settings)

    def _execute_child(self, args: list[str], *settings: Any) -> None:
        """Ask the server for a fork instead of starting a program. The settings are those of Popen's method."""
        _, _, _, _, cwd, env, _, _, _, *pipes = settings[:15]
        stdin, _, _, stdout, _, stderr = pipes
        self._reports, theirs = socket.socketpair()
        with theirs:
            message = json.dumps([args[1:], dict(env), str(cwd)]).encode()
            assert len(message) <= _MESSAGE_BYTES
            socket.send_fds(self._requests, [message], [stdin, stdout, stderr, theirs.fileno()])
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self.pid = _number(self._reports)
        self._child_created = True

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """Do what os.waitpid does."""
        if not select.select([self._reports], [], [], 0 if wait_flags & os.WNOHANG else None)[0]:
            return 0, 0
        with self._reports:
            return self.pid, _number(self._reports)

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


def read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a fork cannot take over from its command."""
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_START)}


def _number(reports: socket.socket) -> int:
    data = reports.recv(_NUMBER_BYTES, socket.MSG_WAITALL)
    assert len(data) == _NUMBER_BYTES, "the fork server has ended"
    return int.from_bytes(data, "big")


def serve() -> None:
    """Fork for each request. Return in the fork that is to run the command, with everything set."""
    gc.freeze()  # keep the garbage collector of the forks from copying the pages of the imported modules
    requests = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects the supervisors, and what commands leave behind
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)
    while True:
        message, files, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES, 4)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            *streams, reports = files
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            pid = os.fork()
            if pid == 0:
                os.close(reports)
                for standard, stream in enumerate(streams):
                    os.dup2(stream, standard)
                    os.close(stream)
                arguments, environment, folder = json.loads(message)
                os.environ.clear()
                os.environ.update(environment)
                os.chdir(folder)
                sys.argv = ["voxbatch", *arguments]
                sys.path[0] = folder
                return
            for stream in (0, 1, 2, *streams):
                os.close(stream)
            os.write(reports, pid.to_bytes(_NUMBER_BYTES, "big"))
            status = os.waitpid(pid, 0)[1]
            with contextlib.suppress(OSError):
                os.write(reports, status.to_bytes(_NUMBER_BYTES, "big"))
            os._exit(0)
        for file in files:
            os.close(file)


def run_to_end(program: Callable[[], object]) -> NoReturn:
    """Run a program and end this process as the interpreter does, but keep the modules: to take them apart takes longer
    than most commands.
    """
    code: object = None
    try:
        program()
    except SystemExit as e:
        code = e.code
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.exit(code)  # type: ignore[arg-type]
    if code is None or isinstance(code, int):
        os._exit(code or 0)
    sys.exit(code)  # type: ignore[arg-type]


def _command() -> None:
    if os.environ.pop(_FORKS_CHILDREN, ""):
        forked_children.fork_template()
    if number := os.environ.pop(killed_at.VARIABLE, ""):
        killed_at.install(int(number))
    if name := os.environ.pop(killed_at.STOPPED_AT, ""):
        killed_at.install_stop(name)
    main()


if __name__ == "__main__":
    import forked_children
    import killed_at

    from voxbatch.cli import cli, main
    from voxbatch.report import page

    list(cli.commands.values())  # imports the module of each command
    for name in (*_PRELOADED, *forked_children.MODULES):
        with contextlib.suppress(ImportError):  # an environment may lack an extra
            importlib.import_module(name)
    for name in ("page", "comparison"):
        page.environment().get_template(f"{name}.html.jinja")  # compiles it
    serve()
    run_to_end(_command)
