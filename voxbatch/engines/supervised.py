"""Bring each chunk that an engine takes to exactly one result, also if the engine loses it or raises an error.

An engine is code of others. If its stream ends and owes results, these chunks are transcribed again, each one alone. If
it raises an error, all chunks that it had are suspect, and are transcribed again in ever smaller groups: see
`process.suspects`. A chunk that is alone and has no result again is a ChunkFailure, and the others go on:

    MemoryError with chunks 4, 5, 6, 7       →  4 alone: a result
                                                5 alone: MemoryError, and once more  →  ChunkFailure of 5
                                                6 alone, 7 alone, and then 8, 9, … as before
    the end of the stream without chunk 3    →  3 alone: no result  →  ChunkFailure of 3

Each group is a stream of its own, so that it shows what it loses. A result that belongs to no chunk of the engine is
left out. An EngineError ends the run, and so does an error without any chunk. An engine that runs in a child process is
supervised there (`engine_program`); its parent finds the chunk that ends the process (`engine_process`).
"""

from __future__ import annotations

import sys
import traceback
from collections import deque
from collections.abc import Generator, Iterator, Sequence

from voxbatch.engines.feed import Feed
from voxbatch.engines.interface import Engine
from voxbatch.engines.results import ChunkProgress, EngineMessage, Result, find_wrong_value
from voxbatch.errors import EngineError, RunError, UsageError
from voxbatch.process.limits import find_limit
from voxbatch.process.suspects import Cause, SearchRules, Suspects
from voxbatch.records import Chunk, ChunkFailure, Hypothesis, Speech

RULES = SearchRules(together=1, parts=8)
"""The chunks of a first error are on trial at once, because most errors come again. An eighth of them at a time leaves
the engine with work."""
MAX_OWED = 4
"""Results that an engine may owe, in multiples of what its feed is made for. Then its stream ends: lost chunks must not
fill the memory."""
MIN_OWED = 64
"""Results that any engine may owe."""
MAX_IDLE_STREAMS = 3
"""Number of streams in succession that an engine may end without a result while there is work."""


def supervised(engine: Engine, feed: Feed) -> Generator[Result]:
    """Yield one result for each chunk of a feed, from as many streams of an engine as that takes.

    Raises:
        EngineError: the engine raised it; or it raises another error without a chunk; or a limit of this machine is to
            blame.
    """
    return _Supervisor(engine, feed).results()


class _TrialFeed(Feed):
    """The feed of the chunks of a trial, which are all there."""

    def __init__(self, feed: Feed, chunks: Sequence[Chunk]):
        super().__init__(sys.maxsize)
        self._feed = feed
        for chunk in chunks:
            self.put(chunk)
        self.close()

    @property
    def discarded(self) -> bool:
        """See Feed."""
        return self._feed.discarded


class _Supervisor:
    """The streams of an engine over one feed, one after another."""

    def __init__(self, engine: Engine, feed: Feed):
        self._engine, self._feed = engine, feed
        self._max_owed = max(MIN_OWED, MAX_OWED * max(engine.spec.prefetch, engine.spec.concurrency))
        self._suspects = Suspects[tuple[int, int]](RULES)
        self._again: deque[Chunk] = deque()
        """The chunks to transcribe before any new one."""
        self._last_shown = ""

    def results(self) -> Generator[Result]:
        """Yield one result for each chunk of the feed."""
        self._feed.watch(self._max_owed)
        num_idle = 0
        while num_idle < MAX_IDLE_STREAMS:
            feed = self._trial() if self._again else self._feed
            num_results, error = yield from self._stream(feed)
            owed = feed.end_stream()
            if self._feed.discarded:
                return
            if feed is not self._feed:
                self._again.extendleft(reversed(feed.drain()))
            num_idle = 0 if num_results or owed else num_idle + 1
            if error is not None:
                yield from self._shown(error, is_fatal=not owed)
            if owed:
                yield from self._assign_blame(owed, error)
            if not self._again and not self._feed.wait():
                return
        name = self._engine.spec.name
        raise EngineError(f"engine {name} ended its work {MAX_IDLE_STREAMS} times without a result, and chunks wait")

    def _trial(self) -> Feed:
        """Return a feed with the chunks that are transcribed next, without others."""
        group = list[Chunk]()
        while self._again:
            beside = _key(group[0]) if group else None
            if not self._suspects.admits(_key(self._again[0]), len(group), beside):
                break
            group.append(self._again.popleft())
        feed = _TrialFeed(self._feed, group)
        feed.watch(self._max_owed)
        return feed

    def _stream(self, feed: Feed) -> Generator[Result, None, tuple[int, BaseException | None]]:
        """Yield the results of one stream. Return their number, and the error that ended it.

        Raises:
            RunError, UsageError: the engine raised it.
        """
        num_results, stream = 0, None
        while True:
            try:
                stream = stream or iter(self._engine.stream(feed))
                result = next(stream)
            except StopIteration:
                return num_results, None
            except (RunError, UsageError):
                raise
            except BaseException as e:  # noqa: BLE001 also SystemExit, with which a library would end the run unnoticed
                return num_results, e
            for message in self._checked(result, feed):
                num_results += isinstance(message, Hypothesis | Speech | ChunkFailure)
                yield message

    def _checked(self, result: object, feed: Feed) -> Iterator[Result]:
        """Yield a result. One with a wrong value becomes the failure of its chunk, one without a chunk a warning."""
        if isinstance(result, EngineMessage):
            yield result
            return
        if not isinstance(result, Hypothesis | Speech | ChunkFailure | ChunkProgress):
            text = f"the engine gave a {type(result).__name__}, which is no result; it is left out"
            yield EngineMessage(text, is_warning=True)
            return
        item: object = result.item
        index: object = result.chunk
        chunk = feed.owed(item, index) if isinstance(item, int) and isinstance(index, int) else None
        if chunk is None:
            text = f"the engine gave a result for chunk {index} of item {item}, which it does not have; "
            yield EngineMessage(f"{text}the result is left out", is_warning=True)
            return
        wrong = find_wrong_value(result)
        if isinstance(result, ChunkProgress):
            if wrong is None:
                yield result
            return
        expected = Hypothesis if chunk.piece is None else Speech
        if wrong is None and not isinstance(result, expected | ChunkFailure):
            wrong = f"it is a {type(result).__name__}, and not a {expected.__name__}"
        if wrong is not None:
            text = f"the engine gave a result that cannot be written: {wrong}"
            result = ChunkFailure(chunk.item, chunk.index, text, retryable=True)
        feed.settle(chunk)
        self._suspects.ended(_key(chunk))
        yield result

    def _shown(self, error: BaseException, is_fatal: bool) -> Iterator[EngineMessage]:
        """Yield the traceback of an error, unless it is that of the last one.

        Raises:
            EngineError: no chunk is to blame.
        """
        name, limit = self._engine.spec.name, find_limit(error)
        if limit is None:
            shown = "".join(traceback.format_exception(error)).rstrip()
            if shown != self._last_shown:
                self._last_shown = shown
                yield EngineMessage(shown)
        if is_fatal or limit is not None:
            raise EngineError(f"engine {name}: {limit or _named(error)}") from error

    def _assign_blame(self, owed: Sequence[Chunk], error: BaseException | None) -> Iterator[Result]:
        """Decide what becomes of the chunks for which a stream owed results when it ended."""
        name, chunks = self._engine.spec.name, {_key(chunk): chunk for chunk in owed}
        fate, at = ("gave no result", "for") if error is None else (f"raised {_named(error)}", "with")
        for chunk in owed:
            if chunk.given is not None:  # the place of its words follows from the chunks before it
                del chunks[_key(chunk)]
                yield ChunkFailure(*_key(chunk), f"the engine {fate}", retryable=True)
        again, guilty = self._suspects.died(list(chunks), Cause.LOSS if error is None else Cause.CRASH)
        self._again.extendleft(chunks[key] for key in reversed(again))
        if guilty is not None:
            yield ChunkFailure(*guilty, f"the engine {fate}, also with this audio alone", retryable=True)
        elif len(again) == 1:
            text = f"engine {name} {fate} {at} one chunk; it is transcribed again alone"
            yield EngineMessage(text, is_warning=True)
        elif again:
            width = self._suspects.width(again[0]) or len(again)
            how = "one at a time" if width == 1 else f"{width} at a time"
            text = f"engine {name} {fate} {at} {len(again):,} chunks; they are transcribed again, {how}"
            yield EngineMessage(text, is_warning=True)


def _key(chunk: Chunk) -> tuple[int, int]:
    return chunk.item, chunk.index


def _named(error: BaseException) -> str:
    """Return an error as text: "MemoryError", "ValueError: no such file"."""
    return f"{type(error).__name__}{f': {error}' if str(error) else ''}"
