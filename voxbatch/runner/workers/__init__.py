"""Transcribe a job in several worker processes of this host, one per GPU.

The parent distributes the items among the workers and adds up their progress. All workers work on the same shard and
commit to its parts. The number of workers changes only the time that the run takes, not its outputs, and the next run
may use another number.

A worker that dies is lost, together with its GPU. When the other workers have finished, its uncommitted items are
distributed among them. They keep their engines loaded for that.

A worker that a signal has stopped, or that hangs, sends no heartbeats. A warning names it. When the other workers have
finished and it is still silent, it is lost, too. It is told to stop and not killed: if it continues, it commits the
items that it had finished, except those that another worker has committed, and ends. If no worker is at work any more,
the silent workers are killed.

A worker that stops because a place is unreachable is not lost, because its GPU is not to blame. When the other workers
have finished, its uncommitted items are distributed once more, together with the reports of all workers about the
places. So a recording that fails through its own fault ends as it would in one process, and only a place that is down
stops the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from multiprocessing.connection import wait

from voxbatch.errors import EngineError, StorageError, TakenOverError, UsageError, VoxbatchError
from voxbatch.log import Log
from voxbatch.process.hang_detector import is_stopped
from voxbatch.runner.decode_thread import decoder_count
from voxbatch.runner.job import Job, RemainingWork
from voxbatch.runner.progress import Progress, Stop, StopRequested, Usage, known_audio
from voxbatch.runner.shard import split
from voxbatch.runner.shared import POLL_INTERVAL_S
from voxbatch.runner.transcribe import log_engine_message
from voxbatch.runner.workers.process import Worker
from voxbatch.runner.workers.worker import Assignment, AssignmentFailed, AssignmentStopped, stays_ready
from voxbatch.storage.circuit_breaker import Report
from voxbatch.storage.columns import ItemSet

MIN_ITEMS_PER_WORKER = 100
"""Minimum items per additional worker of a retry, because often only one item is uncommitted."""
SILENCE_LIMIT_S = 900.0
"""Seconds without a message of any busy worker after which they are killed. A silent worker is left alone as long as
another one is at work: a person may have stopped it on purpose."""
STOPPED_LIMIT_S = 30.0
"""Seconds without a message of a worker that a signal has stopped, after which idle workers do its items."""
HANG_LIMIT_S = 120.0
"""The same for other silent workers. Native code of an engine may hold the interpreter lock for many seconds."""
SUMMED_FIELDS = (
    "done",
    "failed",
    "audio_s",
    "measured",
    "measured_s",
    "fixed_s",
    "measured_fixed_s",
    "failed_s",
    "committed",
    "parts",
)
"""Fields of the workers' progress that add up to the fields of the run's progress."""

FATAL_ERRORS = (UsageError, TakenOverError)
"""Errors that would end every other worker, too."""


def transcribe(job: Job, work: RemainingWork, stop: Stop, on_progress: Callable[[Progress], None], log: Log) -> Usage:
    """Transcribe and commit the remaining items, in one process for each of the job's worker environments.

    Raises:
        StopRequested: `stop` was requested. The finished items are committed.
        UsageError: a worker found that the config or the manifest is wrong.
        TakenOverError: another run took OUT over.
        StorageError: a place could not be read or written, and the retry failed as well.
        EngineError: all workers are lost.
    """
    pool = _WorkerPool(job, work, stop, on_progress, log)
    try:
        pool.commit_all()
        pool.shut_down()
    finally:
        pool.kill()
    return pool.usage


class _WorkerPool:
    """The worker processes of a job, and the sum of their progress."""

    def __init__(self, job: Job, work: RemainingWork, stop: Stop, on_progress: Callable[[Progress], None], log: Log):
        self._job, self._work, self._stop, self._on_progress, self._log = job, work, stop, on_progress, log
        self._progress = work.progress
        self._available = dict(enumerate(job.worker_environments))
        """Number → environment of each worker that is not lost."""
        self._running: dict[int, Worker] = {}
        """Number → worker, for the workers whose process was started and not ended."""
        self._lost: list[Worker] = []
        self._reports: frozenset[Report] = frozenset()
        """Reports of all workers about recordings' places, from the assignments that ended."""
        self.usage = Usage(0.0, 0.0, 0.0, 0.0)
        """Sum over the assignments that are done."""

    def commit_all(self) -> None:
        """Commit all remaining items, in one or more rounds."""
        count, is_retry = len(self._available), False
        remaining, started_at = self._work.items, self._progress.started_at
        self._log.info("workers", text=f"{count} workers in parallel, one process each")
        while True:
            num_available = len(self._available)
            workers = self._run_round(remaining, started_at, count)
            remaining, started_at = self._uncommitted(), time.monotonic()
            if not remaining.any():
                return
            if not self._available:
                lost: dict[str, list[str]] = {}
                for worker in sorted(self._lost, key=lambda worker: worker.number):
                    lost.setdefault(worker.reason, []).append(worker.name)
                reasons = "; ".join(f"{', '.join(alike)}: {reason}" for reason, alike in lost.items())
                raise EngineError(f"no worker is left: {reasons}")
            num_items = remaining.count()
            # The loop ends: each worker is lost at most once, and there is only one retry without a lost worker.
            if len(self._available) < num_available:
                count = len(self._available)
            else:
                error = _first_error(workers, StorageError)
                assert error is not None, "all workers did all they had to do, and yet items are left"
                if is_retry:
                    raise StorageError(error)
                is_retry, count = True, min(len(self._available), 1 + num_items // MIN_ITEMS_PER_WORKER)
            names = ", ".join(map(str, list(self._available)[:count]))
            subject = "uncommitted items are" if num_items > 1 else "uncommitted item is"
            text = f"{num_items:,} {subject} reassigned to {'workers' if count > 1 else 'worker'} {names}"
            self._log.warning("items_dealt_anew", items=num_items, text=text)

    def shut_down(self) -> None:
        """Let the workers unload their engines and end, and wait for their ends."""
        for worker in self._running.values():
            if worker in self._lost:
                worker.kill()
            else:
                worker.stop()
        for worker in self._running.values():
            while not worker.is_gone():
                if wait([worker.connection], POLL_INTERVAL_S) and not worker.receive():
                    break
                self._log_output(worker, worker.printed())
                worker.stop()
            self._log_output(worker, worker.end())

    def kill(self) -> None:
        """Kill the workers that still run."""
        for worker in self._running.values():
            worker.end()

    def _run_round(self, items: ItemSet, started_at: float, count: int) -> list[Worker]:
        """Distribute the items among `count` workers, and wait for their results.

        Returns:
            The workers that got items. They run, unless they are lost.
        """
        config, workers = self._job.config, list[Worker]()
        job = replace(self._job, config=replace(config, decoders=decoder_count(config.decoders, count)))
        self._stop.graceful = True
        try:
            for number, share in zip(list(self._available)[:count], split(job.durations, items, count), strict=True):
                if share.any():
                    if number not in self._running:  # otherwise, the worker has a loaded engine from an earlier round
                        fds = job.source.fd, job.durations.fd, job.keys.fd
                        self._running[number] = Worker(number, self._available[number], fds)
                    workers.append(self._running[number])
                    workers[-1].assign(Assignment(job, share, number, started_at, self._reports))
            self._wait_for_results(workers)
        finally:
            self._stop.graceful = False
        if self._stop.requested.is_set():
            raise StopRequested
        for kind in FATAL_ERRORS:
            if error := _first_error(workers, kind):
                raise kind(error)
        return workers

    def _wait_for_results(self, workers: list[Worker]) -> None:
        before, busy = replace(self._progress), list(workers)
        while busy:
            pairs = [(worker.connection, worker.output) for worker in busy]
            channels = [channel for pair in pairs for channel in pair if channel is not None]
            ready = wait(channels, POLL_INTERVAL_S)
            for worker in list(busy):
                if worker.output in ready:
                    self._log_output(worker, worker.printed())
                is_gone = (worker.connection in ready and not worker.receive()) or worker.is_gone()
                while worker.engine_messages:
                    message = worker.engine_messages.pop(0)
                    log_engine_message(self._log, replace(message, text=f"worker {worker.number}: {message.text}"))
                if is_gone or worker.result is not None:
                    busy.remove(worker)
                    self._record_result(worker)
            if ready:
                self._progress.waiting = next(filter(None, (worker.progress.waiting for worker in busy)), "")
                self._add_up(before, workers)
            if self._stop.requested.is_set() or any(_first_error(workers, kind) for kind in FATAL_ERRORS):
                for worker in busy:
                    worker.stop()
            elif self._check_silence(busy):
                return

    def _add_up(self, before: Progress, workers: Iterable[Worker]) -> None:
        """Add the progress of workers to that before their round."""
        for name in SUMMED_FIELDS:
            total = getattr(before, name) + sum(getattr(worker.progress, name) for worker in workers)
            setattr(self._progress, name, total)
        self._progress.add_point()
        self._on_progress(self._progress)

    def _check_silence(self, busy: list[Worker]) -> bool:
        """Warn of workers that send nothing. If no other worker is at work, they are lost, and are killed if none is
        idle either. Return whether idle workers can do their items."""
        for worker in busy:
            if worker.silence_clock.look():
                self._log.warning("worker_silent", worker=worker.number, text=worker.silence())
        is_one_idle = len(self._available) > len(busy)
        if is_one_idle and busy and all(worker.silence_clock.silent_s >= _limit_s(worker) for worker in busy):
            for worker in busy:
                worker.give_up()
                self._lose(worker)
            return True
        if all(worker.silence_clock.silent_s >= SILENCE_LIMIT_S for worker in busy):
            for worker in busy:
                worker.kill_silent()
        return False

    def _record_result(self, worker: Worker) -> None:
        """Record the result of a worker's assignment and its reports about recordings' places.

        A worker is lost if it ended without a result, unless an unreachable place, one of FATAL_ERRORS or a stop is the
        cause.
        """
        result = worker.result
        was_stopped = isinstance(result, AssignmentStopped) and worker.stopped_at is not None
        self._log_output(worker, worker.printed() if stays_ready(result) else self._running.pop(worker.number).end())
        self._reports |= set(worker.reports)
        if isinstance(result, Usage):
            self.usage += result
        elif isinstance(result, AssignmentFailed) and stays_ready(result):
            text = f"{worker.name} has stopped: {result.reason}; its committed items are safe"
            self._log.warning("worker_stopped", worker=worker.number, text=text)
        elif not was_stopped and not any(_first_error([worker], kind) for kind in FATAL_ERRORS):
            self._lose(worker)

    def _lose(self, worker: Worker) -> None:
        del self._available[worker.number]
        self._lost.append(worker)
        text = f"{worker.name} is lost: {worker.reason}; its committed items are safe"
        self._log.warning("worker_lost", worker=worker.number, text=text)

    def _uncommitted(self) -> ItemSet:
        """Return the uncommitted items; subtract the uncommitted progress of lost workers."""
        items, checkpoint, p = self._work.items, self._work.checkpoint, self._progress
        checkpoint.load()
        done, uncommitted = items & checkpoint.done, items - checkpoint.done
        p.failed = (done & checkpoint.failed).count()
        p.done = done.count() - p.failed
        p.committed = p.resumed + p.done + p.failed
        known_audio_s, p.unknown, fixed_s = known_audio(self._job.durations, uncommitted, p.windows)
        p.known_audio_s, p.measured, p.measured_s = p.audio_s + known_audio_s, 0, 0.0
        p.known_fixed_s, p.measured_fixed_s, p.failed_s = p.fixed_s + fixed_s, 0.0, 0.0
        self._on_progress(p)
        return uncommitted

    def _log_output(self, worker: Worker, lines: Iterable[str]) -> None:
        for line in lines:
            self._log.info("worker_printed", worker=worker.number, text=f"worker {worker.number}: {line}")


def _limit_s(worker: Worker) -> float:
    """Return the seconds for which idle workers leave its items to a silent worker."""
    return STOPPED_LIMIT_S if is_stopped(worker.pid) else HANG_LIMIT_S


def _first_error(workers: Iterable[Worker], kind: type[VoxbatchError]) -> str | None:
    """Return the reason of the first worker whose assignment ended with an error of this kind, or None."""
    results = [worker.result for worker in workers]
    return next((r.reason for r in results if isinstance(r, AssignmentFailed) and issubclass(r.kind, kind)), None)
