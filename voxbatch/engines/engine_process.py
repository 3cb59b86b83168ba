"""Run an engine in a child process, so that a chunk that crashes native code costs that process and not the run.

The parent sends chunks, at most as many as the engine works on at a time, and keeps them until their results are there.
So it knows the chunks of a child that has died. They are transcribed again: after a first death together, after a
second one in ever smaller groups (`process.suspects`). A chunk with which alone several children die is a ChunkFailure,
and the others go on:

    death with chunks 4, 5, 6      →  4, 5, 6 and 7
    death with chunks 4, 5, 6, 7   →  4 alone: a result
                                      5 alone: death; 5 alone: death; a second of noise: a result  →  ChunkFailure of 5
                                      6, 7, 8 and 9 as before

A death blames no chunk that was not alone, and none before the child has loaded its model. If the child also dies of
the noise, this machine or its software is to blame: the run ends, and no item fails. The suspects are known to this
process alone: if it is killed itself, nobody is blamed.

`engine_program` is the program of the child. There, the engine is `supervised`: the child itself transcribes those
chunks again whose results the engine loses, or of which it raises an error.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

import numpy as np

from voxbatch.engines.engine_child import BeginStream, CloseFeed, EngineChild, Ready, StreamEnded
from voxbatch.engines.feed import Feed
from voxbatch.engines.interface import Engine, EngineSpec
from voxbatch.engines.results import ChunkProgress, EngineMessage, Result, stop_if_all_fail
from voxbatch.errors import EngineError
from voxbatch.process.child import ChildProcess, readable
from voxbatch.process.hang_detector import HangDetector
from voxbatch.process.kept import KeptProcess
from voxbatch.process.limits import describe_limits
from voxbatch.process.suspects import Cause, SearchRules, Suspects
from voxbatch.process.vacancy import Stay
from voxbatch.records import SAMPLING_RATE, Chunk, ChunkFailure, Span
from voxbatch.shared_samples import SharedSamples

MAX_IDLE_DEATHS = 3
"""Number of children in succession that may die without a chunk, most of them while they load the model."""
POLL_S = 0.2
"""Longest time in which a stop goes unnoticed."""
FEED_POLL_S = 0.02
"""Seconds after which the feed is asked again for a chunk that the engine could take."""
EXIT_TIMEOUT_S = 5.0
"""Seconds for which a child that closed its connection may need to end, so that its exit code can be read."""
AHEAD = 1 / 8
"""Share of the chunks at a time that wait in the child of an engine that feeds processes of its own."""
IDLE_LIMIT_S = 600.0
"""Seconds without a result and without work after which the child hangs: see HangDetector."""
BUSY_LIMIT_S = 3000.0
"""Seconds without a result after which a child that works hangs. A run gives an engine up only after an hour."""


_Key = tuple[int, int]
"""(item, chunk) of a chunk."""


@dataclass(frozen=True, slots=True)
class _Death:
    """The end of a child."""

    fate: str
    """Text for people that follows "its process", e.g. "was killed by signal 11 (SIGSEGV)"."""
    cause: Cause


class EngineProcess:
    """An engine in a child process. See `Engine` for the methods.

    Args:
        engine: not loaded, and picklable. Each child gets a copy.
        stay: see EngineChild.
    """

    def __init__(self, engine: Engine, stay: Stay | None = None):
        self.spec = replace(engine.spec, own_process=True)
        self._engine, self._child = engine, EngineChild(engine, stay)
        self._ahead = 0 if engine.spec.own_process else max(1, int(engine.spec.concurrency * AHEAD))
        self._lock = threading.Lock()
        """Held while a stream begins or ends, and while the engine is closed."""
        self._is_streaming = self._is_closed = False

    @property
    def pid(self) -> int | None:
        """Number of the child. None if there is none."""
        return self._child.pid

    def stream(self, feed: Feed) -> Iterator[Result]:
        """Start a child, unless an earlier stream left one, and transcribe the chunks of a feed; see `Engine.stream`.

        Raises:
            EngineError: the engine raised it, or the child dies whatever it does.
        """
        with self._lock:
            self._is_streaming = True
        try:
            yield from stop_if_all_fail(_Stream(self._child, self.spec, feed, self._ahead).results())
        finally:
            with self._lock:
                self._is_streaming = False
                if self._is_closed:
                    self._child.leave()

    def gpu_bytes(self) -> int | None:
        """Return the bytes in use on the engine's GPU, which NVML tells any process; see `Engine.gpu_bytes`."""
        return self._engine.gpu_bytes()

    def close(self) -> None:
        """End the child or let it stay, now or at the end of the stream that runs; see `Engine.close`."""
        with self._lock:
            self._is_closed = True
            if not self._is_streaming:
                self._child.leave()


class _Stream:
    """One stream of an engine in a child process."""

    def __init__(self, child: EngineChild, spec: EngineSpec, feed: Feed, ahead: int):
        self._child, self._spec, self._feed = child, spec, feed
        self._most = spec.concurrency + ahead
        """Number of chunks that the child may have."""
        self._held: dict[_Key, Chunk] = {}
        """The chunks that the child has."""
        self._again: deque[Chunk] = deque()
        """The chunks of children that died. They are sent before those of the feed."""
        self._suspects = Suspects[_Key](SearchRules())
        self._accused: ChunkFailure | None = None
        """The failure of a chunk that is to blame if the child survives the noise."""
        self._num_idle_deaths = 0
        """Number of children in succession that died without a chunk."""
        self._is_ready = False
        """True if the present child has loaded its model."""
        self._close: CloseFeed | None = None
        """The last message to the present child, if no further chunk follows."""
        self._hang_detector: HangDetector

    def results(self) -> Iterator[Result]:
        """Yield the results of all chunks, from as many children as that takes."""
        while True:
            earlier, process = self._child.pid, self._child.process()
            if isinstance(process, KeptProcess) and process.pid != earlier:
                yield EngineMessage(f"engine {self._spec.name}: process {process.pid} of an earlier run is used again")
            death = yield from self._serve(process)
            if death is not None:
                yield from self._assign_blame(death)
            elif self._close is None or self._feed.discarded or (self._feed.closed and not self._has_more):
                return

    def _serve(self, child: ChildProcess) -> Generator[Result, None, _Death | None]:
        """Send chunks to a child, and yield their results.

        Returns:
            The death of the child. None if the stream is over.

        Raises:
            EngineError: the engine raised it.
        """
        self._is_ready, self._close, self._hang_detector = False, None, HangDetector(child.pid)
        child.send(BeginStream(self._feed.is_last and not self._has_more))
        while True:
            if self._feed.discarded and not self._is_ready:  # nobody waits for the model any more
                self._child.end()
                return None
            self._send_what_is_due(child)
            ready = self._wait(child)
            if child.output in ready:
                yield from map(self._printed, child.printed())
            if child.connection.fileno() in ready:
                try:
                    message: Result | Ready | StreamEnded = child.connection.recv()
                except (EOFError, OSError):
                    return (yield from self._end(child))
                self._hang_detector.reset()
                if isinstance(message, StreamEnded):
                    if message.error is not None:
                        raise message.error
                    self._child.is_idle = True
                    return None
                yield from self._received(message)
            elif child.is_gone():
                return (yield from self._end(child))
            elif self._hangs():
                return (yield from self._end(child, hangs=True))

    def _wait(self, child: ChildProcess) -> set[int]:
        """Wait until the child sends or prints something, or until there may be a chunk for it. Return what is ready:
        the child's connection, its output, both or none."""
        files = [child.connection.fileno(), *([] if child.output is None else [child.output])]
        takes_chunk = self._is_ready and self._close is None and self._has_room()
        return readable(files, FEED_POLL_S if takes_chunk else POLL_S)

    def _hangs(self) -> bool:
        """Return whether the child, which has sent nothing now, hangs."""
        if not self._held:
            self._hang_detector.reset()
        self._hang_detector.look()
        return self._hang_detector.idle_s > IDLE_LIMIT_S or self._hang_detector.silent_s > BUSY_LIMIT_S

    # -- chunks -------------------------------------------------------------------------------------------------------

    @property
    def _has_more(self) -> bool:
        """True if there are chunks besides those of the feed."""
        return bool(self._again) or self._accused is not None

    def _has_room(self) -> bool:
        """Return whether the child may get the next chunk."""
        if self._accused is not None:
            return not self._held
        following = _key(self._again[0]) if self._again else None
        beside = next(iter(self._held), None)
        return len(self._held) < self._most and self._suspects.admits(following, len(self._held), beside)

    def _send_what_is_due(self, child: ChildProcess) -> None:
        """Send as many chunks as the child may get and as there are, and the end of the feed. Wait for a chunk if the
        child has none."""
        while self._is_ready and self._close is None and self._has_room() and (chunk := self._next()) is not None:
            if not self._held and child.has_ended():  # it ended without a chunk, and this one is not to blame
                self._again.appendleft(chunk)
                return
            self._send(child, chunk)
        beside = next(iter(self._held), None)
        is_alone = beside is not None and (self._accused is not None or self._suspects.width(beside) == 1)
        if is_alone or (self._feed.closed and not self._has_more):
            close = CloseFeed(self._feed.discarded)
            if close != self._close:
                self._close = close
                child.send(close)

    def _next(self) -> Chunk | None:
        """Return the next chunk to send. None if there is none now, or no more."""
        if self._accused is not None:
            return _noise()
        return self._again.popleft() if self._again else self._feed.get(wait=not self._held)

    def _send(self, child: ChildProcess, chunk: Chunk) -> None:
        """Send a chunk. Its samples go through shared memory, because a child that hangs does not empty its socket."""
        shared = chunk.audio if isinstance(chunk.audio, SharedSamples) else SharedSamples.of(chunk.audio)
        child.send(chunk if shared is chunk.audio else replace(chunk, audio=shared))
        with contextlib.suppress(OSError):  # the child has ended
            shared.send(child.connection)
        self._held[_key(chunk)] = chunk

    def _received(self, message: Result | Ready) -> Iterator[Result]:
        """Take a message of the child, and yield it unless it is about the noise."""
        if isinstance(message, Ready):
            self._is_ready = True
        elif isinstance(message, EngineMessage):
            yield message
        elif message.item == _NOISE_ITEM:
            if not isinstance(message, ChunkProgress) and self._accused is not None:
                self._held.clear()
                accused, self._accused = self._accused, None
                yield accused
        else:
            if not isinstance(message, ChunkProgress):
                self._held.pop((message.item, message.chunk), None)
                self._suspects.ended((message.item, message.chunk))
                self._num_idle_deaths = 0
            yield message

    def _printed(self, line: str) -> EngineMessage:
        return EngineMessage(f"engine {self._spec.name}: {line}")

    # -- deaths -------------------------------------------------------------------------------------------------------

    def _end(self, child: ChildProcess, hangs: bool = False) -> Generator[Result, None, _Death]:
        """End a child that died or hangs, and yield what it printed last. Return its death."""
        yield from map(self._printed, child.end(0.0 if hangs else EXIT_TIMEOUT_S))
        self._child.end()
        code = child.exit_code
        if hangs:
            return _Death("gave no result and was killed", Cause.CRASH)
        if code is None:
            return _Death("ended", Cause.CRASH)
        if code >= 0:
            return _Death(f"ended with exit code {code}", Cause.CRASH)
        name = next((number.name for number in signal.Signals if number == -code), "unknown")
        cause = Cause.KILL if code == -signal.SIGKILL else Cause.CRASH
        return _Death(f"was killed by signal {-code} ({name})", cause)

    def _assign_blame(self, death: _Death) -> Iterator[Result]:
        """Decide which chunk, if any, is to blame for a death, and what becomes of the chunks that the child had.

        Raises:
            EngineError: no chunk is to blame, and a further child would die, too.
        """
        lost, self._held = self._held, {}
        its_process = f"engine {self._spec.name}: its process {death.fate}"
        if self._accused is not None and lost:
            raise EngineError(
                f"{its_process} even with a second of noise, so that no recording is to blame; look for other "
                "programs that need the memory, and for an installation that does not fit this processor"
            )
        if not lost:
            self._num_idle_deaths += 1
            if self._num_idle_deaths >= MAX_IDLE_DEATHS:
                limits = describe_limits()
                text = f"{its_process} {self._num_idle_deaths} times in succession without any recording"
                raise EngineError(f"{text}{f'; {limits}' if limits else ''}")
            yield EngineMessage(f"{its_process} without any recording; it is started again", is_warning=True)
            return
        again, guilty = self._suspects.died(list(lost), death.cause)
        self._again.extendleft(lost[key] for key in reversed(again))
        if guilty is not None:
            yield EngineMessage(f"{its_process} once more with the same chunk alone", is_warning=True)
            text = f"the engine's process {death.fate} each time with this audio alone"
            self._accused = ChunkFailure(*guilty, text, crashes=True)
        elif len(lost) == 1:
            yield EngineMessage(f"{its_process} with one chunk; it is transcribed again alone", is_warning=True)
        else:
            width = self._suspects.width(again[0])
            how = {None: "", 1: ", one at a time"}.get(width, f", {width} at a time")
            text = f"{its_process} with {len(lost):,} chunks; they are transcribed again{how}"
            yield EngineMessage(text, is_warning=True)


def _key(chunk: Chunk) -> _Key:
    return chunk.item, chunk.index


_NOISE_ITEM = -1
"""Item.index of the noise."""


def _noise() -> Chunk:
    """Return a second of noise, a chunk that an engine transcribes on any machine that works."""
    samples = np.random.default_rng(0).normal(0, 0.01, SAMPLING_RATE).astype(np.float32)
    return Chunk(_NOISE_ITEM, 0, samples, Span(0, SAMPLING_RATE, 0, SAMPLING_RATE))
