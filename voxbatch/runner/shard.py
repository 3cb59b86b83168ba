"""Assign items to shards: deterministic, disjoint, complete, and balanced by duration where it is known.

Every task computes the whole assignment from the survey's durations and keeps its own shard. So tasks agree without
communication. The module does not read the manifest and does not know which items are done.

    durations 30, 10, 20 in 2 shards  →  shards 0, 1, 1

The durations are read from their file several times, so that the memory is bounded: 10 million items take 20 seconds.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from voxbatch.errors import ConfigError
from voxbatch.storage.columns import BLOCK, Column, ItemSet

MAX_SHARDS = 99_999
"""Highest number of shards. Names such as shard-00003-of-00016 have five digits and must sort like numbers."""

SORTED_ITEMS = 1 << 20
"""Items that are sorted at a time, about. Their indexes, weights and order take up to 80 MB."""
SAMPLE_SIZE = 1 << 18
"""Weights in the sample that divides them into ranges, about. So a range has at most some percent more items than
SORTED_ITEMS, also if there are a hundred."""


def parse_shard(text: str) -> tuple[int, int]:
    """Return (shard, number of shards): "3/16" → (3, 16), which is shard 3, counted from 0, of 16.

    Raises:
        ConfigError: the text is not i/n, or the numbers are out of range.
    """
    rule = f"give i/n, n from 1 to {MAX_SHARDS:,} and i from 0 to n-1, such as 0/16 for the first of sixteen"
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text.strip())
    if match is None:
        raise ConfigError(f"--shard {text[:80]!r} is not i/n; {rule}")
    shard, shards = int(match[1]), int(match[2])
    if not 1 <= shards <= MAX_SHARDS:
        raise ConfigError(f"--shard {text!r}: n is {shards:,}; {rule}")
    if shard >= shards:
        last = f"{shards - 1}/{shards}"
        raise ConfigError(f"--shard {text!r}: shards count from 0, so the last of {shards} is {last}; {rule}")
    return shard, shards


def members(durations: Column, shard: int, shards: int) -> ItemSet:
    """Return the items in `shard` (0-based) of `shards`, from durations in seconds (NaN if unknown).

    Items are assigned longest first, each to the shard with the smallest load so far (Graham's LPT rule, 1969). So no
    shard exceeds the mean load by more than the longest item. An unknown duration counts as the mean of the known
    durations, or as 1 if none is known.
    """
    mine = ItemSet(len(durations))
    for indexes, assigned in _assign(durations, ItemSet(len(durations), is_full=True), shards):
        mine.add(indexes[assigned == shard])
    return mine


def split(durations: Column, wanted: ItemSet, parts: int) -> list[ItemSet]:
    """Split the wanted items into disjoint parts of even load, by the rule of `members`."""
    members_of_parts = [ItemSet(wanted.size) for _ in range(parts)]
    for indexes, assigned in _assign(durations, wanted, parts):
        for part, items in enumerate(members_of_parts):
            items.add(indexes[assigned == part])
    return members_of_parts


def _assign(durations: Column, wanted: ItemSet, shards: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
    """Yield (indexes of items, their shards), in blocks, until each wanted item came once."""
    loads = [(0.0, shard) for shard in range(shards)]  # already a heap; equal loads go to the lower number
    for indexes, weights in _longest_first(durations, wanted):
        for start in range(0, len(indexes), BLOCK):
            chosen = []
            for weight in weights[start : start + BLOCK].tolist():
                load, shard = loads[0]
                heapq.heapreplace(loads, (load + weight, shard))
                chosen.append(shard)
            yield indexes[start : start + BLOCK], np.array(chosen, np.int32)


def _longest_first(durations: Column, wanted: ItemSet) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Yield (indexes, weights) of the wanted items by descending weight, equal weights by ascending index.

    The weights are divided into ranges by a sample of them. For each range, all durations are read, and the items of
    the range are sorted. A weight that many items have is a range of its own, which needs no sorting.
    """
    known, total = 0, 0.0
    for _, weights in _weights(durations, wanted):
        is_known = ~np.isnan(weights)
        known, total = known + int(np.count_nonzero(is_known)), total + float(weights[is_known].sum())
    unknown = total / known if known else 1.0
    part, random = SAMPLE_SIZE / max(1, len(durations)), np.random.default_rng(0)
    sample = [weights[random.random(len(weights)) < part] for _, weights in _weights(durations, wanted, unknown)]
    for low, high in _ranges(np.concatenate([np.empty(0), *sample]), -(-wanted.count() // SORTED_ITEMS)):
        chosen = []
        for indexes, weights in _weights(durations, wanted, unknown):
            is_in = (weights == low) if high is None else (weights >= low) & (weights < high)
            if high is not None:
                chosen.append((indexes[is_in], weights[is_in]))
            elif is_in.any():
                yield indexes[is_in], weights[is_in]
        if chosen:
            indexes, weights = (np.concatenate(arrays) for arrays in zip(*chosen, strict=True))
            chosen = []
            order = np.argsort(-weights, kind="stable")
            yield indexes[order], weights[order]


def _weights(
    durations: Column, wanted: ItemSet, unknown: float = math.nan
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
    """Yield (indexes, weights) of the wanted items, in blocks. Items of unknown duration have the weight `unknown`."""
    for (start, block), (_, is_wanted) in zip(durations.blocks(), wanted.blocks(), strict=True):
        weights = block[is_wanted].astype(np.float64)
        weights[~(np.isfinite(weights) & (weights > 0))] = unknown
        yield start + np.flatnonzero(is_wanted), weights


def _ranges(sample: NDArray[np.float64], count: int) -> Iterator[tuple[float, float | None]]:
    """Yield about `count` ranges of weights with as many items each, the highest first: from low to below high. If
    `high` is None, the range is the weight `low` alone."""
    ordered = np.sort(sample)
    high = math.inf
    bounds = ordered[len(ordered) * np.arange(1, count) // count] if len(ordered) else ordered
    for bound in np.unique(bounds)[::-1].tolist():
        num_equal = np.searchsorted(ordered, bound, "right") - np.searchsorted(ordered, bound)
        if num_equal * 4 * count > len(ordered):  # more than a quarter of a range
            yield math.nextafter(bound, math.inf), high
            yield bound, None
        else:
            yield bound, high
        high = bound
    yield 0.0, high
