"""Keep an engine full, and bring every chunk to exactly one result even if the engine dies.

The driver submits more requests than the engine runs at a time, so that the engine always finds the next one waiting.
Each request that finishes is replaced at once; no request waits for a batch. A chunk with a suspect text is decoded a
second time, in two halves (`suspect_text`).

When the engine dies, a new engine is started, and the unfinished chunks are submitted again. After each death only an
eighth of the chunks that were in the engine are submitted at a time. So a chunk that kills the engine is soon alone in
the engine. It then fails, and the other chunks are transcribed.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from voxbatch.chunking import quietest
from voxbatch.engines.feed import Feed
from voxbatch.engines.message import EngineMessage
from voxbatch.engines.vllm.families import Family, Piece, PieceText, UnsupportedPiece
from voxbatch.engines.vllm.realtime_limits import SAMPLES_PER_TOKEN
from voxbatch.engines.vllm.suspect_text import Suspicion, suspicions
from voxbatch.engines.vllm.vllm_process import EngineDied, FinishedRequest, VllmProcess
from voxbatch.errors import EngineError
from voxbatch.records import SAMPLING_RATE, Chunk, ChunkFailure, Hypothesis, Word

Result = Hypothesis | ChunkFailure | EngineMessage

AHEAD = 1 / 8
"""Number of requests that wait in the engine, as a share of the requests that it runs. With waiting requests the engine
replaces a finished request within the step.

If the engine runs one request at a time, no request waits behind it, so that its latency is its own, as the published
profile ctx512 measures it. The GPU then idles only while a request is made: some milliseconds every few seconds."""
SPLIT_S = 8.0
"""Length from which a suspect chunk is decoded again in two halves. A shorter chunk is decoded again behind a little
silence."""
SHIFT = 5 * SAMPLES_PER_TOKEN + SAMPLES_PER_TOKEN // 4
"""Number of samples of silence in front of a short suspect chunk: 420 ms. The quarter of a token is one encoder frame,
so each token of audio pools other encoder frames than in the first round. A shift by whole tokens would give each token
the same frames again."""
SHRINK = 8
"""Divisor of the number of chunks after a death: only one in SHRINK of the chunks that were in the engine is in the new
engine at a time, until all of them have a result."""

PROOF = "proof"
"""The id of a request whose only purpose is to show whether the engine is alive."""


@dataclass(eq=False)
class _Case:
    """The state of a chunk without a result. Its second round, if there is one, has other pieces than the first."""

    chunk: Chunk
    pieces: list[Piece]
    """The pieces of the present round, in order."""
    heard: dict[int, PieceText] = field(default_factory=dict)
    """The results of the present round, by the index of the piece."""
    first: PieceText | None = None
    """The result of the first round. None until there is a second round."""
    doubts: list[Suspicion] = field(default_factory=list)
    """The reasons for a second round."""
    suspect: bool = False
    """True if the chunk was in the engine when the engine died last."""

    def again(self) -> _Case:
        """Return the case with the present round reset, to submit it to a new engine."""
        self.heard.clear()
        return self


@dataclass(frozen=True, slots=True)
class EngineStarter:
    """The way to start an engine, and the limits for it."""

    start: Callable[[int], VllmProcess]
    """Function that takes the number of requests at a time and returns an engine. Raises EngineDied."""
    concurrency: int
    """Number of requests at a time."""
    restarts: int
    """Number of deaths without a result between them that are answered with a new engine."""


class RequestLoop:
    """A driver of one stream of chunks through one engine, or through several engines one after another."""

    def __init__(self, family: Family, starter: EngineStarter, watched: bool, core: VllmProcess | None = None):
        """Make a driver.

        Args:
            family: the family of the model.
            starter: the way to start an engine.
            watched: decode chunks with a suspect text a second time.
            core: an engine that runs already.
        """
        self.core = core
        """The engine that `run` takes over, and that it leaves running. None if no engine runs. `run` leaves its engine
        running if the stream came to its end and the number of requests at a time was not reduced."""
        self._family, self._starter, self._watched = family, starter, watched
        self._concurrency = starter.concurrency
        self._flight: dict[str, tuple[_Case, int]] = {}
        self._todo: deque[_Case] = deque()
        """Cases to submit before any new chunk is taken: after a death, or for the second round."""
        self._group = 0
        """Number of suspects that may be in the engine together. Nothing else is in the engine then. 0 means that there
        are no suspects."""
        self._deaths = 0
        self._held: list[Hypothesis | ChunkFailure] = []
        """Failures whose only evidence is the death of the engine. They are held back until a later engine proves to be
        alive."""
        self._asked = 0

    def run(self, feed: Feed) -> Iterator[Result]:
        """Yield one result for each chunk of the feed, and a notice when an engine starts or dies.

        Raises:
            EngineError: the engine does not stay alive.
        """
        while True:
            core, self.core = self.core, None
            try:
                if core is None:
                    core = self._starter.start(self._concurrency)
                    yield EngineMessage(core.describe())
                yield from self._drive(core, feed)
                yield from self._held
                if self._concurrency == self._starter.concurrency:
                    self.core, core = core, None
                return
            except EngineDied as death:
                if feed.discarded:
                    return  # the run is being stopped, and the engine got the signal too
                yield from self._after(death, loaded=core is not None)
            finally:
                if core is not None:
                    core.close()

    # -- one engine's life --------------------------------------------------------------------------------------------

    def _drive(self, core: VllmProcess, feed: Feed) -> Iterator[Result]:
        while True:
            yield from self._fill(core, feed)
            if not self._flight and not self._todo and feed.closed:
                self._prove(core, feed)
                return
            for output in core.step() if self._flight else ():
                yield from self._finished(core, output)

    def _fill(self, core: VllmProcess, feed: Feed) -> Iterator[Result]:
        """Submit cases until the window is full or no case is available now."""
        while len(self._flight) < self._window() and (case := self._next(feed)):
            try:
                self._ask(core, case)
            except EngineDied:
                raise
            except Exception as e:  # noqa: BLE001 any error in one chunk fails that chunk only
                yield self._given_up(case, _named(e), retryable=not isinstance(e, UnsupportedPiece))

    def _prove(self, core: VllmProcess, feed: Feed) -> None:
        """Show that the engine is alive, with a request of one second of silence.

        This is needed when chunks are blamed for deaths of the engine and no other chunk is left to show that it is
        alive.

        Raises:
            EngineDied: the engine died.
        """
        if self._held and not feed.discarded:
            with contextlib.suppress(UnsupportedPiece, ValueError):
                core.add(PROOF, self._family.request(Piece(np.zeros(SAMPLING_RATE, np.float32))))
                while not any(output.id == PROOF for output in core.step()):
                    pass

    def _window(self) -> int:
        if self._group and not any(case.suspect for case in self._cases()):
            self._group = 0
        ahead = max(1, int(self._concurrency * AHEAD)) if self._concurrency > 1 else 0
        return self._group or self._concurrency + ahead

    def _cases(self) -> Iterator[_Case]:
        yield from (case for case, _ in self._flight.values())
        yield from self._todo

    def _next(self, feed: Feed) -> _Case | None:
        if self._todo:
            return self._todo.popleft()
        if self._group:
            return None  # the suspects are in the engine: no new chunk joins them
        chunk = feed.get(wait=not self._flight)
        return _Case(chunk, [Piece(chunk.samples, chunk.lang)]) if chunk else None

    def _ask(self, core: VllmProcess, case: _Case) -> None:
        for index in range(len(case.pieces)):
            if index not in case.heard:
                self._ask_piece(core, case, index)

    def _ask_piece(self, core: VllmProcess, case: _Case, index: int) -> None:
        request = self._family.request(case.pieces[index])
        request_id = str(self._asked)
        self._asked += 1
        self._flight[request_id] = case, index
        core.add(request_id, request)

    def _given_up(self, case: _Case, message: str, retryable: bool = False) -> Hypothesis | ChunkFailure:
        """Return the result of a chunk that cannot be submitted (again).

        Returns:
            A failure, or the result of the first round if there is one.
        """
        self._flight = {name: each for name, each in self._flight.items() if each[0] is not case}
        if case.first is None:
            return ChunkFailure(case.chunk.item, case.chunk.index, message, retryable)
        return _hypothesis(case.chunk, case.first, f"{_why(case)}: could not be decoded again ({message})")

    def _finished(self, core: VllmProcess, output: FinishedRequest) -> Iterator[Result]:
        if (found := self._flight.pop(output.id, None)) is None:
            return  # another piece of the same chunk has failed
        case, index = found
        try:
            result = self._read(core, case, index, output)
        except EngineDied:
            raise
        except Exception as e:  # noqa: BLE001 any error in one chunk fails that chunk only
            result = self._given_up(case, _named(e), retryable=not isinstance(e, UnsupportedPiece))
        if result is not None:
            self._deaths = 0
            held, self._held = self._held, []
            yield from (*held, result)

    # -- one chunk ----------------------------------------------------------------------------------------------------

    def _read(
        self, core: VllmProcess, case: _Case, index: int, output: FinishedRequest
    ) -> Hypothesis | ChunkFailure | None:
        """Return the result of the chunk, or None if more requests are needed for it."""
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
        self._todo.appendleft(case)  # first: until a suspect of a death has its result, the window is small for all
        return None

    # -- between two engines ------------------------------------------------------------------------------------------

    def _after(self, death: EngineDied, loaded: bool) -> Iterator[Result]:
        """Prepare for another engine.

        Args:
            death: the death of the last engine.
            loaded: False if the engine died while loading.

        Raises:
            EngineError: the engine shall not be started again.
        """
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
                case.suspect = case in cases  # this death clears the cases that were not in the engine
        self._todo.extendleft(case.again() for case in reversed(cases))
        yield EngineMessage(self._told(death, len(cases)), is_warning=True)

    def _told(self, death: EngineDied, cases: int) -> str:
        admitted = f", with {self._concurrency} requests at a time" if death.out_of_memory else ""
        in_hand = f" for the {cases} chunks in hand" if cases else ""
        return f"vLLM died ({death}); starting it again{in_hand}{admitted}"


def _named(error: Exception) -> str:
    return (
        f"vllm: {error}"
        if isinstance(error, UnsupportedPiece | ValueError)
        else f"vllm: {type(error).__name__}: {error}"
    )


def joined(pieces: list[Piece], heard: list[PieceText]) -> PieceText:
    """Join the results of consecutive pieces into one, with times from the chunk's first sample."""
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
    return PieceText(text, tuple(words), _longest(quiet), _longest(unheard), truncated, tuple(after_end))


def _longest(stretches: list[tuple[float, float]]) -> tuple[float, float] | None:
    return max(stretches, key=lambda stretch: stretch[1] - stretch[0], default=None)


def recut(piece: Piece, limit: int) -> list[Piece]:
    """Return the audio of a piece as the pieces of a second round.

    From SPLIT_S on these are two halves, cut at the quietest place near the middle. Shorter audio is one piece, behind
    a little silence.

    Args:
        limit: length of the longest piece that the model takes, in samples.
    """
    samples = piece.samples
    if len(samples) >= SPLIT_S * SAMPLING_RATE:
        middle = len(samples) // 2
        at, _ = quietest(samples, middle - SAMPLING_RATE * 2, middle + SAMPLING_RATE * 2)
        return [replace(piece, samples=samples[:at]), replace(piece, samples=samples[at:])]
    lead = min(SHIFT, limit - len(samples))
    return [replace(piece, samples=np.concatenate([np.zeros(lead, np.float32), samples]), lead=lead)]


def _better(case: _Case, second: PieceText) -> Hypothesis:
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


def _hypothesis(chunk: Chunk, heard: PieceText, *warnings: str) -> Hypothesis:
    went_on = (
        f"{characters} characters of text after the model said that it had ended, at {at:.1f} s"
        for at, characters in heard.after_end
    )
    return Hypothesis(chunk.item, chunk.index, heard.text, heard.words, (*warnings, *went_on))
