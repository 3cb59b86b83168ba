"""The program of a worker process.

A worker executes assignments one after another, in the same way as a run in a single process. It sends its progress,
the messages of its engine and its reports about recordings' places to the parent process. The engine stays loaded
between assignments.

A worker does not survey the manifest, reserve OUT or merge: the parent does this. Its source is the open file of the
parent, so that both read the same bytes from any kind of source. If the parent tells it to stop, or if the parent is
gone, the worker commits its finished items and ends.
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

from voxbatch.engines import EngineCache, EngineMessage
from voxbatch.errors import RunError, StorageError, VoxbatchError
from voxbatch.process import confinement
from voxbatch.process.child import handle_stop_signals
from voxbatch.process.limits import limits_are_run_errors
from voxbatch.runner.job import Job
from voxbatch.runner.progress import FINAL_COMMIT_TIMEOUT_S, Progress, Stop, StopRequested, Usage
from voxbatch.runner.transcribe import circuit_breaker, resume, transcribe
from voxbatch.storage.circuit_breaker import Report
from voxbatch.storage.columns import ItemSet
from voxbatch.storage.waits import set_retry_deadline

HEARTBEAT_S = 1.0
"""Seconds between two heartbeats of a worker that is busy."""
PROGRESS_INTERVAL_S = 0.2
"""Minimum seconds between two progress messages."""
SHUTDOWN_TIMEOUT_S = FINAL_COMMIT_TIMEOUT_S + 2.0
"""Seconds that a worker may take for its last commit and for unloading its engine after it was told to stop."""


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """The items of a job that one worker has to transcribe."""

    job: Job
    items: ItemSet
    worker: int
    started_at: float
    """Time from which the worker's time counts as the run's, on the clock that all processes of this host share
    (time.monotonic)."""
    reports: frozenset[Report]
    """Reports of all workers about recordings' places, from the earlier rounds."""


@dataclass(frozen=True, slots=True)
class AssignmentStopped:
    """The assignment ended because the worker was told to stop. The finished items are committed."""


@dataclass(frozen=True, slots=True)
class AssignmentFailed:
    """The assignment ended with an error."""

    reason: str
    kind: type[VoxbatchError]


AssignmentResult = Usage | AssignmentStopped | AssignmentFailed
"""Last message of a worker for an assignment. Usage: all items are committed."""
WorkerMessage = Progress | EngineMessage | tuple[Report, ...] | AssignmentResult | None
"""Messages of a worker for each assignment: Progress, EngineMessage and None (a heartbeat) from time to time, the
reports at the end, and then the AssignmentResult."""


def stays_ready(result: AssignmentResult | None) -> bool:
    """Return whether a worker keeps its engine and waits for another assignment after this result."""
    return isinstance(result, Usage) or (isinstance(result, AssignmentFailed) and issubclass(result.kind, StorageError))


class _Reporter:
    """Sends messages to the parent, and progress at most every PROGRESS_INTERVAL_S seconds."""

    def __init__(self, connection: Connection):
        self._connection, self._sent_at = connection, 0.0
        self._lock = threading.Lock()
        """Held while a message is sent, because the heartbeats have a thread of their own."""
        self.is_busy = threading.Event()
        """Set while there is an assignment. At other times the parent reads no messages."""

    def send_heartbeats(self) -> None:
        """Prove until the end of the process that this process is not stopped."""
        while self.is_busy.wait():
            self.send(None)
            time.sleep(HEARTBEAT_S)

    def send_progress(self, progress: Progress) -> None:
        if time.monotonic() - self._sent_at >= PROGRESS_INTERVAL_S:
            self.send(progress)

    def send(self, message: WorkerMessage) -> None:
        """Send a message at once. No error is raised if the parent is gone: `_receive_assignments` notices that."""
        if message is not None:
            self._sent_at = time.monotonic()
        with self._lock, contextlib.suppress(OSError):
            self._connection.send(message)


def _execute(assignment: Assignment, reporter: _Reporter, stop: Stop, engine_cache: EngineCache) -> AssignmentResult:
    """Transcribe and commit every item of an assignment that is not committed yet."""
    job = assignment.job
    breaker = circuit_breaker(job, assignment.reports)
    try:
        stop.graceful = False
        work = resume(job, assignment.items, assignment.started_at, assignment.worker)
        try:
            return transcribe(job, work, engine_cache, stop, reporter.send_progress, reporter.send, breaker)
        finally:
            reporter.send(work.progress)
            reporter.send(breaker.reports())
    except StopRequested:
        return AssignmentStopped()
    except VoxbatchError as e:
        return AssignmentFailed(str(e), type(e))
    except Exception as e:  # noqa: BLE001 a bug shows its traceback and loses this worker; the other workers go on
        traceback.print_exc()
        return AssignmentFailed(f"{type(e).__name__}: {e}", VoxbatchError)
    finally:
        stop.graceful = True  # a stop from now on has nothing to interrupt


def _receive_assignments(connection: Connection, assignments: queue.SimpleQueue[Assignment | None]) -> None:
    """Put assignments into the queue until the parent sends None (stop) or ends. Then end this process and all that it
    started."""
    assignment: Assignment | None
    with contextlib.suppress(EOFError, OSError):
        while (assignment := connection.recv()) is not None:
            assignments.put(assignment)
    assignments.put(None)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
    time.sleep(SHUTDOWN_TIMEOUT_S)
    os.killpg(0, signal.SIGKILL)


def main(connection: Connection) -> None:
    """Execute assignments until the parent sends None or ends."""
    confinement.hide_memory()
    assignments: queue.SimpleQueue[Assignment | None] = queue.SimpleQueue()
    stop, reporter = Stop(), _Reporter(connection)
    stop.graceful = True  # without an assignment there is nothing to interrupt; None in the queue ends the wait for one

    def handle_signal(*_: object) -> None:
        """Request a stop, once: some service managers signal every process, and the parent sends None as well."""
        if not stop.requested.is_set():
            set_retry_deadline(FINAL_COMMIT_TIMEOUT_S)
            stop.request()

    handle_stop_signals(handle_signal)
    receive = threading.Thread(target=_receive_assignments, args=(connection, assignments), daemon=True, name="receive")
    heartbeat = threading.Thread(target=reporter.send_heartbeats, daemon=True, name="heartbeat")
    try:
        with limits_are_run_errors():
            receive.start()
            heartbeat.start()
    except RunError as e:
        reporter.send(AssignmentFailed(str(e), RunError))
        return
    result: AssignmentResult | None = None
    with contextlib.closing(EngineCache()) as engine_cache:
        while (assignment := assignments.get()) is not None:
            reporter.is_busy.set()
            result = _execute(assignment, reporter, stop, engine_cache)
            reporter.is_busy.clear()
            if not stays_ready(result):
                break
            reporter.send(result)
    if assignment is not None and result is not None:
        reporter.send(result)
    sys.stdout.flush()
    sys.stderr.flush()
    # The parent would kill this process and its child processes now. It may be gone, so that the worker does so itself:
    # a normal exit would wait for them, and for an engine's thread that is in native code.
    os.killpg(0, signal.SIGKILL)
