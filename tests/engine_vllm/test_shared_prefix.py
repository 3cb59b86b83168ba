"""The decoder computes the shared prefix of all chunks once, and each request finds it in its K/V blocks in time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from modelless import BLOCK, Side, arrivals, drawn_request, drawn_words, ours, request, seeds, some_of

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # importing vLLM warns

SAMPLES, SHARED, PROMPT = 50, 21, 30
HELD, FULL = 2, 1
"""Number of blocks of 16 that 21 positions take, and the number of these blocks that hold nothing else."""
WALKS, STEPS = 30, 120


def side(requests: int = 8, blocks: int = 400, **limits: Any) -> Side:
    """Return our scheduler with a model that always says token 7."""
    return Side(ours(), lambda name, number: 7, requests=requests, blocks=blocks, silence=(SAMPLES, SHARED), **limits)


def sound(loud: int | None = None) -> Any:
    """Return silence and a little noise. If `loud` is given, the sample at that index is not zero."""
    import torch

    found = torch.zeros(SAMPLES + 10)
    found[SAMPLES:] = 0.5
    if loud is not None:
        found[loud] = 1e-30
    return found


def admitted_positions(step: Any) -> dict[str, int]:
    """Return the admitted requests, each with the number of positions that need not be computed."""
    return {new.req_id: new.num_computed_tokens for new in step.scheduled_new_reqs}


def blocks_of(step: Any, name: str) -> list[int]:
    """Return the K/V blocks of an admitted request."""
    [found] = [new.block_ids[0] for new in step.scheduled_new_reqs if new.req_id == name]
    return list(found)


def test_first_request_is_computed_in_full_and_later_ones_share_its_prefix() -> None:
    """The requests of the first step are computed in full, and later ones begin after the shared prefix.

    A later request gets the first one's full blocks. The last shared block is copied to a block of its own.
    """
    one = side()
    for name in "ab":
        one.scheduler.add_request(request(name, PROMPT, 50, sound=sound()))
    step = one.schedule()
    assert admitted_positions(step) == {"a": 0, "b": 0}
    assert not step.kv_cache_block_copies
    first = blocks_of(step, "a")
    assert not {*first} & {*blocks_of(step, "b")}
    for name in "cd":
        one.scheduler.add_request(request(name, PROMPT, 50, sound=sound()))
    step = one.schedule()
    assert admitted_positions(step) == {"c": SHARED, "d": SHARED}
    assert step.num_scheduled_tokens == {"a": 1, "b": 1, "c": PROMPT - SHARED, "d": PROMPT - SHARED}
    own = [blocks_of(step, name) for name in "cd"]
    assert [blocks[:FULL] for blocks in own] == [first[:FULL]] * 2
    assert not {*own[0][FULL:]} & {*own[1][FULL:]}
    expected = [pair for blocks in own for pair in zip(first[FULL:HELD], blocks[FULL:HELD], strict=True)]
    assert [tuple(copy) for copy in step.kv_cache_block_copies] == expected
    assert set(step.scheduled_encoder_inputs) == {"c", "d"}
    assert not one.schedule().kv_cache_block_copies


def test_shared_blocks_outlive_the_first_request() -> None:
    """The shared blocks stay shared after the first request has ended, and no other request gets them as its own.

    All other blocks are free again, also after the end of a request that shared them.
    """
    one = side()
    free = one.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    one.scheduler.add_request(request("a", PROMPT, 5, sound=sound()))
    first = blocks_of(one.schedule(), "a")
    while one.scheduler.requests:
        one.schedule()
        one.update()
    assert one.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free - HELD
    one.scheduler.add_request(request("b", PROMPT, 5, sound=sound()))
    step = one.schedule()
    assert blocks_of(step, "b")[:FULL] == first[:FULL]
    assert not {*first[:HELD]} & {*blocks_of(step, "b")[FULL:]}
    assert [copy.src_block_id for copy in step.kv_cache_block_copies] == first[FULL:HELD]
    while one.scheduler.requests:
        one.schedule()
        one.update()
    assert one.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free - HELD


def test_request_with_another_beginning_is_computed_in_full() -> None:
    """A request that begins differently is computed in full, and a shared prefix is never made from it.

    It differs in a token, a sample that is not zero, audio that begins later, is missing or lies on a device, two
    pieces of audio, audio or a prompt that is too short, or a wish for a result at each position.
    """
    import torch

    one = side(requests=20)
    odd = {name: request(name, PROMPT, 50, sound=sound()) for name in ("token", "later", "two", "wish")}
    odd["token"].prompt_token_ids[SHARED - 1] = 9
    odd["later"].mm_features[0].mm_position = SimpleNamespace(offset=1, length=200)
    odd["two"].mm_features.append(odd["two"].mm_features[0])
    odd["wish"].skip_reading_prefix_cache = True
    odd |= {f"loud {i}": request(f"loud {i}", PROMPT, 50, sound=sound(loud=i)) for i in (0, SAMPLES - 1)}
    odd["not there"] = request("not there", PROMPT, 50)
    odd["device"] = request("device", PROMPT, 50, sound=torch.zeros(SAMPLES + 10, device="meta"))
    odd["short audio"] = request("short audio", PROMPT, 50, sound=torch.zeros(SAMPLES - 1))
    odd["short prompt"] = request("short prompt", SHARED, 50, sound=sound())
    prefix = one.scheduler._prefix
    for name in odd.keys() - {"token"}:
        assert not prefix._starts(odd[name]), name
    one.scheduler.add_request(odd["loud 0"])
    assert admitted_positions(one.schedule()) == {"loud 0": 0}
    one.scheduler.add_request(request("first", PROMPT, 50, sound=sound()))
    assert admitted_positions(one.schedule()) == {"first": 0}
    for name in odd.keys() - {"token"}:
        assert prefix.computed_positions(odd[name]) == 0, name
    one.scheduler.add_request(odd["token"])
    one.scheduler.add_request(odd["loud 49"])
    one.scheduler.add_request(request("second", PROMPT + 5, 50, sound=sound()))
    assert admitted_positions(one.schedule()) == {"token": 0, "loud 49": 0, "second": SHARED}


def test_partly_computed_prefix_is_not_shared() -> None:
    """A request that computes only a part of the shared positions in its first step is not used as the shared
    prefix."""
    one = side(step_tokens=45)
    one.scheduler.add_request(request("other", PROMPT, 50, sound=sound(loud=0)))
    one.scheduler.add_request(request("a", PROMPT, 50, sound=sound()))
    assert one.schedule().num_scheduled_tokens == {"other": PROMPT, "a": 15}
    assert one.schedule().num_scheduled_tokens == {"other": 1, "a": 15}
    assert not one.scheduler._prefix.positions
    one.scheduler.add_request(request("b", PROMPT, 50, sound=sound()))
    assert admitted_positions(one.schedule()) == {"b": 0}
    assert one.scheduler._prefix.positions == SHARED


def test_preempted_request_shares_the_prefix_again() -> None:
    """A preempted request begins after the shared prefix again, with shared and copied blocks. Its text is computed
    again."""
    one = side()
    for name in "ab":
        one.scheduler.add_request(request(name, PROMPT, 50, sound=sound()))
    first = blocks_of(one.schedule(), "a")
    for _ in range(3):
        one.schedule()
    while one.update():
        pass
    thrown = one.scheduler.running.pop()
    one.scheduler._preempt_request(thrown, 0.0)
    step = one.schedule()
    again = step.scheduled_cached_reqs
    place = again.req_ids.index("b")
    assert again.resumed_req_ids == {"b"}
    assert again.num_computed_tokens[place] == SHARED
    assert step.num_scheduled_tokens["b"] == PROMPT + 4 - SHARED
    blocks = again.new_block_ids[place][0]
    assert blocks[:FULL] == first[:FULL]
    expected = list(zip(first[FULL:HELD], blocks[FULL:HELD], strict=True))
    assert [tuple(copy) for copy in step.kv_cache_block_copies] == expected


def test_admission_counts_whole_prompts() -> None:
    """A step admits as many chunks as if their whole prompts were computed."""
    one = side(requests=40, blocks=2_000, step_tokens=100)
    for name in map(str, range(40)):
        one.scheduler.add_request(request(name, PROMPT, 50, sound=sound()))
    steps = [one.schedule() for _ in range(30)]
    assert [len(step.scheduled_new_reqs) for step in steps[:4]] == [4, 3, 3, 3]  # 10 tokens of the fourth fit
    assert len(one.scheduler.running) == 39  # and the last one waits until a burst of two fits


@pytest.mark.parametrize(
    ("blocks", "shares", "admitted"), [(34, False, 1), (35, True, 1), (66, True, 1), (67, True, 2)]
)
def test_admission_counts_the_shared_blocks(blocks: int, shares: bool, admitted: int) -> None:
    """Admission counts the shared blocks.

    A request of full length takes 32 blocks, and vLLM takes one. Without two more blocks, nothing is shared.
    """
    scheduler = side(blocks=blocks).scheduler
    assert (scheduler._prefix is not None) is shares
    assert scheduler._reservations.fitting == admitted


@pytest.mark.parametrize(("most", "shares"), [(BLOCK, True), (BLOCK - 1, False)])
def test_large_blocks_are_not_shared(most: int, shares: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is shared if one block, which is copied whole, is larger than the limit."""
    from voxbatch.vllm_plugin.scheduler import shared_prefix

    monkeypatch.setattr(shared_prefix, "MAX_COPIED", most)
    assert (side().scheduler._prefix is not None) is shares


def test_prefix_that_ends_at_a_block_boundary_is_not_copied() -> None:
    """Nothing is copied if the shared positions end at the end of a block."""
    one = Side(ours(), lambda name, number: 7, requests=8, blocks=400, silence=(SAMPLES, 2 * BLOCK))
    one.scheduler.add_request(request("a", 2 * BLOCK + 9, 50, sound=sound()))
    first = blocks_of(one.schedule(), "a")
    one.scheduler.add_request(request("b", 2 * BLOCK + 9, 50, sound=sound()))
    step = one.schedule()
    assert admitted_positions(step) == {"b": 2 * BLOCK}
    assert blocks_of(step, "b")[:2] == first[:2]
    assert not step.kv_cache_block_copies


# ── content of the K/V cache ──────────────────────────────────────────────────────────────────────────────────────────


class Memory:
    """K/V cache with one number for each position, which tells its origin. It executes a step as the GPU would."""

    def __init__(self, blocks: int):
        self.cells = np.zeros((blocks, BLOCK), np.int64)
        self._blocks = dict[str, list[int]]()
        self.shared = 0

    def run(self, step: Any, silent: set[str]) -> None:
        """Execute a step, and check that each of its requests finds all of its positions."""
        self._take_blocks(step)
        if copies := step.kv_cache_block_copies:
            source, target = (np.array(each) for each in zip(*copies, strict=True))
            self.cells[target] = self.cells[source]
        begins = self._computed(step)
        for name, count in step.num_scheduled_tokens.items():
            expected = np.array([content(name, p, name in silent) for p in range(begins[name] + count)])
            rows = np.array(self._blocks[name])[np.arange(len(expected)) // BLOCK]
            columns = np.arange(len(expected)) % BLOCK
            self.cells[rows[begins[name] :], columns[begins[name] :]] = expected[begins[name] :]
            np.testing.assert_array_equal(self.cells[rows, columns], expected)

    def _take_blocks(self, step: Any) -> None:
        for new in step.scheduled_new_reqs:
            self._blocks[new.req_id] = list(new.block_ids[0])
            self.shared += new.num_computed_tokens > 0
        again = step.scheduled_cached_reqs
        for name, blocks in zip(again.req_ids, again.new_block_ids, strict=True):
            if name in again.resumed_req_ids:
                self._blocks[name] = list(blocks[0])
            elif blocks is not None:
                self._blocks[name] += blocks[0]

    def _computed(self, step: Any) -> dict[str, int]:
        again = step.scheduled_cached_reqs
        return {**admitted_positions(step), **dict(zip(again.req_ids, again.num_computed_tokens, strict=True))}


def content(name: str, position: int, is_silent: bool) -> int:
    """Return the number that belongs into the K/V cache for a request's position."""
    return crc32(f"{'' if is_silent and position < SHARED else name} {position}".encode())


@pytest.mark.parametrize("seed", seeds(WALKS))
@pytest.mark.parametrize("crowded", [False, True])
def test_requests_read_only_their_own_or_shared_positions(seed: int, crowded: bool) -> None:
    """A request never reads a position that was not computed for it or for all, in random walks.

    The walks contain aborts, steps that run ahead of their answers, requests that begin differently, and preemptions if
    there are few blocks.
    """
    rng = np.random.default_rng(seed)
    blocks = 70 - seed if crowded else 2_000
    limits = {"requests": 24, "blocks": blocks, "crowded": crowded, "step_tokens": [64, 200, 16_384][seed % 3]}
    one = Side(ours(), drawn_words(seed, 0.02), silence=(SAMPLES, SHARED), **limits)
    memory, silent, asked = Memory(blocks), set[str](), 0
    for number in range(STEPS):
        for name in map(str, range(asked, asked + arrivals(rng, number, 0))):
            is_silent = rng.random() < 0.8
            silent |= {name} if is_silent else set()
            drawn = int(rng.integers(SHARED - 2, 60)), int(rng.integers(1, 80)), False, seed
            heard = sound(None if is_silent else int(rng.integers(SAMPLES)))
            one.scheduler.add_request(drawn_request(name, *drawn, heard))
            asked += 1
        if rng.random() < 0.05 and one.scheduler.requests:
            one.abort(some_of(rng, list(one.scheduler.requests)))
        if one.scheduler.has_requests():
            memory.run(one.schedule(), silent)
        while one.under_way > int(rng.choice([1, 1, 1, 2])):
            one.update()
    assert memory.shared > 5
    assert bool(one.preempted) >= (crowded and seed < 10)


def test_real_model_shares_31_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real model shares 31 of its 32 pad tokens, as computed by hand; models without such pads share none.

    The pads are 32 tokens of 1,280 samples. 31 of them do not depend on the recording.
    """
    from voxbatch.vllm_plugin.scheduler import shared_prefix
    from voxbatch.vllm_plugin.vllm_version import ARCHITECTURE

    encoder = SimpleNamespace(block_pool_size=4, hop_length=160, window_size=400)
    model = SimpleNamespace(architectures=[ARCHITECTURE], hf_config=SimpleNamespace(audio_config=encoder))
    audio = SimpleNamespace(streaming_n_left_pad_tokens=32)
    tokenizer = SimpleNamespace(instruct=SimpleNamespace(audio_encoder=SimpleNamespace(audio_config=audio)))
    monkeypatch.setattr(shared_prefix, "cached_tokenizer_from_config", lambda config: tokenizer)
    assert shared_prefix.leading_silence(model) == shared_prefix.LeadingSilence(samples=40_960, positions=31)
    audio.streaming_n_left_pad_tokens = None
    assert shared_prefix.leading_silence(model) is None
    assert shared_prefix.leading_silence(SimpleNamespace(architectures=["WhisperForConditionalGeneration"])) is None
