"""Every chunk gets one result, whatever the engine does, and the engine stays full.

The engine is a stand-in that dies, fails and reorders as the test says. All other parts are real.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sounds import babble

from voxbatch.engines import EngineMessage, EngineSpec, Feed
from voxbatch.engines.pieces import SHIFT, Piece
from voxbatch.engines.results import Result
from voxbatch.engines.suspect_text import PieceText
from voxbatch.errors import EngineError
from voxbatch.records import (
    LOST_SPEECH,
    SAMPLING_RATE,
    SPEAKING_RATE,
    Chunk,
    ChunkFailure,
    Hypothesis,
    Samples,
    Span,
    Word,
)
from voxbatch.vllm.engine import VllmEngine
from voxbatch.vllm.engine.engine_log import EngineDied
from voxbatch.vllm.engine.families import Family
from voxbatch.vllm.engine.families.request import Request, TokenScores, UnsupportedPiece
from voxbatch.vllm.engine.request_loop import AHEAD, EngineStarter, RequestLoop
from voxbatch.vllm.engine.settings import VllmSettings
from voxbatch.vllm.engine.vllm_process import FinishedRequest, VllmProcess

OOM = "torch.OutOfMemoryError: CUDA out of memory."


def chunk(item: int, samples: Samples | None = None) -> Chunk:
    """Return a chunk whose samples hold its number. Silence has no number."""
    samples = np.full(100, item + 1, np.float32) if samples is None else samples
    return Chunk(item, 0, samples, Span(0, len(samples), 0, len(samples)))


class Ears(Family):
    """Family whose requests name the chunk, and whose text is the chunk's number, unless `answers` says otherwise."""

    max_chunk_samples = 30 * SAMPLING_RATE
    uses_language = True
    word_times = True
    prompt_tokens = 512

    def __init__(self, unfit: frozenset[int] = frozenset(), refused: frozenset[int] = frozenset()):
        self.unfit, self.refused = unfit, refused
        self.asks_twice = False
        self.answers: list[PieceText] = []
        """Next texts; when the list is empty, the text is the chunk's number."""
        self.pieces: list[Piece] = []

    def request(self, piece: Piece) -> Request:
        self.pieces.append(piece)
        item = int(piece.samples[0]) - 1
        if item in self.unfit:
            raise UnsupportedPiece("too long")
        if item in self.refused:
            raise ValueError("no such prompt")
        return Request({"item": item}, max_tokens=1)

    def read(
        self, piece: Piece, token_ids: list[int], finish_reason: str, scores: TokenScores | None = None
    ) -> PieceText | Piece:
        if self.asks_twice and piece.lang is None:
            return replace(piece, lang="en")
        return self.answers.pop(0) if self.answers else PieceText(str(token_ids[0]))


@dataclass
class World:
    """Faults that happen to the engines of one test."""

    seed: int = 0
    killers: frozenset[int] = frozenset()
    """Chunks that kill the engine when it is about to finish them."""
    failing: frozenset[int] = frozenset()
    """Chunks whose requests end with "error"."""
    late: float = 0.5
    """Share of the looks at a prompt that find it not made yet."""
    unmade: frozenset[int] = frozenset()
    """Chunks whose prompts cannot be made."""
    death_rate: float = 0.0
    causes: tuple[str, ...] = ("it fell over",)
    before_step: Callable[[StandIn], None] = lambda core: None
    stillborn: tuple[int, ...] = ()
    """Starts (from 0) that fail."""
    started: list[StandIn] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """Number of requests at a time that each start asked for."""

    def __post_init__(self) -> None:
        self.random, self.of_prompts = random.Random(self.seed), random.Random(self.seed)

    def start(self, requests: int) -> StandIn:
        """Start an engine, or fail."""
        assert all(each.closed for each in self.started), "two engines at a time"
        self.sizes.append(requests)
        if len(self.sizes) - 1 in self.stillborn:
            raise EngineDied(self.random.choice(self.causes))
        self.started.append(StandIn(self, requests))
        return self.started[-1]

    def starter(self, concurrency: int = 16, restarts: int = 6) -> EngineStarter:
        return EngineStarter(self.start, concurrency, restarts)


class LatePrompt(Future[Any]):
    """A prompt that is found made or not at random. Who waits for it gets it, or its error."""

    def __init__(self, world: World, request: Request):
        super().__init__()
        self.world, self.request = world, request

    def done(self) -> bool:
        return self.world.of_prompts.random() >= self.world.late

    def result(self, timeout: float | None = None) -> Any:
        if self.request.prompt["item"] in self.world.unmade:
            raise RuntimeError("no spectrogram")
        return dict(self.request.prompt)


class StandIn(VllmProcess):
    """Engine core that finishes its requests a few at a time, in any order, or dies."""

    def __init__(self, world: World, requests: int):
        self.world, self.requests = world, requests
        self.hand: dict[str, int] = {}
        self.most = 0
        self.closed = self.dead = False

    def prompt(self, request: Request) -> Future[Any]:
        return LatePrompt(self.world, request)

    def add(self, request_id: str, request: Request, prompt: dict[str, Any]) -> None:
        assert not self.dead
        assert request_id not in self.hand
        self.hand[request_id] = prompt["item"]
        self.most = max(self.most, len(self.hand))

    def step(self) -> list[FinishedRequest]:
        assert not self.dead
        self.world.before_step(self)
        assert self.hand, "nothing to wait for: a real engine would wait for ever"
        some = self.world.random.sample(list(self.hand), self.world.random.randint(0, min(4, len(self.hand))))
        if self.world.random.random() < self.world.death_rate:
            self.die()
        outputs = []
        for name in some:
            item = self.hand.pop(name)
            if item in self.world.killers:
                self.die()
            outputs.append(FinishedRequest(name, [item], "error" if item in self.world.failing else "stop"))
        return outputs

    def die(self) -> None:
        self.dead = True
        raise EngineDied(self.world.random.choice(self.world.causes))

    def describe(self) -> str:
        return f"ready for {self.requests}"

    def close(self) -> None:
        assert not self.closed
        self.closed = True


def full(chunks: list[Chunk], closed: bool = True) -> Feed:
    """Return a feed that holds these chunks, closed or open."""
    feed = Feed(10**9)
    for each in chunks:
        feed.put(each)
    if closed:
        feed.close()
    return feed


def driven(world: World, count: int, ears: Ears | None = None, **settings: int) -> list[Result]:
    """Return a driver's results for this many chunks, and close the engine that it leaves running."""
    driver = RequestLoop(ears or Ears(), world.starter(**settings), watched=False)
    results = list(driver.run(full([chunk(i) for i in range(count)])))
    if driver.process is not None:
        driver.process.close()
    return results


def told(results: list[Result]) -> list[str]:
    """Return the texts of all warnings."""
    return [result.text for result in results if isinstance(result, EngineMessage) and result.is_warning]


def heard(results: list[Result]) -> dict[int, str]:
    """Return the text of each chunk that has one."""
    return {result.item: result.text for result in results if isinstance(result, Hypothesis)}


def failed(results: list[Result]) -> dict[int, str]:
    """Return the message of each chunk that failed."""
    return {result.item: result.message for result in results if isinstance(result, ChunkFailure)}


def one_each(results: list[Result], count: int) -> bool:
    """Return whether each of `count` chunks has exactly one result."""
    items = Counter(result.item for result in results if not isinstance(result, EngineMessage))
    return items == Counter(range(count))


# -- from stream to stream ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dies", [False, True])
def test_a_second_stream_reuses_the_running_engine(dies: bool) -> None:
    """The second stream uses the engine that the first one leaves running, or a new one if that engine has died."""
    world = World()
    first = RequestLoop(Ears(), world.starter(), watched=False)
    assert one_each(list(first.run(full([chunk(i) for i in range(9)]))), 9)
    assert first.process is world.started[0]
    if dies:
        world.death_rate = 1.0
        world.before_step = lambda core: setattr(world, "death_rate", float(core is world.started[0]))
    second = RequestLoop(Ears(), world.starter(), False, first.process)
    results = list(second.run(full([chunk(i) for i in range(9)])))
    assert one_each(results, 9)
    assert len(told(results)) == dies
    assert second.process is world.started[-1]
    assert [each.closed for each in world.started] == ([True, False] if dies else [False])


def test_a_stream_waits_for_the_previous_stream() -> None:
    """Which may be at its end yet, with nobody to listen: it is asked nothing before, and the same engine serves it."""
    world, engine = World(), object.__new__(VllmEngine)
    engine._streaming, engine._ending, engine._is_closed = threading.Lock(), threading.Lock(), False
    engine._process, engine._kernels, engine._family, engine._settings = None, None, Ears(), VllmSettings()
    starter = world.starter()
    engine._folder, engine.spec = Path(), EngineSpec("vllm", "model", 1, starter.concurrency)
    engine._start = lambda folder, feed, requests: starter.start(requests)  # type: ignore[method-assign]
    feed, results = full([chunk(0)], closed=False), list[Result]()
    first = threading.Thread(target=lambda: list(engine.stream(feed)))
    second = threading.Thread(target=lambda: results.extend(engine.stream(full([chunk(i) for i in range(3)]))))
    first.start()
    while not world.started:
        time.sleep(0.01)
    second.start()
    second.join(0.2)
    assert second.is_alive()
    feed.close()
    for thread in (first, second):
        thread.join(200)
    assert one_each(results, 3)
    assert len(world.started) == 1


def test_an_engine_with_fewer_requests_is_not_reused() -> None:
    """An engine that was made smaller after a lack of memory is not reused: the next stream tries all requests
    again."""
    world = World(causes=("CUDA out of memory",))
    world.before_step = lambda core: setattr(world, "death_rate", float(core.requests == 16))
    driver = RequestLoop(Ears(), world.starter(), watched=False)
    assert one_each(list(driver.run(full([chunk(i) for i in range(9)]))), 9)
    assert driver.process is None
    assert all(each.closed for each in world.started)


# -- every chunk gets a result -----------------------------------------------------------------------------------------

items = st.frozensets(st.integers(0, 99), max_size=3)


@pytest.mark.slow
@given(st.integers(0, 100), st.integers(1, 40), st.integers(0, 10**6), items, items, st.booleans())
def test_each_chunk_gets_one_result(
    count: int, concurrency: int, seed: int, failing: frozenset[int], unfit: frozenset[int], twice: bool
) -> None:
    """Each chunk gets the text of its own audio, in any order, among requests that fail and chunks that do not fit."""
    ears = Ears(unfit)
    ears.asks_twice = twice
    world = World(seed, failing=failing)
    results = driven(world, count, ears, concurrency=concurrency)
    assert one_each(results, count)
    assert set(failed(results)) == {item for item in failing | unfit if item < count}
    assert all(text == str(item) for item, text in heard(results).items())
    assert [result.text for result in results if isinstance(result, EngineMessage)] == [f"ready for {concurrency}"]
    assert all(each.closed for each in world.started)


@pytest.mark.slow
@given(st.integers(1, 100), st.integers(1, 40), st.integers(0, 10**6), st.sampled_from((0.02, 0.2, 0.5)))
def test_each_chunk_gets_one_result_despite_engine_deaths(
    count: int, concurrency: int, seed: int, death_rate: float
) -> None:
    """No chunk is lost or returned twice when the engine dies at any time, and every engine is closed."""
    world = World(seed, death_rate=death_rate)
    results = driven(world, count, concurrency=concurrency, restarts=1000)
    assert one_each(results, count)
    assert all(text == str(item) for item, text in heard(results).items())
    assert all(each.closed for each in world.started)
    assert len(told(results)) == len(world.started) - 1


@pytest.mark.slow
@given(st.integers(1, 100), st.integers(1, 40), st.integers(0, 10**6), items)
def test_only_chunks_that_kill_the_engine_fail(
    count: int, concurrency: int, seed: int, killers: frozenset[int]
) -> None:
    """A chunk that always kills the engine is isolated in the end and fails, and all others succeed."""
    world = World(seed, killers=killers)
    results = driven(world, count, concurrency=concurrency)
    assert one_each(results, count)
    assert set(failed(results)) == {item for item in killers if item < count}
    assert all(each == "vllm died of this chunk: it fell over" for each in failed(results).values())
    failures = [result for result in results if isinstance(result, ChunkFailure)]
    assert all(failure.crashes and not failure.retryable for failure in failures)


@pytest.mark.parametrize("poison", [range(0, 1000, 100), range(500, 510)])
@pytest.mark.parametrize("killed_at", [4, 6, 12])
def test_one_chunk_in_a_hundred_kills_the_engine(poison: range, killed_at: int) -> None:
    """Ten of a thousand chunks kill the engine before another chunk has a result, far from each other or side by side,
    and an operator kills it once at any step: these ten fail, and nobody else."""
    world, steps = World(), itertools.count()

    def crash(core: StandIn) -> None:
        if next(steps) == killed_at or not poison_set.isdisjoint(core.hand.values()):
            core.die()

    poison_set = set(poison)
    world.before_step = crash
    results = driven(world, 1000, concurrency=128)
    assert one_each(results, 1000)
    assert set(failed(results)) == poison_set


@given(st.integers(1, 100), st.integers(1, 40), st.integers(0, 6), st.integers(0, 10**6))
def test_an_engine_that_always_dies_ends_the_run(count: int, concurrency: int, restarts: int, seed: int) -> None:
    """An engine that dies `restarts` times in a row is given up, and no chunk fails for it, even if there are few
    chunks."""
    world, results = World(seed, death_rate=1.0), list[Result]()
    driver = RequestLoop(Ears(), world.starter(concurrency, restarts), watched=False)
    with pytest.raises(EngineError, match=r"^vLLM died: it fell over$"):
        results.extend(driver.run(full([chunk(i) for i in range(count)])))
    assert not failed(results)
    assert len(world.started) == restarts + 1
    assert all(each.closed for each in world.started)


def test_a_failed_first_start_is_final() -> None:
    """A failed first start is final."""
    world = World(stillborn=(0,))
    with pytest.raises(EngineError, match=r"^vLLM died: it fell over$"):
        driven(world, 3)
    assert world.sizes == [16]


def test_a_failed_restart_counts_as_a_death() -> None:
    """A failed start counts as one more death after the engine has worked once: old memory may not be free yet."""
    world = World(killers=frozenset({5}), stillborn=(1, 3))
    results = driven(world, 40)
    assert one_each(results, 40)
    assert set(failed(results)) == {5}


def test_out_of_memory_halves_the_concurrency() -> None:
    """A lack of memory halves the number of requests at a time, and the log says so; no chunk fails."""
    world = World(causes=(OOM,), before_step=lambda core: core.die() if core.requests > 4 else None)
    results = driven(world, 50)
    assert one_each(results, 50)
    assert not failed(results)
    assert world.sizes == [16, 8, 4]
    assert "with 8 requests at a time" in told(results)[0]
    assert "with 4 requests at a time" in told(results)[1]


def test_out_of_memory_while_loading_halves_the_concurrency() -> None:
    """A lack of memory while loading halves the number of requests too, which need buffers; at one request it is
    final."""
    world = World(causes=(OOM,), stillborn=(0, 1))
    assert one_each(driven(world, 20), 20)
    assert world.sizes == [16, 8, 4]
    world = World(causes=(OOM,), stillborn=tuple(range(9)))
    with pytest.raises(EngineError, match="out of memory with one request at a time"):
        driven(world, 20)
    assert world.sizes == [16, 8, 4, 2, 1]


def test_a_refused_request_fails_only_its_chunk() -> None:
    """A request that vLLM refuses, or whose prompt cannot be made, fails with the message, and affects no other
    chunk."""
    results = driven(World(unmade=frozenset({1})), 5, Ears(refused=frozenset({3})))
    assert failed(results) == {1: "vllm: RuntimeError: no spectrogram", 3: "vllm: no such prompt"}
    assert len(heard(results)) == 3


def test_any_exception_fails_only_its_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk whose tokenizer raises fails with the error's name, and the run goes on."""
    ears = Ears()
    read = ears.read

    def falls_over(
        piece: Piece, token_ids: list[int], finish_reason: str, scores: TokenScores | None
    ) -> PieceText | Piece:
        if token_ids[0] == 3:
            raise KeyError("token 99")
        return read(piece, token_ids, finish_reason)

    monkeypatch.setattr(ears, "read", falls_over)
    results = driven(World(), 5, ears)
    assert failed(results) == {3: "vllm: KeyError: 'token 99'"}
    assert len(heard(results)) == 4


def test_a_death_during_a_stop_is_not_reported() -> None:
    """A death during a stop is not reported and starts no other engine, because the engine got the signal too."""
    feed = full([chunk(0), chunk(1)], closed=False)

    def stop(core: StandIn) -> None:
        feed.close(discard=True)
        core.die()

    world = World(before_step=stop)
    results = list(RequestLoop(Ears(), world.starter(), watched=False).run(feed))
    assert results == [EngineMessage("ready for 16")]
    assert len(world.started) == 1
    assert world.started[0].closed


def test_the_engine_is_closed_when_the_consumer_leaves() -> None:
    """The engine is closed when the consumer stops listening."""
    world = World()
    results = RequestLoop(Ears(), world.starter(), watched=False).run(full([chunk(i) for i in range(9)]))
    assert isinstance(next(results), EngineMessage)
    assert isinstance(next(results), Hypothesis)
    assert isinstance(results, Generator)
    results.close()
    assert world.started[0].closed


# -- the window --------------------------------------------------------------------------------------------------------


def opened(concurrency: int) -> int:
    """Return the number of requests that an engine is given at a time."""
    return concurrency + max(1, int(concurrency * AHEAD)) if concurrency > 1 else 1


@pytest.mark.slow
@given(st.integers(0, 200), st.integers(1, 60), st.integers(0, 10**6), st.sampled_from((0.0, 0.5)))
def test_the_engine_always_has_enough_requests(count: int, concurrency: int, seed: int, late: float) -> None:
    """The engine always has the requests that it runs and an eighth more, or all that exist, and never more. It waits
    for the prompts of those that it runs, but not for the eighth.

    An engine that runs one request has none waiting, so that its latency is its own.
    """
    feed = full([chunk(i) for i in range(count)])
    window = opened(concurrency)

    def look(core: StandIn) -> None:
        assert (concurrency if late else window) <= len(core.hand) <= window or feed.closed

    world = World(seed, late=late, before_step=look)
    list(RequestLoop(Ears(), world.starter(concurrency), watched=False).run(feed))
    assert late or world.started[0].most == min(window, count)


@pytest.mark.slow
@given(st.integers(1, 60), st.integers(0, 10**6), st.integers(0, 99))
def test_suspects_are_retried_in_small_groups(concurrency: int, seed: int, killer: int) -> None:
    """After a death an eighth of the running requests are retried together, without new ones."""
    world = World(seed, late=0.0, killers=frozenset({killer}))
    driven(world, 100, concurrency=concurrency)
    window = opened(concurrency)
    assert world.started[0].most == min(window, 100)
    if len(world.started) > 2:  # the second engine gets few suspects
        assert world.started[1].most <= max(1, window // 8)


@pytest.mark.slow
@given(st.integers(0, 10**6), st.integers(0, 199))
def test_each_death_clears_chunks_that_were_not_running(seed: int, killer: int) -> None:
    """Each death clears the requests that were not running, so that few requests run alone."""
    alone: set[int] = set()
    world = World(seed, frozenset({killer}), before_step=lambda core: _note_alone(core, alone))
    results = driven(world, 200, concurrency=100)
    assert set(failed(results)) == {killer}
    assert len(alone) <= 112 // 8 + 2  # the last chunk of the run is alone too, and so is the first after a death


def _note_alone(core: StandIn, alone: set[int]) -> None:
    if len(core.hand) == 1:
        alone.update(core.hand.values())


def test_the_loop_waits_for_a_slow_feed() -> None:
    """An idle driver waits for a chunk, and takes each chunk as it comes."""
    feed, world = full([chunk(0)], closed=False), World()
    results = RequestLoop(Ears(), world.starter(), watched=False).run(feed)
    assert [next(results) for _ in range(2)][1] == Hypothesis(0, 0, "0")
    feed.put(chunk(1))
    feed.close()
    assert list(results) == [Hypothesis(1, 0, "1")]


# -- second decoding ---------------------------------------------------------------------------------------------------

SPEECH = babble(20.0, seed=3)
SPEECH[0] = 8.0  # the number of the chunk
GOOD = "what was said, more or less, in all of these many seconds of babble"
LATE = (Word(" late", 1.0, 1.5),)


def watched(ears: Ears, samples: Samples = SPEECH, world: World | None = None) -> Hypothesis:
    """Return the result of one chunk, number 7."""
    world = world or World()
    driver = RequestLoop(ears, world.starter(), watched=True)
    (result,) = (each for each in driver.run(full([chunk(7, samples)])) if not isinstance(each, EngineMessage))
    assert isinstance(result, Hypothesis)
    return result


def hears(*answers: PieceText) -> Ears:
    """Return a family that hears these answers in turn."""
    ears = Ears()
    ears.answers = list(answers)
    return ears


def in_order(world: World) -> World:
    """Make requests finish one by one, in the order in which they were added."""

    def first(population: Any, k: int, **settings: Any) -> list[Any]:
        return list(population)[:1]

    world.random.sample = first  # type: ignore[method-assign]
    return world


def test_text_after_eos_is_kept_with_a_warning() -> None:
    """Text after the model's end token is kept, with a warning that says where and how much, and is not decoded
    again."""
    ears = hears(PieceText(GOOD, text_after_eos=((4.16, 30),)))
    warning = "30 characters of text after the model said that it had ended, at 4.2 s"
    assert watched(ears) == Hypothesis(7, 0, GOOD, warnings=(warning,))
    assert len(ears.pieces) == 1


def test_better_halves_replace_the_first_text() -> None:
    """Better halves are joined, with the second half's times shifted by the first's length, and with a warning."""
    ears = hears(PieceText(""), PieceText(" left half", LATE), PieceText(" right half, not so short", LATE))
    result = watched(ears, world=in_order(World()))
    whole, left, right = ears.pieces
    assert len(left.samples) + len(right.samples) == len(whole.samples)
    assert 8 < len(left.samples) / SAMPLING_RATE < 12
    assert "".join(word.text for word in result.words) == " late late"
    shift = len(left.samples) / SAMPLING_RATE
    assert [(word.start, word.end) for word in result.words] == [(1.0, 1.5), (1.0 + shift, 1.5 + shift)]
    assert [flag.kind for flag in result.flags] == [SPEAKING_RATE], "the two words that are kept are few"
    (warning,) = result.warnings
    assert warning.startswith("no text over ")
    assert warning.endswith(" s of speech: decoded again in two halves, and the second text was kept")


def test_the_first_text_is_kept_if_the_second_is_no_better() -> None:
    """The first text is kept, with a warning, if the second one is no better."""
    result = watched(hears(PieceText("Yes."), PieceText(""), PieceText("")))
    assert result.text == "Yes."
    (warning,) = result.warnings
    assert warning.endswith(" s of speech: decoded again in two halves, and the first text was kept")
    (flag,) = result.flags
    assert flag.kind == SPEAKING_RATE
    assert warning.startswith(f"{flag.reason}: ")


def test_a_text_that_is_not_decoded_again_keeps_its_flag() -> None:
    """An engine that does not decode suspect chunks again still says what is suspect, and where."""
    driver = RequestLoop(hears(PieceText(GOOD, longest_pause=(5.0, 16.5))), World().starter(), watched=False)
    *_, result = driver.run(full([chunk(7, SPEECH)]))
    assert isinstance(result, Hypothesis)
    assert result.warnings == ()
    assert [(flag.kind, flag.start, flag.end) for flag in result.flags] == [(LOST_SPEECH, 5.0, 16.5)]


def test_a_short_suspect_chunk_is_decoded_behind_silence() -> None:
    """A short suspect chunk is decoded again after 420 ms of silence, which its times do not include."""
    ears = hears(PieceText(""), PieceText(" short and late", (Word(" short", 0.2, 0.52), Word(" late", 1.42, 1.92))))
    result = watched(ears, SPEECH[: 5 * SAMPLING_RATE])
    _, again = ears.pieces
    assert (again.lead, len(again.samples)) == (SHIFT, 5 * SAMPLING_RATE + SHIFT)
    assert not again.samples[:SHIFT].any()
    short, late = result.words
    assert (short.text, short.start) == (" short", 0.0)
    assert short.end == pytest.approx(0.1)
    assert late.text == " late"
    assert (late.start, late.end) == pytest.approx((1.0, 1.5))
    assert result.warnings[0].endswith("decoded again behind a little silence, and the second text was kept")


@pytest.mark.parametrize("fault", ["error", "death", "refusal"])
def test_the_first_text_is_kept_if_the_second_round_fails(fault: str) -> None:
    """The first text is kept if the second decoding fails: a doubtful text is better than none."""
    ears, world = hears(PieceText("Yes.")), World()

    def go_wrong(core: StandIn) -> None:
        if fault == "refusal":
            ears.refused = frozenset({7})
        elif len(ears.pieces) > 1:  # the second decoding has begun
            world.killers = frozenset({7}) if fault == "death" else frozenset()
            world.failing = frozenset({7}) if fault == "error" else frozenset()

    world.before_step = go_wrong
    result = watched(ears, world=world)
    assert result.text == "Yes."
    (warning,) = result.warnings
    assert warning.startswith("only 4 characters over ")
    why = {"error": "'error'", "death": "vllm died of this chunk: it fell over", "refusal": "vllm: no such prompt"}
    assert "could not be decoded again" in warning
    assert why[fault] in warning
