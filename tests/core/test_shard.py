"""Tests for sharding: shards partition the manifest, deterministically and with even loads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.errors import ConfigError
from voxbatch.runner import shard as shard_module
from voxbatch.runner.shard import members, parse_shard, split
from voxbatch.storage.columns import Column, ItemSet

DURATIONS = st.lists(st.one_of(st.just(float("nan")), st.floats(0.01, 30_000)), max_size=200).map(np.array)
SHARDS = st.integers(1, 40)


def column(durations: np.ndarray) -> Column:
    found = Column("<f4")
    found.append(durations)
    return found


def assign(durations: np.ndarray, shards: int) -> np.ndarray:
    """Return the shard of each item."""
    found = np.zeros(len(durations), int)
    for shard in range(shards):
        found[np.array([*members(column(durations), shard, shards)], bool)] = shard
    return found


def assign_in_memory(durations: np.ndarray, shards: int) -> np.ndarray:
    """Return the shard of each item by Graham's rule, written down plainly."""
    weights = durations.astype(np.float32).astype(float)
    known = weights[np.isfinite(weights)]
    weights[~np.isfinite(weights)] = known.mean() if len(known) else 1.0
    loads, result = [0.0] * shards, np.zeros(len(weights), int)
    for index in sorted(range(len(weights)), key=lambda each: -weights[each]):
        result[index] = loads.index(min(loads))
        loads[result[index]] += weights[index]
    return result


@pytest.mark.slow
@given(DURATIONS, SHARDS, st.sampled_from([3, 50, 1 << 20]))
def test_assignment_is_that_of_grahams_rule(durations: np.ndarray, shards: int, sorted_items: int) -> None:
    """The assignment is the same, however few items are sorted at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_module, "SORTED_ITEMS", sorted_items)
        assert assign(durations, shards).tolist() == assign_in_memory(durations, shards).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("values", [[2.5], [1, 2, 3], range(1, 900)])
def test_many_equal_durations_are_assigned_in_order(values: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 items in several blocks, with few different durations, are assigned as without limits."""
    durations = np.resize(np.array(values, float), 100_000)
    monkeypatch.setattr(shard_module, "SORTED_ITEMS", 9_000)
    assert np.array_equal(assign(durations, 5), assign_in_memory(durations, 5))


@pytest.mark.slow
@given(DURATIONS, SHARDS)
def test_shards_partition_the_items(durations: np.ndarray, shards: int) -> None:
    """Every item is in exactly one shard."""
    times_taken = sum(np.array([*members(column(durations), shard, shards)], int) for shard in range(shards))
    assert np.array_equal(times_taken, np.ones(len(durations)))


@given(DURATIONS.flatmap(lambda d: st.tuples(st.just(d), st.lists(st.booleans(), min_size=len(d), max_size=len(d)))),
       st.integers(1, 9))  # fmt: skip
def test_split_partitions_the_wanted_items(given_: tuple[np.ndarray, list[bool]], parts: int) -> None:
    """Each wanted item is in exactly one part, and no other item is in any."""
    durations, wanted = given_[0], np.array(given_[1], np.bool_)
    chosen = ItemSet(len(wanted))
    chosen.add(np.flatnonzero(wanted))
    masks = split(column(durations), chosen, parts)
    assert len(masks) == parts
    assert np.array_equal(sum(np.array([*mask], int) for mask in masks), wanted.astype(int))


def test_assignment_derived_by_hand() -> None:
    """An item of 30 s fills one shard, and those of 20 s and 10 s the other."""
    assert assign(np.array([30.0, 10.0, 20.0]), 2).tolist() == [0, 1, 1]


@given(st.integers(1, 99_999).flatmap(lambda n: st.tuples(st.integers(0, n - 1), st.just(n))))
def test_parse_shard(pair: tuple[int, int]) -> None:
    """i/n is parsed as written."""
    assert parse_shard(f"{pair[0]}/{pair[1]}") == pair


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("16/16", "the last of 16 is 15/16"),
        ("1/0", "n is 0"),
        ("0/100000", "n is 100,000"),
        ("3", "is not i/n"),
        ("-1/4", "is not i/n"),
        ("a/b", "is not i/n"),
        ("\u0661/\u0664", "is not i/n"),
    ],
)
def test_parse_shard_refuses(text: str, says: str) -> None:
    """Anything else is refused with the value and the rule."""
    with pytest.raises(ConfigError, match=says) as caught:
        parse_shard(text)
    assert repr(text) in str(caught.value)
    assert "i from 0 to n-1" in str(caught.value)
