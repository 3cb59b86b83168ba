"""Run the steps in order: Items → decoders → feed → engine → regroup → stitch → commit.

A run has three threads and several processes. One thread dispatches items to the decoder processes and puts their
chunks into the feed. One thread drives the engine. The main thread regroups results into recordings and commits parts;
it waits for results in short steps, so it notices a signal and the time of the next commit. Long texts are scored in a
process of their own (long_texts.py).

Each stage waits while the next one is full: the event queue, the feed and the decoders' sockets are bounded. So memory
stays bounded, however long the manifest or a recording is. The module does not know where items come from or what
happens after the last part.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from voxbatch.chunking import OVERLAP
from voxbatch.decoding import SPLIT_ADVICE, Decoded, DecoderPool, Message, Task, Undecodable
from voxbatch.engines import ChunkProgress, Engine, EngineMessage, Feed, language_refusal
from voxbatch.errors import EngineError, LanguageError, RunError, TranscriptionError
from voxbatch.languages import primary_subtag
from voxbatch.latency import Latency
from voxbatch.output.checkpoint import PartEntry, encode_line
from voxbatch.output.lines import failure_line, transcript_line
from voxbatch.questions import QuestionOptions
from voxbatch.records import SAMPLING_RATE, Chunk, ChunkFailure, Failure, Hypothesis, Item, Outcome, Span, Transcript
from voxbatch.runner.long_texts import LONG_TEXTS, Counted, LongPair, LongTextCounter
from voxbatch.runner.progress import Progress, Usage
from voxbatch.runner.question_chunks import QuestionChunks, last_chunk
from voxbatch.runner.stop import Stop, StopRequested
from voxbatch.runner.watchdog import Watchdog
from voxbatch.scoring import ErrorCounts
from voxbatch.stitching import stitch
from voxbatch.storage import DEFAULT_STORE_OPTIONS, StoreOptions
from voxbatch.storage.circuit_breaker import CircuitBreaker

MAX_QUEUED_EVENTS = 1024
"""Maximum number of events that wait for the main thread. When the queue is full, the engine and the decoders wait."""
POLL_INTERVAL_S = 0.2
"""Longest time in which a signal goes unnoticed."""
GPU_MEMORY_INTERVAL_S = 1.0
"""Seconds between two readings of the GPU memory in use."""
STALL_WARNING_S = 600.0
"""Seconds without any event between two warnings that the engine gives no results. A large model on a CPU needs some
minutes for a chunk."""
STALL_LIMIT_S = 3600.0
"""Seconds without any event after which an engine that holds chunks has failed."""
TELL_S = 5.0
"""Most seconds between two calls of `on_progress`, because its time goes on while nothing is finished."""
SHOWN_STALL_S = 30.0
"""Seconds without any event after which the progress says that it waits for the engine."""
SHOWN_RETRY_S = 10.0
"""Seconds for which the progress shows the last report of a store that does not answer. A decoder that waits for it
sends one every few seconds."""
MAX_ROW_BYTES = 32 << 20
"""Maximum bytes of the manifest lines, and of their references, that are in progress: 100,000 usual lines. When it is
reached, no further item is started. One line alone may exceed it."""
MAX_PART_BYTES = 32 << 20
"""Bytes of finished lines that trigger a commit, so that `part_items` long lines do not fill the memory."""
ENGINE_END_TIMEOUT_S = 600.0
"""Seconds for which a run that was stopped waits for the engine's thread, if the process goes on. A large model on a
CPU needs some minutes for a chunk; an engine that hangs must not keep the run."""
MAX_DECODERS = 16
"""Highest number of decoder processes, unless the config gives a number."""


class PartWriter(Protocol):
    """Takes the finished items: the checkpoint of a run, or a list in memory."""

    def commit(
        self,
        entries: Iterable[PartEntry],
        wall_s: float,
        latency: Latency | None = None,
        peak_gpu_bytes: int | None = None,
    ) -> list[PartEntry]:
        """Commit entries; see Checkpoint.commit."""


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """The settings of a run that the pipeline needs; see Config."""

    language: str | None
    decoders: int
    """Number of decoder processes. 0 leaves the number to `decoder_count`."""
    part_items: int
    part_seconds: float
    audio_stream: int | None = None
    max_hours: float = 24.0
    store_options: StoreOptions = DEFAULT_STORE_OPTIONS
    questions: QuestionOptions | None = None
    """Questions about the items. None means that they are transcribed."""
    folder: str | None = None
    """Place that relative paths of the manifest become absolute with in the output lines. None takes the places of the
    items."""


def decoder_count(given: int, workers: int = 1) -> int:
    """Return the number of decoder processes of each worker.

    Args:
        given: the number in the config. 0 divides the cores among the workers.
        workers: number of workers on this machine.
    """
    return given or max(1, min(MAX_DECODERS, len(os.sched_getaffinity(0)) // workers))


@dataclass(slots=True)
class _PendingItem:
    """An item that is in progress."""

    item: Item
    num_bytes: int
    """Memory of the item's row and reference, in bytes."""
    results: dict[int, Hypothesis | ChunkFailure] = field(default_factory=dict)
    decoded: Decoded | None = None
    has_last_question: bool = False
    """True if the question about the answers to the parts of the recording was asked."""
    times: list[tuple[float, float]] = field(default_factory=list)
    """The time.monotonic() at which the engine took a chunk and at which its result came, for each chunk in `results`
    that the engine took."""

    @property
    def waits_for_parts(self) -> bool:
        """Return whether the question about the answers to the parts may still be asked."""
        return self.decoded is not None and len(self.decoded.spans) > 1 and not self.has_last_question


@dataclass(frozen=True, slots=True)
class _ChunkResult:
    """The result of a chunk."""

    result: Hypothesis | ChunkFailure
    times: tuple[float, float] | None = None
    """The time.monotonic() at which the engine took the chunk from the feed, and at which its result came. None if the
    chunk did not go to the engine."""


@dataclass(frozen=True, slots=True)
class _ThreadEnded:
    """The last event of a thread."""

    error: BaseException | None
    """The exception that ended the thread, if any."""
    is_decoding: bool = False
    """True for the decode thread."""


class Pipeline:
    """One run over the items of one shard.

    Args:
        engine: not yet loaded.
        checkpoint: takes the finished items. A Checkpoint is loaded, and the items that it marks as done must not be
            among the items of `run`.
        progress: updated in place by the main thread.
        on_progress: called from the main thread with the progress whenever it changes.
        stop: a request from any thread makes the run commit its finished items and raise StopRequested.
        on_engine_message: called from the main thread with each message of the engine.
        breaker: judges unreachable recordings. The default is a new circuit breaker.
        is_last: the engine is used for no other run after this one.
    """

    def __init__(
        self,
        engine: Engine,
        checkpoint: PartWriter,
        options: PipelineOptions,
        progress: Progress,
        on_progress: Callable[[Progress], None],
        stop: Stop,
        on_engine_message: Callable[[EngineMessage], None] = lambda message: None,
        breaker: CircuitBreaker[Undecodable] | None = None,
        is_last: bool = False,
    ):
        self._engine, self._checkpoint, self._options, self._breaker = engine, checkpoint, options, breaker
        self._progress, self._on_progress, self._stop = progress, on_progress, stop
        self._on_engine_message = on_engine_message
        spec = engine.spec
        self._question_chunks = QuestionChunks(options.questions) if options.questions else None
        """The decode thread alone uses it."""
        self._has_decoded = False
        """True when the main thread has all messages of the decode thread. The main thread alone uses it."""
        self._feed = Feed((spec.prefetch or spec.concurrency) * spec.max_chunk_samples, is_last)
        self._events: queue.Queue[Any] = queue.Queue(MAX_QUEUED_EVENTS)
        self._is_over = threading.Event()
        """Set at the end of the run: no thread takes events any more."""
        self._pending: dict[int, _PendingItem] = {}
        """Item.index → item in progress. The decode thread adds an item before the first event about it; the main
        thread alone changes and removes it."""
        self._num_samples: dict[tuple[int, int], int] = {}
        """Samples in the core of each chunk that are not transcribed yet, by (item, chunk). The decode thread adds a
        chunk before its result can come; the main thread lowers the number and removes it."""
        self._rows_read = 0
        """Bytes of the rows and references of all items so far. The decode thread alone writes it."""
        self._rows_done = 0
        """The part of `_rows_read` that belongs to finished items. The main thread alone writes it."""
        self._counting: dict[int, tuple[_PendingItem, Transcript]] = {}
        """Item.index → transcribed item whose errors `_long_texts` counts. The main thread alone changes it."""
        self._long_texts = LongTextCounter(self._send)
        self._uncommitted: list[PartEntry] = []
        self._uncommitted_bytes = 0
        self._committed_at = progress.started_at
        self._latency = Latency()
        """Latencies of the items in `_uncommitted`."""
        self._has_loaded = False
        """True if the engine has given a result, or has ended well. The main thread alone writes this value."""
        self._peak_gpu_bytes: int | None = None
        """Highest GPU memory in use. The memory thread alone writes this value, and each commit reads it."""
        self._watchdog = Watchdog(STALL_WARNING_S)
        self._told_at = progress.started_at
        """time.monotonic() at which the progress was told although nothing was finished."""
        self._download = ""
        """State of the engine's download, if it downloads its model."""
        self._pool: DecoderPool | None = None
        """The decoders, while they are at work. The decode thread sets it, and the main thread reads it."""
        self._decode_cpu_s = 0.0
        self._engine_ended_at = 0.0

    def run(self, items: Iterator[Item]) -> Usage:
        """Turn every item into an entry of a part.

        Raises:
            StopRequested: `stop` was requested.
            RunError: the run cannot continue; what was committed is safe.
        """
        engine_thread = threading.Thread(target=self._transcribe, daemon=True, name="engine")
        threads = [threading.Thread(target=self._decode, args=(items,), daemon=True, name="decode"), engine_thread]
        self._stop.graceful = True
        for thread in threads:
            thread.start()
        threading.Thread(target=self._watch_gpu_memory, daemon=True, name="memory").start()
        try:
            self._collect_results(len(threads))
            self._has_loaded = True  # or there was nothing to do for it
            self._commit()
        except RunError as e:
            if self._stop.requested.is_set():  # the time limit of the stop may have ended the commit
                raise StopRequested(str(e)) from e
            raise
        finally:
            self._is_over.set()
            self._long_texts.close()
            self._feed.close(discard=True)
            self._stop.graceful = False
            if not self._stop.ends_process:
                engine_thread.join(ENGINE_END_TIMEOUT_S)
        if self._stop.requested.is_set():
            raise StopRequested
        started_at = self._feed.started_at or self._engine_ended_at
        engine_s = self._engine_ended_at - started_at
        return Usage(self._decode_cpu_s, engine_s, self._feed.starved_s, self._feed.short_s)

    # -- the decode thread --------------------------------------------------------------------------------------------

    def _decode(self, items: Iterator[Item]) -> None:
        """Send the items to the decoder processes, and their chunks to the feed."""
        error: BaseException | None = None
        try:
            options = self._options
            with DecoderPool(decoder_count(options.decoders), options.store_options, self._breaker) as pool:
                self._pool = pool
                messages: Iterator[Message] = pool.run(self._tasks(items, pool))
                if (questions := self._question_chunks) is not None:
                    messages = itertools.chain.from_iterable(map(questions.after, messages))
                for message in messages:
                    if not isinstance(message, Chunk):
                        is_running = self._send(message)
                    else:
                        span = message.span
                        self._num_samples[message.item, message.index] = span.core_end - span.core_start
                        if span.silent and message.question is None:  # an engine could only invent text
                            is_running = self._send(_ChunkResult(Hypothesis(message.item, message.index, "")))
                        else:
                            is_running = self._feed.put(message)
                    if not is_running:
                        break
                self._decode_cpu_s = pool.cpu_s
        except BaseException as e:  # noqa: BLE001 the main thread raises it again
            error = e
        if not (self._options.questions and self._options.questions.map_reduce):
            self._feed.close()  # otherwise the main thread has more questions: about the answers
        self._send(_ThreadEnded(error, is_decoding=True))

    def _tasks(self, items: Iterator[Item], pool: DecoderPool) -> Iterator[Task | None]:
        """Yield the tasks of the items. None means: no task while the rows of the items in progress fill the memory."""
        spec, advice = self._engine.spec, SPLIT_ADVICE
        limit, max_samples = spec.max_chunk_samples, round(3600 * SAMPLING_RATE * self._options.max_hours)
        if self._options.questions and not self._options.questions.map_reduce and limit < max_samples:
            max_samples, advice = limit, "ask about its parts with --map-reduce, or give `offset` and `duration`"
        # Without word times, stitching cannot find the words that both chunks hold.
        overlap = OVERLAP if spec.word_times else 0
        for item in items:
            tag = item.lang or self._options.language
            lang = primary_subtag(tag) if tag else None
            num_bytes = len(item.row) + sys.getsizeof(item.text or "")
            while self._has_full_rows(num_bytes, pool):
                yield None
            self._rows_read += num_bytes
            self._pending[item.index] = _PendingItem(item, num_bytes)
            if lang and (reason := language_refusal(spec, lang)):
                failure = Failure(LanguageError.__name__, f"language {lang!r}: {reason}")
                if not self._send(Undecodable(item.index, failure)):
                    return
                continue
            if self._question_chunks is not None:
                self._question_chunks.begin(item)
            for number, place in enumerate((item.audio, *item.further)):
                yield Task(
                    item.index,
                    place,
                    item.offset,
                    item.duration,
                    item.channel,
                    lang,
                    limit,
                    audio_stream=self._options.audio_stream,
                    max_samples=max_samples,
                    overlap=overlap,
                    advice=advice,
                    recording=number,
                )

    def _has_full_rows(self, num_bytes: int, pool: DecoderPool) -> bool:
        """Return whether another item must wait for the end of others.

        If nothing is in progress, no end can come: the remaining items are held back until their place answers.
        """
        if self._is_over.is_set() or self._rows_read - self._rows_done + num_bytes <= MAX_ROW_BYTES:
            return False
        return not pool.is_idle() or bool(self._num_samples) or bool(self._counting) or not self._events.empty()

    def _send(
        self, event: _ChunkResult | ChunkProgress | EngineMessage | Decoded | Undecodable | Counted | _ThreadEnded
    ) -> bool:
        """Queue an event, and wait while the queue is full. Return False if the run is over; the event is then
        dropped."""
        while not self._is_over.is_set():
            with contextlib.suppress(queue.Full):
                self._events.put(event, timeout=POLL_INTERVAL_S)
                return True
        return False

    # -- the engine's thread ------------------------------------------------------------------------------------------

    def _transcribe(self) -> None:
        """Send the results of the engine to the main thread."""
        error: BaseException | None = None
        try:
            for result in self._engine.stream(self._feed):
                # Read to the end even if the run is over: an engine whose stream is cut off unloads its model.
                if isinstance(result, EngineMessage | ChunkProgress):
                    self._send(result)
                else:
                    times = self._feed.pop_taken_at(result.item, result.chunk), time.monotonic()
                    self._send(_ChunkResult(result, times))
        except BaseException as e:  # noqa: BLE001 the main thread raises it again, too
            error = e
        self._feed.close(discard=True)  # the decode thread must not wait for an engine that has ended
        self._engine_ended_at = time.monotonic()
        self._send(_ThreadEnded(error))

    # -- the memory thread --------------------------------------------------------------------------------------------

    def _watch_gpu_memory(self) -> None:
        """Record the highest GPU memory in use. This runs on its own thread, because a driver may hang when a GPU
        fails."""
        while (used := self._engine.gpu_bytes()) is not None:
            self._peak_gpu_bytes = max(self._peak_gpu_bytes or 0, used)
            if self._is_over.wait(GPU_MEMORY_INTERVAL_S):
                return

    # -- the main thread ----------------------------------------------------------------------------------------------

    def _collect_results(self, threads: int) -> None:
        """Handle the events of the threads until all of them have ended, and commit from time to time."""
        while threads or self._counting:
            try:
                event = self._events.get(timeout=POLL_INTERVAL_S)
            except queue.Empty:
                event = None
            self._check_engine(event is not None)
            if isinstance(event, _ThreadEnded):
                threads -= 1
                self._end_thread(event)
            elif isinstance(event, EngineMessage):
                self._tell(event)
            elif event is not None:
                self._handle(event)
            if self._has_decoded and not any(each.waits_for_parts for each in self._pending.values()):
                self._feed.close()
            self._show_waiting()
            if self._stop.requested.is_set():
                self._commit()
                raise StopRequested
            is_due = time.monotonic() - self._committed_at >= self._options.part_seconds
            is_full = len(self._uncommitted) >= self._options.part_items or self._uncommitted_bytes >= MAX_PART_BYTES
            if is_due or is_full:
                self._commit()
        if self._pending:
            self._commit()
            raise EngineError(f"engine {self._engine.spec.name} ended without a result for {len(self._pending)} items")

    def _tell(self, message: EngineMessage) -> None:
        """Pass a message of the engine on, or keep it for the progress."""
        self._download = message.text if message.is_progress else ""
        if not message.is_progress:
            self._on_engine_message(message)

    def _add_audio(self, event: ChunkProgress) -> None:
        """Add to the progress what is transcribed of a chunk that has no result yet."""
        at = event.item, event.chunk
        # The chunk's audio may be longer than its core.
        num_samples = min(event.num_samples, self._num_samples[at])
        self._num_samples[at] -= num_samples
        self._progress.audio_s += num_samples / SAMPLING_RATE
        self._on_progress(self._progress)

    def _end_thread(self, event: _ThreadEnded) -> None:
        """Handle the last event of a thread.

        Raises:
            BaseException: the error that ended the thread. The finished items are committed.
        """
        self._has_decoded = self._has_decoded or event.is_decoding
        if event.error is not None:
            self._commit()
            # The signal may have killed the engine, too.
            raise StopRequested if self._stop.requested.is_set() else event.error

    def _show_waiting(self) -> None:
        """Say in the progress what the run waits for."""
        progress, waiting = self._progress, ""
        progress.engine_started_at = self._feed.started_at
        retry = self._pool.retry if self._pool else None
        if retry is not None and time.monotonic() - retry[0] < SHOWN_RETRY_S:
            waiting = str(retry[1])
        elif self._download:
            waiting = self._download
        elif self._feed.started_at is None and self._feed.num_waiting():
            waiting = "the model is loading"
        elif self._watchdog.silent_s >= SHOWN_STALL_S:
            name, silent_s = self._engine.spec.name, self._watchdog.silent_s
            waiting = f"the engine {name} has given no result for {silent_s:.0f} s"
        if waiting or progress.waiting or time.monotonic() - self._told_at >= TELL_S:
            progress.waiting, self._told_at = waiting, time.monotonic()
            self._on_progress(progress)

    def _check_engine(self, has_progress: bool) -> None:
        """Warn about an engine that gives no result.

        Raises:
            EngineError: it has given none for a long time. The finished items are committed.
        """
        name = self._engine.spec.name
        num_held, since = (0, 0.0) if has_progress else self._feed.held_by_engine()
        num_waiting = 0 if has_progress else self._feed.num_waiting()
        if not num_held and not num_waiting:
            self._watchdog.reset()
            return
        is_due, minutes = self._watchdog.look(), f"{self._watchdog.silent_s / 60:.0f} minutes"
        if num_held:
            text = f"engine {name} has given no result for {minutes}; it holds {num_held:,} chunks, the first of them "
            text += f"for {(time.monotonic() - since) / 60:.0f} minutes"
        else:
            text = f"engine {name} has taken no chunk for {minutes}, and {num_waiting:,} wait; it may still be loading"
        if num_held and self._watchdog.silent_s >= STALL_LIMIT_S:
            self._commit()
            raise EngineError(f"{text}; it hangs, or this machine is too slow for the model")
        if is_due:
            self._on_engine_message(EngineMessage(text, is_warning=True))

    def _handle(self, event: _ChunkResult | ChunkProgress | Decoded | Undecodable | Counted) -> None:
        if isinstance(event, ChunkProgress):
            self._add_audio(event)
            return
        if isinstance(event, Counted):
            self._add_entry(*self._counting.pop(event.item), event.counts)
            return
        index = event.result.item if isinstance(event, _ChunkResult) else event.item
        pending = self._pending.get(index)
        if isinstance(event, _ChunkResult):
            self._progress.audio_s += self._num_samples.pop((index, event.result.chunk), 0) / SAMPLING_RATE
        if pending is None:
            return  # a chunk of an item that has already failed
        if isinstance(event, Undecodable):
            self._finish_item(pending, event.failure)
            return
        if isinstance(event, Decoded):
            pending.decoded = event
        else:
            self._has_loaded = self._has_loaded or event.times is not None
            pending.results[event.result.chunk] = event.result
            pending.times += [event.times] if event.times else []
        outcome = self._outcome(pending)
        if outcome is not None:
            self._finish_item(pending, outcome)
        else:
            self._on_progress(self._progress)

    def _outcome(self, pending: _PendingItem) -> Outcome | None:
        """Return the outcome of an item, or None if a result is missing. If the parts of a long recording have their
        answers, ask the question about them."""
        decoded, results = pending.decoded, pending.results
        if decoded is None or len(results) < len(decoded.spans):
            return None
        questions, last = self._options.questions, len(decoded.spans)
        if questions is None or last == 1 or last in results:
            return _join_results(results, decoded.spans, decoded.warnings)
        if pending.has_last_question:
            return None
        joined = _join_results(results, decoded.spans, decoded.warnings)
        if isinstance(joined, Failure):
            return joined
        pending.has_last_question = True
        answers = [result.text for _, result in sorted(results.items()) if isinstance(result, Hypothesis)]
        self._feed.put(last_chunk(pending.item, questions, answers))
        return None

    def _finish_item(self, pending: _PendingItem, outcome: Outcome) -> None:
        if isinstance(outcome, Failure) and outcome.retryable and self._stop.requested.is_set():
            return  # the stop may have killed a child process; the resumed run does the item
        item = pending.item
        del self._pending[item.index]
        for taken_at, ended_at in pending.times:
            self._latency.chunk.add(ended_at - taken_at)
        if pending.times:
            self._latency.item.add(time.monotonic() - min(taken_at for taken_at, _ in pending.times))
        if item.duration is None:
            self._progress.sample.pop(item.index, None)
            self._progress.measured += 1
            self._progress.measured_s += pending.decoded.seconds if pending.decoded else 0.0
        if isinstance(outcome, Transcript) and item.text and len(item.text) + len(outcome.text) >= LONG_TEXTS:
            self._counting[item.index] = pending, outcome
            lang = self._language(item) or outcome.language
            self._long_texts.count(LongPair(item.index, item.text, outcome.text, lang))
        else:
            self._add_entry(pending, outcome)

    def _language(self, item: Item) -> str | None:
        return item.lang or self._options.language or self._engine.spec.only_language

    def _add_entry(self, pending: _PendingItem, outcome: Outcome, counts: ErrorCounts | None = None) -> None:
        """Add the line of a finished item to the next part. `counts` are its errors, if they are counted."""
        item, spec = pending.item, self._engine.spec
        self._rows_done += pending.num_bytes
        lang, folder = self._language(item), self._options.folder
        if isinstance(outcome, Failure):
            kind, line = "failure", failure_line(item, outcome, lang, folder)
            self._progress.failed += 1
        else:
            kind, line = "transcript", transcript_line(item, outcome, spec.name, spec.model, lang, folder, counts)
            self._progress.done += 1
        entry = PartEntry(item.index, kind, encode_line(line))
        self._uncommitted.append(entry)
        self._uncommitted_bytes += len(entry.line)
        self._on_progress(self._progress)

    def _commit(self) -> None:
        """Commit the finished items as the next part, if there are any.

        Before the first result of the engine, these are only recordings that cannot be read. They are not committed
        yet, because OUT would then belong to a run whose model may never load.
        """
        if not self._uncommitted or not (self._has_loaded or self._uncommitted_bytes >= MAX_PART_BYTES):
            return
        now = time.monotonic()
        wall_s = now - self._committed_at
        entries = self._checkpoint.commit(self._uncommitted, wall_s, self._latency, self._peak_gpu_bytes)
        self._progress.parts += bool(entries)
        self._progress.committed += len(self._uncommitted)
        self._uncommitted, self._uncommitted_bytes, self._committed_at, self._latency = [], 0, now, Latency()


def _join_results(
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
    last = results[max(results)] if results else None
    if isinstance(last, ChunkFailure):
        return Failure(TranscriptionError.__name__, f"the answers to its parts: {last.message}", last.retryable)
    if last is not None and last.answer is not None:
        return _answered(spans, hypotheses, last, warnings)
    return stitch(spans, hypotheses, warnings)


def _answered(
    spans: Sequence[Span], hypotheses: Sequence[Hypothesis], last: Hypothesis, warnings: Sequence[str]
) -> Transcript:
    """Return the answer to an item's question, with the numbers of tokens of all its requests.

    Args:
        spans: the parts of the recording, or all recordings as one.
        hypotheses: the answers to the parts.
        last: the answer to the question itself.
        warnings: warnings of the decoder.
    """
    assert last.answer is not None
    is_divided = len(spans) > 1
    results = [*hypotheses, last] if is_divided else [last]
    every = [each.answer for each in results if each.answer is not None]
    answer = replace(
        last.answer,
        prompt_tokens=sum(each.prompt_tokens for each in every),
        completion_tokens=sum(each.completion_tokens for each in every),
        parts=tuple(each.text for each in hypotheses) if is_divided else (),
    )
    notes = (*warnings, *(text for each in results for text in each.warnings))
    cut_off = [number for number, each in enumerate(every, 1) if each.finish_reason == "length"]
    if cut_off:
        which = f" {', '.join(map(str, cut_off))}" if is_divided else ""
        notes = (*notes, f"answer{which} ended at the largest number of tokens; raise --max-tokens")
    seconds = sum(span.core_end - span.core_start for span in spans) / SAMPLING_RATE
    return Transcript(answer.text, audio_duration=seconds, warnings=notes, answer=answer)
