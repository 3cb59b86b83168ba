"""Tests for the rounding of many numbers: each is rounded as Python does it."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from voxbatch.rounding import FEWEST, rounded


@given(
    st.lists(
        st.floats(allow_nan=False, allow_infinity=False)
        | st.floats(-1e5, 1e5)
        | st.builds(lambda thousands: (thousands + 0.5) / 1000, st.integers(-(10**8), 10**8)),
        max_size=2 * FEWEST,
    )
)
@example([-0.0002, 0.0005, 0.0015, 2.675, 1e300, 1.8e305, -1.8e305, -1e12 - 0.0005] * FEWEST)
def test_each_number_is_rounded_as_by_round(values: list[float]) -> None:
    """The numbers have the bits of `round(value, 3)`, also ties, huge numbers and negative zeros."""
    assert list(map(repr, rounded(values))) == [repr(round(value, 3)) for value in values]
