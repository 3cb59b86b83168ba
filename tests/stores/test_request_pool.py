"""Tests for the threads that make requests: urgent calls come first, and no thread delays the end of the process."""

from __future__ import annotations

import threading

from waits import until

from voxbatch.storage.request_pool import RequestPool


def test_urgent_calls_run_while_all_other_threads_wait() -> None:
    """Calls that wait for a store leave threads for urgent calls, and other calls do not take these threads."""
    pool, answered = RequestPool(2, num_urgent_threads=1), threading.Event()
    waiting = [pool.submit(answered.wait, 200) for _ in range(4)]
    assert pool.submit(str, 1, urgent=True).result(200) == "1"
    assert pool.submit(str, 2, urgent=True).result(200) == "2"
    until(lambda: waiting[0].running() and waiting[1].running())
    assert [future.running() for future in waiting] == [True, True, False, False]
    answered.set()
    assert all(future.result(200) for future in waiting)
    pool.close(wait=True)


def test_urgent_calls_overtake_the_others() -> None:
    """A free thread takes an urgent call before the calls that came earlier."""
    pool, begin, order = RequestPool(1), threading.Event(), list[str]()
    pool.submit(begin.wait, 200)
    futures = [pool.submit(order.append, "a"), pool.submit(order.append, "b", urgent=True)]
    begin.set()
    for future in futures:
        future.result(200)
    assert order == ["b", "a"]


def test_close_cancels_what_has_not_started() -> None:
    """After `close`, the call that runs ends, the calls behind it are cancelled, and the threads end."""
    pool, begun, answered = RequestPool(1), threading.Event(), threading.Event()

    def wait_for_the_answer() -> bool:
        begun.set()
        return answered.wait(200)

    running = pool.submit(wait_for_the_answer)
    waiting = pool.submit(str)
    assert begun.wait(200)
    pool.close(wait=False)
    answered.set()
    assert running.result(200)
    assert waiting.cancelled()
    pool.close(wait=True)
