"""Find duplicates among the 64-bit hashes of a manifest's ids: 8 bytes for each line, sorted in place.

A sorted array has no order of lines. So the hashes are read a second time, in order, but only if some of them repeat.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def repeated_hashes(hashes: array[int]) -> NDArray[np.int64]:
    """Return, in ascending order, the hash of every duplicate: a hash that occurs three times is returned twice.

    Args:
        hashes: signed 64-bit integers (type code "q"). They are sorted in place.
    """
    values = np.frombuffer(hashes, np.int64) if hashes else np.zeros(0, np.int64)
    values.sort()
    repeated: NDArray[np.int64] = values[1:][values[1:] == values[:-1]]
    return repeated


def earliest_duplicates(repeated: NDArray[np.int64], hashes: Iterable[int], limit: int) -> tuple[set[int], int]:
    """Return (the hashes of the `limit` earliest duplicates, the number of duplicates of all other hashes).

    Args:
        repeated: the result of `repeated_hashes`.
        hashes: the hashes in their first order. They are read up to the last of these duplicates.
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
