"""Assign items to shards: deterministic, disjoint, complete, and balanced by duration where it is known.

Every task computes the whole assignment from the survey's durations and keeps its own shard. So tasks agree without
communication. The module does not read the manifest and does not know which items are done.

    assign(np.array([30.0, 10.0, 20.0]), 2)  →  [0, 1, 1]
"""

from __future__ import annotations

import heapq
import re

import numpy as np
from numpy.typing import NDArray

from voxbatch.errors import ConfigError

MAX_SHARDS = 99_999
"""Highest number of shards. Names such as shard-00003-of-00016 have five digits and must sort like numbers."""

_BLOCK = 65_536
"""Items that are converted to Python numbers at a time. A million at once would take 60 MB for a moment."""


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


def assign(durations: NDArray[np.floating], shards: int) -> NDArray[np.int32]:
    """Return the shard of each item, int32 of shape (num_items,), from durations in seconds (NaN if unknown).

    Items are assigned longest first, each to the shard with the smallest load so far (Graham's LPT rule, 1969). So no
    shard exceeds the mean load by more than the longest item. An unknown duration counts as the mean of the known
    durations, or as 1 if none is known.
    """
    result = np.zeros(len(durations), dtype=np.int32)
    if shards == 1:
        return result
    weights = np.array(durations, dtype=np.float64)
    is_known = np.isfinite(weights) & (weights > 0)
    weights[~is_known] = weights[is_known].mean() if is_known.any() else 1.0
    order = np.argsort(-weights, kind="stable")
    loads = [(0.0, shard) for shard in range(shards)]  # already a heap; equal loads go to the lower number
    for start in range(0, len(order), _BLOCK):
        block = order[start : start + _BLOCK]
        chosen = []
        for weight in weights[block].tolist():
            load, shard = loads[0]
            heapq.heapreplace(loads, (load + weight, shard))
            chosen.append(shard)
        result[block] = chosen
    return result


def members(durations: NDArray[np.floating], shard: int, shards: int) -> NDArray[np.bool_]:
    """Return the mask of the items in `shard` (0-based) of `shards`: bool of shape (num_items,)."""
    return np.equal(assign(durations, shards), shard)


def split(durations: NDArray[np.floating], wanted: NDArray[np.bool_], parts: int) -> list[NDArray[np.bool_]]:
    """Split the wanted items into disjoint parts of even load. Each part is a bool mask of shape (num_items,)."""
    indexes = np.flatnonzero(wanted)
    parts_of = assign(durations[indexes], parts)
    masks = [np.zeros(len(wanted), np.bool_) for _ in range(parts)]
    for part, mask in enumerate(masks):
        mask[indexes[parts_of == part]] = True
    return masks
