"""Tell a limit of this machine from the fault of a recording: a thread or a process that cannot start, memory that
`ulimit -v` refuses, and a file that `ulimit -f` refuses. The samples that processes share are such a file, in memory.

A container or a batch system limits the number of tasks, which are threads and processes together.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from voxbatch.errors import AudioError, RunError

_CGROUPS = Path("/sys/fs/cgroup")
_NO_THREAD = "can't start new thread"
"""Python's message if the system refuses a thread."""
_NO_TASK = os.strerror(errno.EAGAIN)
"""The system's message for a thread or a process, which ffmpeg prints, too."""
MIN_ADDRESS_SPACE = 4 << 30
"""Bytes of address space that each process needs for its threads, its libraries and its own work. With a `ulimit -v`
below, a lack of memory says nothing about the recording."""
_ADVICE = "raise the limit, or start fewer processes with --decoders and --workers"


def raise_open_files() -> None:
    """Let this process, and those that it starts, have as many open files as the system admits: each chunk on its way
    to the process of an engine is one."""
    _, highest = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, highest))


def max_tasks() -> int | None:
    """Return the number of threads and processes that this process's container may have, or None if it has no limit.

    The cgroup of the process and those above it may each have a limit: the lowest counts.
    """
    limits = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", "pids"):  # version 2, and version 1
                continue
            group = _CGROUPS / controllers / path.lstrip("/")
            for folder in (group, *group.parents):
                with contextlib.suppress(OSError, ValueError):  # there is no such file, or it says "max"
                    limits.append(int((folder / "pids.max").read_text()))
    return min(limits, default=None)


def describe_limits() -> str:
    """Return the limits of this process that are set, for messages. Empty if none is."""
    limits = []
    if (tasks := max_tasks()) is not None:
        limits.append(f"pids.max of the container is {tasks:,}")
    tasks_of_user, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if tasks_of_user != resource.RLIM_INFINITY and os.geteuid():  # root has no such limit
        limits.append(f"ulimit -u (processes and threads) is {tasks_of_user:,}")
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        limits.append(f"ulimit -v (KB of address space) is {address_space // 1024:,}")
    file_size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if file_size != resource.RLIM_INFINITY:
        limits.append(f"ulimit -f (KB of a file, and of shared memory) is {file_size // 1024:,}")
    return "; ".join(limits)


def find_limit(error: BaseException) -> str | None:
    """Return why an error is that of a limit, as text for people; None for any other error."""
    message = str(error) if isinstance(error, RuntimeError | AudioError) else ""  # of Python, native code or ffmpeg
    is_task = isinstance(error, BlockingIOError) or message == _NO_THREAD or message.endswith(_NO_TASK)
    is_no_memory = isinstance(error, OSError) and error.errno == errno.ENOMEM
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    is_small = address_space != resource.RLIM_INFINITY and address_space < MIN_ADDRESS_SPACE
    advice = _ADVICE
    if is_task:
        problem = "this machine refuses a further thread or process"
    elif is_no_memory or (isinstance(error, MemoryError) and is_small):
        problem = "this machine refuses further memory"
    elif isinstance(error, OSError) and error.errno == errno.EFBIG:
        problem, advice = "this machine refuses a larger file", "raise the limit: ulimit -f unlimited"
    else:
        return None
    limits = describe_limits()
    return f"{problem} ({str(error) or type(error).__name__}){f': {limits}' if limits else ''}; {advice}"


@contextlib.contextmanager
def limits_are_run_errors() -> Iterator[None]:
    """Raise RunError, with the limit and what to do, for an error that a limit causes inside the context."""
    try:
        yield
    except (OSError, RuntimeError, MemoryError) as e:
        if (problem := find_limit(e)) is None:
            raise
        raise RunError(problem) from e
