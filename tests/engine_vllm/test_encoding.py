"""Parts of the plugin's encoder: the groups of chunks, the window of a frame, and the place of encoded rows."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")


from voxbatch.vllm_plugin.encoder_attention import Masked  # noqa: E402
from voxbatch.vllm_plugin.encoder_output_pool import EncoderOutputPool  # noqa: E402
from voxbatch.vllm_plugin.packing import group_chunks, pack  # noqa: E402
from voxbatch.vllm_plugin.patches import gather_mm_embeddings  # noqa: E402

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


def test_one_indexed_copy_equals_slices() -> None:
    """One indexed copy gives each position its own row.

    The requests have different lengths and any order, some with a prompt and some with one position. If a request's
    rows have no place in the pool, the runner's own method is used, which is right for all requests.
    """
    pool, rng = EncoderOutputPool(3, 6, torch.zeros(2)), np.random.default_rng(0)
    kept = {name: pool.store(torch.from_numpy(rng.standard_normal((6, 2), np.float32))) for name in "abcd"}
    gather = gather_mm_embeddings.wrap(lambda *_: ("slices", None))
    done = dict.fromkeys(kept, 0)
    for scheduled in ({"a": 3}, {"a": 1, "b": 4}, {"b": 1, "c": 2, "a": 1}, {"c": 1}, {"c": 1, "a": 1}):
        new = [name for name in scheduled if not done[name]]
        numbers, _ = gather(_runner(pool, kept, scheduled, done), _step(scheduled, new))
        expected = [kept[name][done[name] : done[name] + count] for name, count in scheduled.items()]
        np.testing.assert_array_equal(pool.gather(numbers[0]), torch.cat(expected))
        for name, count in scheduled.items():
            done[name] += count
    with_one_elsewhere = {"a": 1, "d": 2}
    runner = _runner(pool, kept, with_one_elsewhere, done)
    assert gather(runner, _step(with_one_elsewhere, ["d"]))[0] == "slices"


@pytest.mark.parametrize("computed", [0, 2])
def test_admitted_request_gets_the_rows_of_its_remaining_positions(computed: int) -> None:
    """An admitted request gets the rows of the positions that are not computed already.

    A request that is preempted and resumed gets the rows that were encoded anew for it.
    """
    pool, gather = EncoderOutputPool(2, 6, torch.zeros(2)), gather_mm_embeddings.wrap(lambda *_: ("slices", None))
    for again in ((), ("a",)):
        kept = {"a": pool.store(torch.randn(6, 2))}
        step, done = _step({"a": 3}, [] if again else ["a"], again), {"a": computed}
        numbers, _ = gather(_runner(pool, kept, {"a": 3}, done), step)
        np.testing.assert_array_equal(pool.gather(numbers[0]), kept["a"][computed : computed + 3])


def _step(scheduled: dict[str, int], new: Sequence[str], again: Sequence[str] = ()) -> SimpleNamespace:
    """Return a scheduler's output with the fields that the code reads."""
    return SimpleNamespace(
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in new],
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids={*again}),
    )


def _runner(
    pool: EncoderOutputPool, kept: dict[str, Any], scheduled: dict[str, int], done: dict[str, int]
) -> SimpleNamespace:
    """Return a stand-in for vLLM's runner with the fields that the code reads."""
    batch = SimpleNamespace(
        req_ids=list(scheduled), num_computed_tokens_cpu=np.array([done[name] for name in scheduled])
    )
    requests = {name: SimpleNamespace(mm_features=[SimpleNamespace(identifier=f"audio of {name}")]) for name in kept}
    cache = {f"audio of {name}": rows for name, rows in kept.items()}
    return SimpleNamespace(
        get_model=lambda: SimpleNamespace(encoder_output_pool=pool), device=CPU, input_batch=batch, requests=requests,
        encoder_cache=cache,
    )  # fmt: skip


def _on(pool: EncoderOutputPool, rows: Any) -> bool:
    return bool(rows.untyped_storage().data_ptr() == pool._slots.untyped_storage().data_ptr())
