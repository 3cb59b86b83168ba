"""Find the lines of a manifest whose ids repeat those of earlier lines, by the 64-bit hashes of the ids."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


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
    ordered = np.array(sorted(earliest), np.int64)
    num_found = np.searchsorted(repeated, ordered, "right") - np.searchsorted(repeated, ordered)
    return earliest, len(repeated) - int(num_found.sum())
