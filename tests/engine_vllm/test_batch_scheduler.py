"""Our scheduler keeps nothing of ended requests, and admits requests within its limits."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from modelless import BLOCK, CONTEXT, EOS, Side, request

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # importing vLLM warns


def scheduler_kind() -> type[Any]:
    from voxbatch.vllm_plugin.scheduler.batch_scheduler import AsyncBatchScheduler

    return AsyncBatchScheduler


def side(**limits: Any) -> Side:
    """Return our scheduler with a model that never says EOS."""
    return Side(scheduler_kind(), lambda name, number: 3 + number, **limits)


def run_to_the_end(one: Side, count: int) -> int:
    """Run until `count` requests have ended, and return the highest number of requests that ran at a time."""
    most = 0
    while len(one.ends) < count:
        one.schedule()
        most = max(most, len(one.scheduler.running))
        one.update()
    while one.update():
        pass
    return most


def test_nothing_is_kept_of_ended_requests() -> None:
    """The scheduler keeps neither the audio of ended requests nor an entry in any table of the encoder cache."""
    one = side(requests=8, blocks=400)
    for i in range(40):
        one.scheduler.add_request(request(str(i), prompt=20, max_tokens=10))
    run_to_the_end(one, 40)
    one.schedule()
    cache = one.scheduler.encoder_cache_manager
    tables = {name: table for name, table in vars(cache).items() if isinstance(table, dict)}
    assert not any(tables.values())
    assert cache.num_free_slots == cache.num_freeable_slots == cache.cache_size


def test_cache_without_a_table_of_sizes() -> None:
    """The scheduler works with vLLM before 0.31, whose encoder cache has no num_embeds_by_hash."""
    from voxbatch.vllm_plugin.scheduler.batch_scheduler import _remove_unreferenced

    cache = SimpleNamespace(cached={"a": set(), "b": {"1"}}, freeable=OrderedDict(a=7), freed=[], num_free_slots=3)
    _remove_unreferenced(cache)
    assert cache == SimpleNamespace(cached={"b": {"1"}}, freeable={}, freed=["a"], num_free_slots=10)


def test_short_requests_reserve_fewer_blocks() -> None:
    """65 blocks admit two requests of full length, or eight that end after 8 blocks; vLLM keeps one block."""
    for tokens, expected in ((CONTEXT - 64, 2), (8 * BLOCK - 64, 8)):
        one = side(requests=16, blocks=65)
        for i in range(40):
            one.scheduler.add_request(request(str(i), prompt=64, max_tokens=tokens))
        assert run_to_the_end(one, 40) == expected
        assert not one.preempted


def test_max_num_seqs_is_an_upper_bound() -> None:
    """No more requests run than max_num_seqs allows, even if more have blocks."""
    one = side(requests=5, blocks=400)
    for i in range(40):
        one.scheduler.add_request(request(str(i), prompt=20, max_tokens=10))
    assert run_to_the_end(one, 40) == 5


@pytest.mark.parametrize("seed", range(40))
def test_no_request_is_preempted(seed: int) -> None:
    """Each request runs to its end without a pause, for any lengths, in any order, and with few blocks."""
    rng = np.random.default_rng(seed)
    ends_at = rng.choice([0.0, 0.02])

    def say(name: str, number: int) -> int:
        dice = crc32(f"{seed} {name} {number}".encode())
        return EOS if dice < ends_at * 2**32 else 3 + dice % 900

    limits = {"requests": int(rng.integers(1, 40)), "blocks": int(rng.integers(33, 200))}
    one = Side(scheduler_kind(), say, **limits, step_tokens=int(rng.choice([64, 200, 16_384])))
    count = 60
    for i in range(count):
        prompt = int(rng.integers(1, 60))
        longest = int(rng.choice([20, CONTEXT - prompt]))
        one.scheduler.add_request(request(str(i), prompt, int(rng.integers(1, longest + 1))))
    steps = 0
    while len(one.ends) < count:
        one.schedule()
        one.update()
        steps += 1
        assert steps < 60 * CONTEXT
    assert not one.preempted


def test_running_requests_have_their_blocks_reserved() -> None:
    """Before each step, the reserved blocks are those of the requests that run, and no more than there are."""
    rng = np.random.default_rng(1)
    one = side(requests=30, blocks=120)
    for i in range(100):
        one.scheduler.add_request(request(str(i), 20, int(rng.integers(1, 400))))
    reservations = one.scheduler._reservations
    while len(one.ends) < 100:
        one.schedule()
        needed = {each.request_id: -(-(20 + each.max_tokens) // BLOCK) for each in one.scheduler.running}
        assert reservations.blocks == needed
        assert sum(needed.values()) <= reservations.total
        one.update()
