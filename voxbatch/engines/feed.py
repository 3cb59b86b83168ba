"""The hand-over of Chunks from the decoders to an engine: bounded by audio, safe between threads, with a clock.

The bound is what keeps a run's memory flat; the clock is what shows whether the engine ever waited.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from voxbatch.records import Chunk


class Feed:
    """A closable queue of chunks that holds at most `capacity` samples (one chunk is always admitted)."""

    def __init__(self, capacity: int):
        self._capacity, self._held = capacity, 0
        self._chunks: deque[Chunk] = deque()
        self._change = threading.Condition()
        self._closed = self._discarded = False
        self.starved_s = 0.0
        """Seconds that the engine had nothing to do, from its first chunk on."""
        self.short_s = 0.0
        """Seconds from then on in which the engine, idle or not, had room for a chunk and none was there."""
        self._short_since: float | None = None
        self.started_at: float | None = None
        """time.monotonic() when the engine took its first chunk; None before."""
        self._taken: dict[tuple[int, int], float] = {}

    @property
    def discarded(self) -> bool:
        """The run is being stopped: nobody wants results any more."""
        return self._discarded

    @property
    def closed(self) -> bool:
        """No chunk will come any more, and none is left."""
        with self._change:
            return self._closed and not self._chunks

    def put(self, chunk: Chunk) -> bool:
        """Add a chunk, waiting for room. False when the feed was closed meanwhile: the chunk is not taken."""
        size = len(chunk.samples)
        with self._change:
            while not self._closed and self._chunks and self._held + size > self._capacity:
                self._change.wait()
            if self._closed:
                return False
            self._chunks.append(chunk)
            self._held += size
            self._is_served()
            self._change.notify_all()
            return True

    def get(self, wait: bool = True) -> Chunk | None:
        """The next chunk. None when there is none now (wait=False), or when there will never be one (closed)."""
        with self._change:
            if wait and not self._chunks and not self._closed:
                self._came_short()
                began = time.monotonic()
                while not self._chunks and not self._closed:
                    self._change.wait()
                if self.started_at is not None:
                    self.starved_s += time.monotonic() - began
            if not self._chunks:
                self._came_short()
                return None
            if self.started_at is None:
                self.started_at = time.monotonic()
            chunk = self._chunks.popleft()
            self._taken[chunk.item, chunk.index] = time.monotonic()
            self._held -= len(chunk.samples)
            self._change.notify_all()
            return chunk

    def taken_at(self, item: int, chunk: int) -> float:
        """Return and forget the time.monotonic() at which the engine took a chunk; call it once for each result."""
        with self._change:
            return self._taken.pop((item, chunk))

    def _came_short(self) -> None:
        if self._short_since is None and self.started_at is not None and not self._closed:
            self._short_since = time.monotonic()

    def _is_served(self) -> None:
        if self._short_since is not None:
            self.short_s += time.monotonic() - self._short_since
            self._short_since = None

    def close(self, discard: bool = False) -> None:
        """No more chunks; with `discard`, those that wait are dropped: the run is being stopped."""
        with self._change:
            self._closed = True
            self._is_served()
            if discard:
                self._discarded = True
                self._chunks.clear()
                self._held = 0
            self._change.notify_all()
