"""One run by several worker processes of this host, one per GPU.

The fleet distributes the items among the workers and adds up their progress. There is one run with one end. All workers
work on the same shard and commit to its parts. The number of workers changes only the time that the run takes, not its
outputs, and the next run may use another number.

A worker that dies is lost, together with its GPU. When the other workers have finished, its uncommitted items are
distributed among them. They keep their engines loaded for that.

A worker that stops because a place is unreachable is not lost, because its GPU is not to blame. When the other workers
have finished, its uncommitted items are distributed once more, together with the reports of all workers about the
places. So a recording that fails through its own fault ends as it would in one process, and only a place that is down
stops the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import astuple, replace
from multiprocessing.connection import wait

import numpy as np
from numpy.typing import NDArray

from voxbatch.errors import EngineError, StorageError, UsageError, VoxbatchError
from voxbatch.log import Log
from voxbatch.runner.pipeline import POLL_INTERVAL_S, decoder_count
from voxbatch.runner.prepare import Job
from voxbatch.runner.progress import Progress, Usage, known_audio
from voxbatch.runner.shard import split
from voxbatch.runner.stop import Stop, StopRequested
from voxbatch.runner.transcribe import RemainingWork, notice_logger
from voxbatch.runner.workers.process import Worker
from voxbatch.runner.workers.worker import GRACE_S, Assignment, Failed, Stopped, takes_more
from voxbatch.storage.circuit_breaker import Report

PATIENCE_S = GRACE_S + 5.0
"""Seconds after which a worker that was told to stop is killed. The worker should have ended by itself before."""
WORTH_A_WORKER = 100
"""Minimum items per additional worker of a second try, because each worker loads a model and often one item is left."""
ADDED_UP = ("done", "failed", "audio_s", "committed", "parts")
"""Fields of the workers' progress that add up to the fields of the run's progress."""


def transcribe(job: Job, work: RemainingWork, stop: Stop, on_progress: Callable[[Progress], None], log: Log) -> Usage:
    """Transcribe and commit the remaining items, in one process for each of the job's worker environments.

    Raises:
        StopRequested: `stop` was requested. The finished items are committed.
        UsageError: a worker found that the config or the manifest is wrong.
        StorageError: a place could not be read or written, and the second try failed as well.
        EngineError: all workers are lost.
    """
    return _WorkerPool(job, work, stop, on_progress, log).run()


class _WorkerPool:
    def __init__(self, job: Job, work: RemainingWork, stop: Stop, on_progress: Callable[[Progress], None], log: Log):
        self._job, self._work, self._stop, self._on_progress, self._log = job, work, stop, on_progress, log
        self._progress = work.progress
        self._alive = dict(enumerate(job.worker_environments))
        """Number → environment of each worker that is not lost."""
        self._started: dict[int, Worker] = {}
        """Number → worker, for the workers whose process was started and not ended."""
        self._lost: list[Worker] = []
        self._reports: frozenset[Report] = frozenset()
        """Reports of all workers about recordings' places, from the orders that ended."""
        self._has_tried_again = False
        """True if the items of unreachable places were already distributed a second time."""
        self._usage = Usage(0.0, 0.0, 0.0, 0.0)
        self._told_at: float | None = None
        """Time at which the workers were told to stop (time.monotonic), or None."""

    def run(self) -> Usage:
        """Commit all items of the work, in one or more rounds, and end all worker processes."""
        try:
            usage = self._rounds()
            self._dismiss()
            return usage
        finally:
            for worker in self._started.values():
                worker.end()

    def _rounds(self) -> Usage:
        todo, began = self._work.items, self._progress.started_at
        self._log.info("workers", text=f"{len(self._alive)} workers side by side, one process each")
        count = len(self._alive)
        while True:
            before = len(self._alive)
            unanswered = self._round(todo, began, count)
            todo, began = self._left(), time.monotonic()
            if not todo.any():
                return self._usage
            # The loop ends: a further round needs a lost worker, and each worker is lost at most once, or it is the
            # second try, and there is only one second try.
            items = int(np.count_nonzero(todo))
            count = self._others(items) if len(self._alive) < before else self._second_try(items, unanswered)

    def _round(self, todo: NDArray[np.bool_], began: float, count: int) -> str | None:
        """Distribute the items among `count` workers, and wait for the last message of each worker.

        Returns:
            The reason of the first worker that ended with a StorageError, or None.
        """
        crew: list[Worker] = []
        self._stop.graceful = True
        try:
            for assignment in self._assignments(todo, began, count):
                crew.append(self._worker(assignment.worker, assignment.job.source.fd))
                crew[-1].give(assignment)
            self._attend(crew)
        finally:
            self._stop.graceful = False
        if self._stop.requested.is_set():
            raise StopRequested
        if refusal := _failed(crew, UsageError):
            raise UsageError(refusal)
        return _failed(crew, StorageError)

    def _worker(self, number: int, fd: int) -> Worker:
        """Return the worker that an earlier round started, with its loaded engine, or start a new worker."""
        if number not in self._started:
            self._started[number] = Worker(number, self._alive[number], fd)
        return self._started[number]

    def _dismiss(self) -> None:
        """Tell the workers to unload their engines and to end, and wait for their ends."""
        deadline = time.monotonic() + PATIENCE_S
        for worker in self._started.values():
            worker.stop()
        for worker in self._started.values():
            while time.monotonic() < deadline and not worker.is_gone():
                if wait([worker.connection], POLL_INTERVAL_S) and not worker.hear():
                    break
                self._pass_on(worker, worker.printed())
            self._pass_on(worker, worker.end())

    def _assignments(self, todo: NDArray[np.bool_], started_at: float, count: int) -> list[Assignment]:
        """Return the assignments of `count` workers. A worker that would get no item gets none."""
        options = self._job.pipeline
        job = replace(self._job, pipeline=replace(options, decoders=decoder_count(options.decoders, count)))
        workers, masks = list(self._alive)[:count], split(job.durations, todo, count)
        return [
            Assignment(job, mask, worker, started_at, self._reports)
            for worker, mask in zip(workers, masks, strict=True)
            if mask.any()
        ]

    def _attend(self, crew: list[Worker]) -> None:
        before, working = replace(self._progress), list(crew)
        while working:
            ready = wait(
                [each for w in working for each in (w.connection, w.output) if each is not None], POLL_INTERVAL_S
            )
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
            if self._stop.requested.is_set() or _failed(crew, UsageError):
                self._tell_to_stop(working)

    def _pass_on(self, worker: Worker, lines: Iterable[str]) -> None:
        for line in lines:
            self._log.info("worker_printed", worker=worker.number, text=f"worker {worker.number}: {line}")

    def _pass_on_notices(self, worker: Worker) -> None:
        tell = notice_logger(self._log)
        while worker.notices:
            notice = worker.notices.pop(0)
            tell(replace(notice, text=f"worker {worker.number}: {notice.text}"))

    def _add_up(self, before: Progress, crew: list[Worker]) -> None:
        for name in ADDED_UP:
            value = getattr(before, name) + sum(getattr(worker.progress, name) for worker in crew)
            setattr(self._progress, name, value)
        self._on_progress(self._progress)

    def _tell_to_stop(self, working: list[Worker]) -> None:
        """Tell the workers to stop. Kill them if they still run PATIENCE_S after that."""
        now = time.monotonic()
        if self._told_at is None:
            self._told_at = now
            for worker in working:
                worker.stop()
        elif now - self._told_at > PATIENCE_S:
            for worker in working:
                worker.kill()

    def _see_off(self, worker: Worker) -> None:
        """Record the result of a worker's order and its reports about recordings' places.

        A worker is lost if it ended without a result, unless an unreachable place, a UsageError or a stop is the cause.
        """
        word = worker.word
        self._pass_on(worker, worker.printed() if takes_more(word) else self._started.pop(worker.number).end())
        self._reports |= set(worker.reports)
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
        """Return the mask of the uncommitted items; subtract the uncommitted progress of lost workers."""
        work, p = self._work, self._progress
        work.checkpoint.load()
        done = work.items & np.frombuffer(work.checkpoint.done, np.bool_)
        left = work.items & ~done
        p.failed = int(np.count_nonzero(done & np.frombuffer(work.checkpoint.failed, np.bool_)))
        p.done = int(np.count_nonzero(done)) - p.failed
        p.committed = p.resumed + p.done + p.failed
        known_audio_s, p.unknown = known_audio(self._job.durations, left)
        p.known_audio_s = p.audio_s + known_audio_s
        self._on_progress(p)
        return left

    def _others(self, items: int) -> int:
        """Return the number of workers for the items of lost workers: all that remain.

        Raises:
            EngineError: no worker remains.
        """
        if not self._alive:
            raise EngineError(f"no worker is left: {_reasons(self._lost)}")
        return self._announce(items, len(self._alive), "the workers that are left: ")

    def _second_try(self, items: int, unanswered: str | None) -> int:
        """Return the number of workers for the items of unreachable places.

        Raises:
            StorageError: there was a second try already.
        """
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
    """Return each reason once, with the names of the workers that were lost for it."""
    names: dict[str, list[str]] = {}
    for worker in sorted(lost, key=lambda worker: worker.number):
        names.setdefault(worker.reason, []).append(worker.name)
    return "; ".join(f"{', '.join(alike)}: {reason}" for reason, alike in names.items())


def _failed(crew: Iterable[Worker], kind: type[VoxbatchError]) -> str | None:
    """Return the reason of the first worker that ended with an error of this kind, or None."""
    words = [worker.word for worker in crew]
    return next((word.reason for word in words if isinstance(word, Failed) and issubclass(word.kind, kind)), None)
