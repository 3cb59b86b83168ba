"""Kill each process that vLLM starts as soon as its parent ends, however either of them ended.

vLLM's engine process waits for its parent for ever, and its workers for the engine; both would keep the GPU. A thread
in these processes cannot see to that: it does not run before vLLM is imported, which takes many seconds, nor while
native code holds the GIL. The kernel's parent-death signal (PR_SET_PDEATHSIG) needs neither. It has one catch: it comes
when the *thread* that started the process ends.

multiprocessing runs the parent's main module first of all in each process that it spawns. `kills_children` puts this
module in that place, and as it then is the main module of vLLM's engine process, it is that of the workers as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator

PARENT = "VOXBATCH_VLLM_PARENT"
"""The environment variable that tells a process which one has started it."""
_NAME = "voxbatch.vllm_plugin.parent"
_SPAWNED = "__mp_main__"
"""multiprocessing's name for the main module of a process that it has spawned."""
_PR_SET_PDEATHSIG = 1
"""linux/prctl.h."""


@contextlib.contextmanager
def kills_children() -> Iterator[None]:
    """Processes that multiprocessing spawns within this context are killed when the thread that started them ends, and
    so are those that they spawn."""
    main = sys.modules["__main__"]
    spec, main.__spec__ = main.__spec__, importlib.util.find_spec(_NAME)
    os.environ[PARENT] = str(os.getpid())
    try:
        yield
    finally:
        main.__spec__ = spec
        del os.environ[PARENT]


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(os.environ[PARENT]):  # it ended before the signal was asked for
        os._exit(1)
    os.environ[PARENT] = str(os.getpid())


if __name__ == _SPAWNED:
    _die_with_parent()
