"""Distribute tasks to decoder processes, read their messages, replace processes that die or hang, and retry unreachable
recordings as the circuit breaker decides.

A killed process says nothing about the recording: the OOM killer or a person may have ended it. Neither does a process
that hangs: a drive may not answer. Therefore the current task of a decoder that died or hangs is retried until it is to
blame by the rules of `process.suspects`: once, because a decoder works on one task at a time. So is one whose ffmpeg
was killed."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from voxbatch.audio import ffmpeg
from voxbatch.decoding.messages import (
    Decoded,
    DecoderRefused,
    DecoderSettings,
    DecodeTask,
    Message,
    Undecodable,
    receive,
)
from voxbatch.errors import RunError, VoxbatchError
from voxbatch.failure_kinds import FailureKind
from voxbatch.process.child import ChildProcess, for_voxbatch, readable
from voxbatch.process.confinement import OFF, ON, SWITCH, is_switched_off
from voxbatch.process.hang_detector import HangDetector
from voxbatch.process.limits import describe_limits
from voxbatch.process.suspects import SearchRules, Suspects
from voxbatch.records import Chunk, Failure, Span
from voxbatch.shared_samples import SharedSamples
from voxbatch.storage import DEFAULT_STORES, Stores, redacted
from voxbatch.storage.circuit_breaker import CircuitBreaker, Reachable, Refused, Unreachable
from voxbatch.storage.waits import RetryWait

MAX_TASKS = 12
"""Number of tasks that a decoder holds, so that it never waits for its next short recording: one that is decoded, as
many as are prefetched (FETCH_THREADS), and some that were fetched out of order."""
MAX_TASKS_IN_POOL = 2000
"""Number of tasks that a pool takes at most. Hugging Face's datasets write row groups of 100 recordings."""
HANG_TIMEOUT_S = 120.0
"""Seconds without a message and without work after which a decoder hangs: see HangDetector. A read of a slow network
drive may take a minute."""
BUSY_TIMEOUT_S = 1200.0
"""Seconds without a message after which a working decoder hangs. Skipping to an offset of many hours in a format
without an index may take ten minutes."""
NO_TASK_POLL_S = 0.05
"""Seconds after which idle decoders ask again for a task."""
EXIT_TIMEOUT_S = 5.0
"""Seconds for which a decoder that closed its connection may need to end, so that its exit code can be read."""
MAX_KILLED_STARTS = 3
"""Number of decoders in succession, in one place of the pool, that may be killed before their first message. The next
one ends the run. An unlucky decoder is killed once, and where memory or rights are missing, all of them are."""


class DecoderProcess(ChildProcess):
    """Decoder process, with the tasks that it has been given and has not finished."""

    def __init__(self, stores: Stores) -> None:
        self.environment = _environment(stores)
        """Variables of this process that the decoder has for life."""
        self._received_fd = os.eventfd(0)
        super().__init__(
            "voxbatch.decoding.decoder",
            files=[self._received_fd],
            inherited=self.environment,
            dies_with_parent=True,
        )
        self.stores = stores
        self.tasks: deque[DecodeTask] = deque()
        self._num_sent = 0
        """Number of `tasks` that the decoder has, the first ones."""
        self.spans: list[Span] = []
        """Spans of the chunks of the current task that were received from this decoder."""
        self.has_started = False
        """True after the decoder's first message. A decoder that dies earlier could not start; no task is to blame."""
        self.killed_starts = 0
        """Number of decoders in succession before this one that were killed before their first message."""
        self._hang_detector = HangDetector(self.pid)
        self.send(DecoderSettings(stores, self._received_fd))

    def has_capacity(self) -> bool:
        """Return whether the decoder takes another task."""
        return len(self.tasks) < MAX_TASKS

    @property
    def last_row_group(self) -> str | None:
        """The row group of the last task; see DecodeTask."""
        return self.tasks[-1].row_group if self.tasks else None

    def add_task(self, task: DecodeTask) -> None:
        """Give the decoder a task, which is sent to it as soon as it has room."""
        if not self.tasks:
            self._hang_detector.reset()
        self.tasks.append(task)
        self._send_tasks()

    def _send_tasks(self) -> None:
        """Send the tasks for which the decoder has room. The first one of a row group waits for the end of those before
        it, because the decoder holds one group in memory. A retry is alone, because the decoder opens recordings ahead,
        and may have died of another one."""
        while self._num_sent < min(len(self.tasks), MAX_TASKS):
            task = self.tasks[self._num_sent]
            if self._num_sent:
                before = self.tasks[self._num_sent - 1]
                if before.is_retry or task.is_retry or task.row_group not in (None, before.row_group):
                    return
            self.send(task)
            self._num_sent += 1

    def receive(self) -> Message | DecoderRefused | RetryWait | None:
        """Receive one message, with the samples of a Chunk; None and RetryWait are heartbeats.

        Raises:
            EOFError, OSError: the decoder has died.
        """
        message: Message | DecoderRefused | RetryWait | None = receive(self.connection)
        if message is None or isinstance(message, RetryWait):
            self.has_started = True
        elif isinstance(message, Chunk):
            assert isinstance(message.audio, SharedSamples)
            message.audio.receive(self.connection)
            os.eventfd_write(self._received_fd, len(message.audio))
            self.spans.append(message.span)
        elif not isinstance(message, DecoderRefused):
            self.tasks.popleft()
            self.spans.clear()
            self._num_sent -= 1
            self._send_tasks()
        self._hang_detector.reset()
        return message

    def end(self, patience_s: float = 0.0) -> list[str]:
        """See ChildProcess."""
        if not self.connection.closed:
            os.close(self._received_fd)
        return super().end(patience_s)

    def is_hung(self) -> bool:
        """Return whether the decoder and its ffmpeg hang. Call this about every second while no message comes."""
        watched = self._hang_detector
        watched.look()
        hangs = watched.idle_s > HANG_TIMEOUT_S or watched.silent_s > BUSY_TIMEOUT_S
        return hangs and not self.connection.poll()


def _environment(stores: Stores) -> dict[str, str]:
    """Return the variables of this process that a decoder inherits, and whether it confines itself."""
    try:
        is_confinable = ffmpeg.is_confinable()
    except VoxbatchError:  # there is no ffmpeg
        is_confinable = not is_switched_off()
    inherited = for_voxbatch(os.environ, keeps_stores=not stores.options.anonymous)
    return {**inherited, SWITCH: ON if is_confinable else OFF}


class WarmPool:
    """Warm pool of decoders that stay alive between two decoder pools. Reusing a decoder saves the second that starting
    it takes. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_users = 0
        """Number of users with several runs after each other. If it is 0, decoders are killed after a run."""
        self._idle: list[DecoderProcess] = []

    def open(self) -> None:
        """Keep decoders until `close` is called as often as this method."""
        with self._lock:
            self._num_users += 1

    def acquire(self, stores: Stores) -> DecoderProcess:
        """Return an idle decoder with these stores, or start one. An idle decoder may have died meanwhile. Those
        whose variables have changed, such as the address of a store, are killed."""
        with self._lock:
            outdated = [decoder for decoder in self._idle if decoder.environment != _environment(decoder.stores)]
            self._idle = [decoder for decoder in self._idle if decoder not in outdated]
            fitting = next((decoder for decoder in self._idle if decoder.stores == stores), None)
            if fitting is not None:
                self._idle.remove(fitting)
        for decoder in outdated:
            decoder.end()
        return fitting or DecoderProcess(stores)

    def release(self, decoder: DecoderProcess) -> None:
        """Keep a decoder for the next pool if that is wanted and the decoder is idle; otherwise kill it."""
        with self._lock:
            is_kept = self._num_users > 0 and not decoder.tasks
            if is_kept:
                self._idle.append(decoder)
        if not is_kept:
            decoder.end()

    def close(self) -> None:
        """End one use. After the last one, kill all idle decoders and keep no more."""
        with self._lock:
            self._num_users -= 1
            if self._num_users:
                return
            unused, self._idle = self._idle, []
        for decoder in unused:
            decoder.end()


warm_pool = WarmPool()


class DecoderPool:
    """Pool of decoder processes that decode tasks. Leaving the context returns the decoders to the warm pool: see
    WarmPool."""

    def __init__(
        self,
        decoders: int,
        stores: Stores = DEFAULT_STORES,
        breaker: CircuitBreaker[Undecodable] | None = None,
    ):
        """Start the decoders. `breaker` judges unreachable recordings; the default is a new circuit breaker."""
        self._stores = stores
        self._breaker = CircuitBreaker[Undecodable]() if breaker is None else breaker
        self._decoders = [warm_pool.acquire(stores) for _ in range(decoders)]
        self.cpu_s = 0.0
        """CPU seconds that the decoders spent on decoding and cutting."""
        self.retry: tuple[float, RetryWait] | None = None
        """The last report of a store that does not answer, with its time.monotonic(). Another thread may read it."""
        self._suspects = Suspects[tuple[int, int]](SearchRules())
        """(item, recording) of the tasks with which decoders died."""
        self._retries: deque[DecodeTask] = deque()
        """Tasks of recordings whose ffmpeg was killed, or that were unreachable and whose place answers again."""

    def __enter__(self) -> DecoderPool:
        return self

    def __exit__(self, *exc: object) -> None:
        for decoder in self._decoders:
            warm_pool.release(decoder)

    def is_idle(self) -> bool:
        """Return whether no decoder has a task."""
        return not any(decoder.tasks for decoder in self._decoders)

    def run(self, tasks: Iterator[DecodeTask | None]) -> Iterator[Message]:
        """Decode all tasks and yield the messages of the decoders.

        None in `tasks` means that the next task comes later: the pool asks again when it has read its messages.

        A caller that is slow to take a message holds the decoders back, which bounds memory. Unreachable recordings are
        retried once, when their place answers again. Each chunk is yielded once, also if its recording is retried.

        Raises:
            RunError: decoders do not start on this machine, or a place that recordings are fetched from is down.
        """
        yield from self._judged(tasks)
        yield from self._released(self._breaker.finish())
        yield from self._judged(iter(()))  # the retries
        yield from self._breaker.finish()

    def _judged(self, tasks: Iterator[DecodeTask | None]) -> Iterator[Message]:
        """Yield the messages of the decoders, as far as the circuit breaker does not hold them back."""
        for message in self._messages(tasks):
            if isinstance(message, Undecodable) and isinstance(message.report, Unreachable | Refused):
                for released in self._breaker.unreachable(message.report, message):
                    if released is message:
                        yield message
                    else:
                        yield from self._released([released])
                continue
            if isinstance(message, Undecodable) and message.report is None and message.retry is not None:
                self._retries.append(message.retry)
                continue
            if not isinstance(message, Chunk) and isinstance(message.report, Reachable):
                yield from self._released(self._breaker.reachable(message.report))
            yield message

    def _released(self, messages: Iterable[Undecodable]) -> Iterator[Undecodable]:
        """Retry the tasks of messages whose place answers again. Yield the messages of the others: they have failed."""
        for message in messages:
            if message.retry is None:
                yield message
            else:
                self._retries.append(message.retry)

    def _messages(self, tasks: Iterator[DecodeTask | None]) -> Iterator[Message]:
        """Give out the tasks and the retries, and yield the messages of all decoders as they arrive."""
        tasks = iter(tasks)
        while True:
            has_more = self._give_out(tasks)
            busy = [decoder for decoder in self._decoders if decoder.tasks]
            if not busy and not has_more:
                return
            files = [decoder.connection.fileno() for decoder in busy]
            ready = readable(files, NO_TASK_POLL_S if not busy else 1.0)
            for decoder, file in zip(busy, files, strict=True):
                if file in ready:
                    yield from self._receive(decoder)
                elif decoder.is_hung():
                    yield from self._restart(decoder, "hung")

    def _give_out(self, tasks: Iterator[DecodeTask | None]) -> bool:
        """Give the decoders as many retries and tasks as they take. Return whether more may come.

        All tasks of a row group go to the decoder of the first one, so that no other decoder fetches the group. So that
        each decoder has a group, the pool takes up to MAX_TASKS_IN_POOL tasks.
        """
        while (decoder := min(self._decoders, key=lambda candidate: len(candidate.tasks))).has_capacity():
            if sum(len(busy.tasks) for busy in self._decoders) >= MAX_TASKS_IN_POOL:
                break
            try:
                task = self._retries.popleft() if self._retries else next(tasks)
            except StopIteration:
                return False
            if task is None:
                break
            if (group := task.row_group) is not None:
                decoder = next((busy for busy in self._decoders if busy.last_row_group == group), decoder)
            if not decoder.tasks and decoder.has_ended():  # it died while idle, and no task is to blame
                decoder = self._replace(decoder)
            decoder.add_task(task)
        return True

    def _receive(self, decoder: DecoderProcess) -> Iterator[Message]:
        try:
            message = decoder.receive()
        except (EOFError, OSError):
            decoder.end(EXIT_TIMEOUT_S)
            yield from self._restart(decoder, f"died ({decoder.exit_reason})")
            return
        if isinstance(message, DecoderRefused):
            raise RunError(f"a decoder process cannot work here: {message.reason}")
        if isinstance(message, Decoded):
            self.cpu_s += message.cpu_s
            self._suspects.ended((message.item, message.recording))
        if isinstance(message, RetryWait):
            self.retry = time.monotonic(), message
        elif message is not None:
            yield message

    def _replace(self, decoder: DecoderProcess) -> DecoderProcess:
        """Kill a decoder that died or must stop, and return a new one that takes its place."""
        decoder.end()
        new_decoder = self._decoders[self._decoders.index(decoder)] = DecoderProcess(self._stores)
        return new_decoder

    def _restart(self, decoder: DecoderProcess, fate: str) -> Iterator[Undecodable]:
        """Replace a decoder that died or hangs, and give its tasks to the new decoder. Yield the failure of the current
        task if a decoder died with it before.

        Raises:
            RunError: the decoder could not start.
        """
        decoder.end()
        if not decoder.has_started and (not decoder.was_killed or decoder.killed_starts == MAX_KILLED_STARTS):
            reasons = [
                f"decoder processes do not start here ({decoder.exit_reason})",
                "`python -c 'import voxbatch.audio.waveforms'` may tell why, and so may voxbatch doctor",
                describe_limits(),
            ]
            raise RunError("; ".join(filter(None, reasons))) from None
        new_decoder = self._replace(decoder)
        tasks = list(decoder.tasks)
        if not decoder.has_started:  # no task is to blame
            new_decoder.killed_starts = decoder.killed_starts + 1
        elif self._suspects.died([(tasks[0].item, tasks[0].recording)])[1] is None:
            tasks[0] = replace(tasks[0], is_retry=True, received=(*tasks[0].received, *decoder.spans))
        else:
            failed = tasks.pop(0)
            text = f"cannot decode {redacted(failed.audio)}: the decoder of the retry {fate}"
            failure = Failure(FailureKind.DECODER, text, retryable=True)
            yield Undecodable(failed.item, failure, recording=failed.recording)
        for task in tasks:
            new_decoder.add_task(task)
