"""Tests for the status of a run: its time left is what the shards estimated at their last commits."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from conftest import ManifestWriter, Starter, Voxbatch
from holds import Hold
from outputs import owned
from waits import Clock

from voxbatch.analysis.status import StatusReader, read_status
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.output.layout import lease_name
from voxbatch.output.lease import VALID_S, Lease
from voxbatch.output.merge_again import merge_again
from voxbatch.output.parts import PartEntry
from voxbatch.output.stored_json import json_bytes
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


def test_the_audio_left_is_that_of_the_items_left(tmp_path: Path) -> None:
    """The audio left is estimated from the items that are left, as each process saw them at its last commit: those that
    are done may be shorter, or have failed."""
    store = Stores().out(str(tmp_path / "out"))
    run = owned(store, items=8)
    shards = [Checkpoint(store, run, shard=shard, shards=2) for shard in range(2)]
    shards[0].commit([failure(0)], 10.0)
    assert read_status(store).remaining_audio_s is None
    shards[0].commit([failure(1)], 10.0, remaining_item_s=20.0)
    shards[1].commit([failure(2)], 10.0, remaining_item_s=30.0)
    assert read_status(store).remaining_audio_s == 5 * 25.0


@pytest.mark.forks_children
def test_status_tells_the_living_from_the_dead(
    manifest: ManifestWriter, start: Starter, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """The status names the process that works, also one that was killed, and says how to go on; after a stop it says
    that none works."""
    command = ("run", manifest(1, 1.5, 2), "-o", "out", "--engine", "scripted", "--decoders", "1", "--part-items", "1")
    hold = Hold(tmp_path / "hold", after=1)
    running = start(*command, *hold.options)
    hold.reached(process=running)
    assert f"at work: pid {running.pid} on " in voxbatch("status", "out").stdout
    (worker,) = json.loads(voxbatch("status", "out", "--json").stdout)["workers"]
    assert (worker["shard"], worker["pid"], worker["lives"]) == ("0/1", running.pid, True)
    running.kill()
    running.wait()
    killed = voxbatch("status", "out").stdout
    assert f"not at work: pid {running.pid} on " in killed
    assert "was killed; the same command resumes the run" in killed
    assert "from the last commit on" not in killed
    (tmp_path / "out" / lease_name(0, 1)).unlink()
    assert "no process works on it; the same command resumes the run" in voxbatch("status", "out").stdout
    assert voxbatch(*command).returncode == 0
    assert "work" not in voxbatch("status", "out").stdout


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_process_elsewhere_is_known_by_its_heartbeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, voxbatch: Voxbatch, hours: int
) -> None:
    """One look says that it judges by the clock of this machine. A reader that has seen two heartbeats of a machine
    whose clock is wrong knows the process to be alive, and to be dead when none follows."""
    store, clock = Stores().out(str(tmp_path / "out")), Clock()
    owned(store)
    monkeypatch.setattr("voxbatch.analysis.status.time.monotonic", clock.monotonic)
    at = time.time() + hours * 3600
    holder = replace(Lease.of_run(), worker="node7:4711:0123abcd", processes="another boot", since=at - 100)

    def lives(at: float) -> tuple[bool, bool]:
        store.write(lease_name(0, 1), [json_bytes(asdict(replace(holder, at=at)))])
        (worker,) = reader.read().workers
        return worker.lives, worker.by_clock

    reader = StatusReader(store)
    assert lives(at) == (False, True)
    line = next(line for line in voxbatch("status", "out").stdout.splitlines() if "node7" in line)
    assert line.startswith("probably not at work: pid 4711 on node7 since ")
    assert line.endswith(" s ago by the clock of this machine; if it was killed, the same command resumes the run")
    assert lives(at) == (False, True)
    assert lives(at + 20) == (True, False)
    clock.now += VALID_S + 1
    assert lives(at + 20) == (False, False)


def test_an_item_that_two_shardings_have_counts_once(tmp_path: Path) -> None:
    """Processes of two shardings that work at the same time may commit an item each. It is one item, while the run is
    in progress, and when it is finished."""
    store = Stores().out(str(tmp_path / "out"))
    run = owned(store, items=4)
    whole, half = Checkpoint(store, run), Checkpoint(store, run, shard=0, shards=2)
    whole.commit([failure(0), failure(1)], 10.0)
    half.commit([failure(0), failure(2)], 10.0)
    status = read_status(store)
    assert (status.committed, status.failed, status.failures_by_kind) == (3, 3, {"not_found": 3})
    assert [(shard.shard, shard.items) for shard in status.shards] == [("0/1", 2), ("0/2", 2)]
    whole.commit([failure(3)], 10.0)
    merge_again(store)
    status = read_status(store)
    assert (status.finished, status.items, status.committed, status.failed) == (True, 4, 4, 4)
