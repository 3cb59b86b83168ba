"""State that the threads of a run share: the items and chunks in progress, and the queue of the events that the threads
send to the main thread. All other state of a run belongs to one thread.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from voxbatch.decoding import Decoded, Undecodable
from voxbatch.engines import ChunkProgress, EngineMessage
from voxbatch.failure_kinds import FailureKind
from voxbatch.records import (
    SAMPLING_RATE,
    Chunk,
    ChunkFailure,
    Failure,
    Hypothesis,
    Item,
    Span,
    Speech,
    SpokenRecording,
    Transcript,
)

if TYPE_CHECKING:
    from voxbatch.scoring.counts import ErrorCounts

T = TypeVar("T", Hypothesis, Speech)

MAX_QUEUED_EVENTS = 1024
"""Maximum number of events that wait for the main thread. When the queue is full, the engine and the decoders wait."""
POLL_INTERVAL_S = 0.2
"""Longest time in which a signal goes unnoticed."""
MAX_ROW_BYTES = 32 << 20
"""Maximum bytes of the manifest lines, and of their references, that are in progress: 100,000 usual lines. When it is
reached, no further item is started. One line alone may exceed it."""


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """The result of a chunk."""

    result: Hypothesis | Speech | ChunkFailure
    times: tuple[float, float] | None = None
    """The time.monotonic() at which the engine took the chunk from the feed, and at which its result came. None if the
    chunk did not go to the engine."""


@dataclass(frozen=True, slots=True)
class Counted:
    """The errors of a long transcript."""

    item: int
    """Item.index."""
    counts: ErrorCounts


@dataclass(frozen=True, slots=True)
class Encoded:
    """The recording of a text."""

    item: int
    """Item.index."""
    recording: SpokenRecording


@dataclass(frozen=True, slots=True)
class DecodingEnded:
    """The last event of the decode thread."""

    error: BaseException | None
    """The exception that ended the thread, if any."""


@dataclass(frozen=True, slots=True)
class EngineEnded:
    """The last event of the engine's thread."""

    error: BaseException | None
    """The exception that ended the thread, if any."""


@dataclass(frozen=True, slots=True)
class ThreadFailed:
    """The exception that ended another thread."""

    error: BaseException


Event = (
    Decoded
    | Undecodable
    | ChunkResult
    | ChunkProgress
    | EngineMessage
    | Counted
    | Encoded
    | DecodingEnded
    | EngineEnded
    | ThreadFailed
)


class EventQueue:
    """The queue from all threads of a run to its main thread."""

    def __init__(self, max_events: int = MAX_QUEUED_EVENTS) -> None:
        self._queue: queue.Queue[Event] = queue.Queue(max_events)
        self.is_over = threading.Event()
        """The main thread sets it at the end of the run: from then on, events are dropped."""

    def send(self, event: Event) -> bool:
        """Queue an event, and wait while the queue is full. Return False if the run is over; the event is then
        dropped."""
        while not self.is_over.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(event, timeout=POLL_INTERVAL_S)
                return True
        return False

    def receive(self) -> Event | None:
        """Return the next event. None if none comes within POLL_INTERVAL_S."""
        try:
            return self._queue.get(timeout=POLL_INTERVAL_S)
        except queue.Empty:
            return None

    def is_empty(self) -> bool:
        """Return whether the main thread has taken all events."""
        return self._queue.empty()


@dataclass(slots=True)
class PendingItem:
    """An item that is in progress. The main thread alone changes it."""

    item: Item
    results: dict[int, Hypothesis | Speech | ChunkFailure] = field(default_factory=dict)
    """Results by the index of their chunk."""
    spans: dict[int, Span] = field(default_factory=dict)
    """Position of each chunk that was decoded, by its index. The decode thread adds it before its result can come."""
    decoded: Decoded | None = None
    times: list[tuple[float, float]] = field(default_factory=list)
    """The time.monotonic() at which the engine took a chunk and at which its result came, for each chunk in `results`
    that the engine took."""

    def of_chunks(self, decoded: Decoded, kind: type[T]) -> list[T] | Failure:
        """Return the results of the item's chunks in order, all of one kind. All results must be there.

        If chunks failed, return the failure of the first of them in the recording, not of the first result that
        arrived. So the same run gives the same bytes.
        """
        results = []
        for index, span in enumerate(decoded.spans):
            result = self.results[index]
            if isinstance(result, ChunkFailure):
                place = f"{span.start / SAMPLING_RATE:.2f} to {span.end / SAMPLING_RATE:.2f} s"
                failure = FailureKind.ENGINE_CRASH if result.crashes else FailureKind.ENGINE
                return Failure(failure, f"{place}: {result.message}", result.retryable)
            assert isinstance(result, kind)
            results.append(result)
        return results


class InProgress:
    """The items and chunks in progress.

    Two threads share it without a lock. The decode thread adds an item before the first event about it, and a chunk
    before its result can come; the main thread alone removes them. Each operation on a dict is atomic.
    """

    def __init__(self) -> None:
        self.items: dict[int, PendingItem] = {}
        """Item.index → item without an outcome."""
        self.num_samples: dict[tuple[int, int], int] = {}
        """Samples in the core of each chunk that are not transcribed yet, by (item, chunk)."""
        self.partly_done: set[tuple[int, int]] = set()
        """(item, chunk) of the chunks in `num_samples` of which the engine has done a part. The main thread's alone."""
        self.counting: dict[int, tuple[PendingItem, Transcript]] = {}
        """Item.index → transcribed item whose errors are being counted. The main thread adds it, too."""
        self.encoding: dict[int, int] = {}
        """Item.index → samples of a text whose recording is being encoded. The main thread's alone."""
        self._bytes_started = 0
        """Bytes of the rows and references of all items so far. The decode thread alone writes it."""
        self._bytes_finished = 0
        """The part of `_bytes_started` that belongs to finished items. The main thread alone writes it."""

    # -- the decode thread --------------------------------------------------------------------------------------------

    def has_room(self, item: Item) -> bool:
        """Return whether the rows in progress leave room for another item."""
        return self._bytes_started - self._bytes_finished + _num_bytes(item) <= MAX_ROW_BYTES

    def start(self, item: Item) -> None:
        """Add an item."""
        self._bytes_started += _num_bytes(item)
        self.items[item.index] = PendingItem(item)

    def add_chunk(self, chunk: Chunk) -> None:
        """Add a chunk that will have a result."""
        span = chunk.span
        # The channels that are recognised alone are one recording, whose length counts once.
        self.num_samples[chunk.item, chunk.index] = 0 if span.channel else span.core_end - span.core_start
        if (pending := self.items.get(chunk.item)) is not None:
            pending.spans[chunk.index] = span

    # -- the main thread ----------------------------------------------------------------------------------------------

    def free(self, item: Item) -> None:
        """Make room for other rows, because the line of an item is written."""
        self._bytes_finished += _num_bytes(item)


def _num_bytes(item: Item) -> int:
    """Return the memory of an item's row and reference."""
    return len(item.row) + sys.getsizeof(item.text or item.given or "")
