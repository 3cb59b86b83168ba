"""Tests for the leases on OUT: a second process that a person starts on the run of a living one is refused; a dead one
is no obstacle, and tasks of one job share OUT.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from conftest import ManifestWriter, Starter, Voxbatch
from holds import Hold
from waits import Clock

from voxbatch.errors import InUseError
from voxbatch.log import Log
from voxbatch.output import lease
from voxbatch.output.layout import lease_name
from voxbatch.output.lease import Lease, read_lease, work_on
from voxbatch.storage import Store, Stores

SCRIPTED = ("--engine", "scripted", "--log-format", "text", "--decoders", "1", "--part-items", "1")
NAME = lease_name(0, 1)
QUIET = Log(quiet=True)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Stores().out(str(tmp_path / "out"))


def put(store: Store, holder: Lease) -> None:
    store.write(NAME, [json.dumps(asdict(holder)).encode()])


def elsewhere(age_s: float) -> Lease:
    """Return the lease of a process on another machine, with the age of its last heartbeat."""
    return replace(Lease.of_run(), worker="node7:4711:0123abcd", processes="another boot", at=time.time() - age_s)


@pytest.mark.forks_children
def test_a_second_process_is_refused_while_the_first_works(
    manifest: ManifestWriter, start: Starter, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """The second process says at once who works there, since when, and what to do. After a kill of the first one, the
    same command resumes the run at once, and no lease is left."""
    command = ("run", manifest(1, 1.5, 2), "-o", "out", *SCRIPTED)
    hold = Hold(tmp_path / "hold", after=1)
    first = start(*command, *hold.options)
    hold.reached(process=first)
    second = voxbatch(*command)
    assert second.returncode == 1
    assert f"another process works on this run, pid {first.pid} on " in second.stderr
    assert f"stop it with `kill {first.pid}`" in second.stderr
    assert "voxbatch status" in second.stderr
    assert "killed" not in second.stderr
    other_shards = voxbatch(*command, "--shard", "0/2")
    assert other_shards.returncode == 0, other_shards.stderr
    first.kill()
    first.wait()
    done = voxbatch(*command)
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "out").rglob("lease-*"))


@pytest.mark.forks_children
def test_tasks_share_a_shard(manifest: ManifestWriter, start: Starter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A task that a platform starts once more, beside one that is thought to be dead, goes on."""
    command = ("run", manifest(1, 1.5, 2), "-o", "out", *SCRIPTED)
    task = {"CLOUD_RUN_TASK_INDEX": "0", "CLOUD_RUN_TASK_COUNT": "1"}
    hold = Hold(tmp_path / "hold", after=1)
    first = start(*command, *hold.options, env=task)
    hold.reached(process=first)
    assert voxbatch(*command, env=task).returncode == 0
    hold.release()
    first.communicate(timeout=60)


def test_a_process_on_another_machine_is_known_by_its_heartbeat(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease is watched: its renewal refuses the run, and its end, or a while without one, lets it go on."""
    monkeypatch.setattr(lease, "_POLL_S", 0.01)
    monkeypatch.setattr(lease, "WATCH", 0.01)
    for age_s in (3600.0, lease.VALID_S - 0.2):
        put(store, elsewhere(age_s))
        with work_on(store, 0, 1, is_alone=True, log=QUIET):
            own = read_lease(store, NAME)
            assert own is not None
            assert own.is_local
        assert read_lease(store, NAME) is None
    put(store, elsewhere(age_s=0.0))
    renewed = replace(elsewhere(age_s=0.0), at=time.time() + 0.001)
    monkeypatch.setattr("voxbatch.output.lease.time.sleep", lambda _: put(store, renewed))
    with (
        pytest.raises(InUseError, match=r"pid 4711 on node7 since .*stop it on node7"),
        work_on(store, 0, 1, is_alone=True, log=QUIET),
    ):
        pass


@pytest.mark.parametrize("days", [-1, 1])
def test_a_process_whose_clock_is_a_day_off_is_known_by_its_heartbeat(
    store: Store, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """The times of another machine are compared with each other, not with the clock of this one: a lease that is
    renewed belongs to a living process. One that is not renewed for a while is no obstacle, whatever its time."""
    holder = elsewhere(age_s=days * 86_400.0)
    put(store, holder)
    sleep = "voxbatch.output.lease.time.sleep"
    monkeypatch.setattr(sleep, lambda _: put(store, replace(holder, at=holder.at + 20)))
    with pytest.raises(InUseError, match="node7"), work_on(store, 0, 1, is_alone=True, log=QUIET):
        pass
    put(store, holder)
    clock = Clock()
    monkeypatch.setattr("voxbatch.output.lease.time.monotonic", clock.monotonic)

    def wait(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(sleep, wait)
    with work_on(store, 0, 1, is_alone=True, log=QUIET):
        assert lease.VALID_S / lease.HEARTBEATS < clock.now - Clock.now <= lease.VALID_S + 1


def test_a_pipe_in_place_of_a_lease_is_named(store: Store, voxbatch: Voxbatch, manifest: ManifestWriter) -> None:
    """A named pipe, from which a read would wait for ever, is an error with its path and what to do."""
    put(store, elsewhere(age_s=3600.0))
    path = Path(store.place, NAME)
    path.unlink()
    os.mkfifo(path)
    done = voxbatch("run", manifest(1), "-o", "out", *SCRIPTED)
    assert done.returncode == 1
    assert f"cannot read {path}: it is no regular file: move it away" in done.stderr


def test_a_process_id_that_another_process_has_now_is_no_obstacle(store: Store) -> None:
    """A lease of this machine whose process id belongs to a later process is that of a dead one, however young."""
    mine = Lease.of_run()
    put(store, replace(mine, ticks=mine.ticks + 1))
    with work_on(store, 0, 1, is_alone=True, log=QUIET):
        pass
    put(store, mine)
    with pytest.raises(InUseError), work_on(store, 0, 1, is_alone=True, log=QUIET):
        pass


@pytest.mark.parametrize("name", [NAME, lease_name(1, 2)])
def test_the_lease_of_a_process_that_came_meanwhile_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """If two processes have seen the lease of a dead one, the second deletes no lease of the first."""
    dead, living = elsewhere(age_s=3600.0), Lease.of_run()
    store.write(name, [json.dumps(asdict(dead)).encode()])
    read = store.read

    def read_and_come(place: str) -> bytes | None:
        content = read(place)
        if place == name:
            monkeypatch.undo()
            store.write(name, [json.dumps(asdict(living)).encode()])
        return content

    monkeypatch.setattr(store, "read", read_and_come)
    with contextlib.suppress(InUseError), work_on(store, 0, 1, is_alone=True, log=QUIET):
        assert name != NAME
    assert read_lease(store, name) == living


def test_a_lease_that_another_process_acquires_meanwhile_is_not_replaced(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at a dead lease and its replacement, another process may acquire it."""
    living = Lease.of_run()
    put(store, elsewhere(age_s=3600.0))
    write = store.write

    def come_and_write(*arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        put(store, living)
        write(*arguments, **options)

    monkeypatch.setattr(store, "write", come_and_write)
    assert lease.acquire(store, NAME, Lease.of_run()) == living
    assert read_lease(store, NAME) == living


@pytest.mark.parametrize(
    "damage",
    [{"since": 1e300}, {"since": -1e18}, {"processes": "another boot", "good_for_s": 1e308}, {"at": 1e300}],
)
def test_a_lease_with_impossible_values_is_no_obstacle(store: Store, damage: dict[str, Any]) -> None:
    """A lease that no run writes is none: it neither ends a command with a traceback nor is waited for without end."""
    store.write(NAME, [json.dumps({**asdict(Lease.of_run()), **damage}).encode()])
    with work_on(store, 0, 1, is_alone=True, log=QUIET):
        own = read_lease(store, NAME)
    assert own is not None
    assert own.worker.startswith(own.host)
