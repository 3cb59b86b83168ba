"""What all chunks begin with is computed once by the decoder, and each request has it among its K/V blocks in time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from modelless import BLOCK, EOS, Side, arrivals, drawn_request, request, some_of

pytest_plugins = ["support"]
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # importing vLLM brings many

SAMPLES, SHARED, PROMPT = 50, 21, 30
HELD, FULL = 2, 1
"""Blocks of 16 in which 21 positions lie, and how many of them hold nothing else."""
WALKS, STEPS = 30, 120


def kind() -> type[Any]:
    from voxbatch.engines.vllm.scheduler import LiftedAsync

    return LiftedAsync


def side(requests: int = 8, blocks: int = 400, **limits: Any) -> Side:
    return Side(kind(), lambda name, number: 7, requests=requests, blocks=blocks, silence=(SAMPLES, SHARED), **limits)


def sound(loud: int | None = None) -> Any:
    """Silence and a little noise; one sample is not zero if `loud` says which."""
    import torch

    found = torch.zeros(SAMPLES + 10)
    found[SAMPLES:] = 0.5
    if loud is not None:
        found[loud] = 1e-30
    return found


def let_in(step: Any) -> dict[str, int]:
    """New requests, and so many of their positions need not be computed."""
    return {new.req_id: new.num_computed_tokens for new in step.scheduled_new_reqs}


def blocks_of(step: Any, name: str) -> list[int]:
    [found] = [new.block_ids[0] for new in step.scheduled_new_reqs if new.req_id == name]
    return list(found)


def test_the_first_goes_the_whole_way() -> None:
    """So do those of the same step; the next ones begin behind it: they are told of its first blocks, of which the last
    one is copied to their own, in its place."""
    one = side()
    for name in "ab":
        one.scheduler.add_request(request(name, PROMPT, 50, sound=sound()))
    step = one.schedule()
    assert let_in(step) == {"a": 0, "b": 0}
    assert not step.kv_cache_block_copies
    first = blocks_of(step, "a")
    assert not {*first} & {*blocks_of(step, "b")}
    for name in "cd":
        one.scheduler.add_request(request(name, PROMPT, 50, sound=sound()))
    step = one.schedule()
    assert let_in(step) == {"c": SHARED, "d": SHARED}
    assert step.num_scheduled_tokens == {"a": 1, "b": 1, "c": PROMPT - SHARED, "d": PROMPT - SHARED}
    own = [blocks_of(step, name) for name in "cd"]
    assert [blocks[:FULL] for blocks in own] == [first[:FULL]] * 2
    assert not {*own[0][FULL:]} & {*own[1][FULL:]}
    expected = [pair for blocks in own for pair in zip(first[FULL:HELD], blocks[FULL:HELD], strict=True)]
    assert [tuple(copy) for copy in step.kv_cache_block_copies] == expected
    assert set(step.scheduled_encoder_inputs) == {"c", "d"}
    assert not one.schedule().kv_cache_block_copies


def test_what_is_held_outlives_the_first() -> None:
    """When it has ended, nobody else is given its first blocks as their own, and they are still shared; all others are
    free, and those of the next when it has ended too."""
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


def test_one_that_begins_otherwise() -> None:
    """Another token, a sample that is not zero, audio that begins later, is not there, or lies on a device, two pieces
    of it, too short a prompt, or a wish for something of each position: each goes the whole way; and so does the first
    one that the next ones could have followed, in vain."""
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
    beginning = one.scheduler._beginning
    for name in odd.keys() - {"token"}:
        assert not beginning._begins(odd[name]), name
    one.scheduler.add_request(odd["loud 0"])
    assert let_in(one.schedule()) == {"loud 0": 0}
    one.scheduler.add_request(request("first", PROMPT, 50, sound=sound()))
    assert let_in(one.schedule()) == {"first": 0}
    for name in odd.keys() - {"token"}:
        assert beginning.computed(odd[name])[1] == 0, name
    one.scheduler.add_request(odd["token"])
    one.scheduler.add_request(odd["loud 49"])
    one.scheduler.add_request(request("second", PROMPT + 5, 50, sound=sound()))
    assert let_in(one.schedule()) == {"token": 0, "loud 49": 0, "second": SHARED}


def test_one_that_has_no_room_in_its_step() -> None:
    """Not all shared positions of the first one are computed in its first step, so it is not held; the next is."""
    one = side(step_tokens=45)
    one.scheduler.add_request(request("other", PROMPT, 50, sound=sound(loud=0)))
    one.scheduler.add_request(request("a", PROMPT, 50, sound=sound()))
    assert one.schedule().num_scheduled_tokens == {"other": PROMPT, "a": 15}
    assert one.schedule().num_scheduled_tokens == {"other": 1, "a": 15}
    assert not one.scheduler._beginning.shared
    one.scheduler.add_request(request("b", PROMPT, 50, sound=sound()))
    assert let_in(one.schedule()) == {"b": 0}
    assert one.scheduler._beginning.shared == SHARED


def test_thrown_out_and_let_in_again() -> None:
    """It begins behind the silence again, which it shares and has copied as at first; its text has to be computed."""
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


def test_no_more_are_let_in_at_a_time() -> None:
    """A step takes as many chunks as their whole prompts have room, as it would if all were computed."""
    one = side(requests=40, blocks=2_000, step_tokens=100)
    for name in map(str, range(40)):
        one.scheduler.add_request(request(name, PROMPT, 50, sound=sound()))
    steps = [one.schedule() for _ in range(30)]
    assert [len(step.scheduled_new_reqs) for step in steps[:4]] == [4, 3, 3, 3]  # of the first step's last one 10
    assert len(one.scheduler.running) == 39  # and the last one waits until a burst of two has room


@pytest.mark.parametrize(
    ("blocks", "shares", "admitted"), [(34, False, 1), (35, True, 1), (66, True, 1), (67, True, 2)]
)
def test_what_is_held_is_counted(blocks: int, shares: bool, admitted: int) -> None:
    """A request of full length takes 32 blocks and vLLM one; where no two are left, nothing is shared."""
    scheduler = side(blocks=blocks).scheduler
    assert (scheduler._beginning is not None) is shares
    assert scheduler._reservations.fitting == admitted


@pytest.mark.parametrize(("most", "shares"), [(BLOCK, True), (BLOCK - 1, False)])
def test_too_much_to_copy(most: int, shares: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is shared where one block, which is copied whole, is too much."""
    from voxbatch.engines.vllm import beginning

    monkeypatch.setattr(beginning, "COPIED", most)
    assert (side().scheduler._beginning is not None) is shares


def test_nothing_to_copy() -> None:
    """What is shared ends where a block does."""
    one = Side(kind(), lambda name, number: 7, requests=8, blocks=400, silence=(SAMPLES, 2 * BLOCK))
    one.scheduler.add_request(request("a", 2 * BLOCK + 9, 50, sound=sound()))
    first = blocks_of(one.schedule(), "a")
    one.scheduler.add_request(request("b", 2 * BLOCK + 9, 50, sound=sound()))
    step = one.schedule()
    assert let_in(step) == {"b": 2 * BLOCK}
    assert blocks_of(step, "b")[:2] == first[:2]
    assert not step.kv_cache_block_copies


def test_for_comparison() -> None:
    """A scheduler may be told to share nothing."""

    class Alone(kind()):  # type: ignore[misc]
        _shares = False

    one = Side(Alone, lambda name, number: 7, requests=8, blocks=400, silence=(SAMPLES, SHARED))
    for name in "ab":
        one.scheduler.add_request(request(name, PROMPT, 50, sound=sound()))
        step = one.schedule()
    assert let_in(step) == {"b": 0}


# ── what lies in the K/V cache ────────────────────────────────────────────────────────────────────────────────────────


class Memory:
    """A K/V cache of one number a position: what it was computed from. It does what a step says, as the GPU would."""

    def __init__(self, blocks: int):
        self.cells = np.zeros((blocks, BLOCK), np.int64)
        self._blocks = dict[str, list[int]]()
        self.shared = 0

    def run(self, step: Any, silent: set[str]) -> None:
        """One step; and each of its requests finds all of its positions, up to those of the step."""
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
        return {**let_in(step), **dict(zip(again.req_ids, again.num_computed_tokens, strict=True))}


def content(name: str, position: int, is_silent: bool) -> int:
    return crc32(f"{'' if is_silent and position < SHARED else name} {position}".encode())


@pytest.mark.parametrize("seed", range(WALKS))
@pytest.mark.parametrize("crowded", [False, True])
def test_each_finds_its_own(seed: int, crowded: bool) -> None:
    """Random walks with aborts, steps ahead of their answers, requests that begin otherwise, and, where they are
    crowded, such as are thrown out: nobody ever reads what was not computed for it, or for all."""
    rng = np.random.default_rng(seed)

    def say(name: str, number: int) -> int:
        dice = crc32(f"{seed} {name} {number}".encode())
        return EOS if dice < 0.02 * 2**32 else 3 + dice % 900

    blocks = 70 - seed if crowded else 2_000
    limits = {"requests": 24, "blocks": blocks, "crowded": crowded, "step_tokens": [64, 200, 16_384][seed % 3]}
    one = Side(kind(), say, silence=(SAMPLES, SHARED), **limits)
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
    assert bool(one.thrown_out) >= (crowded and seed < 10)


@pytest.mark.parametrize("number", ["float32", "bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("apart", [False, True])
def test_vllm_copies_whole_blocks(number: str, apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its runner's way of doing what a step says of copies, with each layer's memory apart, or a block's of all layers
    together: in each layer and each number format every block is what its source was, and the others are left alone."""
    import torch
    from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy
    from vllm.v1.worker.utils import copy_kv_cache_blocks_inplace

    monkeypatch.setattr("vllm.utils.torch_utils.PIN_MEMORY", False, raising=False)  # which needs a GPU
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(9, 3, 4, BLOCK, 8, generator=generator).to(getattr(torch, number))
    layers = [each.clone() for each in whole.unbind(1)] if apart else list(whole.unbind(1))
    before = [each.clone().float() for each in layers]
    copy_kv_cache_blocks_inplace(layers, 9, [KVCacheBlockCopy(2, 7), KVCacheBlockCopy(5, 1), KVCacheBlockCopy(2, 0)])
    for layer, each in zip(layers, before, strict=True):
        assert torch.equal(layer.float(), each[[2, 5, 2, 3, 4, 5, 6, 2, 8]])


def test_which_positions_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand, of the real model's shape: 32 tokens of 1,280 samples, of which 31 do not hear the recording; without
    such a beginning, or of another model, none."""
    from voxbatch.engines.vllm import beginning
    from voxbatch.vllm_plugin.private import ARCHITECTURE

    encoder = SimpleNamespace(block_pool_size=4, hop_length=160, window_size=400)
    model = SimpleNamespace(architectures=[ARCHITECTURE], hf_config=SimpleNamespace(audio_config=encoder))
    audio = SimpleNamespace(streaming_n_left_pad_tokens=32)
    tokenizer = SimpleNamespace(instruct=SimpleNamespace(audio_encoder=SimpleNamespace(audio_config=audio)))
    monkeypatch.setattr(beginning, "cached_tokenizer_from_config", lambda config: tokenizer)
    assert beginning.opening(model) == beginning.Opening(samples=40_960, positions=31)
    audio.streaming_n_left_pad_tokens = None
    assert beginning.opening(model) is None
    assert beginning.opening(SimpleNamespace(architectures=["WhisperForConditionalGeneration"])) is None
