"""Tests for manifest/duplicates.py, which finds hashes that occur more than once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.manifest.duplicates import earliest_duplicates
from voxbatch.storage import columns
from voxbatch.storage.columns import Column, repeated_hashes


def column(values: list[int]) -> Column:
    hashes = Column("<i8")
    hashes.append(np.array(values, np.int64))
    return hashes


@given(st.lists(st.integers(-20, 20) | st.integers(-(2**63), 2**63 - 1), max_size=60), st.integers(1, 9))
def test_earliest_duplicates_are_returned_and_others_counted(values: list[int], limit: int) -> None:
    """The hashes of the first `limit` duplicates are returned, and the number of the other duplicates."""
    repeats = [value for i, value in enumerate(values) if value in values[:i]]
    suspects = set(repeats[:limit])
    others = sum(count - 1 for value, count in Counter(values).items() if value not in suspects)
    assert earliest_duplicates(repeated_hashes(column(values)), values, limit) == (suspects, others)


@pytest.mark.slow
def test_duplicates_are_found_among_many_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two duplicates among 200,000 hashes are found, wherever they are, also if they are sorted in groups."""
    monkeypatch.setattr(columns, "SORTED_HASHES", 10_000)
    values = [*range(200_000), 3, 150_000]
    assert earliest_duplicates(repeated_hashes(column(values)), values, 10) == ({3, 150_000}, 0)
