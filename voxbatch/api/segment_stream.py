"""The work on one recording in a thread of its own, and its segments as they come."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeAlias

from voxbatch.engines import ChunkProgress
from voxbatch.errors import Cancelled
from voxbatch.records import Hypothesis, Segment, Span, Transcript
from voxbatch.runner import Stop, StopRequested
from voxbatch.text.stitching import Heard, streamed

OnText = Callable[[Span, Hypothesis | ChunkProgress], None]
"""Takes the text of a chunk, also while the chunk is being transcribed."""
Work = Callable[[Stop, OnText], Transcript]
"""Transcribes a recording. It raises StopRequested after a request to stop."""
_Messages: TypeAlias = "queue.SimpleQueue[Heard | None]"
"""Any thread may use it. None ends it."""


class SegmentStream:
    """The segments of one recording, in order, while it is being transcribed. `stream` makes it.

        with voxbatch.stream("talk.mp3") as segments:
            for segment in segments:
                print(segment.start, segment.text)

    Iterate with `for` or `async for`. Leaving the block, `close`, an exception in the loop and the end of the last
    reference stop the work, and the engine is free for the next recording. One thread or task may iterate; `close` and
    `cancel` are for any thread.
    """

    def __init__(self, work: Work, has_word_times: bool):
        """Start the work.

        Args:
            has_word_times: False if each chunk is a segment, because the engine gives no times of words.
        """
        self._stop, self._done = Stop(ends_process=False), Future[Transcript]()
        self._done.set_running_or_notify_cancel()  # a task of asyncio that is cancelled must not cancel it
        messages: _Messages = queue.SimpleQueue()
        # Neither the thread nor the generator refers to `self`, whose last reference stops the work.
        self._segments = _segments(messages, self._done, has_word_times)
        arguments = work, self._stop, self._done, messages
        threading.Thread(target=_run, args=arguments, daemon=True, name="voxbatch-transcribe").start()

    @property
    def transcript(self) -> Transcript | None:
        """The whole transcript. None until the work is done, or if it failed."""
        return self._done.result() if self._done.done() and self._done.exception() is None else None

    def __repr__(self) -> str:
        """Return the transcript, the error of the work, or that it is in progress."""
        end = repr(self._done.exception() or self._done.result()) if self._done.done() else "in progress"
        return f"SegmentStream({end})"

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Segment:
        try:
            return next(self._segments)
        except StopIteration:
            raise
        except BaseException:
            self.cancel()
            raise

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Segment:
        try:
            segment = await _next_of(self._segments)
        except asyncio.CancelledError:
            self.cancel()
            raise
        if segment is None:
            raise StopAsyncIteration
        return segment

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the work if it is still in progress."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the work if it is still in progress."""
        await asyncio.to_thread(self.close)

    def __del__(self) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Stop the work if it is still in progress, without waiting for its end."""
        self._stop.requested.set()

    def close(self) -> None:
        """Stop the work if it is still in progress, and wait for its end."""
        self.cancel()
        wait([self._done])

    def result(self) -> Transcript:
        """Wait for the end of the work, and return the transcript. An exception in this thread stops the work.

        Raises:
            ItemError, UsageError, RunError: see Transcriber.transcribe.
            Cancelled: `cancel` or `close` stopped the work.
        """
        try:
            return self._done.result()
        finally:
            self.close()

    async def result_async(self) -> Transcript:
        """Do the same as a task of asyncio. A cancelled task stops the work, and does not wait for its end."""
        try:
            return await asyncio.wrap_future(self._done)
        finally:
            self.cancel()


async def _next_of(segments: Iterator[Segment]) -> Segment | None:
    """Wait for the next segment in a thread of its own, and return it; None at the end.

    `asyncio.to_thread` has six threads on two cores, which also look up addresses: streams that wait would hold all.
    """
    waiting = Future[Segment | None]()
    waiting.set_running_or_notify_cancel()  # a task that is cancelled must not cancel it

    def wait_for_segment() -> None:
        try:
            waiting.set_result(next(segments, None))
        except BaseException as e:  # noqa: BLE001 the task that waits raises it
            waiting.set_exception(e)

    threading.Thread(target=wait_for_segment, daemon=True, name="voxbatch-segment").start()
    return await asyncio.wrap_future(waiting)


def _segments(messages: _Messages, done: Future[Transcript], has_word_times: bool) -> Iterator[Segment]:
    """Yield the segments with times in milliseconds. Those that nobody could know before, such as those of speakers,
    come at the end."""
    count = 0
    for segment in streamed(_until_end(messages, done), has_word_times):
        words = tuple(replace(word, text=word.text.strip()) for word in segment.words)
        yield replace(segment, start=round(segment.start, 3), end=round(segment.end, 3), words=words)
        count += 1
    yield from done.result().segments[count:]


def _until_end(messages: _Messages, done: Future[Transcript]) -> Iterator[Heard]:
    """Yield the messages. Raise the error of the work: after it, the words that came so far are no segment."""
    while (message := messages.get()) is not None:
        yield message
    done.result()


def _run(work: Work, stop: Stop, done: Future[Transcript], messages: _Messages) -> None:
    """Do the work, and pass on the words of each message that are new."""
    counts = dict[int, int]()

    def pass_on(span: Span, text: Hypothesis | ChunkProgress) -> None:
        count = counts.get(text.chunk, 0)
        counts[text.chunk] = max(count, len(text.words))  # a chunk that is done once more has the same words
        new, is_last = text.words[count:], isinstance(text, Hypothesis)
        hypothesis = replace(text, words=new) if isinstance(text, Hypothesis) else Hypothesis(0, text.chunk, "", new)
        messages.put(Heard(text.chunk, span, hypothesis, is_last))

    try:
        done.set_result(work(stop, pass_on))
    except StopRequested:
        done.set_exception(Cancelled("the transcription was stopped"))
    except BaseException as e:  # noqa: BLE001 the thread that waits raises it
        done.set_exception(e)
    messages.put(None)
