"""Estimate by resampling how far an error rate would move with other recordings of the same kind.

The bootstrap draws as many items as there are, with replacement, a thousand times, and takes the percentiles of the
rates (M. Bisani and H. Ney, "Bootstrap estimates for confidence intervals in ASR performance evaluation", ICASSP 2004).
Items with the same errors and the same length are exchangeable. So one resample is one draw from a multinomial
distribution over the distinct pairs, and a million items need no more memory than their distinct pairs.

If items belong together (a speaker, a meeting), their errors do too, and an interval by item is too narrow: add up
the items of each cluster, and resample the clusters. The module does not group; it takes sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000
"""Number of resamples, as Efron and Tibshirani recommend for percentile intervals (An Introduction to the Bootstrap,
1993, section 19.3)."""
CONFIDENCE = 0.95
"""Part of the resampled rates that lies in the interval."""
FEW_UNITS = 20
"""Number of units from which an interval says that a difference is certain. Percentiles of fewer are too narrow: of
eight items of which four are better and none is worse, an exact sign test has p = 0.125, and the interval excludes
zero."""
_SEED = 2004
"""Seed of every bootstrap, so that the same corpus has the same interval everywhere."""
_BLOCK = 1_000_000
"""Most numbers of a block of resamples in memory: 8 MB."""
_REMEMBERED = 16
"""Corpora whose interval is remembered: that of a corpus in one language is asked for as its total and by language."""

Pair = tuple[int, int]
"""(errors, reference length) of an item or a cluster."""


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The difference of two error rates over the same items."""

    difference: float
    """The rate of B minus the rate of A: negative if B is better."""
    interval: tuple[float, float] | None
    """95 % interval of the difference. None with fewer than two units."""
    probability_b_better: float | None
    """Part of the resamples in which the rate of B is lower. Equal rates count half. None with fewer than two units."""
    units: int = 0
    """Number of items, or of clusters, that were resampled."""

    @property
    def has_sign(self) -> bool:
        """Return whether the interval excludes zero."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]

    @property
    def is_certain(self) -> bool:
        """Return whether the interval excludes zero, and is one of enough units."""
        return self.has_sign and self.units >= FEW_UNITS


def rate_interval(pairs: Mapping[Pair, int]) -> tuple[float, float] | None:
    """Return the 95 % interval of the rate errors / reference length over a corpus.

        rate_interval({(0, 10): 90, (5, 10): 10})   →  about (0.025, 0.08), around the rate 0.05

    Args:
        pairs: (errors, reference length) of each item, or of each cluster, with the number of those that have it.

    Returns:
        The ends of the interval. None with fewer than two units, or without reference text.
    """
    if sum(pairs.values()) < 2 or not any(length for _, length in pairs):
        return None
    return _rate_interval(frozenset(pairs.items()))


@lru_cache(_REMEMBERED)
def _rate_interval(pairs: frozenset[tuple[Pair, int]]) -> tuple[float, float]:
    errors, lengths = _resampled_sums(pairs)
    return _interval(errors[lengths > 0] / lengths[lengths > 0])


def paired_difference(pairs_a: Iterable[Pair], pairs_b: Iterable[Pair]) -> PairedDifference | None:
    """Return how much the error rate of B differs from that of A on the same items.

    Both rates come from the same resampled items, so that the difference does not depend on which items are hard.

    Args:
        pairs_a: (errors, reference length) of each item, or of each cluster, in A.
        pairs_b: those of the same items or clusters in B, in the same order.

    Returns:
        The difference. None if A or B has no reference text.

    Raises:
        ValueError: A and B have different numbers of items.
    """
    units = Counter((*a, *b) for a, b in zip(pairs_a, pairs_b, strict=True))
    errors_a, length_a, errors_b, length_b = (sum(unit[k] * count for unit, count in units.items()) for k in range(4))
    if not length_a or not length_b:
        return None
    difference = errors_b / length_b - errors_a / length_a
    if units.total() < 2:
        return PairedDifference(difference, None, None, units.total())
    sums = _resampled_sums(units.items())
    e_a, l_a, e_b, l_b = sums[:, (sums[1] > 0) & (sums[3] > 0)]
    differences = e_b / l_b - e_a / l_a
    better = float((differences < 0).mean() + (differences == 0).mean() / 2)
    return PairedDifference(difference, _interval(differences), better, units.total())


def _resampled_sums(units: Iterable[tuple[tuple[int, ...], int]]) -> NDArray[np.int64]:
    """Return the sums over the units of each resample: one row for each number of a unit, one column a resample.

    Args:
        units: distinct units, each with its count.
    """
    values, counts = zip(*sorted(units), strict=True)  # sorted: a corpus in any order has the same resamples
    total = sum(counts)
    # RandomState, because NumPy promises that its numbers stay the same in all versions.
    random, weights = np.random.RandomState(_SEED), np.array(counts) / total
    blocks, rows = [], max(1, _BLOCK // len(values))
    for first in range(0, RESAMPLES, rows):
        drawn = random.multinomial(total, weights, size=min(rows, RESAMPLES - first))
        blocks.append(drawn @ np.array(values, dtype=np.int64))
    return np.concatenate(blocks).T


def _interval(rates: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(rates, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]).tolist()
    return low, high
