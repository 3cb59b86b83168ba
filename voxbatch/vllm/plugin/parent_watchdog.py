"""Kill each process that vLLM starts as soon as its parent ends, however the parent ends.

vLLM's engine process waits for its parent without a limit, and its workers wait for the engine; both would keep the
GPU. A thread in these processes cannot end them reliably: it does not run before vLLM is imported, which takes many
seconds, nor while native code holds the GIL. The kernel's parent-death signal (PR_SET_PDEATHSIG) needs neither. It has
one catch: the kernel sends it when the *thread* that started the process ends.

multiprocessing runs the parent's main module first in each process that it spawns. `kills_children` puts this module in
that place. It is then the main module of vLLM's engine process, and so of the workers as well. The processes that vLLM
starts in another way, to inspect a model's class, are reached by `DieWithParent`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import logging
import os
import signal
import sys
from collections.abc import Iterator

PARENT = "VOXBATCH_VLLM_PARENT"
"""The environment variable that holds the process id of the parent."""
_NAME = "voxbatch.vllm.plugin.parent_watchdog"
_SPAWNED = "__mp_main__"
"""multiprocessing's name for the main module of a process that it has spawned."""
_PR_SET_PDEATHSIG = 1
"""linux/prctl.h."""


@contextlib.contextmanager
def kills_children() -> Iterator[None]:
    """Return a context in which each process that multiprocessing spawns is killed when the thread that started it
    ends. The same holds for the processes that these spawn."""
    main = sys.modules["__main__"]
    spec, main.__spec__ = main.__spec__, importlib.util.find_spec(_NAME)
    os.environ[PARENT] = str(os.getpid())
    try:
        yield
    finally:
        main.__spec__ = spec
        del os.environ[PARENT]


class DieWithParent(logging.NullHandler):
    """A log handler that logs nothing: vLLM's logging configuration names it, so that each process that imports vLLM
    makes one. It asks for the parent-death signal, unless the process has done so or is the first parent itself."""

    def __init__(self) -> None:
        super().__init__()
        if os.environ.get(PARENT, str(os.getpid())) != str(os.getpid()):
            die_with_parent()


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, which PARENT names. This process is then the PARENT."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ[PARENT]):  # the parent ended before this process asked for the signal
        signal.raise_signal(signal.SIGKILL)
    os.environ[PARENT] = str(os.getpid())


if __name__ == _SPAWNED:
    die_with_parent()
