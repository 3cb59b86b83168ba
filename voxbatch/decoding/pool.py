"""Distribute tasks to decoder processes, read their messages, replace processes that die or hang, and retry unreachable
recordings as the circuit breaker decides.

A killed process says nothing about the recording: the OOM killer or a person may have ended it. Neither does a process
that hangs: a drive may not answer. Therefore the current task of a decoder that died or hangs, or whose ffmpeg was
killed, is retried once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import wait

from voxbatch.decoding.messages import Decoded, Message, Task, Undecodable
from voxbatch.decoding.process import DecoderProcess, warm_pool
from voxbatch.errors import AudioError, RunError
from voxbatch.records import Chunk, Failure
from voxbatch.storage import DEFAULT_STORE_OPTIONS, RetryWait, StoreOptions, redacted
from voxbatch.storage.circuit_breaker import CircuitBreaker, Reachable, Refused, Unreachable

NO_TASK_POLL_S = 0.05
"""Seconds after which idle decoders ask again for a task."""
EXIT_TIMEOUT_S = 5.0
"""Seconds for which a decoder that closed its connection may need to end, so that its exit code can be read."""
MAX_KILLED_STARTS = 3
"""Number of decoders in succession, in one place of the pool, that may be killed before their first message. The next
one ends the run. An unlucky decoder is killed once, and where memory or rights are missing, all of them are."""


class DecoderPool:
    """Pool of decoder processes that decode tasks. Leaving the context returns the decoders to the warm pool: see
    WarmPool."""

    def __init__(
        self,
        decoders: int,
        store_options: StoreOptions = DEFAULT_STORE_OPTIONS,
        breaker: CircuitBreaker[Undecodable] | None = None,
    ):
        """Start the decoders. `breaker` judges unreachable recordings; the default is a new circuit breaker."""
        self._store_options = store_options
        self._breaker = CircuitBreaker[Undecodable]() if breaker is None else breaker
        self._decoders = [warm_pool.acquire(store_options) for _ in range(decoders)]
        self.cpu_s = 0.0
        """CPU seconds that the decoders spent on decoding and cutting."""
        self.retry: tuple[float, RetryWait] | None = None
        """The last report of a store that does not answer, with its time.monotonic(). Another thread may read it."""
        self._retries: deque[Task] = deque()
        """Tasks of recordings whose ffmpeg was killed, or that were unreachable and whose place answers again."""

    def __enter__(self) -> DecoderPool:
        return self

    def __exit__(self, *exc: object) -> None:
        for decoder in self._decoders:
            warm_pool.release(decoder)

    def is_idle(self) -> bool:
        """Return whether no decoder has a task."""
        return not any(decoder.tasks for decoder in self._decoders)

    def run(self, tasks: Iterator[Task | None]) -> Iterator[Message]:
        """Decode all tasks and yield the messages of the decoders.

        None in `tasks` means that the next task comes later: the pool asks again when it has read its messages.

        A caller that is slow to take a message holds the decoders back, which bounds memory. Unreachable recordings are
        retried once, when their place answers again. Each chunk is yielded once, also if its recording is retried.

        Raises:
            RunError: decoders do not start on this machine, or a place that recordings are fetched from is down.
        """
        for message in self._messages(tasks):
            if isinstance(message, Undecodable) and isinstance(message.report, Unreachable | Refused):
                yield from self._breaker.unreachable(message.report, message)
                continue
            if isinstance(message, Undecodable) and message.report is None and message.retry is not None:
                self._retries.append(message.retry)
                continue
            if not isinstance(message, Chunk) and isinstance(message.report, Reachable):
                for released in self._breaker.reachable(message.report):
                    if released.retry is None:
                        yield released
                    else:
                        self._retries.append(released.retry)
            yield message
        yield from self._breaker.finish()

    def _messages(self, tasks: Iterator[Task | None]) -> Iterator[Message]:
        """Give out the tasks and the retries, and yield the messages of all decoders as they arrive."""
        tasks = iter(tasks)
        while True:
            has_more = True
            while (decoder := min(self._decoders, key=lambda each: len(each.tasks))).has_capacity():
                try:
                    task = self._retries.popleft() if self._retries else next(tasks)
                except StopIteration:
                    has_more = False
                    break
                if task is None:
                    break
                if not decoder.tasks and decoder.has_ended():  # it died while idle, and no task is to blame
                    decoder = self._replace(decoder)
                decoder.send_task(task)
            busy = [decoder for decoder in self._decoders if decoder.tasks]
            if not busy and not has_more:
                return
            ready = wait([decoder.connection for decoder in busy], NO_TASK_POLL_S if not busy else 1.0)
            for decoder in busy:
                if decoder.connection in ready:
                    yield from self._receive(decoder)
                elif decoder.is_hung():
                    yield from self._restart(decoder, "hung")

    def _receive(self, decoder: DecoderProcess) -> Iterator[Message]:
        try:
            message = decoder.receive()
        except (EOFError, OSError):
            decoder.end(EXIT_TIMEOUT_S)
            yield from self._restart(decoder, f"died ({decoder.exit_reason})")
            return
        if isinstance(message, Decoded):
            self.cpu_s += message.cpu_s
        if isinstance(message, RetryWait):
            self.retry = time.monotonic(), message
        elif message is not None:
            yield message

    def _replace(self, decoder: DecoderProcess) -> DecoderProcess:
        """Kill a decoder that died or must stop, and return a new one that takes its place."""
        decoder.end()
        new_decoder = self._decoders[self._decoders.index(decoder)] = DecoderProcess(self._store_options)
        return new_decoder

    def _restart(self, decoder: DecoderProcess, fate: str) -> Iterator[Undecodable]:
        """Replace a decoder that died or hangs, and give its tasks to the new decoder. Yield the failure of the current
        task if that was a retry already.

        Raises:
            RunError: the decoder could not start.
        """
        decoder.end()
        if not decoder.has_started and (not decoder.was_killed or decoder.killed_starts == MAX_KILLED_STARTS):
            raise RunError(
                f"decoder processes do not start here ({decoder.exit_reason}); "
                "`python -c 'import voxbatch.audio'` may tell why, and so may voxbatch doctor"
            ) from None
        new_decoder = self._replace(decoder)
        tasks = list(decoder.tasks)
        if not decoder.has_started:  # no task is to blame
            new_decoder.killed_starts = decoder.killed_starts + 1
        elif not tasks[0].is_retry:
            tasks[0] = replace(tasks[0], is_retry=True, received=tuple(decoder.spans))
        else:
            failed = tasks.pop(0)
            text = f"cannot decode {redacted(failed.audio)}: the decoder of the retry {fate}"
            failure = Failure(AudioError.__name__, text, retryable=True)
            yield Undecodable(failed.item, failure, recording=failed.recording)
        for task in tasks:
            new_decoder.send_task(task)
