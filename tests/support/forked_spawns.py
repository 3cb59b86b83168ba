"""Let multiprocessing fork where a program asks for a spawned process, which would import everything again.

The forks are made by a process that has one thread. A fork of the program itself, whose other threads may hold locks
at that moment, can wait for such a lock for ever.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import signal
import socket
from multiprocessing import connection, forkserver, reduction, spawn
from typing import Any

_FACTS = "log_to_stderr", "authkey", "name", "sys_path", "sys_argv", "dir", "orig_dir"
"""Facts that a fork sets first. It runs no main module: voxbatch's looks for the parent that spawned it."""
_PR_SET_PDEATHSIG = 1
"""linux/prctl.h."""
_WATCHED = "VOXBATCH_VLLM_PARENT"
"""Variable with the parent's process id: see voxbatch.vllm.plugin.parent_watchdog."""


def fork_in_place_of_spawning() -> None:
    """Call this while the program has one thread and has imported what its processes need."""
    _start_server()
    contexts, forks = multiprocessing.get_context, multiprocessing.get_context("forkserver")
    multiprocessing.get_context = lambda method=None: forks if method == "spawn" else contexts(method)  # type: ignore[assignment]
    facts = spawn.get_preparation_data
    spawn.get_preparation_data = lambda name: {
        **{fact: value for fact, value in facts(name).items() if fact in _FACTS}, "inherited": _Inherited()
    }  # fmt: skip


def _start_server() -> None:
    """Fork the process that multiprocessing's method "forkserver" would start as a new interpreter."""
    server: Any = forkserver._forkserver
    server._forkserver_address = connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
    alive, server._forkserver_alive_fd = os.pipe()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(server._forkserver_address)
        listener.listen()
        server._forkserver_pid = os.fork()
        if server._forkserver_pid == 0:
            # the forks hold the pipe, too, by which this process would see the end of the program
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            os.close(server._forkserver_alive_fd)
            null = os.open(os.devnull, os.O_WRONLY)  # who reads the program's output need not wait for this process
            os.dup2(null, 1)
            os.dup2(null, 2)
            try:
                forkserver.main(listener.detach(), alive, ())
            finally:
                os._exit(0)
    os.close(alive)


class _Inherited:
    """Variables and outputs, which a spawned process has of its parent and a fork of the server has not. A fork takes
    them over by unpickling."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _inherit, (dict(os.environ), reduction.DupFd(1), reduction.DupFd(2))


def _inherit(environment: dict[str, str], *outputs: Any) -> None:
    """Take over the variables, standard output and standard error, and log where the variables tell vLLM to."""
    os.environ.clear()
    os.environ.update(environment)
    for standard, output in enumerate(outputs, 1):
        os.dup2(output.detach(), standard)
    if _WATCHED in environment:
        os.environ[_WATCHED] = str(os.getppid())
    if "VLLM_LOGGING_CONFIG_PATH" in environment:
        importlib.import_module("vllm.logger")._configure_vllm_root_logger()
