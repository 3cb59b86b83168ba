"""Parts of the plugin's encoder: the groups of chunks, the window of a frame, and the place of encoded rows."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")


from voxbatch.vllm.plugin.encoder_attention import Masked  # noqa: E402
from voxbatch.vllm.plugin.encoder_output_pool import EncoderOutputPool  # noqa: E402
from voxbatch.vllm.plugin.packing import group_chunks, pack  # noqa: E402

CPU = torch.device("cpu")
lengths = st.lists(st.integers(1, 60), min_size=1, max_size=12)


@given(lengths, st.integers(1, 100))
def test_groups(frames: list[int], most: int) -> None:
    """Every chunk is in one group, and no group is larger than the limit unless it is one chunk."""
    found = group_chunks(frames, most)
    assert sorted(index for group in found for index in group) == list(range(len(frames)))
    for group in found:
        assert len(group) == 1 or len(group) * max(frames[i] for i in group) <= most


@settings(max_examples=20)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.integers(1, 12), st.integers(0, 1_000))
def test_a_frame_sees_its_window(frames: list[int], window: int, seed: int) -> None:
    """The output is, for each frame and head, the softmax over the frame and those of its chunk less than a window
    before it."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(sum(frames), 2, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    found = Masked(window, 0.5)(q, k, v, pack(frames, CPU))
    begin = 0
    for count in frames:
        for i in range(begin, begin + count):
            seen = slice(max(begin, i - window + 1), i + 1)
            weights = torch.softmax(torch.einsum("hd,khd->hk", q[i], k[seen]) * 0.5, dim=1)
            torch.testing.assert_close(found[i], torch.einsum("hk,khd->hd", weights, v[seen]))
        begin += count


def test_slot_is_free_when_its_rows_are_forgotten() -> None:
    """A place in the encoder output pool is free when its rows are forgotten.

    A slice does not hold a place. Rows that do not fit lie outside the pool.
    """
    pool = EncoderOutputPool(2, 4, torch.zeros(3))
    rows = [torch.full((count, 3), float(count)) for count in (1, 2, 3, 5)]
    first, second, third = (pool.store(each) for each in rows[:3])
    assert _on(pool, first)
    assert _on(pool, second)
    assert not _on(pool, third)
    part = first[:1]
    del first
    gc.collect()
    assert not _on(pool, pool.store(rows[3]))  # longer than any place
    again = pool.store(rows[2])
    assert _on(pool, again)
    assert part.untyped_storage().data_ptr() == again.untyped_storage().data_ptr()
    np.testing.assert_array_equal(second, rows[1])
    np.testing.assert_array_equal(third, rows[2])
    np.testing.assert_array_equal(again, rows[2])


def _on(pool: EncoderOutputPool, rows: Any) -> bool:
    return bool(rows.untyped_storage().data_ptr() == pool._slots.untyped_storage().data_ptr())
