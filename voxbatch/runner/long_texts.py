"""Count the errors of long texts in a child process, while the main thread goes on and handles signals.

Normalising a day of speech takes seconds in Python, and aligning it seconds in native code that holds the interpreter
lock. On a thread, the second would still stop all other threads of the process. A short text costs less than the way
to another process, so the main thread counts it itself (see results.py).
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection

from voxbatch.process.child import ChildProcess, for_voxbatch, handle_stop_signals
from voxbatch.runner.shared import Counted, EventQueue, ThreadFailed
from voxbatch.scoring.counts import ErrorCounts, count_errors


@dataclass(frozen=True, slots=True)
class LongPair:
    """A pair of texts whose errors shall be counted."""

    item: int
    """Index of the item."""
    reference: str
    hypothesis: str
    lang: str | None

    def count(self) -> ErrorCounts:
        """Count the errors in this process."""
        return count_errors(self.reference, self.hypothesis, self.lang)


class LongTextCounter:
    """Counts the errors of one pair after the other.

    A thread sends the pairs to a child process, which starts with the first pair, and takes the results.

    Args:
        events: gets a Counted for each pair.
    """

    def __init__(self, events: EventQueue) -> None:
        self._events = events
        self._pairs: queue.SimpleQueue[LongPair | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._child: ChildProcess | None = None
        """The thread alone sets it. `close` only kills it."""
        self._is_closed = threading.Event()

    def count(self, pair: LongPair) -> None:
        """Count the errors of a pair. Its result is an event."""
        self._pairs.put(pair)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="long texts")
            self._thread.start()

    def close(self) -> None:
        """End the child process. Pairs that it has not counted are dropped."""
        self._is_closed.set()
        self._pairs.put(None)
        if self._child is not None:
            self._child.kill()

    def _run(self) -> None:
        try:
            self._count_all(ChildProcess(__name__, inherited=for_voxbatch(os.environ)))
        except BaseException as e:  # noqa: BLE001 the main thread raises it again
            self._events.send(ThreadFailed(e))

    def _count_all(self, child: ChildProcess) -> None:
        self._child = child
        try:
            while (pair := self._pairs.get()) is not None and not self._is_closed.is_set():
                child.send(pair)
                try:
                    counts = child.connection.recv()
                except (EOFError, OSError):  # somebody killed the child
                    if self._is_closed.is_set():
                        return
                    counts = pair.count()
                self._events.send(Counted(pair.item, counts))
        finally:
            child.end()


def main(connection: Connection) -> None:
    """Count the errors of the pairs that arrive, until the parent process ends."""
    handle_stop_signals(lambda *_: None)
    with contextlib.suppress(EOFError, OSError):
        while True:
            pair: LongPair = connection.recv()
            connection.send(pair.count())
