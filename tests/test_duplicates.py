"""Tests for manifest/duplicates.py, which finds hashes that occur more than once."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from voxbatch.manifest.duplicates import DuplicateFinder


@given(
    st.lists(st.integers(-20, 20) | st.integers(-(2**63), 2**63 - 1), max_size=60),
    st.integers(1, 12),
    st.integers(1, 9),
)
def test_earliest_duplicates_are_returned_and_others_counted(values: list[int], share: int, limit: int) -> None:
    """`first` returns the hashes of the first `limit` duplicates and the number of the other duplicates, for every
    share size.
    """
    hashes = DuplicateFinder(share)
    for value in values:
        hashes.append(value)
    repeats = [value for i, value in enumerate(values) if value in values[:i]]
    suspects = set(repeats[:limit])
    others = sum(count - 1 for value, count in Counter(values).items() if value not in suspects)
    assert hashes.first(limit) == (suspects, others)
    hashes.close()


def test_spills_in_blocks() -> None:
    """With more than a block of hashes, those on disk and those in memory are both searched."""
    hashes = DuplicateFinder()
    for value in range(200_000):
        hashes.append(value)
    hashes.append(3)
    hashes.append(150_000)
    assert hashes.first(10) == ({3, 150_000}, 0)
    hashes.close()
