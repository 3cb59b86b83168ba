"""Tests for the checkpoint: items in a part are done, exactly once, in whichever process, and never partly."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from outputs import RUN as OUT_RUN
from outputs import keys, owned

from voxbatch.analysis.export import export_items
from voxbatch.analysis.flagged import find_flagged
from voxbatch.analysis.report import write_report
from voxbatch.analysis.results import ResultReader
from voxbatch.config import Config
from voxbatch.errors import CheckpointError, TakenOverError
from voxbatch.output import run_file
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.output.entries import Entries
from voxbatch.output.further_list import RETRYABLE, plan
from voxbatch.output.layout import part_names
from voxbatch.output.lists import ItemList, Listing
from voxbatch.output.merge_again import merge_again
from voxbatch.output.ownership import Ownership
from voxbatch.output.parts import PartEntry, read_header, read_part
from voxbatch.output.reserve import reserve
from voxbatch.output.run_file import create_list
from voxbatch.output.stored_json import json_bytes
from voxbatch.runner.job import Job
from voxbatch.runner.transcribe import resume
from voxbatch.storage import Store, Stores
from voxbatch.storage.columns import Column, ItemSet

ITEMS = 12
RUN = "0123456789abcdef"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def entry(index: int, kind: str = "transcript", **row: object) -> PartEntry:
    return PartEntry(index, kind, json_bytes({"id": f"r{index}", **row}))


def checkpoint(store: Store, shard: int = 0, shards: int = 1, run: str = RUN) -> Checkpoint:
    """Return a loaded Checkpoint of a shard. A missing run.json is written."""
    made = Checkpoint(store, owned(store, run, ITEMS), keys(ITEMS), shard, shards)
    made.load()
    return made


def committed(store: Store) -> list[int]:
    """Return Item.index of every entry in every part, with repetitions."""
    return [entry.index for name in part_names(store) for entry in read_part(store, name)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Stores().out(str(tmp_path / "out"))


BATCHES = st.lists(st.tuples(st.integers(0, 3), st.sets(st.integers(0, ITEMS - 1), min_size=1)), max_size=12)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(BATCHES)
def test_concurrent_commits_store_each_item_once(batches: list[tuple[int, set[int]]]) -> None:
    """If four processes on one shard commit overlapping sets in any order, every item is in exactly one part, and no
    part is empty. A process that loses the race for a part number takes the next one.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = Stores().out(folder)
        checkpoints = [checkpoint(store) for _ in range(4)]
        won: list[int] = []
        parts = 0
        for who, batch in batches:
            new = checkpoints[who].commit([entry(i) for i in batch], 1.0)
            won += [each.index for each in new]
            parts += bool(new)
        wanted = set().union(*(batch for _, batch in batches)) if batches else set()
        assert sorted(committed(store)) == sorted(won) == sorted(wanted)
        assert {i for i, done in enumerate(checkpoint(store).done) if done} == wanted
        assert [name[-10:-6] for name in part_names(store)] == [f"{number:04}" for number in range(parts)]


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(["transcript", "failure"]), st.dictionaries(st.text(), JSON))
def test_entry_is_read_back_byte_for_byte(index: int, kind: str, row: dict[str, object]) -> None:
    """A part returns the bytes of any row, also with lone surrogates and line separators."""
    written = PartEntry(index, kind, json_bytes(row))
    with tempfile.TemporaryDirectory() as folder:
        store = Stores().out(folder)
        big = Checkpoint(store, owned(store, RUN), _EqualKeys("<u8"))
        big.done, big.failed, big.forgotten = _Endless(), _Endless(), _Endless()  # type: ignore[assignment]
        assert big.commit([written], 0.0) == [written]
        assert list(read_part(store, part_names(store)[0])) == [written]
    assert json.loads(written.line) == row


class _EqualKeys(Column):
    """The same key for any item index."""

    def read(self, start: int, stop: int) -> NDArray[np.uint64]:
        return np.zeros((stop - start, 2), np.uint64)


class _Endless(dict[int, int]):
    """A mark for any item index that uses no memory."""

    def __missing__(self, index: int) -> int:
        return 0

    size = 10**10


def test_process_of_an_earlier_list_ends(store: Store) -> None:
    """A process whose list is not the latest any more commits nothing. A part that it has committed late is read with
    the positions of the latest list, so that its items are done.
    """
    run = owned(store, RUN, 3)
    early, late = Checkpoint(store, run, keys(3)), Checkpoint(store, run, keys(3))
    early.commit([entry(0), entry(2, "failure")], 1.0)
    later = replace(run, list_number=2, items=4)
    moved = np.concatenate([keys(5)[[4, 2]], keys(3)[:2]])  # a new item, and those of the first list in another order
    assert create_list(store, later, moved)
    assert not create_list(store, later, keys(4))
    latest = Checkpoint(store, later, moved)
    latest.load()
    assert [i for i in range(4) if latest.done[i]] == [1, 2]
    assert [i for i in range(4) if latest.failed[i]] == [1]
    with pytest.raises(TakenOverError, match="another process continues this OUT"):
        late.commit([entry(1)], 1.0)
    list_file = Path(store.place, "lists/00002.bin")
    content = list_file.read_bytes()
    list_file.unlink()
    assert late.commit([entry(1)], 1.0) == [entry(1)]  # it was suspended after it had looked
    list_file.write_bytes(content)
    assert [each.index for each in latest.commit([entry(0), entry(3)], 1.0)] == [0]
    assert [entry.index for entry in Entries(store, later)] == [0, 1, 2, 3]


def test_list_after_the_hundred_thousandth(store: Store) -> None:
    """The latest list is the one with the highest number, also if its name has more digits."""
    run = owned(store, RUN, ITEMS)
    for number in (99_999, 100_000):
        create_list(store, replace(run, list_number=number), keys(ITEMS))
    latest = run_file.read_existing(store)
    assert latest.list_number == 100_000
    Ownership(store, latest).check()


def test_takeover_between_two_looks_of_a_check_is_named(store: Store) -> None:
    """A check that reads run.json before a takeover, and looks for its list after it, says that OUT was taken over."""
    run = owned(store, RUN, ITEMS)
    exists = store.exists

    def take_over(name: str) -> bool:
        store.exists = exists  # type: ignore[method-assign]
        reserve(store, OUT_RUN, Listing(keys=keys(ITEMS)), overwrite=True)
        return exists(name)

    store.exists = take_over  # type: ignore[method-assign]
    with pytest.raises(TakenOverError, match="took OUT over with --overwrite"):
        Ownership(store, run).check()


def test_later_list_is_named_to_readers(store: Store) -> None:
    """A reader or a worker of a run whose OUT has a later list says so; it does not ask for a repair of the part."""
    run = owned(store, RUN, 1)
    job = SimpleNamespace(config=Config(source="m.jsonl", out=store.place), run=run, keys=keys(1))
    later = replace(run, list_number=2)
    create_list(store, later, keys(1))
    Checkpoint(store, later, keys(1)).commit([entry(0)], 1.0)
    for call in (
        lambda: list(ResultReader(store, run).new_results()),
        lambda: resume(cast(Job, job), ItemSet(1), 0.0),
    ):
        with pytest.raises(TakenOverError, match="another process continues this OUT"):
            call()


def test_late_transcript_of_a_recording_that_is_gone(store: Store) -> None:
    """A transcript that a process of an earlier list commits late, and whose recording is gone, stays: the next start
    adds it to the list. One of several tasks does not read all parts.
    """
    first = replace(OUT_RUN, items=3)
    early = Checkpoint(store, reserve(store, first, Listing(keys=keys(3))).run, keys(3))
    early.commit([entry(0)], 1.0)
    update, listed = replace(first, items=2, manifest="other"), Listing(keys=keys(4)[[0, 3]], is_update=True)
    latest = reserve(store, update, listed).run
    assert (latest.list_number, latest.items) == (2, 2)
    list_file = Path(store.place, "lists/00002.bin")
    content = list_file.read_bytes()
    list_file.unlink()
    early.commit([entry(1)], 1.0)  # it was suspended after it had looked
    list_file.write_bytes(content)
    assert reserve(store, update, replace(listed, shards=2)).run.list_number == 2
    for _ in range(2):
        latest = reserve(store, update, listed).run
        assert (latest.list_number, latest.items) == (3, 3)
    assert [(item.index, item.line) for item in Entries(store, latest)] == [(0, entry(0).line), (2, entry(1).line)]


def test_part_is_in_manifest_order_with_its_range_in_the_header(store: Store) -> None:
    """A part is in manifest order, and its header contains the range, so that a merge opens parts only when needed."""
    checkpoint(store, 3, 16).commit([entry(9), entry(2, "failure"), entry(5)], 1.23456)
    (name,) = part_names(store)
    assert name == "parts/shard-00003-of-00016/part-00000.jsonl"
    header = read_header(store, name)
    assert (header.first, header.last, header.items, header.shard, header.wall_s) == (2, 9, 3, "3/16", 1.235)
    assert [each.index for each in read_part(store, name)] == [2, 5, 9]


def test_resume_reads_parts_of_other_shard_counts(store: Store) -> None:
    """Items done by four shards are done for a run with another number of shards."""
    checkpoint(store, 1, 4).commit([entry(1), entry(5)], 1.0)
    alone = checkpoint(store)
    assert [i for i in range(ITEMS) if alone.done[i]] == [1, 5]
    assert [e.index for e in alone.commit([entry(5), entry(6)], 1.0)] == [6]


def test_parts_of_sibling_shards_are_not_read(store: Store) -> None:
    """Shards of one run have different items: none reads the parts of another, and damage there does not stop it."""
    checkpoint(store, 1, 4).commit([entry(1)], 1.0)
    spoil(store, lambda data: data[:-5])
    assert not any(checkpoint(store, 0, 4).done)


def spoil(store: Store, change: Callable[[bytes], bytes]) -> str:
    """Change the bytes of the only part and return its path."""
    (name,) = part_names(store)
    path = Path(store.place, name)
    path.write_bytes(change(path.read_bytes()))
    return f"{store.place}/{name}"


NO_HEADER = "its first line is not a header"
DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a line more": (lambda data: data + data.splitlines(True)[-1], "line 4 has item 2, which is out of order"),
    "no header": (lambda data: b"".join(data.splitlines(True)[1:]), NO_HEADER),
    "an array": (lambda data: b"[]\n" + data, NO_HEADER),
    "another kind": (lambda data: data.replace(b'"kind":"transcript"', b'"kind":"guess"'), "line 2 is not an entry"),
    "latency": (lambda data: data.replace(b'"latency": null', b'"latency": {"chunk": 1}'), NO_HEADER),
    "items not a number": (lambda data: data.replace(b'"items": 2', b'"items": "2"'), NO_HEADER),
    "shard not a shard": (lambda data: data.replace(b'"shard": "', b'"shard": "x'), NO_HEADER),
    "keys of other items": (lambda data: data.replace(b'"keys": "', b'"keys": "' + b"A" * 24), NO_HEADER),
    "keys that are not base64": (lambda data: data.replace(b'"keys": "', b'"keys": "\\u00e9'), NO_HEADER),
    "nested too deep": (lambda data: b"[" * 100_000 + data, NO_HEADER),
    "index too long": (lambda data: data.replace(b'{"index":2', b'{"index":' + b"9" * 5000), "line 3 is not an entry"),
    "zeros": (lambda data: bytes(len(data)), NO_HEADER),
    "out of range": (lambda data: data.replace(b'{"index":2', b'{"index":99'), "2 entries up to item 99"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_part_is_refused(store: Store, kind: str) -> None:
    """A damaged part is never accepted: the error names the file, the damage and the remedy."""
    checkpoint(store).commit([entry(1), entry(2)], 1.0)
    change, reason = DAMAGE[kind]
    place = spoil(store, change)
    with pytest.raises(CheckpointError) as caught:
        checkpoint(store)
    message = str(caught.value)
    assert message.startswith(place)
    assert reason in message
    assert "delete this part and run again" in message


def test_part_of_a_newer_version_is_not_to_be_deleted(store: Store) -> None:
    """After a rollback, the parts of the newer version are refused as sound: nothing advises to delete them."""
    checkpoint(store).commit([entry(1), entry(2)], 1.0)
    place = spoil(store, lambda data: data.replace(b'"version": 1', b'"version": 9'))
    with pytest.raises(CheckpointError) as caught:
        checkpoint(store)
    assert str(caught.value) == (
        f"{place}: another version of voxbatch wrote it (format 9, and this one reads 1); nothing is damaged: continue "
        "with that version, or choose another OUT with -o"
    )


@pytest.mark.parametrize(("kind", "line"), [("failure", b'{"id": "r0}'), ("transcript", b'{"a":' * 100_000 + b"}")])
def test_line_that_is_no_json_is_refused(store: Store, tmp_path: Path, kind: str, line: bytes) -> None:
    """Each reader of the lines names the damaged part and the remedy, also before the checksum is compared."""
    run = owned(store, RUN, 3)
    Checkpoint(store, run).commit([entry(i, kind) for i in range(3)], 1.0)
    place = spoil(store, lambda data: data.replace(b'{"id": "r0"}', line))
    retrying = replace(run, list_number=2, retryable_before=2)
    readers: list[Callable[[], object]] = [
        lambda: list(ResultReader(store, run).new_results()),
        lambda: export_items(store, str(tmp_path / "items.csv")),
        lambda: write_report(store, str(tmp_path / "report.html")),
        lambda: merge_again(store, {"formats": ["srt"]}),
        lambda: merge_again(store),
    ]
    if kind == "failure":
        readers.append(lambda: list(ItemList(store, retrying, keys(3)).read_part(part_names(store)[0])))
        readers.append(lambda: plan(store, run.key, part_names(store), keys(3), run, RETRYABLE))
    else:
        readers.append(lambda: find_flagged(store, None))
    for read in readers:
        with pytest.raises(CheckpointError, match=r"the line of item 0 is no JSON: .* delete this part") as caught:
            read()
        assert str(caught.value).startswith(place)


def test_part_of_another_run_is_refused(store: Store) -> None:
    """Parts of another manifest or model in the same OUT are refused."""
    checkpoint(store, run="f" * 16).commit([entry(1)], 1.0)
    with pytest.raises(CheckpointError) as caught:
        checkpoint(store)
    part = f"{store.place}/{part_names(store)[0]}"
    assert str(caught.value) == (
        f"{part}: belongs to run {'f' * 16}, this is run {RUN}; remove this part and run again: rm {part}"
    )


@pytest.mark.parametrize("cut", range(0, 260, 7))
def test_part_that_is_cut_off_anywhere_is_refused(store: Store, cut: int) -> None:
    """A part that was cut off at any position is refused."""
    checkpoint(store).commit([entry(1, text="one"), entry(2, text="two")], 1.0)
    size = len(Path(store.place, part_names(store)[0]).read_bytes())
    spoil(store, lambda data: data[: min(cut, size - 1)])
    with pytest.raises(CheckpointError):
        checkpoint(store)
