"""Distribute tasks to workers, read their messages, replace workers that die or hang, and retry unreachable recordings
as the circuit breaker decides."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import wait

from voxbatch.decoding import process
from voxbatch.decoding.messages import Decoded, Message, Task, Undecodable
from voxbatch.decoding.process import Worker, warm_pool
from voxbatch.errors import AudioError, RunError
from voxbatch.records import Chunk, Failure
from voxbatch.storage import DEFAULT_STORE_OPTIONS, StoreOptions, redacted
from voxbatch.storage.circuit_breaker import CircuitBreaker, Reachable, Refused, Unreachable

EXIT_TIMEOUT_S = 5.0
"""Seconds for which a worker that closed its connection may need to end, so that its exit code can be read."""


class DecoderPool:
    """Pool of worker processes that decode tasks. Leaving the context returns the workers to the warm pool: see
    WarmPool."""

    def __init__(
        self,
        workers: int,
        store_options: StoreOptions = DEFAULT_STORE_OPTIONS,
        breaker: CircuitBreaker[Undecodable] | None = None,
    ):
        """Start the workers. `breaker` judges unreachable recordings; the default is a new circuit breaker."""
        self._store_options = store_options
        self._breaker = CircuitBreaker[Undecodable]() if breaker is None else breaker
        self._workers = [warm_pool.acquire(store_options) for _ in range(workers)]
        self.cpu_s = 0.0
        """CPU seconds that the workers spent on decoding and cutting."""
        self._retries: deque[Task] = deque()
        """Tasks of recordings that were unreachable and whose place answers again."""

    def __enter__(self) -> DecoderPool:
        return self

    def __exit__(self, *exc: object) -> None:
        for worker in self._workers:
            warm_pool.release(worker)

    def run(self, tasks: Iterator[Task]) -> Iterator[Message]:
        """Decode all tasks and yield the messages of the workers.

        A caller that is slow to take a message holds the workers back, which bounds memory. Unreachable recordings are
        retried once, when their place answers again.

        Raises:
            RunError: workers do not start on this machine, or a place that recordings are fetched from is down.
        """
        for message in self._messages(tasks):
            if isinstance(message, Undecodable) and isinstance(message.report, Unreachable | Refused):
                yield from self._breaker.unreachable(message.report, message)
                continue
            if not isinstance(message, Chunk) and isinstance(message.report, Reachable):
                for released in self._breaker.reachable(message.report):
                    if released.retry is None:
                        yield released
                    else:
                        self._retries.append(released.retry)
            yield message
        yield from self._breaker.finish()

    def _messages(self, tasks: Iterator[Task]) -> Iterator[Message]:
        """Give out the tasks and the retries, and yield the messages of all workers as they arrive."""
        tasks = iter(tasks)
        while True:
            while (worker := min(self._workers, key=lambda w: len(w.tasks))).has_room():
                task = self._retries.popleft() if self._retries else next(tasks, None)
                if task is None:
                    break
                self._alive(worker).give(task)
            busy = [worker for worker in self._workers if worker.tasks]
            if not busy:
                return
            ready = wait([worker.connection for worker in busy], timeout=1.0)
            for worker in busy:
                if worker.connection in ready:
                    yield from self._receive(worker)
                elif worker.hangs():
                    yield self._fail(worker, f"decoding hung for {process.HANG_TIMEOUT_S:.0f} s and was stopped")

    def _receive(self, worker: Worker) -> Iterator[Message]:
        try:
            message = worker.receive()
        except (EOFError, OSError):
            worker.end(EXIT_TIMEOUT_S)
            if not worker.greeted:
                raise RunError(
                    f"decoder processes do not start here ({worker.exit_reason}); "
                    "`python -c 'import voxbatch.audio'` may tell why, and so may voxbatch doctor"
                ) from None
            yield self._fail(worker, f"the decoder died ({worker.exit_reason})")
            return
        if isinstance(message, Decoded):
            self.cpu_s += message.cpu_s
        if message is not None:
            yield message

    def _alive(self, worker: Worker) -> Worker:
        """Return the worker, or a new worker if it died while idle. No task is to blame for such a death."""
        if worker.tasks or not worker.connection.poll():
            return worker
        try:
            worker.receive()  # the worker's first message, a heartbeat
            return worker
        except (EOFError, OSError):
            return self._replace(worker)

    def _replace(self, worker: Worker) -> Worker:
        """Kill a worker that died or must stop, and return a new one that takes its place."""
        worker.end()
        new_worker = self._workers[self._workers.index(worker)] = Worker(self._store_options)
        return new_worker

    def _fail(self, worker: Worker, reason: str) -> Undecodable:
        """Replace a worker that died or hangs. Return the failure of its current task; the new worker gets the waiting
        tasks."""
        new_worker = self._replace(worker)
        failed, *waiting = worker.tasks
        for task in waiting:
            new_worker.give(task)
        text = f"cannot decode {redacted(failed.audio)}: {reason}"
        return Undecodable(failed.item, Failure(AudioError.__name__, text, retryable=True))
