"""Recordings fetched ahead of who decodes them, a bounded number at a time: the network's time passes while others are
decoded. Neighbours that are parts of one recording share it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from voxbatch.storage.recording import WAITING_S, Recording

STREAMS = 8
"""Fetched at a time by one process."""


@dataclass(slots=True, eq=False)
class Wanted:
    """A recording on its way."""

    uri: str
    coming: Future[Recording]
    readers: int = 1


class Ahead:
    def __init__(self, open_one: Callable[[str], Recording], streams: int = STREAMS):
        """`open_one` is called on other threads."""
        self._open_one = open_one
        self._pool = ThreadPoolExecutor(streams, thread_name_prefix="fetch")
        self._latest: Wanted | None = None
        self._lock = threading.Lock()

    def want(self, uri: str) -> Wanted:
        """Begin to fetch a recording, or share the one that was wanted last; `taken` must follow."""
        with self._lock:
            if self._latest is not None and self._latest.uri == uri and self._latest.readers:
                self._latest.readers += 1
                return self._latest
            self._latest = Wanted(uri, self._pool.submit(self._open_one, uri))
            return self._latest

    @contextlib.contextmanager
    def taken(self, wanted: Wanted, waiting: Callable[[], None]) -> Iterator[Recording]:
        """The recording, once it is there; `waiting` is called now and then by who waits for it or for more of it.
        Raises what opening it did."""
        try:
            while not wanted.coming.done() and not wait([wanted.coming], WAITING_S).done:
                waiting()
            recording = wanted.coming.result()
            recording.waiting = waiting
            yield recording
        finally:
            with self._lock:
                wanted.readers -= 1
                is_last = not wanted.readers
            if is_last and wanted.coming.done() and wanted.coming.exception() is None:
                wanted.coming.result().close()
