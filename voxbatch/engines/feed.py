"""A bounded, thread-safe queue that passes Chunks from the decoder processes to an engine.

The capacity is measured in samples, which bounds the memory of a run. The queue also measures how long the engine
waited for chunks. If its streams are watched (`watch`), it keeps the chunks that the engine owes a result for.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from voxbatch.records import Chunk

LOSS_WAIT_S = 10.0
"""Seconds for which an engine that owes results may wait for a further chunk and give none. Its stream then ends."""


class Feed:
    """A queue of chunks that can be closed. It holds at most `capacity` samples, or one chunk that is longer."""

    def __init__(self, capacity: int, is_last: bool = False, on_first: Callable[[], None] = lambda: None):
        """Make a feed.

        Args:
            capacity: maximum number of samples.
            is_last: the engine gets no other feed after this one.
            on_first: called in the engine's thread before the engine takes its first chunk.
        """
        self.is_last, self._on_first = is_last, on_first
        self._capacity, self._num_samples = capacity, 0
        self._chunks: deque[Chunk] = deque()
        self._changed = threading.Condition()
        self._closed = self._discarded = False
        self.starved_s = 0.0
        """Seconds that the engine waited in `get`, counted from its first chunk on. If several threads wait, their
        waits are added up."""
        self.short_s = 0.0
        """Seconds, counted from the first chunk on, in which the engine could take another chunk and the feed had none.
        The engine may have been working on other chunks in these seconds."""
        self._short_since: float | None = None
        self.started_at: float | None = None
        """time.monotonic() at which the engine took its first chunk. None before that."""
        self._taken: dict[tuple[int, int], float] = {}
        self._owed: dict[tuple[int, int], Chunk] | None = None
        """The chunks of the present stream without a result. None if streams are not watched."""
        self._max_owed = 0
        self._is_cut = False
        """True if the present stream gets no further chunk, although the feed is open."""
        self._heard_at = 0.0
        """time.monotonic() of the last result."""

    @property
    def discarded(self) -> bool:
        """Return whether the run is being stopped. No more results are needed then."""
        return self._discarded

    @property
    def closed(self) -> bool:
        """Return whether the stream gets no further chunk: the feed is closed and empty, or the stream must end."""
        with self._changed:
            return self._is_cut or (self._closed and not self._chunks)

    def put(self, chunk: Chunk) -> bool:
        """Add a chunk. Wait while the feed is full, unless the chunk has no samples.

        Returns:
            False if the feed is closed; then the chunk is not added.
        """
        size = len(chunk.audio)
        with self._changed:
            while size and not self._closed and self._chunks and self._num_samples + size > self._capacity:
                self._changed.wait()
            if self._closed:
                return False
            self._chunks.append(chunk)
            self._num_samples += size
            self._end_shortage()
            self._changed.notify_all()
            return True

    def get(self, wait: bool = True) -> Chunk | None:
        """Take the next chunk.

        Args:
            wait: if the feed is empty, wait until it gets a chunk or is closed.

        Returns:
            The chunk. None if the feed is empty and closed, or if the stream must end; with wait=False, None if the
            feed is empty now.
        """
        with self._changed:
            self._is_cut = self._is_cut or (self._owed is not None and len(self._owed) >= self._max_owed)
            if wait and not self._chunks and not self._closed:
                self._start_shortage()
                began = time.monotonic()
                self._wait_for_chunk(began)
                if self.started_at is not None:
                    self.starved_s += time.monotonic() - began
            if not self._chunks:
                self._start_shortage()
            if self._is_cut or not self._chunks:
                return None
            if self.started_at is None:
                self._on_first()
                self.started_at = time.monotonic()
            chunk = self._chunks.popleft()
            self._taken[chunk.item, chunk.index] = time.monotonic()
            if self._owed is not None:
                self._owed[chunk.item, chunk.index] = chunk
            self._num_samples -= len(chunk.audio)
            self._changed.notify_all()
            return chunk

    def _wait_for_chunk(self, began: float) -> None:
        """Wait until there is a chunk, or the stream must end. It must end after LOSS_WAIT_S without a result, if the
        engine owes some: only then the lost ones are known. Aligners keep chunks back until the next one comes."""
        while not self._chunks and not self._closed and not self._is_cut:
            patience_s = None
            if self._owed and not any(chunk.given for chunk in self._owed.values()):
                patience_s = max(began, self._heard_at) + LOSS_WAIT_S - time.monotonic()
                self._is_cut = patience_s <= 0
            if self._is_cut:
                self._changed.notify_all()
            else:
                self._changed.wait(patience_s)

    def wait(self) -> bool:
        """Wait until there is a chunk, or the feed is closed. Return whether there is one."""
        with self._changed:
            while not self._chunks and not self._closed:
                self._changed.wait()
            return bool(self._chunks)

    def watch(self, max_owed: int) -> None:
        """Keep the chunks that the engine takes until `settle` or `end_stream`. A stream must end when it owes so many
        results, or waits for too long while it owes some."""
        self._max_owed, self._owed = max_owed, {}

    def owed(self, item: int, chunk: int) -> Chunk | None:
        """Return a chunk that the engine owes a result for; None if it does not."""
        assert self._owed is not None
        with self._changed:
            return self._owed.get((item, chunk))

    def settle(self, chunk: Chunk) -> None:
        """Take note of the result of a chunk."""
        assert self._owed is not None
        with self._changed:
            self._heard_at = time.monotonic()
            self._owed.pop((chunk.item, chunk.index), None)

    def end_stream(self) -> list[Chunk]:
        """Return the chunks for which the stream that has ended owes a result, and permit the next stream."""
        assert self._owed is not None
        with self._changed:
            owed, self._owed, self._is_cut = list(self._owed.values()), {}, False
            return owed

    def drain(self) -> list[Chunk]:
        """Return the chunks in the queue, and forget them."""
        with self._changed:
            chunks = list(self._chunks)
            self._chunks.clear()
            self._num_samples = 0
            return chunks

    def pop_taken_at(self, item: int, chunk: int) -> float:
        """Return the time.monotonic() at which the engine first took a chunk, and forget it.

        Call this method once for each result.
        """
        with self._changed:
            return self._taken.pop((item, chunk))

    def held_by_engine(self) -> tuple[int, float]:
        """Return the number of chunks that the engine took and that have no result yet, and the time.monotonic() at
        which it took the first of them; (0, 0.0) if there is none."""
        with self._changed:
            return len(self._taken), min(self._taken.values(), default=0.0)

    def num_waiting(self) -> int:
        """Return the number of chunks in the queue."""
        return len(self._chunks)

    @property
    def is_complete(self) -> bool:
        """Return whether all chunks that this feed will ever get are waiting in it, and the engine gets no other feed.
        An engine may ask before it takes the first chunk."""
        with self._changed:
            return self.is_last and self._closed and not self._discarded

    def _start_shortage(self) -> None:
        if self._short_since is None and self.started_at is not None and not self._closed:
            self._short_since = time.monotonic()

    def _end_shortage(self) -> None:
        if self._short_since is not None:
            self.short_s += time.monotonic() - self._short_since
            self._short_since = None

    def close(self, discard: bool = False) -> None:
        """Close the feed: from now on `put` adds nothing.

        Args:
            discard: also drop the chunks in the feed, because the run is being stopped.
        """
        with self._changed:
            self._closed = True
            self._end_shortage()
            if discard:
                self._discarded = True
                self._chunks.clear()
                self._num_samples = 0
            self._changed.notify_all()
