"""Prefetch recordings before they are decoded.

Waiting for the network and decoding then overlap. Consecutive items that are parts of one recording share one fetch.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass

from voxbatch.storage.recording import WAITING_S, Recording
from voxbatch.storage.request_pool import fetch_pool


@dataclass(slots=True, eq=False)
class Prefetch:
    """Recording that is being prefetched."""

    uri: str
    coming: Future[Recording]
    readers: int = 1
    """Number of items that still need the recording."""


class Prefetcher:
    """Opens recordings before they are decoded, on the threads of the fetch pool."""

    def __init__(self, open_one: Callable[[str], Recording]):
        """Store the function that opens the recording at an address."""
        self._open_one = open_one
        self._latest: Prefetch | None = None
        self._lock = threading.Lock()

    def start(self, uri: str) -> Prefetch:
        """Begin to fetch a recording, or share the last one if it is the same. A call of `opened` must follow."""
        with self._lock:
            if self._latest is not None and self._latest.uri == uri and self._latest.readers:
                self._latest.readers += 1
                return self._latest
            self._latest = Prefetch(uri, fetch_pool.submit(self._open_one, uri))
            return self._latest

    @contextlib.contextmanager
    def opened(self, prefetch: Prefetch, waiting: Callable[[], None]) -> Iterator[Recording]:
        """Yield the recording as soon as it is there, and close it after its last reader.

        `waiting` is called about every WAITING_S seconds while the caller waits for the recording or for more of its
        bytes.

        Raises:
            Exception: the error that opening the recording raised.
        """
        try:
            while not prefetch.coming.done() and not wait([prefetch.coming], WAITING_S).done:
                waiting()
            recording = prefetch.coming.result()
            recording.on_wait = waiting
            yield recording
        finally:
            with self._lock:
                prefetch.readers -= 1
                is_last = not prefetch.readers
            if is_last and prefetch.coming.done() and prefetch.coming.exception() is None:
                prefetch.coming.result().close()
