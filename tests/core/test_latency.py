"""Tests for latency histograms: their percentiles match those of the durations, however these were
divided among parts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.output.latency import BUCKETS, LONGEST_S, PERCENTILES, RATIO, SHORTEST_S, Histogram, Latency
from voxbatch.output.stored_json import read_json

DURATIONS = st.lists(st.floats(SHORTEST_S, LONGEST_S), min_size=1, max_size=200)


def of(durations: Sequence[float]) -> Histogram:
    made = Histogram()
    for seconds in durations:
        made.add(seconds)
    return made


def merged(*histograms: Histogram) -> Histogram:
    total = Histogram()
    for each in histograms:
        total.update(each)
    return total


@given(DURATIONS, st.sampled_from(PERCENTILES))
def test_percentiles_are_within_half_a_bucket_of_numpys(durations: list[float], percent: int) -> None:
    """Percentiles match NumPy's nearest rank; the middle of a bucket differs by a factor of at most √1.02 from its
    values.
    """
    expected = float(np.percentile(durations, percent, method="inverted_cdf"))
    found = of(durations).percentile(percent)
    assert found is not None
    assert RATIO**-0.5001 <= found / expected <= RATIO**0.5001


@given(DURATIONS, DURATIONS, DURATIONS)
def test_merged_histograms_equal_the_histogram_of_all_durations(
    one: list[float], two: list[float], three: list[float]
) -> None:
    """Merging is associative and commutative, and loses nothing."""
    a, b, c = of(one), of(two), of(three)
    assert merged(a, merged(b, c)) == merged(merged(c, a), b) == of(one + two + three)


@given(DURATIONS)
def test_latency_is_read_back_from_json(durations: list[float]) -> None:
    """A histogram read from a header equals the measured one."""
    latency = Latency(of(durations), of(durations[:1]))
    assert read_json(json.dumps(latency.to_dict()), Latency) == latency


def test_durations_out_of_range_count_in_the_outer_buckets() -> None:
    """Values out of range count in the first or last bucket, so that no histogram has more than BUCKETS entries."""
    assert of([0.0, -1.0, SHORTEST_S]) == {0: 3}
    assert of([LONGEST_S, 1e9]) == {BUCKETS - 1: 2}
    assert of(list(np.geomspace(1e-6, 1e7, 20_000))).keys() == set(range(BUCKETS))
