"""Count the errors of long texts in a child process, while the main thread goes on and handles signals.

Normalising a day of speech takes seconds in Python, and aligning it seconds in native code that holds the interpreter
lock. On a thread, the second would still stop all other threads of the process. A short text costs less than the way
to another process, so the pipeline counts it itself.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

from voxbatch.child_environment import without_secrets
from voxbatch.child_process import ChildProcess, handle_stop_signals
from voxbatch.scoring import ErrorCounts, count_errors

LONG_TEXTS = 50_000
"""Characters of a reference and its transcript from which the pair is long: half an hour of speech. It takes 0.1 s."""


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


@dataclass(frozen=True, slots=True)
class Counted:
    """The errors of a long pair."""

    item: int
    counts: ErrorCounts


class LongTextCounter:
    """Counts the errors of one pair after the other.

    A thread sends the pairs to a child process, which starts with the first pair, and takes the results.

    Args:
        send: called by the thread with each result.
    """

    def __init__(self, send: Callable[[Counted], object]) -> None:
        self._send = send
        self._pairs: queue.SimpleQueue[LongPair | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._child: ChildProcess | None = None
        """The thread alone sets it. `close` only kills it."""
        self._is_closed = threading.Event()

    def count(self, pair: LongPair) -> None:
        """Count the errors of a pair. The result comes by `send`."""
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
        child = self._child = ChildProcess(__name__, {}, inherited=without_secrets(os.environ))
        try:
            while (pair := self._pairs.get()) is not None and not self._is_closed.is_set():
                child.send(pair)
                try:
                    counts = child.connection.recv()
                except (EOFError, OSError):  # somebody killed the child
                    if self._is_closed.is_set():
                        return
                    counts = pair.count()
                self._send(Counted(pair.item, counts))
        finally:
            child.end()


def main(connection: Connection) -> None:
    """Count the errors of the pairs that arrive, until the parent process ends."""
    handle_stop_signals(lambda *_: None)
    with contextlib.suppress(EOFError, OSError):
        while True:
            pair: LongPair = connection.recv()
            connection.send(pair.count())
