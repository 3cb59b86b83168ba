"""Tests for the intervals of error rates."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from scipy import stats

from voxbatch.scoring.bootstrap import PairedDifference, paired_difference, rate_interval


def corpus(count: int, rate: float, seed: int) -> list[tuple[int, int]]:
    """Return (errors, length) of items of 5 to 30 words of which `rate` are wrong."""
    random = Random(seed)
    lengths = [random.randint(5, 30) for _ in range(count)]
    return [(sum(random.random() < rate for _ in range(length)), length) for length in lengths]


def test_the_interval_is_that_of_a_plain_bootstrap() -> None:
    """SciPy, which resamples item by item, finds the same ends within the noise of a thousand resamples."""
    pairs = corpus(500, 0.1, seed=1)
    errors, lengths = np.array(pairs).T
    expected = stats.bootstrap(
        (errors, lengths),
        lambda e, n, axis: e.sum(axis=axis) / n.sum(axis=axis),
        paired=True, vectorized=True, method="percentile", n_resamples=10_000, rng=np.random.default_rng(1),
    ).confidence_interval  # fmt: skip
    found = rate_interval(Counter(pairs))
    width = expected.high - expected.low
    assert found == pytest.approx((expected.low, expected.high), abs=0.1 * width)


@pytest.mark.slow
def test_the_interval_covers_the_true_rate_in_95_of_100_corpora() -> None:
    """The interval contains the known rate of errors in about 95 % of 400 corpora."""
    covered = 0
    for seed in range(400):
        low, high = rate_interval(Counter(corpus(100, 0.1, seed))) or (1.0, 0.0)
        covered += low <= 0.1 <= high
    assert 0.92 <= covered / 400 <= 0.98


def test_the_interval_does_not_depend_on_the_order() -> None:
    """The same items in any order give the same interval, to the last digit."""
    pairs = corpus(200, 0.1, seed=3)
    assert rate_interval(Counter(pairs)) == rate_interval(Counter(reversed(pairs)))


def test_clusters_whose_items_agree_have_a_wider_interval() -> None:
    """Ten speakers with 20 equal items each say as much as ten items, not as two hundred."""
    speakers = corpus(10, 0.2, seed=4)
    by_item = rate_interval(Counter({pair: 20 * count for pair, count in Counter(speakers).items()}))
    by_speaker = rate_interval(Counter((20 * errors, 20 * length) for errors, length in speakers))
    assert by_item is not None
    assert by_speaker is not None
    assert by_speaker[1] - by_speaker[0] > 3 * (by_item[1] - by_item[0])


@pytest.mark.parametrize("pairs", [{}, {(1, 10): 1}, {(3, 0): 5}])
def test_there_is_no_interval_of_one_item_or_without_reference(pairs: dict[tuple[int, int], int]) -> None:
    """One item does not show how items differ, and without a reference word there is no rate."""
    assert rate_interval(pairs) is None


def test_items_without_reference_count_in_the_interval() -> None:
    """Text that was invented in silence moves the interval up, and a resample of silence alone is left out."""
    assert rate_interval({(0, 10): 1, (4, 0): 1}) == (0.0, 0.4)


def test_a_run_is_no_better_than_itself() -> None:
    """The difference of a run and itself is zero, and the two are equally likely to be better."""
    pairs = corpus(100, 0.1, seed=5)
    assert paired_difference(pairs, pairs) == PairedDifference(0.0, (0.0, 0.0), 0.5, len(pairs))


def test_a_small_difference_on_the_same_items_is_found() -> None:
    """One more error in each tenth item is seen, although the intervals of the two rates overlap."""
    pairs = corpus(300, 0.1, seed=6)
    worse = [(errors + (n % 10 == 0), length) for n, (errors, length) in enumerate(pairs)]
    found = paired_difference(pairs, worse)
    low, high = rate_interval(Counter(pairs)), rate_interval(Counter(worse))
    assert found is not None
    assert found.interval is not None
    assert low is not None
    assert high is not None
    assert low[1] > high[0]
    assert 0 < found.interval[0] < found.difference < found.interval[1]
    assert found.probability_b_better == 0.0


def test_unequal_numbers_of_items_are_refused() -> None:
    """Items must be paired."""
    with pytest.raises(ValueError, match="shorter"):
        paired_difference([(1, 2)], [])
