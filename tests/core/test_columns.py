"""Tests of what a run keeps for each item: columns in files and sets of bits, and the memory of large manifests."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import environment
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.errors import StorageError
from voxbatch.storage import columns
from voxbatch.storage.columns import Column, ItemSet

FLAGS = st.lists(st.booleans(), max_size=70)


def items(flags: list[bool]) -> ItemSet:
    found = ItemSet(len(flags))
    for index, flag in enumerate(flags):
        found[index] = flag
    return found


@given(st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=5), max_size=9), st.integers(1, 8), st.integers(1, 99))
def test_column_gives_back_its_values(parts: list[list[int]], block: int, buffer: int) -> None:
    """A column gives back what was appended, in blocks, after any number of reads, and in another process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "BLOCK", block)
        patch.setattr(columns, "_BUFFER_BYTES", buffer)
        column, expected = Column("<u8"), list[int]()
        for part in parts:
            column.append(np.array(part, np.uint64))
            expected += part
            for each in (column, pickle.loads(pickle.dumps(column))):
                assert np.concatenate([np.empty(0, np.uint64), *(b for _, b in each.blocks())]).tolist() == expected
        assert (len(column), np.asarray(column).tolist()) == (len(expected), expected)


def test_column_has_several_values_for_an_item() -> None:
    """Values of an item stay together, from bytes as from an array."""
    column = Column("<u8", width=2)
    column.append(np.array([[1, 2], [3, 4]], np.uint64))
    column.append(np.array([5, 6], "<u8").tobytes())
    assert len(column) == 3
    assert column.read(1, 3).tolist() == [[3, 4], [5, 6]]


def test_column_has_a_maximum() -> None:
    """A column with a maximum has the other values as they are, and unknown ones stay unknown."""
    column = Column("<f4")
    column.append(np.array([1, 90, 4000, np.nan], np.float32))
    assert np.array_equal(np.asarray(column.at_most(90.0)), np.array([1, 90, 90, np.nan], np.float32), equal_nan=True)
    assert column.at_most(math.inf) is column


def test_column_on_a_full_disk_says_where(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full folder of temporary files is named."""
    monkeypatch.setattr("tempfile.tempdir", str(small_disk))
    with pytest.raises(StorageError, match=f"the list of items: cannot be stored in {small_disk}"):
        Column("<u8").append(np.zeros(1 << 24, np.uint64))


@given(FLAGS.flatmap(lambda a: st.tuples(st.just(a), st.lists(st.booleans(), min_size=len(a), max_size=len(a)))))
def test_sets_of_items_are_those_of_python(given_: tuple[list[bool], list[bool]]) -> None:
    """Union of additions, intersection, difference and count are those of Python's sets."""
    first, second = (items(flags) for flags in given_)
    a, b = ({index for index, flag in enumerate(flags) if flag} for flags in given_)
    for found, expected in ((first, a), (first & second, a & b), (first - second, a - b)):
        assert {index for index, flag in enumerate(found) if flag} == expected
        assert {index for index in range(found.size) if found[index]} == expected
        assert (found.count(), found.any()) == (len(expected), bool(expected))
    first.add(np.array(sorted(b), np.int64))
    assert {index for index, flag in enumerate(first) if flag} == a | b
    full = ItemSet(len(given_[0]), is_full=True)
    assert full.count() == len(given_[0]) == len([*full])


@pytest.mark.slow
def test_memory_hardly_grows_with_the_rows(tmp_path: Path) -> None:
    """Survey, search for duplicates, reserve, membership and resume take less than 5 bytes a row, also for the one task
    that does all. What is sorted at a time is bounded: here it is small, so that a small manifest exceeds it."""
    program = """if True:
        import contextlib, sys, time
        from pathlib import Path
        from voxbatch.config import Config
        from voxbatch.engines import EngineCache
        from voxbatch.log import Log
        from voxbatch.runner import shard
        from voxbatch.runner.prepare import prepare
        from voxbatch.runner.steps import steps_of
        from voxbatch.runner.transcribe import resume
        from voxbatch.storage import columns
        columns.SORTED_HASHES = shard.SORTED_ITEMS = shard.SAMPLE_SIZE = 1 << 13
        config = Config(source=sys.argv[1], out=sys.argv[2], engine="scripted", shards=7)
        with steps_of(config).open(config) as source, contextlib.ExitStack() as resources:
            job = prepare(config, source, EngineCache(), Log(quiet=True), resources)
            resume(job, shard.members(job.durations, 3, 7), time.monotonic())
            resume(job, shard.members(job.durations, 0, 1), time.monotonic())
        print(int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024)
    """
    peaks = []
    for rows in (150_000, 500_000):
        lines = (json.dumps({"audio_filepath": f"{n}.wav", "duration": 1 + n * 7919 % 2900 / 100}) for n in range(rows))
        (tmp_path / f"{rows}.jsonl").write_text("\n".join(lines))
        command = [sys.executable, "-c", program, str(tmp_path / f"{rows}.jsonl"), str(tmp_path / f"out{rows}")]
        peaks.append(int(subprocess.check_output(command, env=environment())))
    assert (peaks[1] - peaks[0]) / 350_000 < 5
