"""Our scheduler keeps nothing of ended requests, and admits requests within its limits."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
from modelless import Side, request

pytest_plugins = ["support"]
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # importing vLLM warns


def side(**limits: Any) -> Side:
    """Return our scheduler with a model that never says EOS."""
    from voxbatch.engines.vllm.scheduler import LiftedAsync

    return Side(LiftedAsync, lambda name, number: 3 + number, **limits)


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


def test_a_cache_without_a_table_of_sizes() -> None:
    """The scheduler works with vLLM before 0.31, whose encoder cache has no num_embeds_by_hash."""
    from voxbatch.engines.vllm.scheduler import _forget_ended

    cache = SimpleNamespace(cached={"a": set(), "b": {"1"}}, freeable=OrderedDict(a=7), freed=[], num_free_slots=3)
    _forget_ended(cache)
    assert cache == SimpleNamespace(cached={"b": {"1"}}, freeable={}, freed=["a"], num_free_slots=10)
