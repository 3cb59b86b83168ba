"""The program of a worker process.

A worker executes orders one after another, in the same way as a run in a single process. It sends its progress, its
notices and its reports about recordings' places to the fleet. The engine stays loaded between orders.

A worker does not survey the manifest, reserve OUT or merge: the fleet does this. Its source is the open file of the
fleet, so that both read the same bytes from any kind of source. If the fleet tells it to stop, or if the fleet is gone,
the worker commits its finished items and ends.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

from voxbatch.decoding import Undecodable
from voxbatch.engines import EngineCache, EngineMessage
from voxbatch.errors import StorageError, VoxbatchError
from voxbatch.runner.prepare import Job
from voxbatch.runner.progress import Progress, Usage
from voxbatch.runner.stop import FINAL_COMMIT_TIMEOUT_S, Stop, StopRequested
from voxbatch.runner.transcribe import resume, transcribe
from voxbatch.storage import set_retry_deadline
from voxbatch.storage.circuit_breaker import CircuitBreaker, Report

REPORT_S = 0.2
"""Minimum seconds between two progress messages."""
GRACE_S = FINAL_COMMIT_TIMEOUT_S + 2.0
"""Seconds that a worker may take for its last commit and for unloading its engine after it was told to stop."""


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """The items of a job that one worker has to transcribe."""

    job: Job
    items: NDArray[np.bool_]
    """Mask of the items, shape (num_items,)."""
    worker: int
    """Number of the worker."""
    started_at: float
    """Time from which the worker's time counts as the run's, on the clock that all processes of this host share
    (time.monotonic)."""
    reports: frozenset[Report]
    """Reports of all workers about recordings' places, from the earlier rounds."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """End of an order because the worker was told to stop. The finished items are committed."""


@dataclass(frozen=True, slots=True)
class Failed:
    """End of an order because of an error."""

    reason: str
    kind: type[VoxbatchError]


Message = Progress | EngineMessage | tuple[Report, ...] | Usage | Stopped | Failed
"""Messages of a worker for each order: Progress and EngineMessage from time to time, the reports at the end, and
then a Word."""
Word = Usage | Stopped | Failed
"""Last message of an order: Usage if the order is done."""


def takes_more(word: Word | None) -> bool:
    """Return whether a worker whose order ended with this message keeps its engine and waits for another order."""
    return isinstance(word, Usage) or (isinstance(word, Failed) and issubclass(word.kind, StorageError))


def _execute(assignment: Assignment, connection: Connection, stop: Stop, engine_cache: EngineCache) -> Usage:
    """Transcribe and commit every item of the assignment that is not committed yet.

    Raises:
        ConfigError: the model changed since the job was prepared.
        StopRequested, RunError: see Pipeline.run.
    """
    job, reporter = assignment.job, _Reporter(connection)
    breaker = CircuitBreaker[Undecodable](job.fail_unreachable, assignment.reports)
    work = resume(job, assignment.items, assignment.started_at, assignment.worker)
    try:
        return transcribe(job, work, engine_cache, stop, reporter, reporter.tell, breaker)
    finally:
        reporter.tell(work.progress)
        reporter.tell(breaker.reports())


class _Reporter:
    """Sends messages to the fleet, and progress at most every REPORT_S seconds."""

    def __init__(self, connection: Connection):
        self._connection, self._told_at = connection, 0.0

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() - self._told_at >= REPORT_S:
            self.tell(progress)

    def tell(self, message: Message) -> None:
        """Send a message to the fleet at once. A fleet that is gone is ignored."""
        self._told_at = time.monotonic()
        with contextlib.suppress(OSError):  # the fleet is gone, and `_listen` notices that
            self._connection.send(message)


def _last_word(assignment: Assignment, connection: Connection, stop: Stop, engine_cache: EngineCache) -> Word:
    try:
        stop.graceful = False
        return _execute(assignment, connection, stop, engine_cache)
    except StopRequested:
        return Stopped()
    except VoxbatchError as e:
        return Failed(str(e), type(e))
    except Exception as e:  # noqa: BLE001 a bug shows its traceback and loses this worker; the fleet goes on
        traceback.print_exc()
        return Failed(f"{type(e).__name__}: {e}", VoxbatchError)
    finally:
        stop.graceful = True  # a stop from now on has nothing to interrupt


def _listen(connection: Connection, assignments: queue.SimpleQueue[Assignment | None]) -> None:
    """Put orders into the queue until the fleet sends None (stop) or ends. Then end this process and all that it
    started."""
    assignment: Assignment | None
    with contextlib.suppress(EOFError, OSError):
        while (assignment := connection.recv()) is not None:
            assignments.put(assignment)
    assignments.put(None)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
    time.sleep(GRACE_S)
    os.killpg(0, signal.SIGKILL)


def _on_signals(stop: Stop) -> None:
    """Let SIGINT and SIGTERM ask `stop`, only once.

    Some service managers signal every process, and the fleet asks the worker to stop as well.
    """

    def handle(*_: object) -> None:
        if not stop.requested.is_set():
            set_retry_deadline(FINAL_COMMIT_TIMEOUT_S)
            stop.request()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


def main(connection: Connection) -> None:
    """Execute assignments until the parent sends None or ends."""
    assignments: queue.SimpleQueue[Assignment | None] = queue.SimpleQueue()
    stop, reporter = Stop(), _Reporter(connection)
    stop.graceful = True  # without an order there is nothing to interrupt, and `_listen` ends the wait for an order
    _on_signals(stop)
    threading.Thread(target=_listen, args=(connection, assignments), daemon=True, name="listen").start()
    word: Word | None = None
    with contextlib.closing(EngineCache()) as engine_cache:
        while (assignment := assignments.get()) is not None:
            word = _last_word(assignment, connection, stop, engine_cache)
            if not takes_more(word):
                break
            reporter.tell(word)
    if assignment is not None and word is not None:
        reporter.tell(word)
    sys.stdout.flush()
    sys.stderr.flush()
    # The fleet would kill this process and its child processes now. It may be gone, so that the worker does so itself:
    # a normal exit would wait for them, and for an engine's thread that is in native code.
    os.killpg(0, signal.SIGKILL)
