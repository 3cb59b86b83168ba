"""The order of the rooms: Items → decoders → feed → engine → regroup → stitch → commit.

Three threads and some processes. One thread dispatches items to the decoder processes and puts their chunks into the
feed; one drives the engine; this one regroups results into recordings, commits parts, and is always free to hear a
signal or a clock. Backwards, everything waits for room: the event queue, the feed, the decoders' sockets; so memory
stays bounded however long the manifest or a recording is. Does not know where items come from or what follows the
last part.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from voxbatch.chunk import OVERLAP
from voxbatch.decoder import Decoded, DecoderPool, Task, Undecodable
from voxbatch.engines import Engine, Feed, Notice, primary, refusal
from voxbatch.errors import EngineError, LanguageError, RunError, TranscriptionError
from voxbatch.latency import Latency
from voxbatch.ledger import Entry, Ledger, dump
from voxbatch.lines import failure_line, transcript_line
from voxbatch.reach import Known
from voxbatch.records import SAMPLING_RATE, Chunk, ChunkFailure, Failure, Hypothesis, Item, Outcome, Span, Transcript
from voxbatch.stitch import stitch
from voxbatch.storage import USUAL, Access

EVENTS = 1024
"""Results that may wait for this thread; more, and the engine and the decoders wait."""
TICK_S = 0.2
"""How long a signal may go unnoticed."""
MEMORY_S = 1.0
"""Between two looks at the GPU memory in use."""
LAST_COMMIT_S = 8.0
"""How long a process that was told to stop may try to commit: Cloud Run and others kill it after 10 s."""


@dataclass(slots=True)
class Progress:
    """How far a shard is. `audio_s` counts chunk by chunk, so that a long recording shows."""

    items: int
    """In this shard, those of earlier runs included."""
    resumed: int = 0
    """Ended by earlier runs."""
    resumed_failed: int = 0
    """Of these, without a transcript."""
    done: int = 0
    failed: int = 0
    audio_s: float = 0.0
    """Transcribed by this process."""
    known_audio_s: float = 0.0
    """In the items that this process has to do, as far as the manifest says."""
    unknown: int = 0
    """Of these, items whose duration it does not say."""
    committed: int = 0
    """In parts: safe. Those of earlier runs included."""
    parts: int = 0
    began: float = field(default_factory=time.monotonic)

    @property
    def wall_s(self) -> float:
        return time.monotonic() - self.began

    @property
    def rtfx(self) -> float:
        return self.audio_s / self.wall_s


@dataclass(frozen=True, slots=True)
class Settings:
    language: str | None
    decoders: int
    part_items: int
    part_seconds: float
    access: Access = USUAL
    fail_unreachable: bool = False
    """Record recordings that cannot be reached as failed; else the run stops where a place is down."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Where a run's time went; of several processes side by side, the sum."""

    decode_cpu_s: float
    engine_s: float
    """From the engine's first chunk to its last result."""
    starved_s: float
    """Of these, seconds in which the engine had nothing to do and waited for a chunk."""
    short_s: float
    """Of these, seconds in which it had room for one more chunk, busy or not, and none was there."""


class Interrupted(BaseException):
    """The run was asked to stop. What was in hand is committed, unless this says why it could not be. Like
    KeyboardInterrupt no Exception: a store's client takes any for a failed connection, and what it was asked would be
    asked again."""


class Stop:
    """How a signal handler stops a run: softly while a pipeline runs (it commits what is in hand), at once
    elsewhere."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.softly = False

    def ask(self) -> None:
        """Raises Interrupted, unless a pipeline is running and will do so."""
        self.asked.set()
        if not self.softly:
            raise Interrupted


@dataclass(slots=True)
class _Open:
    """An item on its way."""

    item: Item
    results: dict[int, Hypothesis | ChunkFailure] = field(default_factory=dict)
    decoded: Decoded | None = None
    times: list[tuple[float, float]] = field(default_factory=list)
    """Of each chunk in `results`: when the engine took it, and when its result came."""

    def is_whole(self) -> bool:
        return self.decoded is not None and len(self.results) == len(self.decoded.spans)


@dataclass(frozen=True, slots=True)
class _Answer:
    """A chunk's result."""

    result: Hypothesis | ChunkFailure
    times: tuple[float, float] | None = None
    """time.monotonic() when the engine took the chunk from the feed, and when its result came; None where the chunk did
    not go to the engine."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """A thread's last event."""

    error: BaseException | None


class Pipeline:
    """One run over one shard's items.

    Args:
        engine: not yet loaded.
        ledger: loaded; items that it has done are not among `items`.
        observe: called with the progress whenever it changed, from this thread.
        tell: called with what the engine has to say, from this thread.
        stop: asked from anywhere to commit what is in hand and raise Interrupted.
        known: see DecoderPool.
    """

    def __init__(
        self,
        engine: Engine,
        ledger: Ledger,
        settings: Settings,
        progress: Progress,
        observe: Callable[[Progress], None],
        stop: Stop,
        tell: Callable[[Notice], None] = lambda notice: None,
        known: Known | None = None,
    ):
        self._engine, self._ledger, self._settings = engine, ledger, settings
        self._progress, self._observe, self._stop, self._tell_people = progress, observe, stop, tell
        self._known = known
        spec = engine.spec
        self._feed = Feed((spec.prefetch or spec.concurrency) * spec.max_chunk_samples)
        self._events: queue.Queue[Any] = queue.Queue(EVENTS)
        self._over = threading.Event()
        """Nobody takes events any more."""
        self._open: dict[int, _Open] = {}
        self._sizes: dict[tuple[int, int], int] = {}
        self._pending: list[Entry] = []
        self._committed_at = progress.began
        self._latency = Latency()
        """Of the items in `_pending`."""
        self._peak_gpu_bytes: int | None = None
        """Set by the thread that looks at the memory, and read at each commit."""
        self._decode_cpu_s = 0.0
        self._engine_ended_at = 0.0

    def run(self, items: Iterator[Item]) -> Usage:
        """Bring every item to an entry in a part.

        Raises:
            Interrupted: `stop` was asked.
            RunError: the run cannot go on; what was committed is safe.
        """
        threads = [
            threading.Thread(target=self._decode, args=(items,), daemon=True, name="decode"),
            threading.Thread(target=self._transcribe, daemon=True, name="engine"),
        ]
        self._stop.softly = True
        for thread in threads:
            thread.start()
        threading.Thread(target=self._watch_memory, daemon=True, name="memory").start()
        try:
            self._regroup(len(threads))
            self._commit()
        except RunError as e:
            if self._stop.asked.is_set():  # it had to hurry
                raise Interrupted(str(e)) from e
            raise
        finally:
            self._over.set()
            self._feed.close(discard=True)
            self._stop.softly = False
        if self._stop.asked.is_set():
            raise Interrupted
        began = self._feed.started_at or self._engine_ended_at
        return Usage(self._decode_cpu_s, self._engine_ended_at - began, self._feed.starved_s, self._feed.short_s)

    # -- the decoding thread ------------------------------------------------------------------------------------------

    def _decode(self, items: Iterator[Item]) -> None:
        error: BaseException | None = None
        try:
            settings = self._settings
            with DecoderPool(settings.decoders, settings.access, settings.fail_unreachable, self._known) as pool:
                for message in pool.run(self._tasks(items)):
                    if not (self._put(message) if isinstance(message, Chunk) else self._tell(message)):
                        break
                self._decode_cpu_s = pool.cpu_s
        except BaseException as e:  # noqa: BLE001 it is raised again by the thread that waits for it
            error = e
        self._feed.close()
        self._tell(_Ended(error))

    def _tell(self, event: _Answer | Notice | Decoded | Undecodable | _Ended) -> bool:
        """Queue an event, waiting for room. False when the run is over meanwhile: nobody wants it."""
        while not self._over.is_set():
            with contextlib.suppress(queue.Full):
                self._events.put(event, timeout=TICK_S)
                return True
        return False

    def _put(self, chunk: Chunk) -> bool:
        """Give a chunk to the engine, or answer for it: in certain silence an engine could only invent text."""
        self._sizes[chunk.item, chunk.index] = chunk.span.core_end - chunk.span.core_start
        if chunk.span.silent:
            return self._tell(_Answer(Hypothesis(chunk.item, chunk.index, "")))
        return self._feed.put(chunk)

    def _tasks(self, items: Iterator[Item]) -> Iterator[Task]:
        spec = self._engine.spec
        for item in items:
            said = item.lang or self._settings.language
            lang = primary(said) if said else None
            self._open[item.index] = _Open(item)
            if lang and (reason := refusal(spec, lang)):
                failure = Failure(LanguageError.__name__, f"language {lang!r}: {reason}")
                if not self._tell(Undecodable(item.index, failure)):
                    return
                continue
            overlap = OVERLAP if spec.word_times else 0  # without times nobody could tell what both sides heard
            limit = spec.max_chunk_samples
            yield Task(item.index, item.audio, item.offset, item.duration, item.channel, lang, limit, overlap)

    # -- the engine's thread ------------------------------------------------------------------------------------------

    def _transcribe(self) -> None:
        error: BaseException | None = None
        try:
            for result in self._engine.stream(self._feed):
                # To the end, even where nobody listens: an engine that is cut off unloads its model.
                self._tell(result if isinstance(result, Notice) else self._timed(result))
        except BaseException as e:  # noqa: BLE001 likewise
            error = e
        self._feed.close(discard=True)  # whoever fills it must not wait for an engine that has gone
        self._engine_ended_at = time.monotonic()
        self._tell(_Ended(error))

    def _timed(self, result: Hypothesis | ChunkFailure) -> _Answer:
        return _Answer(result, (self._feed.taken_at(result.item, result.chunk), time.monotonic()))

    # -- the memory's thread ------------------------------------------------------------------------------------------

    def _watch_memory(self) -> None:
        """Note the most GPU memory in use. On a thread of its own, because a driver may hang when a GPU fails."""
        while (used := self._engine.gpu_bytes()) is not None:
            self._peak_gpu_bytes = max(self._peak_gpu_bytes or 0, used)
            if self._over.wait(MEMORY_S):
                return

    # -- this thread --------------------------------------------------------------------------------------------------

    def _regroup(self, threads: int) -> None:
        while threads:
            try:
                event = self._events.get(timeout=TICK_S)
            except queue.Empty:
                event = None
            if isinstance(event, _Ended):
                threads -= 1
                if event.error is not None:
                    self._commit()
                    raise Interrupted if self._stop.asked.is_set() else event.error  # a signal may hit the engine too
            elif isinstance(event, Notice):
                self._tell_people(event)
            elif event is not None:
                self._handle(event)
            if self._stop.asked.is_set():
                self._commit()
                raise Interrupted
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
        self._pending.append(Entry(item.index, kind, dump(self._line(item, outcome))))
        self._progress.done += not failed
        self._progress.failed += failed
        self._observe(self._progress)

    def _measure(self, times: list[tuple[float, float]]) -> None:
        """Add a finished item's latencies; there are none where no chunk of it came back."""
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
        self._progress.parts += bool(self._ledger.commit(self._pending, *measured))
        self._progress.committed += len(self._pending)
        self._pending, self._committed_at, self._latency = [], now, Latency()


def _outcome(
    results: dict[int, Hypothesis | ChunkFailure], spans: Sequence[Span], warnings: Sequence[str]
) -> Transcript | Failure:
    """The first failed chunk fails the item, whichever order they came in: the same run gives the same bytes."""
    hypotheses = []
    for index, span in enumerate(spans):
        result = results[index]
        if isinstance(result, ChunkFailure):
            place = f"{span.start / SAMPLING_RATE:.2f} to {span.end / SAMPLING_RATE:.2f} s"
            return Failure(TranscriptionError.__name__, f"{place}: {result.message}", result.retryable)
        hypotheses.append(result)
    return stitch(spans, hypotheses, warnings)
