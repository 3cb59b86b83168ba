"""The parent's side of one worker process: send it assignments, receive its messages, and stop it."""

from __future__ import annotations

import time
from collections.abc import Mapping

from voxbatch.engines import EngineMessage
from voxbatch.process.child import ChildProcess
from voxbatch.process.hang_detector import SilenceClock, is_stopped
from voxbatch.runner.progress import Progress
from voxbatch.runner.workers.worker import (
    SHUTDOWN_TIMEOUT_S,
    Assignment,
    AssignmentFailed,
    AssignmentResult,
    AssignmentStopped,
    WorkerMessage,
)
from voxbatch.storage.circuit_breaker import Report

SILENCE_WARNING_S = 120.0
"""Seconds without a message, and a heartbeat is due every second, between two warnings."""
KILL_AFTER_S = SHUTDOWN_TIMEOUT_S + 5.0
"""Seconds after which a worker that was told to stop is killed. The worker should have ended by itself before."""


class Worker(ChildProcess):
    """A worker process. It inherits the open files `fds`. Call `end` in every case, also if the process died."""

    def __init__(self, number: int, environment: Mapping[str, str], fds: tuple[int, ...]):
        super().__init__("voxbatch.runner.workers.worker", environment, files=fds, captures_output=True)
        self.number = number
        self.name = f"worker {number} ({', '.join(f'{name}={value}' for name, value in environment.items())})"
        self.progress = Progress(0)
        """Progress in the current assignment."""
        self.engine_messages: list[EngineMessage] = []
        """Messages of the worker's engine that were not logged yet."""
        self.reports: tuple[Report, ...] = ()
        """Reports of the worker about recordings' places. Empty until the assignment ends."""
        self.result: AssignmentResult | None = None
        """Result of the current assignment. None while the worker is busy with it."""
        self.silence_clock = SilenceClock(SILENCE_WARNING_S)
        """Counts the time in which the worker is busy and sends nothing."""
        self._lost_because = ""
        self.stopped_at: float | None = None
        """Time of the first call of `stop` (time.monotonic), or None."""

    def assign(self, assignment: Assignment) -> None:
        """Send an assignment."""
        self.progress, self.reports, self.result = Progress(0), (), None
        self.silence_clock.reset()
        self.send(assignment)

    def receive(self) -> bool:
        """Receive one message. Return False if the connection is closed and no further message can come."""
        try:
            message: WorkerMessage = self.connection.recv()
        except (EOFError, OSError):
            return False
        self.silence_clock.reset()
        if message is None:
            pass
        elif isinstance(message, Progress):
            self.progress = message
        elif isinstance(message, EngineMessage):
            self.engine_messages.append(message)
        elif isinstance(message, tuple):
            self.reports = message
        else:
            self.result = message
        return True

    def silence(self) -> str:
        """Return, for people, for how long the worker has sent nothing, and the cause as far as it is known."""
        seconds = f"worker {self.number} has sent nothing for {self.silence_clock.silent_s:.0f} s"
        if is_stopped(self.pid):
            return f"{seconds}: a signal has stopped its process; kill -CONT {self.pid} continues it"
        return f"{seconds}: it hangs, or this machine is overloaded"

    def give_up(self) -> None:
        """Tell the worker to stop because it has sent nothing for too long. It does so if it continues."""
        self._lost_because = self._lost_because or self.silence()
        self.stop()

    def kill_silent(self) -> None:
        """Kill the worker because it has sent nothing for too long."""
        self.give_up()
        self.kill()

    def stop(self) -> None:
        """Tell the worker to commit its finished items and to end.

        Call this again and again until the worker has ended: after KILL_AFTER_S, a call kills the worker.
        """
        if self.stopped_at is None:
            self.stopped_at = time.monotonic()
            self.send(None)
        elif time.monotonic() - self.stopped_at > KILL_AFTER_S:
            self.kill()

    @property
    def reason(self) -> str:
        """Reason why the worker did not finish its assignment. Empty before `end`, and if the assignment is done."""
        if isinstance(self.result, AssignmentFailed):
            return self.result.reason
        if isinstance(self.result, AssignmentStopped):
            return "told to stop"
        return self._lost_because or self.exit_reason if self.result is None else ""
