"""The engine's thread: Chunks of the feed → the engine → results. A second thread reads the GPU memory meanwhile."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from voxbatch.engines import ChunkProgress, Engine, EngineMessage, Feed
from voxbatch.engines.results import Result, stop_if_all_fail
from voxbatch.engines.supervised import supervised
from voxbatch.runner.shared import ChunkResult, EngineEnded, EventQueue

GPU_MEMORY_INTERVAL_S = 1.0
"""Seconds between two readings of the GPU memory in use."""


class EngineThread(threading.Thread):
    """The thread that drives the engine, and sends its results and messages to the main thread."""

    def __init__(self, engine: Engine, feed: Feed, events: EventQueue) -> None:
        super().__init__(daemon=True, name="engine")
        self._engine, self._feed, self._events = engine, feed, events
        self.ended_at = 0.0
        """The time.monotonic() of the last result. Read it after the thread's last event."""

    def run(self) -> None:
        """Send the results of the engine to the main thread."""
        error: BaseException | None = None
        try:
            for result in self._results():
                # Read to the end even if the run is over: an engine whose stream is cut off unloads its model.
                self._pass_on(result)
        except BaseException as e:  # noqa: BLE001 the main thread raises it again, too
            error = e
        self._feed.close(discard=True)  # the decode thread must not wait for an engine that has ended
        self.ended_at = time.monotonic()
        self._events.send(EngineEnded(error))

    def _results(self) -> Iterator[Result]:
        """Yield one result for each chunk. An engine in a child process is supervised there."""
        if self._engine.spec.own_process:
            yield from self._engine.stream(self._feed)
            return
        with contextlib.closing(supervised(self._engine, self._feed)) as results:
            yield from stop_if_all_fail(results)

    def _pass_on(self, result: Result) -> None:
        """Send a result to the main thread, with its times if it ends its chunk."""
        if isinstance(result, EngineMessage | ChunkProgress):
            self._events.send(result)
        else:
            taken_at = self._feed.pop_taken_at(result.item, result.chunk)
            self._events.send(ChunkResult(result, (taken_at, time.monotonic())))


class GpuMemoryThread(threading.Thread):
    """The thread that records the highest GPU memory in use. A driver may hang when a GPU fails, so no other thread
    waits for it."""

    def __init__(self, engine: Engine, events: EventQueue) -> None:
        super().__init__(daemon=True, name="memory")
        self._engine, self._events = engine, events
        self.peak_bytes: int | None = None
        """Highest GPU memory in use so far. None without a GPU. Any thread may read it."""

    def run(self) -> None:
        """Read the GPU memory until the run is over."""
        while (used := self._engine.gpu_bytes()) is not None:
            self.peak_bytes = max(self.peak_bytes or 0, used)
            if self._events.is_over.wait(GPU_MEMORY_INTERVAL_S):
                return
