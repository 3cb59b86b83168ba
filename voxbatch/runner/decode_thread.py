"""The decode thread: Items → decoder processes → Chunks in the feed.

It waits while the feed, the event queue or the memory of the rows in progress is full.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace

from voxbatch.config import RunOptions
from voxbatch.decoding import DecoderPool, DecodeTask, Message, Undecodable
from voxbatch.decoding.messages import Diarization
from voxbatch.engines import EngineSpec, Feed
from voxbatch.failure_kinds import FailureKind
from voxbatch.languages import primary_subtag
from voxbatch.output.attempts import Gate
from voxbatch.process.limits import max_tasks
from voxbatch.records import Chunk, Failure, Hints, Hypothesis, Item
from voxbatch.runner.shared import ChunkResult, DecodingEnded, EventQueue, InProgress
from voxbatch.runner.steps import Steps
from voxbatch.storage.circuit_breaker import CircuitBreaker
from voxbatch.storage.waits import RetryWait

MAX_DECODERS = 16
"""Highest number of decoder processes of a worker, unless the config gives a number."""
MAX_DECODERS_OF_MACHINE = 64
"""Highest number of those of all workers. A container often has 1,024 tasks, and these take 900."""
TASKS_PER_DECODER = 14
"""Threads of a decoder process, 8 + 3 of them for requests to stores, and its ffmpeg."""


def decoder_count(configured: int, workers: int = 1) -> int:
    """Return the number of decoder processes of each worker.

    Args:
        configured: the number in the config. 0 divides the cores, and the tasks that the container may have, among the
            workers.
    """
    if configured:
        return configured
    of_machine = min(MAX_DECODERS_OF_MACHINE, len(os.sched_getaffinity(0)))
    if (tasks := max_tasks()) is not None:
        of_machine = min(of_machine, tasks // 2 // TASKS_PER_DECODER)  # the other half is for the engines
    return max(1, min(MAX_DECODERS, of_machine // workers))


class DecodeThread(threading.Thread):
    """The thread that gives items to the decoders and puts their chunks into the feed.

    Args:
        breaker: judges unreachable recordings. The default is a new circuit breaker.
        in_progress: gets the items and chunks.
        feed: gets the chunks. The thread closes it at its end, unless questions about answers may follow.
        events: gets the final messages of the items.
        gate: decides when items may begin.
        failure: the outcome of every item, none of which is decoded. None decodes them.
        diarization: the way in which the decoders tell speakers apart. None if they do not.
    """

    def __init__(
        self,
        items: Iterator[Item],
        spec: EngineSpec,
        options: RunOptions,
        steps: Steps,
        breaker: CircuitBreaker[Undecodable] | None,
        in_progress: InProgress,
        feed: Feed,
        events: EventQueue,
        gate: Gate,
        failure: Failure | None = None,
        diarization: Diarization | None = None,
    ) -> None:
        super().__init__(daemon=True, name="decode")
        self._items, self._spec, self._options, self._breaker = items, spec, options, breaker
        self._in_progress, self._feed, self._events = in_progress, feed, events
        self._gate, self._failure, self._diarization, self._steps = gate, failure, diarization, steps
        self._pool: DecoderPool | None = None
        """The decoders, while they are at work."""
        self.cpu_s = 0.0
        """CPU seconds of the decoders. Read it after the thread's last event."""

    @property
    def retry(self) -> tuple[float, RetryWait] | None:
        """The last report of a store that does not answer, with its time.monotonic(). Any thread may read it."""
        return self._pool.retry if self._pool else None

    def run(self) -> None:
        """Send the items to the decoder processes, and their chunks to the feed."""
        error: BaseException | None = None
        options = self._options
        try:
            decoders = decoder_count(options.decoders) if self._steps.reads_recordings else 0
            with DecoderPool(decoders, options.stores, self._breaker) as pool:
                self._pool = pool
                for message in self._messages(pool):
                    if not self._pass_on(message):
                        break
                self.cpu_s = pool.cpu_s
        except BaseException as e:  # noqa: BLE001 the main thread raises it again
            error = e
        if not self._steps.feeds_itself:
            self._feed.close()
        self._events.send(DecodingEnded(error))

    def _messages(self, pool: DecoderPool) -> Iterator[Message]:
        """Yield the chunks and the final messages of all items."""

        def decode(max_samples: int, advice: str) -> Iterator[Message]:
            return pool.run(self._tasks(pool, max_samples, advice))

        return self._steps.messages(self._with_language(pool), decode, self._spec, self._in_progress)

    def _with_language(self, pool: DecoderPool) -> Iterator[tuple[Item, str | None] | None]:
        """Yield each item that has not failed yet, and its language. None means: no item while the gate is closed, or
        the rows of the items in progress fill the memory."""
        for item in self._items:
            while self._must_wait(item, pool):
                yield None
            self._gate.enter(item.index)
            self._in_progress.start(item)
            tag = item.lang or self._options.language
            lang = primary_subtag(tag) if tag else None
            failure = self._failure
            if failure is None and lang and not self._spec.knows(lang):
                from voxbatch.engines.refusals import language_refusal

                failure = Failure(FailureKind.LANGUAGE, f"language {lang!r}: {language_refusal(self._spec, lang)}")
            if failure is None:
                yield item, lang
            elif not self._events.send(Undecodable(item.index, failure)):
                return

    def _tasks(self, pool: DecoderPool, max_samples: int, advice: str) -> Iterator[DecodeTask | None]:
        """Yield the tasks of the items; None as in `_with_language`."""
        for started in self._with_language(pool):
            if started is None:
                yield None
                continue
            item, lang = started
            for number, place in enumerate((item.audio, *item.further)):
                yield DecodeTask(
                    item.index,
                    place,
                    item.offset,
                    item.duration,
                    item.channel,
                    lang,
                    self._spec.max_chunk_samples,
                    audio_stream=self._options.audio_stream,
                    max_samples=max_samples,
                    # Without word times, stitching cannot find the words that both chunks hold.
                    overlap=self._steps.overlap if self._spec.word_times else 0,
                    advice=advice,
                    recording=number,
                    channels=self._options.channels,
                    diarization=self._diarization,
                    excerpts=self._steps.excerpts,
                )

    def _must_wait(self, item: Item, pool: DecoderPool) -> bool:
        """Return whether an item must wait for the end of others, by the gate or because their rows fill the memory.

        If nothing is in progress, no end can come: the remaining items are held back until their place answers.
        """
        in_progress, events = self._in_progress, self._events
        if events.is_over.is_set() or (self._gate.admits(item.index) and in_progress.has_room(item)):
            return False
        return bool(
            not pool.is_idle()
            or in_progress.num_samples
            or in_progress.counting
            or in_progress.encoding
            or not events.is_empty()
        )

    def _pass_on(self, message: Message) -> bool:
        """Send a chunk to the engine, and a final message to the main thread. Return False if the run is over."""
        if not isinstance(message, Chunk):
            return self._events.send(message)
        self._in_progress.add_chunk(message)
        pending = self._in_progress.items.get(message.item)
        hotwords = (pending and pending.item.hotwords) or self._options.hotwords
        if hotwords or self._options.prompt:
            message = replace(message, hints=Hints(hotwords, self._options.prompt))
        if self._options.task != message.task:
            message = replace(message, task=self._options.task)
        if message.span.silent and self._steps.skips_silence:
            return self._events.send(ChunkResult(Hypothesis(message.item, message.index, "")))
        return self._feed.put(message)
