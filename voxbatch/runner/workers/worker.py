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
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxbatch import engines
from voxbatch.config import Config
from voxbatch.engines import EngineCache, EngineMessage
from voxbatch.errors import ConfigError, StorageError, VoxbatchError
from voxbatch.manifest import Handle, items
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.runner.pipeline import FINAL_COMMIT_TIMEOUT_S, Pipeline, Progress, Stop, StopRequested, Usage
from voxbatch.runner.run import policy, settings
from voxbatch.storage import open_store, set_retry_deadline
from voxbatch.storage.circuit_breaker import Report

REPORT_S = 0.2
"""Minimum seconds between two progress messages."""
GRACE_S = FINAL_COMMIT_TIMEOUT_S + 2.0
"""Seconds that a worker may take for its last commit and for unloading its engine after it was told to stop."""


@dataclass(frozen=True, slots=True)
class Order:
    """Items for a worker to transcribe, and all it needs for that."""

    config: Config
    source: Handle
    run: str
    """Digest of the run's identity."""
    decoding: dict[str, Any]
    """Options of the fleet's own engine that influence the text; see EngineSpec. The run's identity contains them."""
    todo: NDArray[np.bool_]
    """Mask of the items to transcribe, shape (num_items,)."""
    worker: int
    began: float
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


def obey(order: Order, connection: Connection, stop: Stop, engine_cache: EngineCache) -> Usage:
    """Transcribe and commit every item of the order that is not committed yet.

    Raises:
        ConfigError: the model changed since the run began.
        StopRequested, RunError: see Pipeline.run.
    """
    config = order.config
    choice = engines.choose(config.engine)
    engine = engine_cache.get(choice.name, config.model, config.engine_options, config.store_options)
    if dict(engine.spec.decoding) != order.decoding:
        raise ConfigError(f"the model changed since the run began: {engine.spec.decoding} is not {order.decoding}")
    store = open_store(config.out, config.store_options)
    checkpoint = Checkpoint(store, order.run, len(order.todo), config.shard, config.shards, order.worker)
    checkpoint.load()
    todo = order.todo & ~np.frombuffer(checkpoint.done, np.bool_)
    progress = Progress(int(order.todo.sum()), began=order.began)
    progress.committed = progress.resumed = progress.items - int(todo.sum())
    reporter = _Reporter(connection)
    pipeline = Pipeline(engine, checkpoint, settings(config), progress, reporter, stop, reporter.tell, order.reports)
    with replace(order.source, fd=os.dup(order.source.fd)).open() as source:
        try:
            return pipeline.run(items(source, policy(config), config.limit, todo))
        finally:
            reporter.tell(progress)
            reporter.tell(pipeline.breaker.reports())


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


def _last_word(order: Order, connection: Connection, stop: Stop, engine_cache: EngineCache) -> Word:
    try:
        stop.graceful = False
        return obey(order, connection, stop, engine_cache)
    except StopRequested:
        return Stopped()
    except VoxbatchError as e:
        return Failed(str(e), type(e))
    except Exception as e:  # noqa: BLE001 a bug shows its traceback and loses this worker; the fleet goes on
        traceback.print_exc()
        return Failed(f"{type(e).__name__}: {e}", VoxbatchError)
    finally:
        stop.graceful = True  # a stop from now on has nothing to interrupt


def _listen(connection: Connection, orders: queue.SimpleQueue[Order | None]) -> None:
    """Put orders into the queue until the fleet sends None (stop) or ends. Then end this process and all that it
    started."""
    order: Order | None
    with contextlib.suppress(EOFError, OSError):
        while (order := connection.recv()) is not None:
            orders.put(order)
    orders.put(None)
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
    """Execute orders until the fleet sends None or ends."""
    orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
    stop, reporter = Stop(), _Reporter(connection)
    stop.graceful = True  # without an order there is nothing to interrupt, and `_listen` ends the wait for an order
    _on_signals(stop)
    threading.Thread(target=_listen, args=(connection, orders), daemon=True, name="listen").start()
    word: Word | None = None
    with contextlib.closing(EngineCache()) as engine_cache:
        while (order := orders.get()) is not None:
            word = _last_word(order, connection, stop, engine_cache)
            if not takes_more(word):
                break
            reporter.tell(word)
    if order is not None and word is not None:
        reporter.tell(word)
    sys.stdout.flush()
    sys.stderr.flush()
    # The fleet would kill this process and its child processes now. It may be gone, so that the worker does so itself:
    # a normal exit would wait for them, and for an engine's thread that is in native code.
    os.killpg(0, signal.SIGKILL)
