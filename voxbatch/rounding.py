"""Round many numbers to three decimals, the milliseconds of all times."""

from __future__ import annotations

from collections.abc import Sequence

FEWEST = 40
"""Fewest numbers for which numpy is faster."""
_LARGEST = 1e9
"""Largest number whose thousandfold is exact enough to see a tie."""


def rounded(values: Sequence[float]) -> list[float]:
    """Return `round(value, 3)` of each number, in a fifth of the time.

    The nearest thousandth is found by a product, whose error could turn only a tie: these numbers are left to `round`.
    """
    if len(values) < FEWEST:
        return [round(float(value), 3) for value in values]
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):  # an infinite product is not sure
        thousands = np.array(values, np.float64) * 1000
        nearest = np.rint(thousands)
        is_sure = (np.abs(thousands - nearest) < 0.499) & (np.abs(thousands) < _LARGEST * 1000)
    result: list[float] = (nearest / 1000).tolist()
    for at in np.flatnonzero(~is_sure).tolist():
        result[at] = round(float(values[at]), 3)
    return result
