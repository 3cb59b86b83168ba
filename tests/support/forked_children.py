"""Child processes of a command that are forks of a template instead of new interpreters.

A ChildProcess of voxbatch, such as a decoder, a worker or an engine, spends half a CPU second or more on imports. Here
the command forks a template before it starts a thread or opens a file, and the children are forks of the template. So
a child has its own session, environment, files and signals, and nothing of its command: neither a client's connection
nor a lock that another thread holds. /proc/PID/comm has the last name of its module.

The parent of a fork must be the command, which waits for it. The template therefore forks twice, and ends the process
between: the kernel gives its child to the nearest ancestor that takes such children (PR_SET_CHILD_SUBREAPER).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any, NoReturn

from voxbatch.process import child
from voxbatch.process.child import STOP_SIGNALS

MODULES = (
    "voxbatch.audio.waveforms", "voxbatch.decoding.decoder", "voxbatch.engines.engine_process",
    "voxbatch.engines.engine_program", "voxbatch.runner.long_texts", "voxbatch.runner.workers.worker",
)  # fmt: skip
"""Modules that the children run or import, besides those of commands."""
_SET_CHILD_SUBREAPER = 36
_MESSAGE_BYTES = 1 << 17
_NUMBER_BYTES = 4
_FREE_DESCRIPTOR = 500
"""Number above those of all files that a child inherits."""


class ForkedChild(subprocess.Popen[bytes]):
    """A child process with the methods of a started one."""

    def __init__(self, template: socket.socket, lock: threading.Lock, *arguments: Any, **settings: Any):
        self._template, self._lock = template, lock
        super().__init__(*arguments, **settings)

    def _execute_child(self, args: list[str], *settings: Any) -> None:
        """Ask the template for a fork instead of starting a program. The settings are those of Popen's method."""
        _, _, _, pass_fds, _, env, _, _, _, *pipes = settings[:15]
        stdin, _, _, stdout, _, stderr = pipes
        message = json.dumps([args[-2], args[-1], dict(env), pass_fds]).encode()
        with self._lock:
            socket.send_fds(self._template, [message], [stdin, stdout, stderr, *pass_fds])
            self.pid = int.from_bytes(self._template.recv(_NUMBER_BYTES), "big")
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        if not self.pid:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self._child_created = True


def fork_template() -> None:
    """Fork the template of this process, which must have one thread, and let its children be forks of the template.

    Return here, and in each child, whose program is then run to its end.
    """
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)
    requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        requests.close()
        _serve(theirs)
    theirs.close()
    streams = {name: getattr(subprocess, name) for name in ("DEVNULL", "PIPE", "STDOUT")}
    popen = functools.partial(ForkedChild, requests, threading.Lock())
    child.subprocess = SimpleNamespace(Popen=popen, **streams)  # type: ignore[assignment,attr-defined]


def _serve(requests: socket.socket) -> NoReturn:
    """Fork for each request until the command has ended. A child runs its program, and exits as an interpreter does."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    while True:
        message, files, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES, 32)
        if not message:
            os._exit(0)
        reader, writer = os.pipe()
        between = os.fork()
        if between == 0:
            if os.fork():
                os._exit(0)
            os.setsid()
            pid = os.getpid()
            os.write(writer, pid.to_bytes(_NUMBER_BYTES, "big"))  # after setsid, because its group may be killed
            program, connection, environment, numbers = json.loads(message)
            _place_files(files, [0, 1, 2, *numbers])
            _run(program, connection, environment)
        os.close(writer)
        number = os.read(reader, _NUMBER_BYTES)
        os.waitpid(between, 0)
        requests.send(number or bytes(_NUMBER_BYTES))
        for file in (reader, *files):
            os.close(file)


def _place_files(files: list[int], numbers: list[int]) -> None:
    """Give the received files the numbers that they have in the command, and close all others."""
    copies = [fcntl.fcntl(file, fcntl.F_DUPFD, _FREE_DESCRIPTOR) for file in files]
    os.closerange(0, _FREE_DESCRIPTOR)
    for copy, number in zip(copies, numbers, strict=True):
        os.dup2(copy, number)
        os.close(copy)


def _run(program: str, connection: str, environment: dict[str, str]) -> NoReturn:
    os.environ.clear()
    os.environ.update(environment)
    (module,) = re.findall(r'run_main\("(\S+)"', program)
    with open("/proc/self/comm", "w") as name:
        name.write(module.rpartition(".")[2])
    sys.argv = ["-c", connection]
    if module.endswith(".worker"):
        fork_template()
    exec(program, {"__name__": "__main__"})
    sys.exit()
