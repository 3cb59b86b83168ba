"""A stand-in engine that does as it is told: deterministic text, with delays, failures and deaths on demand.

It makes the pipeline testable in milliseconds and its overhead measurable. It hears nothing: the words it gives are
counted off from the chunk's place in its recording, one every WORD_SECONDS, so that stitching can be checked exactly.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from voxbatch.engines import EngineSpec, Feed, Notice
from voxbatch.engines.options import parse
from voxbatch.errors import ConfigError, EngineError
from voxbatch.records import SAMPLING_RATE, Chunk, ChunkFailure, Hypothesis, Word
from voxbatch.storage import USUAL, Access

WORD_SECONDS = 0.5
SHORTEST_LIMIT_S = 14.0
"""What cutting in pauses needs (see chunk.cut)."""
WORKER = "VOXBATCH_SCRIPTED_WORKER"
"""Tells a process which of the `workers` it is."""


@dataclass(frozen=True, slots=True)
class Script:
    max_chunk_s: float = 30.0
    concurrency: int = 8
    load_s: float = 0.0
    """Wall seconds that loading takes, which it then tells of."""
    delay_s: float = 0.0
    """Wall seconds a chunk takes, whatever its length; `concurrency` chunks take them at the same time."""
    shuffle: bool = False
    """Give the results of chunks in flight newest first."""
    fail_items: str = ""
    """Item indexes, separated by commas, whose every chunk fails."""
    die_after: int = -1
    """Raise EngineError after this many results."""
    kill_after: int = -1
    """Kill the process (SIGKILL) after this many results."""
    only_worker: int = -1
    """The one of `workers`, from 0, that dies or is killed; -1: each that comes so far."""
    workers: int = 1
    """Processes side by side."""
    words: bool = True
    """Whether to give word times."""


class Scripted:
    def __init__(self, model: str | None, options: Mapping[str, str], _: Access = USUAL):
        self._script = parse(Script, "scripted", options)
        self._fail = _indexes(self._script.fail_items)
        if self._script.max_chunk_s < SHORTEST_LIMIT_S or min(self._script.concurrency, self._script.workers) < 1:
            limit = f"a max_chunk_s from {SHORTEST_LIMIT_S:g}"
            raise ConfigError(f"scripted takes {limit}, a concurrency from 1 and workers from 1")
        self._loaded = False
        self._faulty = str(self._script.only_worker) in ("-1", os.environ.get(WORKER, "0"))
        self.spec = EngineSpec(
            name="scripted",
            model=model or "count",
            max_chunk_samples=round(self._script.max_chunk_s * SAMPLING_RATE),
            concurrency=self._script.concurrency,
            word_times=self._script.words,
            license="Apache-2.0",
            origin="voxbatch",
            decoding={"max_chunk_s": self._script.max_chunk_s, "words": self._script.words},
            workers=tuple({WORKER: str(worker)} for worker in range(self._script.workers)),
        )

    def stream(self, feed: Feed) -> Iterator[Hypothesis | ChunkFailure | Notice]:
        if self._script.load_s and not self._loaded:
            time.sleep(self._script.load_s)
            yield Notice("scripted is loaded")
        self._loaded = True
        flight: deque[tuple[float, Chunk]] = deque()
        done = 0
        while True:
            while len(flight) < self._script.concurrency and (chunk := feed.get(wait=not flight)):
                flight.append((time.monotonic() + self._script.delay_s, chunk))
            if not flight:
                return
            if (left := flight[0][0] - time.monotonic()) > 0:
                time.sleep(left)
            _, chunk = flight.pop() if self._script.shuffle else flight.popleft()
            yield self._result(chunk)
            done += 1
            self._maybe_die(done)

    def gpu_bytes(self) -> None:
        """There is no GPU."""

    def close(self) -> None:
        self._loaded = False

    def _result(self, chunk: Chunk) -> Hypothesis | ChunkFailure:
        if chunk.item in self._fail:
            return ChunkFailure(chunk.item, chunk.index, "scripted to fail", retryable=True)
        words = tuple(count_words(chunk))
        text = "".join(word.text for word in words)
        return Hypothesis(chunk.item, chunk.index, text, words if self._script.words else ())

    def _maybe_die(self, done: int) -> None:
        if not self._faulty:
            return
        if done == self._script.kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        if done == self._script.die_after:
            raise EngineError(f"scripted to die after {done} results")


def _indexes(text: str) -> set[int]:
    try:
        return {int(index) for index in text.split(",") if index}
    except ValueError as e:
        raise ConfigError(f"engine option fail_items={text!r}: scripted takes item indexes, such as 0,3") from e


def count_words(chunk: Chunk) -> Iterator[Word]:
    """The word n lies at n × WORD_SECONDS on the recording's clock, and is given when the chunk holds all of it."""
    step = round(WORD_SECONDS * SAMPLING_RATE)
    first = -(-chunk.span.start // step)
    for n in range(first, (chunk.span.end - step) // step + 1):
        start = (n * step - chunk.span.start) / SAMPLING_RATE
        yield Word(f" w{n}", start, start + WORD_SECONDS)
