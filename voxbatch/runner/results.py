"""The main thread's work: results of chunks → outcomes of recordings → scored lines → parts of OUT."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from voxbatch.config import RunOptions
from voxbatch.decoding import Decoded, Undecodable
from voxbatch.engines import ChunkProgress, EngineSpec, Feed
from voxbatch.failure_kinds import NO_AUDIO_TRACK, FailureKind
from voxbatch.output.latency import Latency
from voxbatch.output.parts import PartEntry
from voxbatch.records import SAMPLING_RATE, Failure, Hypothesis, Item, Outcome, Span, SpokenRecording, Transcript
from voxbatch.runner.engine_thread import GpuMemoryThread
from voxbatch.runner.progress import Progress, Stop
from voxbatch.runner.shared import ChunkResult, Counted, Encoded, EventQueue, InProgress, PendingItem
from voxbatch.runner.steps import Steps
from voxbatch.storage.circuit_breaker import Reachable

if TYPE_CHECKING:
    from voxbatch.runner.long_texts import LongTextCounter
    from voxbatch.scoring.counts import ErrorCounts

MAX_PART_BYTES = 32 << 20
"""Bytes of finished lines, and of recordings, that trigger a commit, so that they do not fill the memory."""
LONG_TEXTS = 50_000
"""Characters of a reference and its transcript from which the pair is long: half an hour of speech. Counting its errors
takes 0.1 s. A shorter pair costs less than the way to another process."""


class PartWriter(Protocol):
    """Takes the finished items: the checkpoint of a run, or a list in memory."""

    def commit(
        self,
        entries: Iterable[PartEntry],
        wall_s: float,
        latencies: Mapping[int, Latency] | None = None,
        peak_gpu_bytes: int | None = None,
        remaining_s: float | None = None,
        remaining_item_s: float | None = None,
    ) -> list[PartEntry]:
        """Commit entries; see Checkpoint.commit."""


class NextPart:
    """The lines that the next part will have."""

    def __init__(
        self, checkpoint: PartWriter, options: RunOptions, memory: GpuMemoryThread, progress: Progress
    ) -> None:
        self._checkpoint, self._options, self._memory, self._progress = checkpoint, options, memory, progress
        self._entries: list[PartEntry] = []
        self._num_bytes = 0
        self._committed_at = progress.started_at
        self.latencies = defaultdict[int, Latency](Latency)
        """Latencies of the finished items that are not committed, by Item.index."""
        self.has_loaded = False
        """True if the engine has given a result, or has ended well."""

    def add(self, entry: PartEntry) -> None:
        """Add the line of a finished item."""
        self._entries.append(entry)
        self._num_bytes += len(entry.line) + len(entry.flac)

    def is_due(self) -> bool:
        """Return whether the part is to be committed now."""
        if time.monotonic() - self._committed_at >= self._options.part_seconds:
            return True
        return len(self._entries) >= self._options.part_items or self._num_bytes >= MAX_PART_BYTES

    def commit(self) -> None:
        """Commit the lines, if there are any, and begin the next part.

        Before the first result of the engine, these are only recordings that cannot be read. They are not committed
        yet, because OUT would then belong to a run whose model may never load.
        """
        if not self._entries or not (self.has_loaded or self._num_bytes >= MAX_PART_BYTES):
            return
        now = time.monotonic()
        wall_s = now - self._committed_at
        left = self._progress.remaining_s, self._progress.remaining_item_s
        latencies = {e.index: self.latencies.pop(e.index) for e in self._entries if e.index in self.latencies}
        written = self._checkpoint.commit(self._entries, wall_s, latencies, self._memory.peak_bytes, *left)
        self._progress.parts += bool(written)
        self._progress.committed += len(self._entries)
        self._entries, self._num_bytes, self._committed_at = [], 0, now


class Results:
    """Regroups the results of chunks into recordings, counts their errors, and adds their lines to the next part.

    Args:
        in_progress: the items and chunks that the decode thread has added.
        feed: gets questions about answers.
        part: gets the lines.
        events: gets the errors of long texts.
        progress: updated in place.
        on_progress: called with the progress whenever it changes.
        stop: while a stop is requested, no retryable failure is an outcome.
        folder: see Pipeline.
        on_text: see Pipeline.
    """

    def __init__(
        self,
        steps: Steps,
        spec: EngineSpec,
        options: RunOptions,
        in_progress: InProgress,
        feed: Feed,
        part: NextPart,
        events: EventQueue,
        progress: Progress,
        on_progress: Callable[[Progress], None],
        stop: Stop,
        folder: str | None,
        on_text: Callable[[Span, Hypothesis | ChunkProgress], None] | None = None,
    ) -> None:
        self._folder, self._on_text = folder, on_text
        self._spec, self._options, self._in_progress, self._part = spec, options, in_progress, part
        self._events, self._progress, self._on_progress, self._stop = events, progress, on_progress, stop
        self._long_texts: LongTextCounter | None = None
        """Counts the errors of long texts. None before the first of them."""
        self._steps, self._outcomes = steps, steps.outcomes(spec, feed, in_progress, events)

    def close(self) -> None:
        """End the child process that counts errors, and the threads that encode recordings."""
        self._outcomes.close()
        if self._long_texts is not None:
            self._long_texts.close()

    def end_questions(self) -> None:
        """Close the feed if no further question can come. Call this when all recordings are decoded."""
        self._outcomes.end_questions(self._in_progress.items.values())

    def add(self, event: Decoded | Undecodable | ChunkResult | ChunkProgress | Counted | Encoded) -> None:
        """Take what a thread sends about an item, and finish the item if nothing is missing."""
        match event:
            case ChunkProgress():
                remaining = self._in_progress.num_samples
                # The chunk's audio may be longer than its core.
                num_samples = min(event.num_samples, remaining[event.item, event.chunk])
                remaining[event.item, event.chunk] -= num_samples
                self._in_progress.partly_done.add((event.item, event.chunk))
                self._add_audio(num_samples / SAMPLING_RATE)
                self._tell(event)
                self._on_progress(self._progress)
            case Counted():
                self._add_line(*self._in_progress.counting.pop(event.item), event.counts)
            case Encoded():
                del self._in_progress.encoding[event.item]
                self._finish(self._in_progress.items[event.item], event.recording)
            case ChunkResult():
                self._add_result(event)
            case Undecodable():
                if (pending := self._in_progress.items.get(event.item)) is not None:
                    self._finish(pending, self._without_sound(pending, event) or event.failure)
            case Decoded():
                if (pending := self._in_progress.items.get(event.item)) is not None:
                    pending.decoded = event
                    if pending.item.duration is None:
                        self._progress.expect(event.item, event.seconds)
                    self._finish_if_complete(pending)

    def _without_sound(self, pending: PendingItem, event: Undecodable) -> Outcome | SpokenRecording | None:
        """Return the outcome of a video without an audio track, as of one in which nobody speaks; None for a failure.
        Folders of videos have scenes that were filmed without sound."""
        if event.failure.kind is not FailureKind.NO_AUDIO_TRACK or self._outcomes.needs_sound:
            return None
        silent = Decoded(event.item, (), (NO_AUDIO_TRACK,), 0.0, Reachable("", 0.0), event.recording)
        return self._outcomes.outcome(pending, silent)

    def _add_result(self, event: ChunkResult) -> None:
        result = event.result
        place = result.item, result.chunk
        has_own_windows = place not in self._in_progress.partly_done
        self._in_progress.partly_done.discard(place)
        self._add_audio(self._in_progress.num_samples.pop(place, 0) / SAMPLING_RATE, has_own_windows)
        pending = self._in_progress.items.get(result.item)
        if pending is None:
            return  # a chunk of an item that has already failed
        pending.results[result.chunk] = result
        if isinstance(result, Hypothesis):
            self._tell(result)
        if event.times:
            self._part.has_loaded = True
            pending.times.append(event.times)
        self._finish_if_complete(pending)

    def _tell(self, text: Hypothesis | ChunkProgress) -> None:
        """Pass on the text of a chunk of an item that has not failed."""
        pending = self._in_progress.items.get(text.item)
        if self._on_text is not None and pending is not None:
            self._on_text(pending.spans[text.chunk], text)

    def _add_audio(self, seconds: float, has_own_windows: bool = True) -> None:
        """Add audio that is done. The rest of a chunk that was done window by window has no windows of its own."""
        if not seconds:
            return
        self._progress.audio_s += seconds
        self._progress.fixed_s += self._progress.fixed_of(seconds) if has_own_windows else 0.0
        self._progress.add_point()

    def _finish_if_complete(self, pending: PendingItem) -> None:
        outcome = None
        if pending.decoded is not None and len(pending.results) >= len(pending.decoded.spans):
            outcome = self._outcomes.outcome(pending, pending.decoded)
        if outcome is not None:
            self._finish(pending, outcome)
        else:
            self._on_progress(self._progress)

    def _finish(self, pending: PendingItem, outcome: Outcome | SpokenRecording) -> None:
        """Take an item with an outcome out of the items in progress."""
        if isinstance(outcome, Failure) and outcome.retryable and self._stop.requested.is_set():
            return  # the stop may have killed a child process; the resumed run does the item
        item = pending.item
        del self._in_progress.items[item.index]
        for taken_at, ended_at in pending.times:
            self._part.latencies[item.index].chunk.add(ended_at - taken_at)
        if pending.times:
            first_taken_at = min(taken_at for taken_at, _ in pending.times)
            self._part.latencies[item.index].item.add(time.monotonic() - first_taken_at)
        if item.duration is None:
            self._progress.measure(item.index, pending.decoded.seconds if pending.decoded else 0.0)
        elif pending.decoded is None:
            self._progress.failed_s += item.duration + self._progress.fixed_of(item.duration)
        reference = item.text
        if isinstance(outcome, Transcript) and reference and len(reference) + len(outcome.text) >= LONG_TEXTS:
            from voxbatch.runner.long_texts import LongPair, LongTextCounter

            self._in_progress.counting[item.index] = pending, outcome
            self._long_texts = self._long_texts or LongTextCounter(self._events)
            lang = self._language(item) or outcome.language
            self._long_texts.count(LongPair(item.index, reference, outcome.text, lang))
        else:
            self._add_line(pending, outcome)

    def _add_line(
        self, pending: PendingItem, outcome: Outcome | SpokenRecording, counts: ErrorCounts | None = None
    ) -> None:
        """Add the line of a finished item to the next part. `counts` are its errors, if they are counted."""
        item, spec = pending.item, self._spec
        self._in_progress.free(item)
        lang, folder = self._language(item), self._folder
        if isinstance(outcome, Failure):
            entry = self._steps.failure_entry(item, outcome, lang, folder)
            self._progress.failed += 1
        else:
            entry = self._steps.entry(item, outcome, spec, lang, folder, counts)
            self._progress.done += 1
        self._part.add(entry)
        self._on_progress(self._progress)

    def _language(self, item: Item) -> str | None:
        return item.lang or self._options.language or self._spec.only_language
