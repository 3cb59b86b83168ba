"""Tests for kills of the run itself: the item that brings them fails in the end, and no other item does."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from conftest import ManifestWriter, Voxbatch, environment
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outputs import RUN
from scripted_engine import KILL_ALL

from voxbatch.output import attempts
from voxbatch.output.attempts import AttemptRecord, AttemptRecorder, Attempts
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.output.layout import attempt_numbers
from voxbatch.storage import Store, Stores
from voxbatch.storage.columns import ItemSet

SETTINGS = ("--engine", "scripted", "--decoders", "1", "--part-items", "4", "--engine-option", "crash_signal=9")
"""The scripted engine runs in the process of the run, so that its SIGKILL ends everything, as the kernel ends a
container without memory."""
NOISE = -2


def failed(out: Path) -> dict[int, str]:
    path = out / "failures.jsonl"
    return (
        {row["line"]: row["error"] for row in map(json.loads, path.read_text().splitlines())} if path.exists() else {}
    )


@pytest.mark.slow
def test_an_item_that_kills_the_run_fails_alone(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """After some starts, the item that kills every process of the run is a failure, the others are transcribed, and
    no record is left. `--retry-failed all` tries the item again."""
    command = ("run", manifest(*[0.5] * 20), "-o", "out", *SETTINGS)
    crashing = ("--engine-option", "crash_items=9")
    done = voxbatch(*command, *crashing)
    for _ in range(4):
        assert done.returncode == -signal.SIGKILL
        assert len(list((tmp_path / "out").rglob("attempt-*"))) == 1, "a killed process leaves its record"
        done = voxbatch(*command, *crashing)
    assert done.returncode == 3, done.stderr
    assert "was killed 2 times while it worked on this item alone" in done.stderr
    assert failed(tmp_path / "out") == {10: "CrashError"}
    assert len((tmp_path / "out" / "transcripts.jsonl").read_text().splitlines()) == 19
    assert not list((tmp_path / "out").rglob("attempt-*"))
    assert voxbatch(*command, "--retry-failed", "all").returncode == 0


@pytest.mark.slow
def test_a_machine_that_kills_every_run_blames_no_item(
    manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """If a second of noise also ends the process, no item fails, however often the run is started."""
    command = ("run", manifest(0.5, 0.6), "-o", "out", *SETTINGS)
    for _ in range(7):
        done = voxbatch(*command, "--engine-option", f"crash_items=0,1,{NOISE}")
        assert done.returncode == -signal.SIGKILL, done.stderr
    done = voxbatch(*command)
    assert done.returncode == 0, done.stderr
    assert failed(tmp_path / "out") == {}


@pytest.mark.slow
def test_a_kill_that_the_next_start_survives_changes_nothing(
    manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """The start after a kill works on all items at once, and with three workers as before."""
    command = ("run", manifest(*[0.5] * 20), "-o", "out", *SETTINGS)
    assert voxbatch(*command, "--engine-option", "kill_after=6").returncode == -signal.SIGKILL
    done = voxbatch(*command, "--engine-option", "workers=3")
    assert done.returncode == 0, done.stderr
    assert "killed" not in done.stderr
    assert not list((tmp_path / "out").rglob("attempt-*"))


KILLED_AT_COMMITS = """
import os, signal
from voxbatch import cli
from voxbatch.output.checkpoint import Checkpoint

Checkpoint.commit = lambda *arguments, **options: os.kill(os.getpid(), signal.SIGKILL)
cli.main()
"""


@pytest.mark.slow
def test_kills_between_a_result_and_its_commit_blame_no_item(
    manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """An item whose result is there is not to blame for a kill, however often the kills come before the commit."""
    command = ("run", manifest(0.5), "-o", "out", *SETTINGS)
    for _ in range(7):
        start = [sys.executable, "-c", KILLED_AT_COMMITS, *map(str, command)]
        assert subprocess.run(start, cwd=tmp_path, env=environment(), check=False).returncode == -signal.SIGKILL
    assert voxbatch(*command).returncode == 0
    assert not failed(tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("crash_signal", [KILL_ALL, signal.SIGKILL])
def test_five_starts_with_three_workers(
    manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path, crash_signal: int
) -> None:
    """Kubernetes retries six times, and Cloud Run five: an item that kills the whole run, or each worker that has it,
    costs five starts with three workers, too, whatever the other workers commit meanwhile."""
    command = ("run", manifest(*[0.5] * 60), "-o", "out", *SETTINGS)
    options = {"crash_items": 30, "crash_signal": int(crash_signal), "workers": 3, "delay_s": 0.02}
    extra = [word for name, value in options.items() for word in ("--engine-option", f"{name}={value}")]
    codes = [voxbatch(*command, *extra).returncode for _ in range(5)]
    assert codes[-1] == 3
    assert all(code in (1, -signal.SIGKILL) for code in codes[:4])
    assert failed(tmp_path / "out") == {31: "CrashError"}
    assert not list((tmp_path / "out").rglob("attempt-*"))


FOLDER = "parts/shard-00000-of-00001"


@dataclass
class Process:
    """A simulated process: it begins its items as its recorder permits, finishes them in any order, and commits."""

    recorder: AttemptRecorder
    left: deque[int]
    done: ItemSet
    is_on_trial: bool
    part_items: int
    flight: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    has_begun: bool = False

    def step(self, dice: random.Random, concurrency: int, killers: frozenset[int]) -> bool:
        """Begin, finish or commit items. Return whether an item kills the process."""
        if self.left and len(self.flight) < concurrency and self.recorder.admits(self.left[0]):
            self.recorder.enter(self.left[0])
            self.flight.append(self.left.popleft())
        elif self.flight:
            if not self.has_begun:
                self.recorder.begin()
                self.has_begun = True
            item = dice.choice(self.flight)
            if item in killers:
                return True
            self.flight.remove(item)
            self.finished.append(item)
        if len(self.finished) >= self.part_items or self.recorder.is_closed or not (self.left or self.flight):
            self.commit()
        return False

    def commit(self) -> None:
        if self.is_on_trial:
            self.recorder.acquit(self.finished)
        for item in self.finished:
            self.done[item] = True
        self.finished.clear()

    @property
    def is_over(self) -> bool:
        return not (self.left or self.flight or self.finished)


@dataclass
class Simulation:
    """Starts of a run of which items, and somebody from outside, kill all processes."""

    store: Store
    count: int
    killers: frozenset[int]
    workers: int = 1
    concurrency: int = 4
    part_items: int = 5
    outside: Collection[int] = ()
    """Numbers of the steps at which all processes are killed."""
    seed: int = 0
    starts: int = 0
    steps: int = 0
    failures: set[int] = field(default_factory=set)

    def run(self) -> None:
        """Start the run until it ends by itself."""
        dice, done = random.Random(self.seed), ItemSet(self.count)
        is_killed = True
        while is_killed:
            self.starts, is_killed = self.starts + 1, False
            records = Attempts(self.store, RUN, FOLDER)
            for attempt, group in records.plan(ItemSet(self.count, is_full=True) - done):
                record = records.record(attempt, is_last=False)
                if attempt.failure:
                    assert attempt.first == attempt.last
                    self.failures.add(attempt.first)
                    done[attempt.first] = True
                elif is_killed := self._is_killed(record, group, done, dice):
                    break
            if not is_killed:
                records.clear()
        assert all(done)
        assert not attempt_numbers(self.store, FOLDER)

    def _is_killed(self, record: AttemptRecord, group: ItemSet, done: ItemSet, dice: random.Random) -> bool:
        """Do the items of an attempt. Return whether a kill ends it."""
        indexes = [index for index, is_in in enumerate(group) if is_in]
        processes, workers = list[Process](), self.workers if record.attempt.width is None else 1
        for worker in range(workers):
            share = ItemSet(self.count)
            share.add(np.array(indexes[worker::workers], np.int64))
            checkpoint = cast(Checkpoint, SimpleNamespace(store=self.store, done=done, worker=worker))
            recorder = AttemptRecorder(record, share, checkpoint, self.concurrency)
            own = deque(indexes[worker::workers])
            part_items = record.attempt.width or self.part_items
            processes.append(Process(recorder, own, done, record.attempt.width is not None, part_items))
        while busy := [process for process in processes if not process.is_over]:
            self.steps += 1
            if dice.choice(busy).step(dice, self.concurrency, self.killers) or self.steps in self.outside:
                return True
        for process in processes:
            process.recorder.clear()
        return False


def test_a_worker_of_an_earlier_start_hides_no_kill(tmp_path: Path) -> None:
    """A worker that outlives its killed run writes a record after that of the next start, which is killed, too."""
    store, everything, done = Stores().out(str(tmp_path)), ItemSet(3, is_full=True), ItemSet(3)

    def recorder(worker: int) -> AttemptRecorder:
        records = Attempts(store, RUN, FOLDER)
        ((attempt, group),) = records.plan(everything)
        checkpoint = cast(Checkpoint, SimpleNamespace(store=store, done=done, worker=worker))
        return AttemptRecorder(records.record(attempt, is_last=True), group, checkpoint, concurrency=1)

    first = recorder(worker=0)
    first.begin()
    first.enter(0)
    second = recorder(worker=0)
    second.begin()
    second.enter(0)
    first.enter(0)
    first.begin()
    assert len(attempt_numbers(store, FOLDER)) == 2
    attempt, group = next(Attempts(store, RUN, FOLDER).plan(everything))
    assert (attempt.width, group.count()) == (1, 3), "two kills"


@pytest.fixture
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the windows so short that they matter for some items."""
    for name, value in (("WINDOW", 8), ("CAREFUL_WINDOW", 2), ("CAREFUL_BEGUN", 1)):
        monkeypatch.setattr(attempts, name, value)


few = st.frozensets(st.integers(0, 59), max_size=4)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.integers(1, 60), few, st.integers(1, 3), st.integers(1, 8), st.integers(1, 20), st.integers(0, 10**6))
def test_each_item_that_kills_costs_four_starts(
    short_windows: None, count: int, killers: frozenset[int], workers: int, concurrency: int, part_items: int, seed: int
) -> None:
    """Wherever the items are, and whatever is committed meanwhile: only these fail, after four kills each."""
    killers = frozenset(item for item in killers if item < count)
    with tempfile.TemporaryDirectory() as folder:
        store = Stores().out(folder)
        simulation = Simulation(store, count, killers, workers, concurrency, part_items, seed=seed)
        simulation.run()
    assert simulation.failures == killers
    assert simulation.starts <= 4 * len(killers) + 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.integers(1, 60), few, st.integers(1, 3), st.integers(1, 8), st.integers(1, 400), st.integers(0, 10**6))
def test_a_kill_from_outside_blames_nobody(
    short_windows: None, count: int, killers: frozenset[int], workers: int, concurrency: int, outside: int, seed: int
) -> None:
    """At any moment of the search, also while an innocent item is alone. It costs a search at most."""
    killers = frozenset(item for item in killers if item < count)
    with tempfile.TemporaryDirectory() as folder:
        store = Stores().out(folder)
        simulation = Simulation(store, count, killers, workers, concurrency, outside={outside}, seed=seed)
        simulation.run()
    assert simulation.failures == killers
    assert simulation.starts <= 4 * (len(killers) + 1) + 1


@given(st.integers(1, 60), st.sets(st.integers(1, 400), max_size=30), st.integers(1, 3), st.integers(0, 10**6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_many_kills_from_outside_blame_an_item_only_if_two_find_it_alone(
    short_windows: None, count: int, outside: set[int], workers: int, seed: int
) -> None:
    """Kills that come now and then end every start, and the run comes to its end all the same."""
    with tempfile.TemporaryDirectory() as folder:
        simulation = Simulation(Stores().out(folder), count, frozenset(), workers, outside=outside, seed=seed)
        simulation.run()
    assert len(simulation.failures) <= len(outside) // 4
    assert simulation.starts <= len(outside) + 1


@pytest.mark.slow
@pytest.mark.parametrize("count", [1000, 10_000])
@pytest.mark.parametrize("where", ["side by side", "spread", "at the end"])
def test_starts_grow_linearly_with_the_items_that_kill(tmp_path: Path, count: int, where: str) -> None:
    """Ten items that kill the run fail, and no others, within the number of starts that the documentation gives."""
    spread = frozenset(range(0, count, count // 10))
    killers = {"side by side": range(5, 15), "spread": spread, "at the end": range(count - 10, count)}[where]
    simulation = Simulation(Stores().out(str(tmp_path)), count, frozenset(killers), 3, concurrency=100, part_items=200)
    simulation.run()
    assert simulation.failures == set(killers)
    assert simulation.starts <= 4 * 10 + 1
