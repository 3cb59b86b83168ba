"""Tests for the status of a run: its time left is what the shards estimated at their last commits."""

from __future__ import annotations

import json
from pathlib import Path

from outputs import owned

from voxbatch.analysis.status import read_status
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.output.parts import PartEntry
from voxbatch.storage import Stores


def failure(index: int) -> PartEntry:
    line = {"id": str(index), "audio_filepath": "a.wav", "error": "AudioError", "retryable": False}
    line |= {"error_kind": "not_found", "message": "gone"}
    return PartEntry(index, "failure", json.dumps(line).encode())


def test_the_time_left_is_that_of_the_slowest_shard(tmp_path: Path) -> None:
    """The latest estimate of each shard counts, and the longest of them; as long as a shard has none, the speed by
    items is taken."""
    store = Stores().out(str(tmp_path / "out"))
    run = owned(store, items=8)
    shards = [Checkpoint(store, run, shard=shard, shards=2) for shard in range(2)]
    shards[0].commit([failure(0)], 10.0, remaining_s=99.0)
    by_items = read_status(store).remaining_s
    assert by_items == 70.0, "1 of 8 items took 10 s"
    shards[1].commit([failure(1)], 10.0, remaining_s=30.0)
    shards[0].commit([failure(2)], 10.0, remaining_s=42.5)
    assert read_status(store).remaining_s == 42.5
