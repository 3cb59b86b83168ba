"""The fleet's side of one worker process: start it, send it orders, receive its messages, stop it, and kill it with
all its child processes."""

from __future__ import annotations

from collections.abc import Mapping

from voxbatch.child_process import ChildProcess
from voxbatch.engines import EngineMessage
from voxbatch.runner.progress import Progress
from voxbatch.runner.workers.worker import Assignment, Failed, Message, Stopped, Word
from voxbatch.storage.circuit_breaker import Report


class Worker(ChildProcess):
    """A worker process. It inherits the open file `fd`. Call `end` in every case, also if the process died."""

    def __init__(self, number: int, environment: Mapping[str, str], fd: int):
        super().__init__("voxbatch.runner.workers.worker", environment, files=(fd,), captures_output=True)
        self.number = number
        self.name = f"worker {number} ({', '.join(f'{name}={value}' for name, value in environment.items())})"
        self.progress = Progress(0)
        self.notices: list[EngineMessage] = []
        """Notices of the worker's engine that were not logged yet."""
        self.reports: tuple[Report, ...] = ()
        """Reports of the worker about recordings' places. Empty until the order ends."""
        self.word: Word | None = None
        """Last message of the current order. None while the worker is busy with the order."""

    def give(self, assignment: Assignment) -> None:
        """Send an assignment."""
        self.progress, self.reports, self.word = Progress(0), (), None
        self.send(assignment)

    def hear(self) -> bool:
        """Receive one message. Return False if the connection is closed and no further message can come."""
        try:
            message: Message = self.connection.recv()
        except (EOFError, OSError):
            return False
        if isinstance(message, Progress):
            self.progress = message
        elif isinstance(message, EngineMessage):
            self.notices.append(message)
        elif isinstance(message, tuple):
            self.reports = message
        else:
            self.word = message
        return True

    def stop(self) -> None:
        """Ask the worker to commit its finished items and to end."""
        self.send(None)

    @property
    def reason(self) -> str:
        """Reason why the process ended without finishing its order. Empty before `end`, and if the order is done."""
        if isinstance(self.word, Failed):
            return self.word.reason
        if isinstance(self.word, Stopped):
            return "told to stop"
        return self.exit_reason if self.word is None else ""
