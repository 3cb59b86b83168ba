"""Our scheduler keeps nothing of ended requests, and admits requests within its limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from modelless import BLOCK, CONTEXT, Side, drawn_words, ours, request, seeds

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # importing vLLM warns


def side(**limits: Any) -> Side:
    """Return our scheduler with a model that never says EOS."""
    return Side(ours(), lambda name, number: 3 + number, **limits)


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


def test_burst_size() -> None:
    """A burst is a fourteenth of the requests that may run, at least one and at most MAX_BURST."""
    from voxbatch.vllm.plugin.scheduler.admission import BURSTS, MAX_BURST, burst_size

    assert [burst_size(most) for most in (1, 13, 28, 36 * BURSTS, 1_024)] == [1, 1, 2, MAX_BURST, MAX_BURST]


@pytest.mark.parametrize(
    ("requests", "blocks", "tokens", "expected"),
    [(16, 65, CONTEXT - 64, 2), (16, 65, 8 * BLOCK - 64, 8), (5, 400, 10, 5)],
)
def test_as_many_requests_run_as_have_blocks(requests: int, blocks: int, tokens: int, expected: int) -> None:
    """65 blocks admit two requests of full length, or eight that end after 8 blocks; vLLM keeps one block. No more run
    than max_num_seqs allows."""
    one = side(requests=requests, blocks=blocks)
    for i in range(40):
        one.scheduler.add_request(request(str(i), prompt=64, max_tokens=tokens))
    assert run_to_the_end(one, 40) == expected
    assert not one.preempted


@pytest.mark.parametrize("seed", seeds(40))
def test_no_request_is_preempted(seed: int) -> None:
    """Each request runs to its end without a pause, for any lengths, in any order, and with few blocks.

    The reserved blocks are always those of the requests that run, and no more than there are.
    """
    rng = np.random.default_rng(seed)
    say = drawn_words(seed, rng.choice([0.0, 0.02]))
    limits = {"requests": int(rng.integers(1, 40)), "blocks": int(rng.integers(33, 200))}
    one = Side(ours(), say, **limits, step_tokens=int(rng.choice([64, 200, 16_384])))
    count = 60
    for i in range(count):
        prompt = int(rng.integers(1, 60))
        longest = int(rng.choice([20, CONTEXT - prompt]))
        one.scheduler.add_request(request(str(i), prompt, int(rng.integers(1, longest + 1))))
    reservations, steps = one.scheduler._reservations, 0
    while len(one.ends) < count:
        one.schedule()
        running = one.scheduler.running
        needed = {each.request_id: -(-(each.num_prompt_tokens + each.max_tokens) // BLOCK) for each in running}
        assert reservations.blocks == needed
        assert sum(needed.values()) <= reservations.total
        one.update()
        steps += 1
        assert steps < 60 * CONTEXT
    assert not one.preempted
