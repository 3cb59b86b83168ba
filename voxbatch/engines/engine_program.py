"""The program of the child process in which an engine runs; see engine_child, which has the messages.

The owner sends the engine, and for each stream a BeginStream, chunks, and a CloseFeed. The child answers with a Ready
when the engine asks for its first chunk, the results, and a StreamEnded. After a Stay, the child answers with a Staying
and waits for the next owner.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from voxbatch.engines import Engine
from voxbatch.engines.engine_child import BeginStream, CloseFeed, Ready, Staying, StreamEnded
from voxbatch.engines.feed import Feed
from voxbatch.engines.results import Result
from voxbatch.engines.supervised import supervised
from voxbatch.errors import VoxbatchError
from voxbatch.process.child import handle_stop_signals
from voxbatch.process.confinement import hide_memory
from voxbatch.process.vacancy import LEAVING_S, Stay, Vacancy
from voxbatch.records import Chunk
from voxbatch.shared_samples import SharedSamples

OOM_SCORE = 500
"""The kernel's score of the child, up to 1000. If memory runs out, the OOM killer takes the child and not its parent,
which can go on."""


class _SentFeed(Feed):
    """The feed of one stream. It calls `on_ready` before the engine waits for its first chunk."""

    def __init__(self, is_last: bool, on_ready: Callable[[], None]):
        super().__init__(sys.maxsize, is_last)  # the parent limits the chunks
        self._on_ready, self._is_ready = on_ready, False

    def get(self, wait: bool = True) -> Chunk | None:
        """See Feed."""
        with self._changed:
            is_first, self._is_ready = not self._is_ready, True
        if is_first:
            self._on_ready()
        return super().get(wait)


@dataclass(slots=True)
class _Owner:
    """The process that uses this one: its parent, or a later owner."""

    connection: Connection | None
    """None while nobody owns this process. Only the receiving thread replaces it."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a message is sent."""

    def send(self, message: Result | Ready | StreamEnded | Staying) -> None:
        """Send a message from any thread. If the owner is gone, the receiving thread ends this process."""
        with self.lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if self.connection is not None:
                self.connection.send(message)


def main(connection: Connection) -> None:
    """Run the streams of one engine until its owner ends without letting it stay.

    A stop signal to all processes of a run does not end the engine: its owner decides what becomes of its chunks.
    """
    owner = _Owner(connection)

    def on_stop(*_: object) -> None:
        """End a process that nobody owns."""
        if owner.connection is None:
            os.killpg(0, signal.SIGKILL)

    handle_stop_signals(on_stop)
    with contextlib.suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+") as score:
        if int(score.read()) < OOM_SCORE:
            score.write(str(OOM_SCORE))
    engine: Engine = connection.recv()
    feeds: queue.SimpleQueue[_SentFeed] = queue.SimpleQueue()
    threading.Thread(target=_serve_owners, args=(owner, feeds, engine), daemon=True, name="receive").start()
    while True:
        feed, error = feeds.get(), None
        try:
            for result in supervised(engine, feed):
                owner.send(result)
        except VoxbatchError as e:
            error = e
        owner.send(StreamEnded(error))


def _serve_owners(owner: _Owner, feeds: queue.SimpleQueue[_SentFeed], engine: Engine) -> None:
    """Receive from the parent, and from each later owner. When there is none, end this process and all that it
    started."""
    while owner.connection is not None and (vacancy := _receive(owner.connection, owner.send, feeds)) is not None:
        owner.connection.close()
        owner.connection = None
        owner.connection = vacancy.next_owner(engine.gpu_bytes)
        if owner.connection is None:
            signal.alarm(LEAVING_S)
            engine.close()  # it removes its files
    os.killpg(0, signal.SIGKILL)


def _receive(
    connection: Connection, send: Callable[[Ready | Staying], None], feeds: queue.SimpleQueue[_SentFeed]
) -> Vacancy | None:
    """Put the chunks that arrive into the feed of their stream until the owner is gone. Return the time without an
    owner if it has let this process stay."""
    feed: _SentFeed | None = None
    message: BeginStream | Chunk | CloseFeed | Stay

    def ready() -> None:
        """Tell that the model is loaded. Until then, the parent sees in /proc what this process reads."""
        hide_memory()
        send(Ready())

    with contextlib.suppress(EOFError, OSError):
        while True:
            match message := connection.recv():
                case BeginStream():
                    feed = _SentFeed(message.is_last, ready)
                    feeds.put(feed)
                case Chunk(audio=SharedSamples() as audio) if feed is not None:
                    audio.receive(connection)
                    feed.put(message)
                case CloseFeed() if feed is not None:
                    feed.close(message.discard)
                case Stay():
                    vacancy = Vacancy(message)
                    send(Staying())
                    return vacancy
    return None
