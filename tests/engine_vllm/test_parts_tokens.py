"""The plugin without some of its parts, as bench_parts.py measures it, gives the same tokens."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from sounds import chunks

pytest_plugins = ["engine_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GROUPS = (
    ("silence", "window_kernel", "gather", "encoder_cache", "encoder_graphs", "quantise_kernel"),
    ("rotary_kernel", "bursts", "shared_prefix", "sample", "bookkeeping", "prepare_input_ids", "fast_path"),
)
"""Parts that are removed together, because a start takes longer than all tokens. Without `rotary_kernel`, other code
lays out the shared silence, so that the second group keeps it."""


@pytest.fixture
def bench_parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return benchmarks/gpu/bench_parts.py as a module."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks" / "gpu")
    return importlib.import_module("bench_parts")


def test_tokens_without_parts(bench_parts: Any, realtime: Path, tmp_path: Path) -> None:
    """No group of removed parts changes a token in float32, and a wrong edit does."""
    from engine_runs import FLOAT32, streamed

    waveforms = chunks(30, 0.5, 8.0)
    wrong = bench_parts.Part((bench_parts.Edit("rotary.py", "left * cos - right * sin", "left * cos + right * sin"),))

    def tokens(*removed: str) -> dict[str, Any]:
        copy = tmp_path / "copy"
        bench_parts.make(copy, removed, {**bench_parts.PARTS, "wrong": wrong})
        found = streamed(
            realtime, waveforms, tmp_path, *FLOAT32, "prefill_encoder=true", "max_num_seqs=28", root=copy
        )  # fmt: skip
        assert found["failures"] == {}
        assert "encoder once a chunk" in found["notices"][1]
        return dict(found["tokens"])

    whole = tokens()
    assert len({token for each in whole.values() for token in each[0]}) >= 50
    assert {name for group in GROUPS for name in group} == set(bench_parts.PARTS)
    for group in GROUPS:
        assert tokens(*group) == whole, group
    assert tokens("wrong") != whole
