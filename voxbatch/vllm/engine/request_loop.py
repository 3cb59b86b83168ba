"""Keep an engine full, and bring every chunk to exactly one result even if the engine dies.

The request loop submits more requests than the engine runs at a time, so that the engine always finds the next one
waiting. Each request that finishes is replaced at once; no request waits for a batch. A chunk with a suspect text is
decoded a second time, in two halves (`suspect_text`, `pieces`). A question has one request, and its answer is taken as
it is.

When the engine dies, a new engine is started, and the unfinished chunks are submitted again. After each death only an
eighth of the chunks that were in the engine are submitted at a time, so that a chunk that kills the engine is soon
alone in the engine (`process.suspects`). If two engines die with it alone, and the next one transcribes a second of
silence, the chunk fails, and the other chunks are transcribed.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from voxbatch.engines.feed import Feed
from voxbatch.engines.pieces import Piece, QuestionPiece, SpokenPiece, joined, recut
from voxbatch.engines.results import EngineMessage, Result
from voxbatch.engines.suspect_text import PieceText, Suspicion, flags, reasons, suspicions, weight
from voxbatch.errors import EngineError
from voxbatch.process.suspects import Cause, SearchRules, Suspects
from voxbatch.records import SAMPLING_RATE, Answer, AnswerOptions, Chunk, ChunkFailure, Hypothesis, Question, Speech
from voxbatch.vllm.engine.engine_log import EngineDied
from voxbatch.vllm.engine.families import Family
from voxbatch.vllm.engine.families.request import Request, UnsupportedPiece, UnusableAnswer
from voxbatch.vllm.engine.vllm_process import FinishedRequest, VllmProcess

AHEAD = 1 / 8
"""Number of requests that wait in the engine, as a share of the requests that it runs. With waiting requests the engine
replaces a finished request within the step.

If the engine runs one request at a time, no request waits behind it, so that its latency is its own, as the published
profile ctx512 measures it. The GPU then idles only while a request is made: some milliseconds every few seconds."""
RULES = SearchRules(together=1, parts=8)
"""The chunks of a first death are on trial at once, because vLLM takes a minute to start. They are fewer than those of
other engines, and each takes seconds: with more parts, the engine would have too little work at a time."""
MAX_SAMPLES = 2**30
"""Number of samples of audio from which on the engine gets no further chunk: 4 GB, or 18 hours. Only questions about
long recordings reach it. The audio is held here and in the engine's process."""
PROOF = "proof"
"""The id of a request whose only purpose is to show whether the engine is alive."""
PROOF_QUESTION = Question("Hello", AnswerOptions(max_tokens=1))
"""The question of that request, if the engine answers questions."""
UNABLE = (UnsupportedPiece, UnusableAnswer)
"""Errors that the same chunk has in every run."""


@dataclass(eq=False, slots=True)
class _PendingChunk:
    """A chunk without a result. Its second round, if there is one, has other pieces than the first."""

    chunk: Chunk
    pieces: list[Piece]
    texts: dict[int, PieceText] = field(default_factory=dict)
    """The texts of the present round, by the index of the piece."""
    first_text: PieceText | None = None
    """The text of the first round. None until there is a second round."""
    suspicions: list[Suspicion] = field(default_factory=list)
    """The reasons for a second round."""
    warnings: dict[str, None] = field(default_factory=dict)
    """The warnings of its requests, each once."""


@dataclass(frozen=True, slots=True)
class EngineStarter:
    """The way to start an engine, and the limits for it."""

    start: Callable[[int], VllmProcess]
    """Function that takes the number of requests at a time and returns an engine. Raises EngineDied."""
    concurrency: int
    restarts: int
    """Number of deaths without a result between them that are answered with a new engine."""


class RequestLoop:
    """The requests of one stream of chunks to one engine, or to several engines one after another."""

    def __init__(self, family: Family, starter: EngineStarter, watched: bool, process: VllmProcess | None = None):
        """Make a request loop.

        Args:
            watched: decode chunks with a suspect text a second time.
            process: an engine that runs already.
        """
        self.process = process
        """The engine that `run` takes over, and that it leaves running. None if no engine runs. `run` leaves its engine
        running if the stream came to its end and the number of requests at a time was not reduced."""
        self._family, self._starter, self._watched = family, starter, watched
        self._concurrency = starter.concurrency
        self._in_flight: dict[str, tuple[_PendingChunk, int]] = {}
        """The chunk and the index of the piece of each submitted request, by the id of the request."""
        self._unsent: deque[tuple[str, Request, Future[Any]]] = deque()
        """The id, the request and the prompt for vLLM of each submitted request that the engine has not got yet."""
        self._to_resubmit: deque[_PendingChunk] = deque()
        """Chunks to submit before any new chunk is taken: after a death, or for the second round."""
        self._suspects = Suspects[_PendingChunk](RULES)
        self._deaths = 0
        """Number of deaths since the last result."""
        self._accused: Hypothesis | ChunkFailure | None = None
        """The result of a chunk that is to blame for deaths if the next engine proves to be alive."""
        self._num_submitted = 0

    def run(self, feed: Feed) -> Iterator[Result]:
        """Yield one result for each chunk of the feed, and a message when an engine starts or dies.

        Raises:
            EngineError: the engine does not stay alive.
        """
        while True:
            process, self.process = self.process, None
            try:
                if process is None:
                    process = self._starter.start(self._concurrency)
                    yield EngineMessage(process.describe())
                if self._accused is not None and not feed.discarded:
                    self._prove_alive(process)
                    yield self._accused
                    self._accused, self._deaths = None, 0
                yield from self._run_until_empty(process, feed)
                if self._concurrency == self._starter.concurrency:
                    self.process, process = process, None
                return
            except EngineDied as death:
                if feed.discarded:
                    return  # the run is being stopped, and the engine got the signal too
                yield from self._prepare_restart(death, loaded=process is not None)
            finally:
                if process is not None:
                    process.close()

    # -- one engine's life --------------------------------------------------------------------------------------------

    def _run_until_empty(self, process: VllmProcess, feed: Feed) -> Iterator[Result]:
        while True:
            yield from self._fill(process, feed)
            yield from self._send(process, wait=True)
            if not self._in_flight and not self._to_resubmit and feed.closed:
                return
            for output in process.step() if self._in_flight else ():
                yield from self._finished(process, output)

    def _fill(self, process: VllmProcess, feed: Feed) -> Iterator[Result]:
        """Submit chunks until the engine has enough requests or no chunk is available now."""
        room = MAX_SAMPLES - sum(len(pending.pieces[index].samples) for pending, index in self._in_flight.values())
        while self._has_room() and room > 0:
            if self._to_resubmit:
                pending = self._to_resubmit.popleft()
            elif chunk := feed.get(wait=not self._in_flight):
                pending = _PendingChunk(chunk, [_first_piece(chunk)])
            else:
                return
            try:
                for index in range(len(pending.pieces)):
                    if index not in pending.texts:
                        self._submit(process, pending, index)
            except EngineDied:
                raise
            except Exception as e:  # noqa: BLE001 any error in one chunk fails that chunk only
                yield self._given_up(pending, _as_text(e), retryable=not isinstance(e, UNABLE))
            else:
                room -= sum(len(piece.samples) for piece in pending.pieces)
            yield from self._send(process)

    def _send(self, process: VllmProcess, wait: bool = False) -> Iterator[Result]:
        """Give the engine the requests whose prompts are made, in the order in which they were submitted.

        Args:
            process: the engine.
            wait: wait for prompts as long as the engine has fewer requests than it runs at a time.
        """
        while self._unsent:
            request_id, request, prompt = self._unsent[0]
            has_enough = len(self._in_flight) - len(self._unsent) >= self._concurrency
            if not prompt.done() and (has_enough or not wait):
                return
            self._unsent.popleft()
            if request_id not in self._in_flight:
                continue  # another piece of the same chunk has failed
            try:
                process.add(request_id, request, prompt.result())
            except EngineDied:
                raise
            except Exception as e:  # noqa: BLE001 any error in one chunk fails that chunk only
                yield self._given_up(self._in_flight[request_id][0], _as_text(e), retryable=True)

    def _has_room(self) -> bool:
        """Return whether the engine may get the next chunk now."""
        following = self._to_resubmit[0] if self._to_resubmit else None
        beside, _ = next(iter(self._in_flight.values()), (None, 0))
        ahead = max(1, int(self._concurrency * AHEAD)) if self._concurrency > 1 else 0
        count = len(self._in_flight)
        return count < self._concurrency + ahead and self._suspects.admits(following, count, beside)

    def _submit(self, process: VllmProcess, pending: _PendingChunk, index: int) -> None:
        request = self._family.request(pending.pieces[index])
        if request.warning:
            pending.warnings[request.warning] = None
        request_id = str(self._num_submitted)
        self._num_submitted += 1
        self._in_flight[request_id] = pending, index
        self._unsent.append((request_id, request, process.prompt(request)))

    def _prove_alive(self, process: VllmProcess) -> None:
        """Show that the engine is alive, with a request of one second of silence.

        Raises:
            EngineDied: the engine died, so that no chunk is to blame.
        """
        with contextlib.suppress(UnsupportedPiece, ValueError):
            silence = np.zeros(SAMPLING_RATE, np.float32)
            question = QuestionPiece(silence, question=PROOF_QUESTION, recordings=(len(silence),))
            request = self._family.request(self._family.proof or question)
            process.add(PROOF, request, process.prompt(request).result())
            while not any(output.id == PROOF for output in process.step()):
                pass

    # -- one chunk ----------------------------------------------------------------------------------------------------

    def _finished(self, process: VllmProcess, output: FinishedRequest) -> Iterator[Result]:
        """Yield the result of a chunk if this was its last request."""
        if (request := self._in_flight.pop(output.id, None)) is None:
            return  # another piece of the same chunk has failed
        pending, index = request
        result: Hypothesis | Speech | ChunkFailure | None = None
        try:
            if output.finish_reason not in ("stop", "length"):
                message = f"vllm ended the request with {output.finish_reason!r}"
                result = self._given_up(pending, message, retryable=True)
            else:
                piece = pending.pieces[index]
                if output.samples is not None:
                    piece = replace(piece, samples=output.samples)
                answer = self._family.read(piece, output.token_ids, output.finish_reason, output.scores)
                if isinstance(answer, Speech):
                    result = replace(answer, item=pending.chunk.item, chunk=pending.chunk.index)
                elif isinstance(answer, Answer):
                    result = Hypothesis(pending.chunk.item, pending.chunk.index, answer.text, answer=answer)
                elif isinstance(answer, Piece):
                    pending.pieces[index] = answer
                    self._submit(process, pending, index)
                else:
                    pending.texts[index] = answer
                    result = self._judge(pending) if len(pending.texts) == len(pending.pieces) else None
        except EngineDied:
            raise
        except Exception as e:  # noqa: BLE001 any error in one chunk fails that chunk only
            result = self._given_up(pending, _as_text(e), retryable=not isinstance(e, UNABLE))
        if result is not None:
            self._deaths = 0
            self._suspects.ended(pending)
            yield result

    def _judge(self, pending: _PendingChunk) -> Hypothesis | None:
        """Return the result of a chunk whose pieces all have a text, or None if a second round is needed."""
        text = joined(pending.pieces, [pending.texts[i] for i in range(len(pending.pieces))])
        text_suspicions = suspicions(pending.chunk.samples, text)
        if pending.first_text is None:
            if not text_suspicions or not self._watched:
                return self._hypothesis(pending, text, text_suspicions)
            pending.first_text, pending.texts, pending.suspicions = text, {}, text_suspicions
            pending.pieces = recut(pending.pieces[0], self._family.max_chunk_samples)
            self._to_resubmit.appendleft(pending)  # first: until a suspect of a death has its result, others wait
            return None
        method = f"decoded again {'in two halves' if len(pending.pieces) > 1 else 'behind a little silence'}"
        first_reasons = reasons(pending.suspicions)
        if weight(text_suspicions) < weight(pending.suspicions):
            warning = f"{first_reasons}: {method}, and the second text was kept"
            return self._hypothesis(pending, text, text_suspicions, warning)
        return self._first_result(pending, f"{first_reasons}: {method}, and the first text was kept")

    def _first_result(self, pending: _PendingChunk, warning: str) -> Hypothesis:
        """Return the result of a chunk that keeps the text of its first round."""
        assert pending.first_text is not None
        return self._hypothesis(pending, pending.first_text, pending.suspicions, warning)

    def _hypothesis(
        self, pending: _PendingChunk, text: PieceText, text_suspicions: list[Suspicion], *warnings: str
    ) -> Hypothesis:
        """Return the result of a chunk. Its language is the one that the family used: given, or detected by it.

        Args:
            text_suspicions: the suspicions that hold for this text.
            warnings: warnings of the second round.
        """
        after_eos = (
            f"{characters} characters of text after the model said that it had ended, at {at:.1f} s"
            for at, characters in text.text_after_eos
        )
        language = pending.pieces[0].lang if self._family.uses_language and text.text.strip() else None
        chunk = pending.chunk
        notes = (*pending.warnings, *warnings, *after_eos)
        return Hypothesis(
            chunk.item, chunk.index, text.text, text.words, notes, language, flags(text_suspicions), text.confidence
        )

    def _given_up(
        self, pending: _PendingChunk, message: str, retryable: bool = False, crashes: bool = False
    ) -> Hypothesis | ChunkFailure:
        """Return the result of a chunk that cannot be submitted (again).

        Returns:
            A failure, or the result of the first round if there is one.
        """
        self._in_flight = {name: request for name, request in self._in_flight.items() if request[0] is not pending}
        self._suspects.ended(pending)
        if pending.first_text is None:
            return ChunkFailure(pending.chunk.item, pending.chunk.index, message, retryable, crashes)
        return self._first_result(pending, f"{reasons(pending.suspicions)}: could not be decoded again ({message})")

    # -- between two engines ------------------------------------------------------------------------------------------

    def _prepare_restart(self, death: EngineDied, loaded: bool) -> Iterator[Result]:
        """Decide what the next engine gets, and yield a warning about the death.

        Args:
            loaded: False if the engine died while loading.

        Raises:
            EngineError: the engine shall not be started again.
        """
        self._deaths += 1
        never_worked = not loaded and not self._num_submitted and not death.out_of_memory
        if self._deaths > self._starter.restarts or never_worked:
            raise EngineError(f"vLLM died: {death}")
        unsent = [self._in_flight.pop(name)[0] for name, *_ in self._unsent if name in self._in_flight]
        lost = list(dict.fromkeys(pending for pending, _ in self._in_flight.values()))
        self._to_resubmit.extendleft(reversed([pending for pending in dict.fromkeys(unsent) if pending not in lost]))
        self._in_flight.clear()
        self._unsent.clear()
        with_requests = ""
        if death.out_of_memory:
            if self._concurrency == 1:
                raise EngineError(f"vLLM ran out of memory with one request at a time: {death}")
            self._concurrency //= 2
            with_requests = f", with {self._concurrency} requests at a time"
        cause = Cause.MACHINE if death.out_of_memory or death.is_stopped else Cause.CRASH
        again, guilty = self._suspects.died(lost, cause)
        if guilty is not None:
            self._accused = self._given_up(guilty, f"vllm died of this chunk: {death.cause}", crashes=True)
        for pending in again:
            pending.texts.clear()
        self._to_resubmit.extendleft(reversed(again))
        for_chunks = f" for the {len(again)} chunks that it had" if again else ""
        yield EngineMessage(f"vLLM died ({death}); starting it again{for_chunks}{with_requests}", is_warning=True)


def _first_piece(chunk: Chunk) -> Piece:
    """Return the piece of a chunk's first request."""
    if chunk.question is not None:
        return QuestionPiece(chunk.samples, question=chunk.question, recordings=chunk.recordings)
    if chunk.piece is not None:
        return SpokenPiece(chunk.samples, chunk.lang, spoken=chunk.piece)
    return Piece(chunk.samples, chunk.lang, hints=chunk.hints, task=chunk.task)


def _as_text(error: Exception) -> str:
    kind = "" if isinstance(error, (*UNABLE, ValueError)) else f"{type(error).__name__}: "
    return f"vllm: {kind}{error}"
