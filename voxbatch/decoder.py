"""Recordings → Chunks in worker processes, several at a time, ahead of the engine.

Processes rather than threads, because decoding must use every core while the engine feeds its GPU from this one,
because a decoder that crashes or hangs on a hostile file must take one item with it and not the run, and because a
worker that nobody reads from stops by itself: its socket is the bounded window. A worker imports no engine. Does not
order: chunks of different recordings interleave as they become ready."""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import NoReturn

import numpy as np

from voxbatch.chunk import OVERLAP
from voxbatch.errors import AudioError, ItemError, RunError, StorageError
from voxbatch.reach import Arrival, Fault, Reach
from voxbatch.records import Chunk, Failure, Samples, Span
from voxbatch.storage import (
    USUAL,
    Access,
    Answered,
    Expired,
    Interrupted,
    Recording,
    Unfit,
    Unkept,
    is_remote,
    place_of,
    shown,
)  # fmt: skip
from voxbatch.storage.ahead import Ahead, Wanted

TASKS_AHEAD = 12
"""Tasks that a worker holds, so that it never waits for its next short recording: one in hand, so many that are being
fetched (ahead.STREAMS), and some that have come out of order."""
HANG_TIMEOUT_S = 120.0
"""A worker that has said nothing for this long while it was listened to is killed; twice ffmpeg's own time limit."""
MEMORY_LIMIT = 2 << 30
"""Bytes of private memory a worker may take: blocks need a hundredth of it, a header that lies may ask for more."""
_SOCKET_BUFFER = 4 << 20
_EMPTY = np.zeros(0, np.float32)
_PROGRAM = "from voxbatch.decoder import main; main()"
"""Not `-m`: that would make this module __main__, and what it pickles another module's."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker needs of an Item."""

    item: int
    audio: str
    offset: float
    duration: float | None
    channel: int | None
    lang: str | None
    limit: int
    """The engine's longest chunk, in samples."""
    overlap: int = OVERLAP
    """Samples that both sides of a forced cut carry beyond it."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """All of an item's chunks have been sent."""

    item: int
    spans: tuple[Span, ...]
    warnings: tuple[str, ...]
    cpu_s: float
    came: Arrival | None = None
    """Where from, if it was fetched."""


@dataclass(frozen=True, slots=True)
class Undecodable:
    item: int
    failure: Failure
    came: Arrival | None = None
    """See Decoded; None too where the recording was never reached."""
    fault: Fault | None = None
    """Where the place of the recording failed, and not the recording."""


Message = Chunk | Decoded | Undecodable


class DecoderPool:
    """Worker processes that decode tasks; killed on leaving the context."""

    def __init__(self, workers: int, access: Access = USUAL, fail_unreachable: bool = False):
        self._access, self._fail_unreachable = access, fail_unreachable
        self._workers = [_Worker(access) for _ in range(workers)]
        self.cpu_s = 0.0
        """CPU seconds that the workers spent on decoding and cutting."""
        self._begun: set[int] = set()
        """Items that a chunk has come of, and not the end."""
        self._unreached: dict[int, Task] = {}
        """By item, what nothing came of because its place did not answer; for the first time."""
        self._again: deque[Task] = deque()
        self._tried_again: set[int] = set()

    def __enter__(self) -> DecoderPool:
        return self

    def __exit__(self, *exc: object) -> None:
        for worker in self._workers:
            worker.kill()

    def run(self, tasks: Iterator[Task]) -> Iterator[Message]:
        """Decode all tasks. Whoever takes its time over a message holds the workers back: that bounds memory.

        Raises:
            RunError: workers do not start here, or a place that recordings are fetched from is down.
        """
        reach = Reach[Undecodable]()
        for message in self._run(tasks):
            if isinstance(message, Chunk):
                yield message
                continue
            yield from self._once_more(reach.came(message.came)) if message.came else ()
            if isinstance(message, Undecodable) and message.fault is not None and self._is_open(message):
                for own in reach.fault(message.fault, message):
                    self._unreached.pop(own.item, None)
                    yield own
            else:
                yield message
        yield from reach.end()

    def _is_open(self, message: Undecodable) -> bool:
        """Whether it is to be found out if the recording or its place is to blame."""
        return not self._fail_unreachable and message.item not in self._tried_again

    def _once_more(self, released: list[Undecodable]) -> Iterator[Undecodable]:
        """Their place answers again, after an outage maybe: what was out of reach gets another try, but only one, as
        the recording may be to blame."""
        for message in released:
            task = self._unreached.pop(message.item, None)
            if task is None:
                yield message
            else:
                self._tried_again.add(message.item)
                self._again.append(task)

    def _run(self, tasks: Iterator[Task]) -> Iterator[Message]:
        tasks = iter(tasks)
        while True:
            while (worker := min(self._workers, key=lambda w: len(w.tasks))).has_room():
                task = self._again.popleft() if self._again else next(tasks, None)
                if task is None:
                    break
                self._awake(worker).give(task)
            busy = [worker for worker in self._workers if worker.tasks]
            if not busy:
                return
            yield from self._listen(busy)

    def _listen(self, busy: list[_Worker]) -> Iterator[Message]:
        ready = wait([worker.connection for worker in busy], timeout=1.0)
        for worker in busy:
            if worker.connection in ready:
                yield from self._receive(worker)
            elif worker.hangs():
                yield self._replace(worker, f"decoding hung for {HANG_TIMEOUT_S:.0f} s and was stopped")

    def _receive(self, worker: _Worker) -> Iterator[Message]:
        task = worker.tasks[0]
        try:
            message = worker.receive()
        except (EOFError, OSError):
            if not worker.greeted:
                raise RunError(
                    f"decoder processes do not start here ({worker.epitaph()}); "
                    "`python -c 'import voxbatch.audio'` may tell why, and so may voxbatch doctor"
                ) from None
            yield self._replace(worker, f"the decoder died ({worker.epitaph()})")
            return
        if message is None:
            return
        if isinstance(message, Decoded):
            self.cpu_s += message.cpu_s
        self._note(message, task)
        yield message

    def _note(self, message: Message, task: Task) -> None:
        if isinstance(message, Chunk):
            self._begun.add(message.item)
            return
        fault = message.fault if isinstance(message, Undecodable) else None
        is_new = message.item not in self._begun and message.item not in self._tried_again
        if fault is not None and fault.since is not None and is_new and not self._fail_unreachable:
            self._unreached[message.item] = task
        self._begun.discard(message.item)

    def _awake(self, worker: _Worker) -> _Worker:
        """The worker, or a new one in its place where it died with nothing to do: no task is to blame."""
        if worker.tasks or not worker.connection.poll():
            return worker
        try:
            worker.receive()  # its greeting
            return worker
        except (EOFError, OSError):
            return self._renewed(worker)

    def _renewed(self, worker: _Worker) -> _Worker:
        """A new worker in the place of one that died or is to die."""
        worker.kill()
        fresh = self._workers[self._workers.index(worker)] = _Worker(self._access)
        return fresh

    def _replace(self, worker: _Worker, reason: str) -> Undecodable:
        """A new worker for a dead one. The task in hand fails, those behind it go to the new worker."""
        fresh = self._renewed(worker)
        culprit, *others = worker.tasks
        for task in others:
            fresh.give(task)
        return Undecodable(
            culprit.item, Failure(AudioError.__name__, f"cannot decode {shown(culprit.audio)}: {reason}", True)
        )


class _Worker:
    """One worker process, seen from the parent."""

    def __init__(self, access: Access) -> None:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # libraries complain of damaged files there; what counts comes as a message
                env=_environment(),
                start_new_session=True,  # Ctrl-C is the parent's to handle
            )
        self.connection = Connection(ours.detach())
        self.tasks: deque[Task] = deque()
        self.greeted = False
        """Whether it has said that it is there; one that dies before could not be started, and no task is to blame."""
        self._heard = time.monotonic()
        with contextlib.suppress(OSError):  # see `give`
            self.connection.send(access)

    def has_room(self) -> bool:
        return len(self.tasks) < TASKS_AHEAD

    def give(self, task: Task) -> None:
        if not self.tasks:
            self._heard = time.monotonic()
        self.tasks.append(task)
        with contextlib.suppress(OSError):  # it died: the end of its stream says so when it is listened to
            self.connection.send(task)

    def receive(self) -> Message | None:
        message: Message | None = self.connection.recv()
        if message is None:
            self.greeted = True
        elif isinstance(message, Chunk):
            message = replace(message, samples=np.frombuffer(self.connection.recv_bytes(), np.float32))
        else:
            self.tasks.popleft()
        self._heard = time.monotonic()
        return message

    def hangs(self) -> bool:
        """Long silent, and not because nobody took what it has to say."""
        return time.monotonic() - self._heard > HANG_TIMEOUT_S and not self.connection.poll()

    def epitaph(self) -> str:
        code = self._process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.connection.close()


def _environment() -> dict[str, str]:
    """This interpreter's import path, whatever made it; and one thread: there is a worker a core."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path}


def serve(connection: Connection, access: Access) -> NoReturn:
    """A worker's life: decode the tasks that come, in order, until the parent is gone."""
    from voxbatch.storage import open_recording

    inbox: queue.SimpleQueue[tuple[Task, Wanted]] = queue.SimpleQueue()
    ahead = Ahead(functools.partial(open_recording, access=access))
    threading.Thread(target=_take_in, args=(connection, ahead, inbox), daemon=True, name="inbox").start()
    alive = functools.partial(connection.send, None)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while True:
            task, wanted = inbox.get()
            with _spoken(connection, task) as warnings, ahead.taken(wanted, alive) as recording:
                _decode(task, recording, connection, warnings)
    os._exit(0)  # see _take_in


def _take_in(connection: Connection, ahead: Ahead, inbox: queue.SimpleQueue[tuple[Task, Wanted]]) -> None:
    """Take tasks as they come, and begin to fetch what they name."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            task: Task = connection.recv()
            inbox.put((task, ahead.want(task.audio)))
    os._exit(0)  # the parent is gone; requests that are made again and again would be waited for


@contextlib.contextmanager
def _spoken(connection: Connection, task: Task) -> Iterator[list[str]]:
    """Around one task: whatever goes wrong in it is told as its failure. Gives the list that warnings go into."""
    try:
        yield []
        return
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise  # the parent is gone
    except ItemError as e:
        arrival = Arrival(_place(task), e.when) if isinstance(e, Answered) else None
        told = Undecodable(task.item, Failure(_failure_name(e), str(e), e.retryable), arrival)
    except StorageError as e:
        fault = _fault(task, e)
        told = Undecodable(task.item, Failure(AudioError.__name__, str(e), retryable=True), fault=fault)
    except MemoryError:
        told = Undecodable(task.item, Failure(AudioError.__name__, f"{shown(task.audio)} needs too much memory"))
    except Exception as e:  # noqa: BLE001 a bug in a decoder is this item's failure, and tells what it was
        text = f"cannot decode {shown(task.audio)}: {type(e).__name__}: {e}"
        told = Undecodable(task.item, Failure(AudioError.__name__, text, True))
    connection.send(told)


def _fault(task: Task, error: StorageError) -> Fault:
    if isinstance(error, Unkept):  # the store is not to blame, and what it gives to others proves nothing
        return Fault(error.folder, str(error), time.monotonic())
    if isinstance(error, Expired):  # a refusal of us, and not of this recording
        return Fault(_place(task), str(error), time.monotonic())
    return Fault(_place(task), str(error), error.since if isinstance(error, Interrupted) else None)


def _decode(task: Task, recording: Recording, connection: Connection, warnings: list[str]) -> None:
    spans: list[Span] = []
    began = time.process_time()
    for samples, span in chunks(task, recording, warnings):
        connection.send(Chunk(task.item, len(spans), _EMPTY, span, task.lang))
        connection.send_bytes(np.ascontiguousarray(samples).data)
        spans.append(span)
    cpu_s = time.process_time() - began
    connection.send(Decoded(task.item, tuple(spans), tuple(dict.fromkeys(warnings)), cpu_s, _arrival(task, recording)))


def _arrival(task: Task, recording: Recording) -> Arrival | None:
    return Arrival(_place(task), recording.came) if is_remote(task.audio) else None


def _place(task: Task) -> str:
    """What is up or down as one: a bucket; and all web servers, as any of many may be gone for good."""
    place = place_of(task.audio)
    return "the web" if place.startswith("http") else place


def _failure_name(error: ItemError) -> str:
    """As errors.py draws it."""
    return AudioError.__name__ if isinstance(error, AudioError) else type(error).__name__


def chunks(task: Task, recording: Recording, warnings: list[str]) -> Iterator[tuple[Samples, Span]]:
    """One recording's chunks, in this process.

    Raises:
        AudioError: see audio.decode.
        StorageError: where it is fetched from fails.
    """
    from voxbatch.audio import decode
    from voxbatch.chunk import cut

    try:
        waveforms = decode(
            recording,
            task.audio,
            offset=task.offset,
            duration=task.duration,
            channel=task.channel,
            warn=warnings.append,
        )
        yield from cut(waveforms, task.limit, task.overlap)
    except Unfit as e:
        raise Answered(str(e)) from e
    except Answered:
        raise
    except AudioError as e:
        raise AudioError(f"cannot decode {shown(task.audio)}: {e}") from e


def main() -> NoReturn:
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    import voxbatch.audio  # noqa: F401 what does not load here is said once, not with each task

    connection = Connection(int(sys.argv[1]))
    access: Access = connection.recv()
    connection.send(None)
    serve(connection, access)
