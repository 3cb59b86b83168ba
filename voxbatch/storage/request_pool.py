"""Threads that make requests to stores.

A decoder process fetches everything through one pool, `fetch_pool`: whole recordings ahead of their decoding, and the
blocks of a large recording while it is decoded. Each process has its own pool, because a pool of another process would
copy all bytes once more, and one Python process cannot receive enough for the decoders of a whole host.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

_T = TypeVar("_T")
_Jobs = deque[tuple["Future[Any]", Callable[[], Any]]]


class RequestPool:
    """Pool of daemon threads.

    The exit of the process does not wait for them, because a request may be retried for minutes. This is the difference
    to ThreadPoolExecutor.
    """

    def __init__(self, num_threads: int, num_urgent_threads: int = 0):
        """Prepare the pool. The first call of `submit` starts the threads.

        Args:
            num_threads: threads that run all calls, urgent ones first.
            num_urgent_threads: additional threads that run urgent calls only.
        """
        self._num_threads, self._num_urgent_threads = num_threads, num_urgent_threads
        # Both ends of a deque are thread-safe. Each call is announced to the threads that may run it; the thread that
        # comes second finds nothing to do.
        self._urgent, self._normal = _Jobs(), _Jobs()
        self._announced: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._announced_urgent: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    def submit(self, call: Callable[..., _T], *arguments: object, urgent: bool = False) -> Future[_T]:
        """Run call(*arguments) on a thread. Urgent calls are started before all others."""
        with self._lock:
            for number in range(len(self._threads), self._num_threads + self._num_urgent_threads):
                is_general = number < self._num_threads
                announced = self._announced if is_general else self._announced_urgent
                jobs = [self._urgent, self._normal] if is_general else [self._urgent]
                thread = threading.Thread(target=_work, args=(announced, jobs), daemon=True, name=f"request-{number}")
                thread.start()
                self._threads.append(thread)
        future: Future[_T] = Future()
        (self._urgent if urgent else self._normal).append((future, partial(call, *arguments)))
        self._announced.put(True)
        if urgent:
            self._announced_urgent.put(True)
        return future

    def close(self, wait: bool) -> None:
        """Cancel the calls that have not started, and end the threads. With `wait`, wait for their ends."""
        for jobs in (self._urgent, self._normal):
            while jobs:
                jobs.popleft()[0].cancel()
        for _ in self._threads:
            self._announced.put(False)
            self._announced_urgent.put(False)
        for thread in self._threads if wait else ():
            thread.join()


def _work(announced: queue.SimpleQueue[bool], jobs: Sequence[_Jobs]) -> None:
    while announced.get():
        _run_first(jobs)  # a function, so that a waiting thread holds no result in memory


def _run_first(jobs: Sequence[_Jobs]) -> None:
    """Run the first call of the first queue that has one, if any."""
    for queued in jobs:
        with contextlib.suppress(IndexError):
            future, call = queued.popleft()
            break
    else:
        return
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as e:  # noqa: BLE001 the caller of Future.result gets it
        future.set_exception(e)
    else:
        future.set_result(result)


FETCH_THREADS = 8
"""Number of recordings that one process fetches at a time."""
BLOCK_THREADS = 3
"""Number of blocks of a large recording that are fetched at a time, also while all other threads wait for stores. Three
requests at a time fill most networks."""
fetch_pool = RequestPool(FETCH_THREADS, BLOCK_THREADS)
"""Pool of this process for all bytes of recordings.

Its memory is bounded by its callers: a decoder process is given MAX_TASKS recordings at a time, of which it holds at
most BLOCK_BYTES each, and CACHED_BLOCKS of the recording that it decodes.
"""
