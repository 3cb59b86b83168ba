"""Run the steps in order: Items → decoders → feed → engine → regroup → stitch → commit.

A run has three threads and several processes. The decode thread gives items to the decoder processes and puts their
chunks into the feed (decode_thread.py). The engine's thread drives the engine (engine_thread.py). Both send events
(shared.py) to the main thread, which regroups results into recordings and commits parts (results.py); it waits for
events in short steps, so it notices a signal and the time of the next commit. Long texts are scored in a process of
their own (long_texts.py). What differs in a run of questions is in asking.py, and in one that speaks, in speaking.py.

Each stage waits while the next one is full: the event queue, the feed and the samples that a decoder sends ahead are
bounded. So memory stays bounded, however long the manifest or a recording is. The module does not know where items come
from or what happens after the last part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from voxbatch.config import RunOptions
from voxbatch.decoding import Undecodable
from voxbatch.decoding.messages import Diarization
from voxbatch.engines import ChunkProgress, Engine, EngineMessage, Feed
from voxbatch.errors import EngineError, RunError
from voxbatch.output.attempts import Gate, OpenGate
from voxbatch.records import Failure, Hypothesis, Item, Span
from voxbatch.runner.decode_thread import DecodeThread
from voxbatch.runner.engine_thread import EngineThread, GpuMemoryThread
from voxbatch.runner.progress import Progress, Stop, StopRequested, Usage
from voxbatch.runner.results import NextPart, PartWriter, Results
from voxbatch.runner.shared import (
    DecodingEnded,
    EngineEnded,
    EventQueue,
    InProgress,
    ThreadFailed,
)
from voxbatch.runner.steps import steps_of
from voxbatch.runner.waiting import WaitMonitor
from voxbatch.storage.circuit_breaker import CircuitBreaker

ENGINE_END_TIMEOUT_S = 600.0
"""Seconds for which a run that was stopped waits for the engine's thread, if the process goes on. A large model on a
CPU needs some minutes for a chunk; an engine that hangs must not keep the run."""


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
        folder: place that relative paths of the manifest become absolute with in the output lines. None takes the
            places of the items.
        is_last: the engine is used for no other run after this one.
        gate: decides when items may begin.
        failure: the outcome of every item, none of which is decoded. None transcribes them.
        diarization: see DecodeThread.
        on_text: called from the main thread with the text of each chunk, also while the chunk is being transcribed.
    """

    def __init__(
        self,
        engine: Engine,
        checkpoint: PartWriter,
        options: RunOptions,
        progress: Progress,
        on_progress: Callable[[Progress], None],
        stop: Stop,
        on_engine_message: Callable[[EngineMessage], None] = lambda message: None,
        breaker: CircuitBreaker[Undecodable] | None = None,
        folder: str | None = None,
        is_last: bool = False,
        gate: Gate | None = None,
        failure: Failure | None = None,
        diarization: Diarization | None = None,
        on_text: Callable[[Span, Hypothesis | ChunkProgress], None] | None = None,
    ):
        self._engine, self._checkpoint, self._options, self._breaker = engine, checkpoint, options, breaker
        self._progress, self._on_progress, self._stop = progress, on_progress, stop
        self._on_engine_message, self._folder, self._is_last = on_engine_message, folder, is_last
        self._gate, self._failure, self._diarization = gate or OpenGate(), failure, diarization
        self._on_text = on_text

    def run(self, items: Iterator[Item]) -> Usage:
        """Turn every item into an entry of a part.

        Raises:
            StopRequested: `stop` was requested.
            RunError: the run cannot continue; what was committed is safe.
        """
        spec, options, progress, stop = self._engine.spec, self._options, self._progress, self._stop
        progress.concurrency = spec.concurrency
        feed = Feed((spec.prefetch or spec.concurrency) * spec.max_chunk_samples, self._is_last, self._gate.begin)
        steps = steps_of(options)
        events, in_progress = EventQueue(steps.max_queued_events), InProgress()
        decode_thread = DecodeThread(
            items, spec, options, steps, self._breaker, in_progress, feed, events, self._gate, self._failure,
            self._diarization,
        )  # fmt: skip
        engine_thread, memory = EngineThread(self._engine, feed, events), GpuMemoryThread(self._engine, events)
        part = NextPart(self._checkpoint, options, memory, progress)
        results = Results(
            steps, spec, options, in_progress, feed, part, events, progress, self._on_progress, stop, self._folder,
            self._on_text,
        )  # fmt: skip
        monitor = WaitMonitor(spec.name, feed, decode_thread, progress, self._on_progress, self._on_engine_message)
        stop.graceful = True
        try:
            for thread in (decode_thread, engine_thread, memory):
                thread.start()
            self._handle_events(events, results, part, monitor, in_progress)
            part.has_loaded = True  # or there was nothing to do for it
            part.commit()
        except RunError as e:
            if stop.requested.is_set():  # the time limit of the stop may have ended the commit
                raise StopRequested(str(e)) from e
            raise
        finally:
            events.is_over.set()
            results.close()
            feed.close(discard=True)
            stop.graceful = False
            if not stop.ends_process and engine_thread.ident is not None:  # it has started
                engine_thread.join(ENGINE_END_TIMEOUT_S)
        if stop.requested.is_set():
            raise StopRequested
        engine_s = engine_thread.ended_at - (feed.started_at or engine_thread.ended_at)
        return Usage(decode_thread.cpu_s, engine_s, feed.starved_s, feed.short_s)

    def _handle_events(
        self, events: EventQueue, results: Results, part: NextPart, monitor: WaitMonitor, in_progress: InProgress
    ) -> None:
        """Handle the events of the threads until all of them have ended, and commit from time to time.

        Raises:
            StopRequested: `stop` was requested. The finished items are committed.
            BaseException: the error that ended a thread, or EngineError for an engine that hangs or forgets items. The
                finished items are committed.
        """
        is_decoding = has_engine = True
        while is_decoding or has_engine or in_progress.counting or in_progress.encoding:
            event = events.receive()
            error: BaseException | None = monitor.check_engine(has_event=event is not None)
            match event:
                case None:
                    pass
                case DecodingEnded() | EngineEnded() | ThreadFailed():
                    error = event.error
                    is_decoding = is_decoding and not isinstance(event, DecodingEnded)
                    has_engine = has_engine and not isinstance(event, EngineEnded)
                case EngineMessage():
                    monitor.tell(event)
                case _:
                    results.add(event)
            if error is not None or self._stop.requested.is_set():
                part.commit()
                # The signal may have killed the engine, too.
                raise StopRequested if error is None or self._stop.requested.is_set() else _as_exception(error)
            if not is_decoding:
                results.end_questions()
            monitor.show()
            if part.is_due() or self._gate.is_closed:
                part.commit()
        if in_progress.items:
            part.commit()
            num_items = len(in_progress.items)
            raise EngineError(f"engine {self._engine.spec.name} ended without a result for {num_items} items")


def _as_exception(error: BaseException) -> Exception:
    """Return the error of a thread as one that ends the run with a message. SystemExit would end the process without
    one, and with the exit code that it has."""
    if isinstance(error, Exception):
        return error
    failure = RunError(f"{type(error).__name__} in a thread of the run{f': {error}' if str(error) else ''}")
    failure.__cause__ = error
    return failure
