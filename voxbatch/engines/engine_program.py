"""The program of the child process in which an engine runs; see engine_process, which has the messages.

The parent sends the engine, and for each stream a BeginStream, chunks, and a CloseFeed. The child answers with a Ready
when the engine asks for its first chunk, the results, and a StreamEnded.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

from voxbatch.engines import Engine
from voxbatch.engines.engine_process import BeginStream, CloseFeed, Ready, StreamEnded
from voxbatch.engines.feed import Feed
from voxbatch.engines.results import Result
from voxbatch.engines.supervised import supervised
from voxbatch.errors import VoxbatchError
from voxbatch.process.child import handle_stop_signals
from voxbatch.process.confinement import hide_memory
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


def main(connection: Connection) -> None:
    """Run the streams of one engine until the parent process ends.

    A stop signal to all processes of a run does not end the engine: its parent decides what becomes of its chunks.
    """
    handle_stop_signals(lambda *_: None)
    with contextlib.suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+") as score:
        if int(score.read()) < OOM_SCORE:
            score.write(str(OOM_SCORE))
    engine: Engine = connection.recv()
    feeds: queue.SimpleQueue[_SentFeed] = queue.SimpleQueue()
    lock = threading.Lock()

    def send(message: Result | Ready | StreamEnded) -> None:
        """Send a message from any thread. If the parent is gone, the receiving thread ends this process."""
        with lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.send(message)

    threading.Thread(target=_receive, args=(connection, feeds, send), daemon=True, name="receive").start()
    while True:
        feed, error = feeds.get(), None
        try:
            for result in supervised(engine, feed):
                send(result)
        except VoxbatchError as e:
            error = e
        send(StreamEnded(error))


def _receive(connection: Connection, feeds: queue.SimpleQueue[_SentFeed], send: Callable[[Ready], None]) -> None:
    """Put the chunks that arrive into the feed of their stream. When the parent is gone, end this process and all that
    it started."""
    feed: _SentFeed | None = None
    message: BeginStream | Chunk | CloseFeed

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
    os.killpg(0, signal.SIGKILL)
