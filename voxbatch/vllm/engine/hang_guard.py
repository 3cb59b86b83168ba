"""Kill an engine that gives no output."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from voxbatch.process.hang_detector import SilenceClock, is_stopped

HANG_S = 600.0
"""Seconds without any output, by a SilenceClock, after which the engine counts as dead. A first step may compile
kernels for minutes."""
LOOK_S = 1.0
"""Seconds between two looks at whether the engine is alive."""


class HangGuard:
    """A context for waiting on an output. It kills the engine if no output comes for HANG_S. If the engine's process
    ends, it ends the wait by `wake`, because vLLM would wait without a limit."""

    def __init__(self, processes: list[Any], wake: Callable[[], None]):
        self._processes, self._wake = processes, wake
        self._wait: object | None = None
        """The wait that goes on, a new object for each. None between two waits. The thread only reads it."""
        self.thread = threading.Thread(target=self._watch, daemon=True, name="hang-guard")
        if processes:  # there are none if the user lets vLLM run in this process
            self.thread.start()

    def __enter__(self) -> None:
        self._wait = object()

    def __exit__(self, *_: object) -> None:
        self._wait = None

    def _watch(self) -> None:
        watched, clock = self._wait, SilenceClock()
        while all(process.is_alive() for process in self._processes):
            if watched is not self._wait or watched is None:
                watched = self._wait
                clock.reset()
            else:
                clock.look(is_stopped=any(is_stopped(process.pid) for process in self._processes))
            if clock.silent_s > HANG_S:
                for process in self._processes:
                    process.kill()
            time.sleep(LOOK_S)
        self._wake()
