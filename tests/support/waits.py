"""Waiting for what other processes and threads do, and the end of processes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable
from typing import Any


class Clock:
    """A clock that a test moves, in place of the module time."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def until(condition: Callable[[], object], seconds: float = 200, process: Any = None) -> None:
    """Wait until the condition is true. Fail after `seconds`, or when the process (a Popen) ends before.

    The limit is long, because it only ends what would never end: a busy machine must not reach it.
    """
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        assert process is None or process.poll() is None or condition(), process.communicate()
        time.sleep(0.01)


def kill_all(processes: Iterable[subprocess.Popen[str]]) -> None:
    """Kill the processes that still run, and wait for all of them."""
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()
