"""The feed hands every chunk over once, in order, holds a bounded amount of audio and lets nobody wait for ever."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.engines import Feed
from voxbatch.records import Chunk, Span


def chunk(index: int, size: int = 100) -> Chunk:
    return Chunk(0, index, np.zeros(size, np.float32), Span(0, size, 0, size))


def filler(feed: Feed, chunks: list[Chunk], taken: list[bool]) -> threading.Thread:
    """A thread that puts the chunks and notes what `put` said."""

    def fill() -> None:
        for each in chunks:
            taken.append(feed.put(each))  # noqa: PERF401 seen while it goes on

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()
    return thread


@given(st.lists(st.integers(1, 300), max_size=30), st.integers(1, 500))
def test_every_chunk_arrives_once_and_in_order(sizes: list[int], capacity: int) -> None:
    """Whatever the sizes and the capacity, what goes in comes out, and then None for ever."""
    feed, taken = Feed(capacity), []
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
def test_it_holds_no_more_than_its_capacity(sizes: list[int], capacity: int) -> None:
    """Without a taker it takes what fits, and always one chunk, however long."""
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
    blocked.join(5)
    assert taken == [False]


@pytest.mark.parametrize("discard", [False, True])
def test_closing_wakes_who_waits_for_room(discard: bool) -> None:
    """A decoder that waits for room hears that the run is over, and that its chunk was not taken."""
    feed, taken = Feed(100), []
    blocked = filler(feed, [chunk(0), chunk(1)], taken)
    while not taken:
        time.sleep(0.001)
    feed.close(discard)
    blocked.join(5)
    assert taken == [True, False]
    left = feed.get()
    assert (left is None) if discard else (left is not None and left.index == 0)


def test_closing_wakes_who_waits_for_a_chunk() -> None:
    """An engine that waits hears that there will be none."""
    feed, got = Feed(100), []
    waiting = threading.Thread(target=lambda: got.append(feed.get()), daemon=True)
    waiting.start()
    feed.close()
    waiting.join(5)
    assert got == [None]


def test_get_without_waiting() -> None:
    """wait=False tells an engine with work in flight that there is nothing now, and is not the end."""
    feed = Feed(100)
    assert feed.get(wait=False) is None
    assert not feed.closed
    feed.put(chunk(0))
    assert feed.get(wait=False) is not None


def test_the_clock_counts_hunger_after_the_first_chunk_only() -> None:
    """Time before the first chunk is start-up; time without a chunk after it is the decoders' fault."""
    feed = Feed(1000)
    threading.Timer(0.05, feed.put, [chunk(0)]).start()
    feed.get()
    assert feed.starved_s == 0.0
    assert feed.started_at is not None
    threading.Timer(0.05, feed.put, [chunk(1)]).start()
    feed.get()
    assert 0.03 < feed.starved_s < 1.0


def waited(feed: Feed, wait: bool) -> None:
    """An engine asks for a chunk that comes 50 ms later, and takes it."""
    if wait:
        threading.Timer(0.05, feed.put, [chunk(1)]).start()
        assert feed.get() is not None
    else:
        assert feed.get(wait=False) is None
        time.sleep(0.05)
        feed.put(chunk(1))
        assert feed.get(wait=False) is not None


@pytest.mark.parametrize("wait", [True, False])
def test_coming_short_is_counted_whether_it_waits_or_not(wait: bool) -> None:
    """A busy engine that would take one chunk more comes short as an idle one does; only the idle one starves."""
    feed = Feed(1000)
    feed.put(chunk(0))
    feed.get()
    waited(feed, wait)
    assert 0.03 < feed.short_s < 1.0
    assert (feed.starved_s > 0.03) == wait


def test_nothing_is_short_before_the_first_chunk_or_after_the_last() -> None:
    """Start-up is not counted, nor is what follows the end of the feed."""
    feed = Feed(1000)
    waited(feed, wait=False)
    assert feed.short_s == 0.0
    feed.close()
    assert feed.get(wait=False) is None
    time.sleep(0.02)
    feed.close()
    assert feed.short_s == 0.0


def test_a_chunk_that_waits_is_not_short() -> None:
    """It is there from when it is put, however late the engine, deep in a step, comes to take it."""
    feed = Feed(1000)
    feed.put(chunk(0))
    feed.get()
    assert feed.get(wait=False) is None
    feed.put(chunk(1))
    time.sleep(0.05)
    assert feed.get(wait=False) is not None
    assert feed.short_s < 0.03


def test_closing_ends_the_count() -> None:
    """An engine that found nothing before the feed was closed came short until then, and no longer."""
    feed = Feed(1000)
    feed.put(chunk(0))
    feed.get()
    assert feed.get(wait=False) is None
    time.sleep(0.03)
    feed.close()
    short = feed.short_s
    time.sleep(0.02)
    assert feed.get(wait=False) is None
    assert feed.short_s == short > 0.02


def test_discarded_says_that_nobody_wants_results() -> None:
    """Not after an ordinary end; and what is discarded is gone."""
    feed = Feed(1000)
    assert not feed.discarded
    feed.put(chunk(0))
    feed.close()
    assert not feed.discarded
    assert not feed.closed
    feed.close(discard=True)
    assert feed.discarded
    assert feed.closed
    assert feed.get() is None
