"""A worker's life: orders, each done as a run alone would do it, with every word of it sent to the fleet, and what has
been learnt of the recordings' places. The engine stays loaded from order to order.

It surveys, claims and merges nothing: the fleet has. Its source is the fleet's own open file, so that both read the
same bytes wherever they came from. It stops softly when it is told to, or when the fleet is gone.
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
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from voxbatch import engines
from voxbatch.config import Config
from voxbatch.engines import Kept, Notice
from voxbatch.errors import ConfigError, StorageError, VoxbatchError
from voxbatch.ledger import Ledger
from voxbatch.manifest import Handle, items
from voxbatch.pipeline import LAST_COMMIT_S, Interrupted, Pipeline, Progress, Stop, Usage
from voxbatch.reach import Known
from voxbatch.run import policy, settings
from voxbatch.storage import hurry, open_store

REPORT_S = 0.2
"""Between reports of progress."""
GRACE_S = LAST_COMMIT_S + 2.0
"""How long a worker that was told to stop may take over its last commit, and over unloading its engine."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker is to do."""

    config: Config
    source: Handle
    run: str
    """The digest of the run's identity."""
    decoding: dict[str, Any]
    """See EngineSpec: what the fleet's own engine said, and so what the identity holds."""
    todo: NDArray[np.bool_]
    """Shape (num_items,)."""
    worker: int
    began: float
    """On the clock that this host's processes share (time.monotonic): from then on its time counts as the run's."""
    known: Known
    """What workers have learnt of places in the rounds before."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """It was told to stop, and what was in hand is committed."""


@dataclass(frozen=True, slots=True)
class Failed:
    reason: str
    kind: type[VoxbatchError]


Message = Progress | Notice | Known | Usage | Stopped | Failed
"""For each order: progress and the engine's notices now and then; when it is through, what is known; and one of the
others as the last word."""
Word = Usage | Stopped | Failed
"""The last message of an order."""


def takes_more(word: Word | None) -> bool:
    """Whether a worker whose order ended so keeps its engine and waits for another order."""
    return isinstance(word, Usage) or (isinstance(word, Failed) and issubclass(word.kind, StorageError))


def obey(order: Order, connection: Connection, stop: Stop, kept: Kept) -> Usage:
    """Bring every item of the order to a part that is not in one yet. Raises what Pipeline.run raises."""
    config = order.config
    choice = engines.choose(config.engine)
    engine = kept.create(choice.name, config.model, config.engine_options, config.access)
    if dict(engine.spec.decoding) != order.decoding:
        raise ConfigError(f"the model changed since the run began: {engine.spec.decoding} is not {order.decoding}")
    store = open_store(config.out, config.access)
    ledger = Ledger(store, order.run, len(order.todo), config.shard, config.shards, order.worker)
    ledger.load()
    todo = order.todo & ~np.frombuffer(ledger.done, np.bool_)
    progress = Progress(int(order.todo.sum()), began=order.began)
    progress.committed = progress.resumed = progress.items - int(todo.sum())
    reporter = _Reporter(connection)
    pipeline = Pipeline(engine, ledger, settings(config), progress, reporter, stop, reporter.tell, order.known)
    with replace(order.source, fd=os.dup(order.source.fd)).open() as source:
        try:
            return pipeline.run(items(source, policy(config), config.limit, todo))
        finally:
            reporter.tell(progress)
            reporter.tell(order.known.copy())  # decoders may still add to it


class _Reporter:
    """Sends progress now and then."""

    def __init__(self, connection: Connection):
        self._connection, self._told_at = connection, 0.0

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() - self._told_at >= REPORT_S:
            self.tell(progress)

    def tell(self, message: Message) -> None:
        self._told_at = time.monotonic()
        with contextlib.suppress(OSError):  # the fleet is gone, and `_listen` hears of it
            self._connection.send(message)


def _last_word(order: Order, connection: Connection, stop: Stop, kept: Kept) -> Word | None:
    try:
        stop.softly = False
        return obey(order, connection, stop, kept)
    except Interrupted:
        return Stopped()
    except VoxbatchError as e:
        return Failed(str(e), type(e))
    except Exception:  # noqa: BLE001 a bug shows its traceback; without it, exiting would wait for the engine's threads
        traceback.print_exc()
        return None
    finally:
        stop.softly = True  # whoever asks from now on comes too late


def _listen(connection: Connection, orders: queue.SimpleQueue[Order | None]) -> None:
    """Pass orders on until the word to stop, which None is, or the end of the fleet; then see to it that this ends,
    with all it started."""
    order: Order | None
    with contextlib.suppress(EOFError, OSError):
        while (order := connection.recv()) is not None:
            orders.put(order)
    orders.put(None)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
    time.sleep(GRACE_S)
    os.killpg(0, signal.SIGKILL)


def _on_signals(stop: Stop) -> None:
    """Ask softly, and only once: some service managers signal every process, and the fleet asks as well."""

    def handle(*_: object) -> None:
        if not stop.asked.is_set():
            hurry(LAST_COMMIT_S)
            stop.ask()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)


def main() -> NoReturn:
    connection = Connection(int(sys.argv[1]))
    orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
    stop, reporter = Stop(), _Reporter(connection)
    stop.softly = True  # without an order there is nothing to interrupt: `_listen` ends the wait
    _on_signals(stop)
    threading.Thread(target=_listen, args=(connection, orders), daemon=True, name="listen").start()
    word: Word | None = None
    with contextlib.closing(Kept()) as kept:
        while (order := orders.get()) is not None:
            word = _last_word(order, connection, stop, kept)
            if word is None or not takes_more(word):
                break
            reporter.tell(word)
    if order is not None and word is not None:
        reporter.tell(word)
    sys.stdout.flush()
    sys.stderr.flush()
    if order is None or isinstance(word, Stopped):  # maybe nobody is left to sweep up
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
