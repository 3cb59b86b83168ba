"""Keeps an engine full and brings every chunk to one result, whatever the engine does on the way.

A window of requests is always open: more than the engine runs at a time, so that it finds the next one waiting. Each
finished one makes room for another at once; nothing waits for a batch. What is suspect is asked again in two halves
(`watch`). When the engine dies, the chunks in hand are asked again of a new one: an eighth of them at a time after each
death, so that a chunk which kills it is soon alone with it, fails, and lets the others live.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from voxbatch.chunk import quietest
from voxbatch.engines.feed import Feed
from voxbatch.engines.notice import Notice
from voxbatch.engines.vllm.core import Core, Died, Output
from voxbatch.engines.vllm.families import Family, Heard, Piece, Unfit
from voxbatch.engines.vllm.limits import SAMPLES_PER_TOKEN
from voxbatch.engines.vllm.watch import Suspicion, suspicions
from voxbatch.errors import EngineError
from voxbatch.records import SAMPLING_RATE, Chunk, ChunkFailure, Hypothesis, Word

Result = Hypothesis | ChunkFailure | Notice

AHEAD = 1 / 8
"""Requests that wait in the engine beyond those that it runs, as a share of them: finished ones are replaced within
the step."""
SPLIT_S = 8.0
"""A suspect chunk of at least this length is asked again in halves, a shorter one behind a little silence."""
SHIFT = 5 * SAMPLES_PER_TOKEN + SAMPLES_PER_TOKEN // 4
"""Samples of silence in front of a short suspect chunk: 420 ms. The quarter of a token is one encoder frame: each token
of audio then pools other encoder frames than in the first round. Whole tokens alone would give each token the same
frames again."""
SHRINK = 8
"""After a death, only one in so many of the chunks that were in the engine is in it at a time, until all of them have
a result."""

PROOF = "proof"
"""The id of a request that only shows whether the engine lives."""


@dataclass(eq=False)
class _Case:
    """A chunk on its way: asked, and perhaps asked again in other pieces."""

    chunk: Chunk
    pieces: list[Piece]
    """Of the present round, in order."""
    heard: dict[int, Heard] = field(default_factory=dict)
    first: Heard | None = None
    """The first round's, while a second one is under way."""
    doubts: list[Suspicion] = field(default_factory=list)
    suspect: bool = False
    """It was in the engine that died last."""

    def again(self) -> _Case:
        """As it was before the present round, for a new engine."""
        self.heard.clear()
        return self


@dataclass(frozen=True, slots=True)
class Starter:
    """How to get an engine."""

    start: Callable[[int], Core]
    """start(requests at a time); raises Died."""
    concurrency: int
    restarts: int
    """Deaths without one result in between, before it is given up."""


class Driver:
    """One stream of chunks through one engine, or several in a row."""

    def __init__(self, family: Family, starter: Starter, watched: bool, core: Core | None = None):
        """`core`: an engine that runs already."""
        self.core = core
        """What runs before the stream, and after it where it ended by itself."""
        self._family, self._starter, self._watched = family, starter, watched
        self._concurrency = starter.concurrency
        self._flight: dict[str, tuple[_Case, int]] = {}
        self._todo: deque[_Case] = deque()
        """To be asked, before anything new is taken: after a death, or for a second time."""
        self._group = 0
        """How many suspects may be in the engine together, and nothing else beside them; 0 means that there are
        none."""
        self._deaths = 0
        self._held: list[Hypothesis | ChunkFailure] = []
        """Failures that nothing but the engine's own death speaks for, until it has shown that it lives."""
        self._asked = 0

    def run(self, feed: Feed) -> Iterator[Result]:
        """Raises EngineError when the engine does not stay alive."""
        while True:
            core, self.core = self.core, None
            try:
                if core is None:
                    core = self._starter.start(self._concurrency)
                    yield Notice(core.describe())
                yield from self._drive(core, feed)
                yield from self._held
                if self._concurrency == self._starter.concurrency:
                    self.core, core = core, None
                return
            except Died as death:
                if feed.discarded:
                    return  # the run is being stopped, and the engine heard the signal too
                yield from self._after(death, loaded=core is not None)
            finally:
                if core is not None:
                    core.close()

    # -- one engine's life --------------------------------------------------------------------------------------------

    def _drive(self, core: Core, feed: Feed) -> Iterator[Result]:
        while True:
            yield from self._fill(core, feed)
            if not self._flight and not self._todo and feed.closed:
                self._prove(core, feed)
                return
            for output in core.step() if self._flight else ():
                yield from self._finished(core, output)

    def _fill(self, core: Core, feed: Feed) -> Iterator[Result]:
        """Ask until the window is full, or nothing more is there now."""
        while len(self._flight) < self._window() and (case := self._next(feed)):
            try:
                self._ask(core, case)
            except Died:
                raise
            except Exception as e:  # noqa: BLE001 one chunk's trouble, whatever it is, is that chunk's
                yield self._given_up(case, _named(e), retryable=not isinstance(e, Unfit))

    def _prove(self, core: Core, feed: Feed) -> None:
        """When chunks are blamed for the engine's deaths and none is left to show that it lives, a second of silence
        does. Raises Died."""
        if self._held and not feed.discarded:
            with contextlib.suppress(Unfit, ValueError):
                core.add(PROOF, self._family.request(Piece(np.zeros(SAMPLING_RATE, np.float32))))
                while not any(output.id == PROOF for output in core.step()):
                    pass

    def _window(self) -> int:
        if self._group and not any(case.suspect for case in self._cases()):
            self._group = 0
        return self._group or self._concurrency + max(1, int(self._concurrency * AHEAD))

    def _cases(self) -> Iterator[_Case]:
        yield from (case for case, _ in self._flight.values())
        yield from self._todo

    def _next(self, feed: Feed) -> _Case | None:
        if self._todo:
            return self._todo.popleft()
        if self._group:
            return None  # the suspects are in the engine: nobody new goes in with them
        chunk = feed.get(wait=not self._flight)
        return _Case(chunk, [Piece(chunk.samples, chunk.lang)]) if chunk else None

    def _ask(self, core: Core, case: _Case) -> None:
        for index in range(len(case.pieces)):
            if index not in case.heard:
                self._ask_piece(core, case, index)

    def _ask_piece(self, core: Core, case: _Case, index: int) -> None:
        request = self._family.request(case.pieces[index])
        request_id = str(self._asked)
        self._asked += 1
        self._flight[request_id] = case, index
        core.add(request_id, request)

    def _given_up(self, case: _Case, message: str, retryable: bool = False) -> Hypothesis | ChunkFailure:
        """What becomes of a chunk that cannot be asked (again): a failure, or what was heard in the first round."""
        self._flight = {name: each for name, each in self._flight.items() if each[0] is not case}
        if case.first is None:
            return ChunkFailure(case.chunk.item, case.chunk.index, message, retryable)
        return _hypothesis(case.chunk, case.first, f"{_why(case)}: could not be decoded again ({message})")

    def _finished(self, core: Core, output: Output) -> Iterator[Result]:
        if (found := self._flight.pop(output.id, None)) is None:
            return  # another piece of its chunk has failed
        case, index = found
        try:
            result = self._read(core, case, index, output)
        except Died:
            raise
        except Exception as e:  # noqa: BLE001 likewise
            result = self._given_up(case, _named(e), retryable=not isinstance(e, Unfit))
        if result is not None:
            self._deaths = 0
            held, self._held = self._held, []
            yield from (*held, result)

    # -- one chunk ----------------------------------------------------------------------------------------------------

    def _read(self, core: Core, case: _Case, index: int, output: Output) -> Hypothesis | ChunkFailure | None:
        """A result, or None while there is more to ask."""
        if output.finish_reason not in ("stop", "length"):
            return self._given_up(case, f"vllm ended the request with {output.finish_reason!r}", retryable=True)
        answer = self._family.read(case.pieces[index], output.token_ids, output.finish_reason)
        if isinstance(answer, Piece):
            case.pieces[index] = answer
            self._ask_piece(core, case, index)
            return None
        case.heard[index] = answer
        return self._judged(case) if len(case.heard) == len(case.pieces) else None

    def _judged(self, case: _Case) -> Hypothesis | None:
        heard = joined(case.pieces, [case.heard[i] for i in range(len(case.pieces))])
        if case.first is not None:
            return _better(case, heard)
        case.doubts = suspicions(case.chunk.samples, heard) if self._watched else []
        if not case.doubts:
            return _hypothesis(case.chunk, heard)
        case.first, case.heard = heard, {}
        case.pieces = recut(case.pieces[0], self._family.max_chunk_samples)
        self._todo.appendleft(case)  # or a suspect would have all others wait for it
        return None

    # -- between two engines ------------------------------------------------------------------------------------------

    def _after(self, death: Died, loaded: bool) -> Iterator[Result]:
        """Make ready for another engine. Raises EngineError when there shall be none."""
        self._deaths += 1
        broken = not loaded and not self._asked and not death.out_of_memory
        if self._deaths > self._starter.restarts or broken:
            raise EngineError(f"vLLM died: {death}")
        cases = list(dict.fromkeys(case for case, _ in self._flight.values()))
        self._flight.clear()
        if death.out_of_memory:
            if self._concurrency == 1:
                raise EngineError(f"vLLM ran out of memory with one request at a time: {death}")
            self._concurrency //= 2
        elif len(cases) == 1 and cases[0].suspect:
            self._held.append(self._given_up(cases.pop(), f"vllm died of this chunk: {death.cause}", retryable=True))
        elif cases:
            self._group = max(1, len(cases) // SHRINK)
            for case in (*self._todo, *cases):
                case.suspect = case in cases  # this death clears those that were not in it
        self._todo.extendleft(case.again() for case in reversed(cases))
        yield Notice(self._told(death, len(cases)), is_warning=True)

    def _told(self, death: Died, cases: int) -> str:
        admitted = f", with {self._concurrency} requests at a time" if death.out_of_memory else ""
        in_hand = f" for the {cases} chunks in hand" if cases else ""
        return f"vLLM died ({death}); starting it again{in_hand}{admitted}"


def _named(error: Exception) -> str:
    return f"vllm: {error}" if isinstance(error, Unfit | ValueError) else f"vllm: {type(error).__name__}: {error}"


def joined(pieces: list[Piece], heard: list[Heard]) -> Heard:
    """What was heard in consecutive pieces, as one, with times from the chunk's first sample."""
    if len(heard) == 1 and not pieces[0].lead:
        return heard[0]
    offset, words = 0.0, list[Word]()
    quiet, unheard = list[tuple[float, float]](), list[tuple[float, float]]()
    after_end = list[tuple[float, int]]()
    for piece, each in zip(pieces, heard, strict=True):
        zero = offset - piece.lead / SAMPLING_RATE
        words += [replace(w, start=max(offset, w.start + zero), end=max(offset, w.end + zero)) for w in each.words]
        if each.quiet:
            start, end = (max(offset, place + zero) for place in each.quiet)
            quiet.append((quiet.pop()[0] if quiet and quiet[-1][1] == start else start, end))
        unheard += [(max(offset, each.unheard[0] + zero), each.unheard[1] + zero)] if each.unheard else []
        after_end += [(max(offset, at + zero), characters) for at, characters in each.after_end]
        offset = zero + len(piece.samples) / SAMPLING_RATE
    parts = filter(None, (each.text.strip() for each in heard))
    text = "".join(word.text for word in words) if words else " ".join(parts)
    truncated = any(each.truncated for each in heard)
    return Heard(text, tuple(words), _longest(quiet), _longest(unheard), truncated, tuple(after_end))


def _longest(stretches: list[tuple[float, float]]) -> tuple[float, float] | None:
    return max(stretches, key=lambda stretch: stretch[1] - stretch[0], default=None)


def recut(piece: Piece, limit: int) -> list[Piece]:
    """The same audio for a second opinion: two halves, cut in the quietest place near the middle; or, where it is too
    short for that, behind a little silence."""
    samples = piece.samples
    if len(samples) >= SPLIT_S * SAMPLING_RATE:
        middle = len(samples) // 2
        at, _ = quietest(samples, middle - SAMPLING_RATE * 2, middle + SAMPLING_RATE * 2)
        return [replace(piece, samples=samples[:at]), replace(piece, samples=samples[at:])]
    lead = min(SHIFT, limit - len(samples))
    return [replace(piece, samples=np.concatenate([np.zeros(lead, np.float32), samples]), lead=lead)]


def _better(case: _Case, second: Heard) -> Hypothesis:
    first = case.first
    assert first is not None
    doubts = suspicions(case.chunk.samples, second)
    how = "in two halves" if len(case.pieces) > 1 else "behind a little silence"
    if _weight(doubts) < _weight(case.doubts):
        return _hypothesis(case.chunk, second, f"{_why(case)}: decoded again {how}, which was kept")
    return _hypothesis(case.chunk, first, f"{_why(case)}: decoded again {how}, which was no better")


def _why(case: _Case) -> str:
    return "; ".join(each.what for each in case.doubts)


def _weight(doubts: list[Suspicion]) -> float:
    return sum(each.weight for each in doubts)


def _hypothesis(chunk: Chunk, heard: Heard, *warnings: str) -> Hypothesis:
    went_on = (
        f"{characters} characters of text after the model said that it had ended, at {at:.1f} s"
        for at, characters in heard.after_end
    )
    return Hypothesis(chunk.item, chunk.index, heard.text, heard.words, (*warnings, *went_on))
