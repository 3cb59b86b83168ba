"""Program of a worker process: receive tasks, prefetch their recordings, send chunks.

If the place of a recording does not answer, nothing is known about the recording. The worker reports a fault (see
reach).
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import NoReturn

import numpy as np

from voxbatch.decoding.messages import Decoded, Task, Undecodable
from voxbatch.errors import AudioError, ItemError, StorageError
from voxbatch.records import Chunk, Failure, Samples, Span
from voxbatch.storage import (
    CredentialsExpired,
    Recording,
    StoreOptions,
    TemporaryFileError,
    TransientError,
    UnusableObject,
    UnusableRecording,
    is_remote,
    open_recording,
    place_of,
    redacted,
)
from voxbatch.storage.circuit_breaker import Arrival, Fault
from voxbatch.storage.prefetch import Prefetch, Prefetcher

MEMORY_LIMIT = 2 << 30
"""Bytes of private memory that a worker may use. Blocks need a hundredth of it; a wrong header may demand more."""
_EMPTY = np.zeros(0, np.float32)


def serve(connection: Connection, store_options: StoreOptions) -> NoReturn:
    """Decode the tasks that arrive, in order, until the parent process ends."""
    inbox: queue.SimpleQueue[tuple[Task, Prefetch]] = queue.SimpleQueue()
    prefetcher = Prefetcher(functools.partial(open_recording, store_options=store_options))
    threading.Thread(target=_take_in, args=(connection, prefetcher, inbox), daemon=True, name="inbox").start()
    alive = functools.partial(connection.send, None)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while True:
            task, wanted = inbox.get()
            with _spoken(connection, task) as warnings, prefetcher.opened(wanted, alive) as recording:
                _decode(task, recording, connection, warnings)
    os._exit(0)  # see _take_in


def _take_in(connection: Connection, prefetcher: Prefetcher, inbox: queue.SimpleQueue[tuple[Task, Prefetch]]) -> None:
    """Receive tasks as they arrive, and begin to fetch their recordings."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            task: Task = connection.recv()
            inbox.put((task, prefetcher.start(task.audio)))
    os._exit(0)  # the parent is gone; a normal exit would wait for requests that are being retried


@contextlib.contextmanager
def _spoken(connection: Connection, task: Task) -> Iterator[list[str]]:
    """Send the failure of a task for any error inside the context. Yield the list that collects the task's warnings."""
    try:
        yield []
        return
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise  # the parent is gone
    except ItemError as e:
        arrival = Arrival(_place(task), e.answered_at) if isinstance(e, UnusableRecording) else None
        told = Undecodable(task.item, Failure(_failure_name(e), str(e), e.retryable), arrival)
    except StorageError as e:
        fault = _fault(task, e)
        told = Undecodable(task.item, Failure(AudioError.__name__, str(e), retryable=True), fault=fault)
    except MemoryError:
        told = Undecodable(task.item, Failure(AudioError.__name__, f"{redacted(task.audio)} needs too much memory"))
    except Exception as e:  # noqa: BLE001 a bug in a decoder fails only this item, with the error in its message
        text = f"cannot decode {redacted(task.audio)}: {type(e).__name__}: {e}"
        told = Undecodable(task.item, Failure(AudioError.__name__, text, True))
    connection.send(told)


def _fault(task: Task, error: StorageError) -> Fault:
    if isinstance(error, TemporaryFileError):  # the temporary files failed, so arrivals from the store prove nothing
        return Fault(error.folder, str(error), time.monotonic())
    if isinstance(error, CredentialsExpired):  # the store refuses our credentials, not this recording
        return Fault(_place(task), str(error), time.monotonic())
    return Fault(_place(task), str(error), error.since if isinstance(error, TransientError) else None)


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
    return Arrival(_place(task), recording.last_arrival) if is_remote(task.audio) else None


def _place(task: Task) -> str:
    """Return the place that is up or down as a whole: a bucket, or "the web" for all web servers, because any of many
    servers may be gone permanently."""
    place = place_of(task.audio)
    return "the web" if place.startswith("http") else place


def _failure_name(error: ItemError) -> str:
    """Return the name of the error class, or "AudioError" for its subclasses, which errors.py does not list."""
    return AudioError.__name__ if isinstance(error, AudioError) else type(error).__name__


def chunks(task: Task, recording: Recording, warnings: list[str]) -> Iterator[tuple[Samples, Span]]:
    """Yield the chunks of one recording, decoded in this process.

    Raises:
        AudioError: see audio.decode.
        StorageError: the place that the recording is fetched from fails.
    """
    from voxbatch.audio import decode
    from voxbatch.chunking import cut

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
    except UnusableObject as e:
        raise UnusableRecording(str(e)) from e
    except UnusableRecording:
        raise
    except AudioError as e:
        raise AudioError(f"cannot decode {redacted(task.audio)}: {e}") from e


def main(connection: Connection) -> NoReturn:
    """Run a worker: limit memory, load the decoders, then serve."""
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    import voxbatch.audio  # noqa: F401 an import error stops the worker here, once, and not in each task

    store_options: StoreOptions = connection.recv()
    connection.send(None)
    serve(connection, store_options)
