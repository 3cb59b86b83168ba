"""Find duplicates among the 64-bit hashes of a manifest's ids, in bounded memory: the hashes are in a file, and those
with the same low bits are sorted together.

The result has no order of lines. So the hashes are read a second time, in order, but only if some of them repeat.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from voxbatch.storage.columns import Column

SORTED_HASHES = 1 << 22
"""Hashes that are sorted at a time, about: 32 MB. 100 million are read 32 times."""


def repeated_hashes(hashes: Column) -> NDArray[np.int64]:
    """Return, in ascending order, the hash of every duplicate: a hash that occurs three times is returned twice.

    Args:
        hashes: 64-bit integers. If there are several for each item, the first one counts.
    """
    groups = 1
    while len(hashes) > groups * SORTED_HASHES:
        groups *= 2
    found = [np.empty(0, np.int64)]
    for group in range(groups):
        values = np.concatenate([np.empty(0, np.int64), *_group(hashes, groups, group)])
        values.sort()
        found.append(values[1:][values[1:] == values[:-1]])
    result = np.concatenate(found)
    result.sort()
    return result


def _group(hashes: Column, groups: int, group: int) -> Iterable[NDArray[np.int64]]:
    """Yield the hashes whose low bits are `group`, a block at a time."""
    for _, block in hashes.blocks():
        values = (block if hashes.width == 1 else block[:, 0]).view(np.int64)
        yield values[(values & (groups - 1)) == group]


def earliest_duplicates(repeated: NDArray[np.int64], hashes: Iterable[int], limit: int) -> tuple[set[int], int]:
    """Return (the hashes of the `limit` earliest duplicates, the number of duplicates of all other hashes).

    Args:
        repeated: the result of `repeated_hashes`.
        hashes: the hashes in their first order, as signed integers. They are read up to the last of these duplicates.
        limit: number of duplicates to find, at least 1.
    """
    earliest: set[int] = set()
    has_occurred = np.zeros(len(repeated), np.bool_)
    for value in hashes:
        at = int(np.searchsorted(repeated, value))
        if at < len(repeated) and repeated[at] == value:
            if has_occurred[at]:
                earliest.add(value)
                limit -= 1
                if limit == 0:
                    break
            has_occurred[at] = True
    found = np.array(sorted(earliest), np.int64)
    num_found = np.searchsorted(repeated, found, "right") - np.searchsorted(repeated, found)
    return earliest, len(repeated) - int(num_found.sum())
