"""Tests for the feed: it delivers every chunk once and in order, holds a limited amount of audio, and never blocks
forever.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from waits import Clock

from voxbatch.engines import Feed
from voxbatch.records import Chunk, Span


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("voxbatch.engines.feed.time", clock)
    return clock


def chunk(index: int, size: int = 100) -> Chunk:
    return Chunk(0, index, np.zeros(size, np.float32), Span(0, size, 0, size))


def filler(feed: Feed, chunks: list[Chunk], taken: list[bool]) -> threading.Thread:
    """Start a thread that puts the chunks and records the results of `put`."""

    def fill() -> None:
        for each in chunks:
            taken.append(feed.put(each))  # noqa: PERF401 the list is read while it grows

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()
    return thread


@given(st.lists(st.integers(1, 300), max_size=30), st.integers(1, 500))
def test_every_chunk_arrives_once_and_in_order(sizes: list[int], capacity: int) -> None:
    """The chunks come out in order for all sizes and capacities, and then always None."""
    feed, taken = Feed(capacity), list[bool]()
    chunks = [chunk(i, size) for i, size in enumerate(sizes)]
    putter = filler(feed, chunks, taken)
    got = [feed.get() for _ in chunks]
    putter.join()
    feed.close()
    assert [each.index for each in got if each] == list(range(len(sizes)))
    assert all(taken)
    assert feed.get() is None
    assert feed.closed


@given(st.lists(st.integers(1, 300), min_size=1, max_size=30), st.integers(1, 500))
def test_the_feed_holds_no_more_than_its_capacity(sizes: list[int], capacity: int) -> None:
    """The feed accepts chunks up to its capacity if none is taken, and always one chunk of any length."""
    feed, held, count = Feed(capacity), 0, 0
    for size in sizes:
        if count and held + size > capacity:
            break
        assert feed.put(chunk(count, size))
        held, count = held + size, count + 1
    else:
        return
    taken: list[bool] = []
    blocked = filler(feed, [chunk(count, sizes[count])], taken)
    blocked.join(0.005)
    assert not taken
    feed.close(discard=True)
    blocked.join()
    assert taken == [False]


@pytest.mark.parametrize("discard", [False, True])
def test_close_wakes_a_waiting_put(discard: bool) -> None:
    """Closing wakes a decoder that waits for capacity, and tells it that its chunk was not accepted."""
    feed, taken = Feed(100), list[bool]()
    blocked = filler(feed, [chunk(0), chunk(1)], taken)
    while not taken:
        time.sleep(0.001)
    feed.close(discard)
    blocked.join()
    assert taken == [True, False]
    left = feed.get()
    assert (left is None) if discard else (left is not None and left.index == 0)


def waited(feed: Feed, clock: Clock, wait: bool = True) -> None:
    """Let an engine ask for a chunk that arrives 5 s later, and take it."""

    def arrive(timeout_s: float | None = None) -> None:
        clock.now += 5.0
        feed.put(chunk(1))

    if wait:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(feed._changed, "wait", arrive)
            assert feed.get() is not None
    else:
        assert feed.get(wait=False) is None
        arrive()
        assert feed.get(wait=False) is not None


def test_starved_s_counts_from_the_first_chunk(clock: Clock) -> None:
    """Time before the first chunk is start-up; later time without a chunk is starvation, which the decoders cause."""
    feed = Feed(1000)
    waited(feed, clock)
    assert feed.starved_s == 0.0
    assert feed.started_at == clock.now
    waited(feed, clock)
    assert feed.starved_s == 5.0


@pytest.mark.parametrize("wait", [True, False])
def test_short_s_counts_waiting_and_working_engines(clock: Clock, wait: bool) -> None:
    """An engine that could take one more chunk is short of chunks, whether it waits or works; only a waiting engine is
    starved.
    """
    feed = Feed(1000)
    feed.put(chunk(0))
    feed.get()
    waited(feed, clock, wait)
    assert feed.short_s == 5.0
    assert feed.starved_s == (5.0 if wait else 0.0)


def test_short_s_excludes_start_up_and_end(clock: Clock) -> None:
    """Start-up and the time after the end of the feed do not count as short."""
    feed = Feed(1000)
    waited(feed, clock, wait=False)
    assert feed.short_s == 0.0
    feed.close()
    assert feed.get(wait=False) is None
    clock.now += 2.0
    feed.close()
    assert feed.short_s == 0.0


def test_short_s_excludes_chunks_that_wait(clock: Clock) -> None:
    """A chunk that is in the feed does not count as missing, however late the engine takes it."""
    feed = Feed(1000)
    feed.put(chunk(0))
    feed.get()
    assert feed.get(wait=False) is None
    feed.put(chunk(1))
    clock.now += 5.0
    assert feed.get(wait=False) is not None
    assert feed.short_s == 0.0


def test_close_ends_short_s(clock: Clock) -> None:
    """An engine that found no chunk before the feed was closed counts as short until then, and no longer."""
    feed = Feed(1000)
    feed.put(chunk(0))
    feed.get()
    assert feed.get(wait=False) is None
    clock.now += 3.0
    feed.close()
    clock.now += 2.0
    assert feed.get(wait=False) is None
    assert feed.short_s == 3.0


def test_discarded_is_set_only_by_discarding() -> None:
    """`discarded` is set only if results are no longer needed, not after a normal end; discarded chunks are gone."""
    feed = Feed(1000)
    assert not feed.discarded
    feed.put(chunk(0))
    feed.close()
    assert (feed.discarded, feed.closed) == (False, False)
    feed.close(discard=True)
    assert (feed.discarded, feed.closed) == (True, True)
    assert feed.get() is None
