"""Tests for the decoder pool: every task ends as its chunks and a Decoded, or as one Undecodable, whatever happens to
the processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from conftest import Recorder, environment

from voxbatch.decoding import Decoded, DecoderPool, Message, Task, Undecodable, process, warm_pool
from voxbatch.records import Chunk
from voxbatch.storage import StoreOptions

LIMIT = 15 * 16_000


def tasks(paths: Iterable[Path | str]) -> Iterator[Task]:
    """Yield a task for each recording, without offset and duration."""
    for i, path in enumerate(paths):
        yield Task(i, str(path), 0.0, None, None, None, LIMIT)


def children(of: int | None = None) -> list[psutil.Process]:
    """Return running decoder processes, without ended ones that were not waited for."""
    found = psutil.Process(of).children(recursive=True)
    return [child for child in found if "voxbatch.decoding" in " ".join(child.cmdline())]


def ends(messages: Iterable[Message]) -> dict[int, Decoded | Undecodable]:
    """Return how each item ended, and assert that no message follows the end."""
    found: dict[int, Decoded | Undecodable] = {}
    for message in messages:
        assert message.item not in found, "nothing comes after an item's end"
        if not isinstance(message, Chunk):
            found[message.item] = message
    return found


def test_every_task_ends_once(recording: Recorder, tmp_path: Path) -> None:
    """With several workers and more tasks than they hold, each item's chunks come in order and match its spans."""
    paths = [recording(f"{i}.wav", 0.2 + i % 4 * 17) for i in range(30)] + [tmp_path / "missing.wav"]
    chunks: dict[int, list[Chunk]] = {}
    ended: dict[int, Decoded | Undecodable] = {}
    with DecoderPool(3) as pool:
        for message in pool.run(tasks(paths)):
            if isinstance(message, Chunk):
                chunks.setdefault(message.item, []).append(message)
            else:
                ended[message.item] = message
    assert sorted(ended) == list(range(31))
    for item in range(30):
        end = ended[item]
        assert isinstance(end, Decoded)
        assert tuple(chunk.span for chunk in chunks[item]) == end.spans
        assert all(len(chunk.samples) == chunk.span.end - chunk.span.start <= LIMIT for chunk in chunks[item])
        assert all(left.core_end == right.core_start for left, right in pairwise(end.spans))
        assert end.spans[-1].core_end == round((0.2 + item % 4 * 17) * 16_000)
    missing = ended[30]
    assert isinstance(missing, Undecodable)
    assert missing.failure.error == "AudioError"
    assert missing.failure.message == f"cannot open {tmp_path}/missing.wav: No such file or directory"
    assert pool.cpu_s > 0


def test_no_tasks(recording: Recorder) -> None:
    """A run without tasks ends at once."""
    with DecoderPool(2) as pool:
        assert list(pool.run(iter(()))) == []


def test_a_killed_worker_costs_the_item_in_hand(recording: Recorder) -> None:
    """A decoder process that dies fails its current item; the items behind it are done by a new process."""
    paths = [recording("long.wav", 900), *(recording(f"{i}.wav", 0.5) for i in range(5))]
    with DecoderPool(1) as pool:
        messages = pool.run(tasks(paths))
        assert next(messages).item == 0
        (worker,) = children()
        worker.kill()
        ended = ends(messages)
    assert sorted(ended) == list(range(6))
    assert isinstance(ended[0], Undecodable)
    assert ended[0].failure.message == f"cannot decode {paths[0]}: the decoder died (killed by signal 9)"
    assert all(isinstance(ended[i], Decoded) for i in range(1, 6))


@pytest.fixture
def kept() -> Iterator[None]:
    """Keep decoder processes from pool to pool."""
    with closing(warm_pool):
        warm_pool.is_enabled = True
        yield
    assert not children()


def decoded(paths: list[Path], pool: DecoderPool) -> set[int]:
    """Decode the recordings and return the process ids of the workers."""
    with pool:
        assert all(isinstance(end, Decoded) for end in ends(pool.run(tasks(paths))).values())
        return {child.pid for child in children()}


def test_workers_are_kept(recording: Recorder, kept: None) -> None:
    """A pool reuses the workers of the previous one, replaces dead ones, and does not reuse workers with other storage
    options.
    """
    paths = [recording(f"{i}.wav", 0.5) for i in range(3)]
    first = decoded(paths, DecoderPool(2))
    assert decoded(paths, DecoderPool(2)) == first
    assert len(decoded(paths, DecoderPool(2, StoreOptions(anonymous=True)))) == 4
    for child in children():
        child.kill()
        child.wait()
    assert not decoded(paths, DecoderPool(2)) & first


def test_workers_at_work_are_not_kept(recording: Recorder, kept: None) -> None:
    """Workers with an unfinished task are ended, not kept."""
    with DecoderPool(2) as pool:
        next(pool.run(tasks([recording("long.wav", 900)])))
    assert len(children()) == 1


def test_a_worker_that_dies_idle_costs_nothing(recording: Recorder) -> None:
    """A worker that is killed while idle fails no item."""
    with DecoderPool(1) as pool:
        (worker,) = children()
        worker.kill()
        while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        ended = ends(pool.run(tasks([recording("a.wav", 0.5)])))
    assert isinstance(ended[0], Decoded)


def test_leaving_the_context_ends_the_workers(recording: Recorder) -> None:
    """Leaving the context ends the workers, even within a file."""
    with DecoderPool(2) as pool:
        next(pool.run(tasks([recording("long.wav", 300)])))
        workers = children()
        assert len(workers) == 2
    assert not any(worker.is_running() for worker in workers)


@pytest.mark.slow
def test_a_slow_consumer_holds_the_workers_back(recording: Recorder) -> None:
    """While no message is read, a worker waits, and its memory stays far below the size of the recording."""
    with DecoderPool(1) as pool:
        messages = pool.run(tasks([recording("long.wav", 1200)]))  # 77 MB as float32
        next(messages)
        time.sleep(0.3)
        (worker,) = children()
        before = worker.cpu_times()
        time.sleep(0.3)
        after = worker.cpu_times()
        assert after.user + after.system - before.user - before.system < 0.05
        resident = worker.memory_info().rss
        assert sum(isinstance(message, Chunk) for message in messages) >= 79
    assert resident < 150e6


ORPHANS = """
import sys, time
from voxbatch.decoding import DecoderPool, Task
pool = DecoderPool(2)
messages = pool.run(Task(i, path, 0.0, None, None, None, 240_000) for i, path in enumerate(sys.argv[1:]))
next(messages)
print("going", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_workers_end_with_their_parent(recording: Recorder) -> None:
    """If the parent is killed, its decoder processes end, idle or within a file."""
    command = [sys.executable, "-c", ORPHANS, str(recording("long.wav", 300))]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "going\n"
        workers = children(parent.pid)
        parent.kill()
    assert len(workers) == 2
    _, alive = psutil.wait_procs(workers, timeout=5)
    assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.timeout(30)
def test_a_hanging_worker_is_replaced(recording: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder process that is silent for too long is killed; its item fails, and the items behind it are done."""
    monkeypatch.setattr(process, "HANG_TIMEOUT_S", 0.3)
    paths = [recording("a.wav", 0.5), recording("b.wav", 0.5)]
    with DecoderPool(1) as pool:
        (worker,) = children()
        os.kill(worker.pid, signal.SIGSTOP)
        ended = ends(pool.run(tasks(paths)))
    assert isinstance(ended[0], Undecodable)
    assert ended[0].failure.message == f"cannot decode {paths[0]}: decoding hung for 0 s and was stopped"
    assert isinstance(ended[1], Decoded)


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_worker_that_nobody_listens_to_does_not_hang(recording: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that wait while an engine loads its model for minutes do not count as hung."""
    monkeypatch.setattr(process, "HANG_TIMEOUT_S", 2.0)
    slept = 0
    ended: dict[int, Message] = {}
    with DecoderPool(3) as pool:
        for message in pool.run(tasks(recording(f"{i}.wav", 40) for i in range(6))):
            if slept < 1:
                slept += 1
                time.sleep(2.5)
            ended[message.item] = message
    assert all(isinstance(message, Decoded) for message in ended.values()), ended
