"""One run by several processes of this host, a GPU each: the items are dealt out, progress is added up, one run ends.

All work on the one shard that the run is of, and commit to its parts: how many there are shows nowhere but in the time
it takes, and may be another number in the next run. A worker that dies is given up with its GPU; when the others are
through, what it left is dealt out among them. They have kept their engines loaded for that.

A worker that stops because a place does not answer is not given up: its GPU is not to blame. What it left is dealt out
once more when the others are through, together with what all have learnt of the places, so that a recording which is to
blame itself ends as it would have in one process, and only a place that is down stops the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, replace
from multiprocessing.connection import wait

import numpy as np
from numpy.typing import NDArray

from voxbatch import run as job
from voxbatch.config import Config
from voxbatch.engines import Kept
from voxbatch.errors import EngineError, StorageError, UsageError, VoxbatchError
from voxbatch.fleet.process import Worker
from voxbatch.fleet.worker import GRACE_S, Failed, Order, Stopped, takes_more
from voxbatch.log import Log
from voxbatch.pipeline import TICK_S, Interrupted, Progress, Stop, Usage
from voxbatch.reach import Known
from voxbatch.run import Finished, Work
from voxbatch.shard import split

PATIENCE_S = GRACE_S + 5.0
"""After so long, a worker that was told to stop is killed; it should have seen to that itself."""
WORTH_A_WORKER = 100
"""Items for whose sake a worker more is started for a second try: each loads a model, and often one item is left."""
ADDED_UP = ("done", "failed", "audio_s", "committed", "parts")
"""What of the workers' progress adds to the run's."""


def run(
    config: Config,
    log: Log,
    observe: Callable[[Progress], None] = lambda progress: None,
    stop: Stop | None = None,
    kept: Kept | None = None,
) -> Finished:
    """voxbatch.run.run, by as many processes as the engine and the config want; only one that works alone finds and
    leaves an engine in `kept`. Raises what that raises."""
    return job.run(config, log, observe, stop, side_by_side, kept)


def side_by_side(work: Work) -> Usage:
    """Commit all that is to do: by several processes, or by this one where the engine has no use for more.

    Raises:
        Interrupted: `work.stop` was asked; what was in hand is committed.
        UsageError: a worker found that what was asked for cannot be done.
        StorageError: a place cannot be read or written, nor could it when what was left was tried once more.
        EngineError: no worker is left.
    """
    environments = job.workers(work.config, work.engine)
    return _Fleet(work, environments).run() if len(environments) > 1 else job.alone(work)


class _Fleet:
    def __init__(self, work: Work, environments: Iterable[Mapping[str, str]]):
        self._work, self._log, self._stop, self._progress = work, work.log, work.stop, work.progress
        self._alive = dict(enumerate(environments))
        """The environment of each worker that was not lost, by number."""
        self._started: dict[int, Worker] = {}
        """Those of them that run, by number."""
        self._lost: list[Worker] = []
        self._known = Known()
        self._has_tried_again = False
        """What places did not give was dealt out a second time."""
        self._usage = Usage(0.0, 0.0, 0.0, 0.0)
        self._told_at: float | None = None
        """When the workers were told to stop."""

    def run(self) -> Usage:
        try:
            usage = self._rounds()
            self._dismiss()
            return usage
        finally:
            for worker in self._started.values():
                worker.end()

    def _rounds(self) -> Usage:
        todo, began = self._work.todo, self._progress.began
        self._log.info("workers", text=f"{len(self._alive)} workers side by side, one process each")
        count = len(self._alive)
        while True:
            before = len(self._alive)
            unanswered = self._round(todo, began, count)
            todo, began = self._left(), time.monotonic()
            if not todo.any():
                return self._usage
            # This comes to an end: there is a next round only where a worker was lost, which happens once to each, or
            # for the second try, of which there is one.
            items = int(np.count_nonzero(todo))
            count = self._others(items) if len(self._alive) < before else self._second_try(items, unanswered)

    def _round(self, todo: NDArray[np.bool_], began: float, count: int) -> str | None:
        """Deal out what is to do to so many workers, and hear the last word of every one. Gives what the first of them
        says that was stopped by a place."""
        crew: list[Worker] = []
        self._stop.softly = True
        try:
            for order in self._orders(todo, began, count):
                crew.append(self._worker(order.worker, order.source.fd))
                crew[-1].give(order)
            self._attend(crew)
        finally:
            self._stop.softly = False
        if self._stop.asked.is_set():
            raise Interrupted
        if refusal := _failed(crew, UsageError):
            raise UsageError(refusal)
        return _failed(crew, StorageError)

    def _worker(self, number: int, fd: int) -> Worker:
        """The one that an earlier round has started, with its engine, or a new one."""
        if number not in self._started:
            self._started[number] = Worker(number, self._alive[number], fd)
        return self._started[number]

    def _dismiss(self) -> None:
        """Let the workers unload their engines, and end."""
        deadline = time.monotonic() + PATIENCE_S
        for worker in self._started.values():
            worker.stop()
        for worker in self._started.values():
            while time.monotonic() < deadline and not worker.is_gone():
                if wait([worker.connection], TICK_S) and not worker.hear():
                    break
                self._pass_on(worker, worker.printed())
            self._pass_on(worker, worker.end())

    def _orders(self, todo: NDArray[np.bool_], began: float, count: int) -> list[Order]:
        """One for each of so many workers for whom there is something to do."""
        work, workers = self._work, list(self._alive)[:count]
        config = replace(work.config, decoders=job.decoders(work.config, count))
        masks = split(work.durations, todo, count)
        source = work.source.handle()
        return [
            Order(config, source, work.run, dict(work.engine.spec.decoding), mask, worker, began, self._known)
            for worker, mask in zip(workers, masks, strict=True)
            if mask.any()
        ]

    def _attend(self, crew: list[Worker]) -> None:
        before, working = replace(self._progress), list(crew)
        while working:
            ready = wait([each for w in working for each in (w.connection, w.output) if each is not None], TICK_S)
            for worker in list(working):
                if worker.output in ready:
                    self._pass_on(worker, worker.printed())
                gone = (worker.connection in ready and not worker.hear()) or worker.is_gone()
                self._pass_on_notices(worker)
                if gone or worker.word is not None:
                    working.remove(worker)
                    self._see_off(worker)
            if ready:
                self._add_up(before, crew)
            if self._stop.asked.is_set() or _failed(crew, UsageError):
                self._tell_to_stop(working)

    def _pass_on(self, worker: Worker, lines: Iterable[str]) -> None:
        for line in lines:
            self._log.info("worker_printed", worker=worker.number, text=f"worker {worker.number}: {line}")

    def _pass_on_notices(self, worker: Worker) -> None:
        tell = job.teller(self._log)
        while worker.notices:
            notice = worker.notices.pop(0)
            tell(replace(notice, text=f"worker {worker.number}: {notice.text}"))

    def _add_up(self, before: Progress, crew: list[Worker]) -> None:
        for name in ADDED_UP:
            value = getattr(before, name) + sum(getattr(worker.progress, name) for worker in crew)
            setattr(self._progress, name, value)
        self._work.observe(self._progress)

    def _tell_to_stop(self, working: list[Worker]) -> None:
        """Softly the first time, and for good when they have had time enough."""
        now = time.monotonic()
        if self._told_at is None:
            self._told_at = now
            for worker in working:
                worker.stop()
        elif now - self._told_at > PATIENCE_S:
            for worker in working:
                worker.kill()

    def _see_off(self, worker: Worker) -> None:
        """Take in what a worker came to and has learnt; one that came to nothing, by no place's fault, is given up."""
        word = worker.word
        self._pass_on(worker, worker.printed() if takes_more(word) else self._started.pop(worker.number).end())
        self._known.learn(worker.known)
        if isinstance(word, Usage):
            self._usage = Usage(*(ours + its for ours, its in zip(astuple(self._usage), astuple(word), strict=True)))
        elif isinstance(word, Failed) and takes_more(word):
            text = f"{worker.name} has stopped: {word.reason}; what it has committed is safe"
            self._log.warning("worker_stopped", worker=worker.number, text=text)
        elif not (isinstance(word, Stopped) and self._told_at is not None) and not _failed([worker], UsageError):
            del self._alive[worker.number]
            self._lost.append(worker)
            text = f"{worker.name} is lost: {worker.reason}; what it has committed is safe"
            self._log.warning("worker_lost", worker=worker.number, text=text)

    def _left(self) -> NDArray[np.bool_]:
        """What is not in any part yet; and progress put right, which told of more than a worker that died committed."""
        work, p = self._work, self._progress
        work.ledger.load()
        done = work.todo & np.frombuffer(work.ledger.done, np.bool_)
        left = work.todo & ~done
        p.failed = int(np.count_nonzero(done & np.frombuffer(work.ledger.failed, np.bool_)))
        p.done = int(np.count_nonzero(done)) - p.failed
        p.committed = p.resumed + p.done + p.failed
        known_audio_s, p.unknown = job.known_audio(work.durations, left)
        p.known_audio_s = p.audio_s + known_audio_s
        work.observe(p)
        return left

    def _others(self, items: int) -> int:
        """How many go on with what was left behind: all that are left. Raises EngineError where nobody is."""
        if not self._alive:
            raise EngineError(f"no worker is left: {_reasons(self._lost)}")
        return self._announce(items, len(self._alive), "the workers that are left: ")

    def _second_try(self, items: int, unanswered: str | None) -> int:
        """How many go on with what places did not give. Raises StorageError where that was tried before."""
        assert unanswered is not None, "all workers did all they had to do, and yet items are left"
        if self._has_tried_again:
            raise StorageError(unanswered)
        self._has_tried_again = True
        count = min(len(self._alive), 1 + items // WORTH_A_WORKER)
        return self._announce(items, count, "workers " if count > 1 else "worker ")

    def _announce(self, items: int, count: int, who: str) -> int:
        names = ", ".join(map(str, list(self._alive)[:count]))
        text = f"{items:,} items that were left behind are dealt out anew, to {who}{names}"
        self._log.warning("items_dealt_anew", items=items, text=text)
        return count


def _reasons(lost: Iterable[Worker]) -> str:
    """Who was lost why; where all fail alike, it is said once."""
    names: dict[str, list[str]] = {}
    for worker in sorted(lost, key=lambda worker: worker.number):
        names.setdefault(worker.reason, []).append(worker.name)
    return "; ".join(f"{', '.join(alike)}: {reason}" for reason, alike in names.items())


def _failed(crew: Iterable[Worker], kind: type[VoxbatchError]) -> str | None:
    """What the first of them says that ended with an error of this kind."""
    words = [worker.word for worker in crew]
    return next((word.reason for word in words if isinstance(word, Failed) and issubclass(word.kind, kind)), None)
