"""Tests for the starts of a dispatcher in a store whose listing lacks what was written last."""

from __future__ import annotations

from pathlib import Path

from lagging_store import LaggingStore

from voxbatch.clouds.listen.starts import claim_start, latest_start
from voxbatch.storage.local import LocalStore


def test_a_start_that_is_not_listed_is_the_latest(tmp_path: Path) -> None:
    """A dispatcher finds the start of another one by its name, so that it can follow it."""
    store = LaggingStore(LocalStore(str(tmp_path / "out")))
    assert latest_start(store) is None
    claimed = [claim_start(store, latest_start(store), "lines") for _ in range(2)]
    assert [start.number for start in claimed if start] == [1, 2]
    assert latest_start(store) == claimed[1]
