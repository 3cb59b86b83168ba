"""Tests for kills of the run itself: the item that brings them fails in the end, and no other item does."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ManifestWriter, Voxbatch, environment
from outputs import RUN

from voxbatch.output.attempts import Attempts
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
    for _ in range(12):
        if done.returncode != -signal.SIGKILL:
            break
        assert len(list((tmp_path / "out").rglob("attempt-*"))) == 1, "a killed process leaves its record"
        done = voxbatch(*command, *crashing)
    assert done.returncode == 3, done.stderr
    assert "was killed 3 times while it worked on this item alone" in done.stderr
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


def starts_needed(store: Store, count: int, killers: set[int], part_items: int) -> tuple[int, set[int]]:
    """Return (number of starts, items that failed) of a run whose process is killed by each of these items, when all
    parts before it are committed."""
    left, failures, starts, is_killed = np.ones(count, bool), set[int](), 0, True
    while is_killed:
        starts, is_killed, remaining = starts + 1, False, ItemSet(count)
        remaining.add(np.flatnonzero(left))
        attempts = Attempts(store, RUN, "parts/shard-00000-of-00001")
        for attempt, group in attempts.plan(remaining):
            attempts.record(attempt, is_last=False).create(store)
            items = np.concatenate([start + np.flatnonzero(block) for start, block in group.blocks()])
            if attempt.failure:
                failures.add(attempt.first)
            elif is_killed := not killers.isdisjoint(items.tolist()):
                before = np.flatnonzero(np.isin(items, list(killers)))[0]
                items = items[: before - before % part_items]
            left[items] = False
            if is_killed:
                break
    return starts, failures


@pytest.mark.parametrize("count", [20, 1000, 10_000])
@pytest.mark.parametrize("where", ["side by side", "spread", "at the end"])
def test_starts_grow_linearly_with_the_items_that_kill(tmp_path: Path, count: int, where: str) -> None:
    """Ten items that kill the run fail, and no others, within the number of starts that the documentation gives."""
    number = min(10, count // 2)
    spread = set(range(0, count, count // number)[:number])
    killers = {"side by side": {*range(5, 5 + number)}, "spread": spread, "at the end": {*range(count - number, count)}}
    for part_items in (1, 100):
        store = Stores().out(str(tmp_path / str(part_items)))
        starts, failures = starts_needed(store, count, killers[where], part_items)
        assert failures == killers[where]
        assert starts <= number * (5 + math.ceil(math.log(count, 32))) + 1
