"""Run the steps in order: Items → decoders → feed → engine → regroup → stitch → commit.

A run has three threads and several processes. One thread dispatches items to the decoder processes and puts their
chunks into the feed. One thread drives the engine. The main thread regroups results into recordings and commits parts;
it waits for results in short steps, so it notices a signal and the time of the next commit.

Each stage waits while the next one is full: the event queue, the feed and the decoders' sockets are bounded. So memory
stays bounded, however long the manifest or a recording is. The module does not know where items come from or what
happens after the last part.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from voxbatch.chunking import OVERLAP
from voxbatch.decoding import Decoded, DecoderPool, Task, Undecodable
from voxbatch.engines import Engine, EngineMessage, Feed, language_refusal, primary_subtag
from voxbatch.errors import EngineError, LanguageError, RunError, TranscriptionError
from voxbatch.latency import Latency
from voxbatch.output.checkpoint import Checkpoint, PartEntry, encode_line
from voxbatch.output.lines import failure_line, transcript_line
from voxbatch.records import SAMPLING_RATE, Chunk, ChunkFailure, Failure, Hypothesis, Item, Outcome, Span, Transcript
from voxbatch.runner.progress import Progress, Usage
from voxbatch.runner.stop import Stop, StopRequested
from voxbatch.stitching import stitch
from voxbatch.storage import DEFAULT_STORE_OPTIONS, StoreOptions
from voxbatch.storage.circuit_breaker import CircuitBreaker

MAX_QUEUED_EVENTS = 1024
"""Maximum number of events that wait for the main thread. When the queue is full, the engine and the decoders wait."""
POLL_INTERVAL_S = 0.2
"""Longest time in which a signal goes unnoticed."""
GPU_MEMORY_INTERVAL_S = 1.0
"""Seconds between two readings of the GPU memory in use."""
MAX_DECODERS = 16
"""Highest number of decoder processes, unless the config gives a number."""


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """The settings of a run that the pipeline needs; see Config."""

    language: str | None
    decoders: int
    """Number of decoder processes. 0 leaves the number to `decoder_count`."""
    part_items: int
    part_seconds: float
    store_options: StoreOptions = DEFAULT_STORE_OPTIONS


def decoder_count(given: int, workers: int = 1) -> int:
    """Return the number of decoder processes of each worker.

    Args:
        given: the number in the config. 0 divides the cores among the workers.
        workers: number of workers on this machine.
    """
    return given or max(1, min(MAX_DECODERS, len(os.sched_getaffinity(0)) // workers))


@dataclass(slots=True)
class _Open:
    """An item that is in progress."""

    item: Item
    results: dict[int, Hypothesis | ChunkFailure] = field(default_factory=dict)
    decoded: Decoded | None = None
    times: list[tuple[float, float]] = field(default_factory=list)
    """The time.monotonic() at which the engine took a chunk and at which its result came, for each chunk in `results`
    that the engine took."""

    def is_whole(self) -> bool:
        """Return whether the item is decoded and all of its chunks have results."""
        return self.decoded is not None and len(self.results) == len(self.decoded.spans)


@dataclass(frozen=True, slots=True)
class _Answer:
    """The result of a chunk."""

    result: Hypothesis | ChunkFailure
    times: tuple[float, float] | None = None
    """The time.monotonic() at which the engine took the chunk from the feed, and at which its result came. None if the
    chunk did not go to the engine."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """The last event of a thread."""

    error: BaseException | None
    """The exception that ended the thread, if any."""


class Pipeline:
    """One run over the items of one shard.

    Args:
        engine: not yet loaded.
        checkpoint: loaded. The items that it marks as done must not be among the items of `run`.
        progress: updated in place by the main thread.
        observe: called from the main thread with the progress whenever it changes.
        stop: a request from any thread makes the run commit its finished items and raise StopRequested.
        tell: called from the main thread with each EngineMessage of the engine.
        breaker: judges unreachable recordings. The default is a new circuit breaker.
    """

    def __init__(
        self,
        engine: Engine,
        checkpoint: Checkpoint,
        settings: PipelineOptions,
        progress: Progress,
        observe: Callable[[Progress], None],
        stop: Stop,
        tell: Callable[[EngineMessage], None] = lambda notice: None,
        breaker: CircuitBreaker[Undecodable] | None = None,
    ):
        self._engine, self._checkpoint, self._settings = engine, checkpoint, settings
        self._progress, self._observe, self._stop, self._tell_people = progress, observe, stop, tell
        self._breaker = breaker
        spec = engine.spec
        self._feed = Feed((spec.prefetch or spec.concurrency) * spec.max_chunk_samples)
        self._events: queue.Queue[Any] = queue.Queue(MAX_QUEUED_EVENTS)
        self._over = threading.Event()
        """Set at the end of the run: no thread takes events any more."""
        self._open: dict[int, _Open] = {}
        self._sizes: dict[tuple[int, int], int] = {}
        """Samples in the core of each chunk that has no result yet, by (item, chunk)."""
        self._pending: list[PartEntry] = []
        self._committed_at = progress.started_at
        self._latency = Latency()
        """Latencies of the items in `_pending`."""
        self._peak_gpu_bytes: int | None = None
        """Highest GPU memory in use. The memory thread alone writes this value, and each commit reads it."""
        self._decode_cpu_s = 0.0
        self._engine_ended_at = 0.0

    def run(self, items: Iterator[Item]) -> Usage:
        """Turn every item into an entry of a part.

        Raises:
            StopRequested: `stop` was asked.
            RunError: the run cannot continue; what was committed is safe.
        """
        threads = [
            threading.Thread(target=self._decode, args=(items,), daemon=True, name="decode"),
            threading.Thread(target=self._transcribe, daemon=True, name="engine"),
        ]
        self._stop.graceful = True
        for thread in threads:
            thread.start()
        threading.Thread(target=self._watch_memory, daemon=True, name="memory").start()
        try:
            self._regroup(len(threads))
            self._commit()
        except RunError as e:
            if self._stop.requested.is_set():  # the time limit of the stop may have ended the commit
                raise StopRequested(str(e)) from e
            raise
        finally:
            self._over.set()
            self._feed.close(discard=True)
            self._stop.graceful = False
        if self._stop.requested.is_set():
            raise StopRequested
        began = self._feed.started_at or self._engine_ended_at
        return Usage(self._decode_cpu_s, self._engine_ended_at - began, self._feed.starved_s, self._feed.short_s)

    # -- the decode thread --------------------------------------------------------------------------------------------

    def _decode(self, items: Iterator[Item]) -> None:
        error: BaseException | None = None
        try:
            settings = self._settings
            with DecoderPool(decoder_count(settings.decoders), settings.store_options, self._breaker) as pool:
                for message in pool.run(self._tasks(items)):
                    if not (self._put(message) if isinstance(message, Chunk) else self._tell(message)):
                        break
                self._decode_cpu_s = pool.cpu_s
        except BaseException as e:  # noqa: BLE001 the main thread raises it again
            error = e
        self._feed.close()
        self._tell(_Ended(error))

    def _tell(self, event: _Answer | EngineMessage | Decoded | Undecodable | _Ended) -> bool:
        """Queue an event, and wait while the queue is full. Return False if the run is over; the event is then
        dropped."""
        while not self._over.is_set():
            with contextlib.suppress(queue.Full):
                self._events.put(event, timeout=POLL_INTERVAL_S)
                return True
        return False

    def _put(self, chunk: Chunk) -> bool:
        """Give a chunk to the engine. A chunk of certain silence gets an empty result at once: an engine could only
        invent text."""
        self._sizes[chunk.item, chunk.index] = chunk.span.core_end - chunk.span.core_start
        if chunk.span.silent:
            return self._tell(_Answer(Hypothesis(chunk.item, chunk.index, "")))
        return self._feed.put(chunk)

    def _tasks(self, items: Iterator[Item]) -> Iterator[Task]:
        spec = self._engine.spec
        for item in items:
            said = item.lang or self._settings.language
            lang = primary_subtag(said) if said else None
            self._open[item.index] = _Open(item)
            if lang and (reason := language_refusal(spec, lang)):
                failure = Failure(LanguageError.__name__, f"language {lang!r}: {reason}")
                if not self._tell(Undecodable(item.index, failure)):
                    return
                continue
            # Without word times, stitching cannot find the words that both chunks hold.
            overlap = OVERLAP if spec.word_times else 0
            limit = spec.max_chunk_samples
            yield Task(item.index, item.audio, item.offset, item.duration, item.channel, lang, limit, overlap)

    # -- the engine's thread ------------------------------------------------------------------------------------------

    def _transcribe(self) -> None:
        error: BaseException | None = None
        try:
            for result in self._engine.stream(self._feed):
                # Read to the end even if the run is over: an engine whose stream is cut off unloads its model.
                self._tell(result if isinstance(result, EngineMessage) else self._timed(result))
        except BaseException as e:  # noqa: BLE001 the main thread raises it again, too
            error = e
        self._feed.close(discard=True)  # the decode thread must not wait for an engine that has ended
        self._engine_ended_at = time.monotonic()
        self._tell(_Ended(error))

    def _timed(self, result: Hypothesis | ChunkFailure) -> _Answer:
        return _Answer(result, (self._feed.taken_at(result.item, result.chunk), time.monotonic()))

    # -- the memory thread --------------------------------------------------------------------------------------------

    def _watch_memory(self) -> None:
        """Note the highest GPU memory in use. This runs on its own thread, because a driver may hang when a
        GPU fails."""
        while (used := self._engine.gpu_bytes()) is not None:
            self._peak_gpu_bytes = max(self._peak_gpu_bytes or 0, used)
            if self._over.wait(GPU_MEMORY_INTERVAL_S):
                return

    # -- the main thread ----------------------------------------------------------------------------------------------

    def _regroup(self, threads: int) -> None:
        while threads:
            try:
                event = self._events.get(timeout=POLL_INTERVAL_S)
            except queue.Empty:
                event = None
            if isinstance(event, _Ended):
                threads -= 1
                if event.error is not None:
                    self._commit()
                    # The signal may have killed the engine, too.
                    raise StopRequested if self._stop.requested.is_set() else event.error
            elif isinstance(event, EngineMessage):
                self._tell_people(event)
            elif event is not None:
                self._handle(event)
            if self._stop.requested.is_set():
                self._commit()
                raise StopRequested
            self._commit_if_due()
        if self._open:
            self._commit()
            raise EngineError(f"engine {self._engine.spec.name} ended without a result for {len(self._open)} items")

    def _handle(self, event: _Answer | Decoded | Undecodable) -> None:
        item = event.result.item if isinstance(event, _Answer) else event.item
        opened = self._open.get(item)
        if isinstance(event, _Answer):
            self._progress.audio_s += self._sizes.pop((item, event.result.chunk), 0) / SAMPLING_RATE
        if opened is None:
            return  # a chunk of an item that has already failed
        if isinstance(event, Undecodable):
            self._finish(opened, event.failure)
            return
        if isinstance(event, Decoded):
            opened.decoded = event
        else:
            opened.results[event.result.chunk] = event.result
            opened.times += [event.times] if event.times else []
        if opened.is_whole() and opened.decoded is not None:
            self._finish(opened, _outcome(opened.results, opened.decoded.spans, opened.decoded.warnings))
        else:
            self._observe(self._progress)

    def _finish(self, opened: _Open, outcome: Outcome) -> None:
        item = opened.item
        del self._open[item.index]
        self._measure(opened.times)
        failed = isinstance(outcome, Failure)
        kind = "failure" if failed else "transcript"
        self._pending.append(PartEntry(item.index, kind, encode_line(self._line(item, outcome))))
        self._progress.done += not failed
        self._progress.failed += failed
        self._observe(self._progress)

    def _measure(self, times: list[tuple[float, float]]) -> None:
        """Add the latencies of a finished item. Without the result of a chunk, there are none."""
        for taken_at, ended_at in times:
            self._latency.chunk.add(ended_at - taken_at)
        if times:
            self._latency.item.add(time.monotonic() - min(taken_at for taken_at, _ in times))

    def _line(self, item: Item, outcome: Outcome) -> dict[str, Any]:
        spec = self._engine.spec
        lang = item.lang or self._settings.language or spec.only_language
        if isinstance(outcome, Failure):
            return failure_line(item, outcome, lang)
        return transcript_line(item, outcome, spec.name, spec.model, lang)

    def _commit_if_due(self) -> None:
        due = time.monotonic() - self._committed_at >= self._settings.part_seconds
        if self._pending and (due or len(self._pending) >= self._settings.part_items):
            self._commit()

    def _commit(self) -> None:
        if not self._pending:
            return
        now = time.monotonic()
        measured = now - self._committed_at, self._latency, self._peak_gpu_bytes
        self._progress.parts += bool(self._checkpoint.commit(self._pending, *measured))
        self._progress.committed += len(self._pending)
        self._pending, self._committed_at, self._latency = [], now, Latency()


def _outcome(
    results: dict[int, Hypothesis | ChunkFailure], spans: Sequence[Span], warnings: Sequence[str]
) -> Transcript | Failure:
    """Join the results of an item's chunks.

    If chunks failed, the item fails with the error of the first of them in the recording, not of the first result that
    arrived. So the same run gives the same bytes.
    """
    hypotheses = []
    for index, span in enumerate(spans):
        result = results[index]
        if isinstance(result, ChunkFailure):
            place = f"{span.start / SAMPLING_RATE:.2f} to {span.end / SAMPLING_RATE:.2f} s"
            return Failure(TranscriptionError.__name__, f"{place}: {result.message}", result.retryable)
        hypotheses.append(result)
    return stitch(spans, hypotheses, warnings)
