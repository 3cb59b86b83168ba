"""Tests for the checkpoint: items in a part are done, exactly once, in whichever process, and never partly."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outputs import owned

from voxbatch.errors import CheckpointError
from voxbatch.latency import Latency
from voxbatch.output.checkpoint import Checkpoint, PartEntry, encode_line, part_names, read_header, read_part
from voxbatch.storage import Store, open_store

ITEMS = 12
RUN = "0123456789abcdef"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def entry(index: int, kind: str = "transcript", **row: object) -> PartEntry:
    return PartEntry(index, kind, encode_line({"id": f"r{index}", **row}))


def checkpoint(store: Store, shard: int = 0, shards: int = 1, run: str = RUN) -> Checkpoint:
    """Return a loaded Checkpoint of a shard. A missing run.json is written."""
    made = Checkpoint(store, owned(store, run, ITEMS), ITEMS, shard, shards)
    made.load()
    return made


def committed(store: Store) -> list[int]:
    """Return Item.index of every entry in every part, with repetitions."""
    return [each.index for name in part_names(store) for each in read_part(store, name)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "out"))


BATCHES = st.lists(st.tuples(st.integers(0, 3), st.sets(st.integers(0, ITEMS - 1), min_size=1)), max_size=12)


@settings(max_examples=40, deadline=None)
@given(BATCHES)
def test_concurrent_commits_store_each_item_once(batches: list[tuple[int, set[int]]]) -> None:
    """If four processes on one shard commit overlapping sets in any order, every item is in exactly one part."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(folder)
        checkpoints = [checkpoint(store) for _ in range(4)]
        won: list[int] = []
        for who, batch in batches:
            won += [each.index for each in checkpoints[who].commit([entry(i) for i in batch], 1.0)]
        wanted = set().union(*(batch for _, batch in batches)) if batches else set()
        assert sorted(committed(store)) == sorted(won) == sorted(wanted)
        assert {i for i, done in enumerate(checkpoint(store).done) if done} == wanted


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(["transcript", "failure"]), st.dictionaries(st.text(), JSON))
def test_entry_is_read_back_byte_for_byte(index: int, kind: str, row: dict[str, object]) -> None:
    """A part returns the bytes of any row, also with lone surrogates and line separators."""
    written = PartEntry(index, kind, encode_line(row))
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(folder)
        big = Checkpoint(store, owned(store, RUN), 0)
        big.done, big.failed = _Endless(), _Endless()  # type: ignore[assignment]
        assert big.commit([written], 0.0) == [written]
        assert list(read_part(store, part_names(store)[0])) == [written]
    assert json.loads(written.line) == row


class _Endless(dict[int, int]):
    """A mark for any item index that uses no memory."""

    def __missing__(self, index: int) -> int:
        return 0

    size = 10**10


def test_commit_that_loses_a_part_number_skips_the_items_of_that_part(store: Store) -> None:
    """A process that loses the race for a part number marks the winner's items as done and commits the rest under the
    next number.
    """
    first, second = checkpoint(store), checkpoint(store)
    assert len(first.commit([entry(1), entry(2)], 1.0)) == 2
    assert [each.index for each in second.commit([entry(2), entry(3)], 1.0)] == [3]
    assert second.done[1]
    assert [name[-10:] for name in part_names(store)] == ["0000.jsonl", "0001.jsonl"]


def test_loading_again_marks_items_of_other_processes(store: Store) -> None:
    """Loading again marks the items that others committed, and finds the next free part number."""
    watching, working = checkpoint(store), checkpoint(store)
    working.commit([entry(1)], 1.0)
    working.commit([entry(2)], 1.0)
    assert not any(watching.done)
    watching.load()
    assert [i for i in range(ITEMS) if watching.done[i]] == [1, 2]
    watching.commit([entry(3)], 1.0)
    assert len(part_names(store)) == 3


def test_commit_of_done_items_writes_no_part(store: Store) -> None:
    """A commit of items that are all done writes no part."""
    mine = checkpoint(store)
    mine.commit([entry(1)], 1.0)
    assert mine.commit([entry(1)], 1.0) == []
    assert len(part_names(store)) == 1


def test_part_is_in_manifest_order_with_its_range_in_the_header(store: Store) -> None:
    """A part is in manifest order, and its header contains the range, so that a merge opens parts only when needed."""
    checkpoint(store, 3, 16).commit([entry(9), entry(2, "failure"), entry(5)], 1.23456)
    (name,) = part_names(store)
    assert name == "parts/shard-00003-of-00016/part-00000.jsonl"
    header = read_header(store, name)
    assert (header.first, header.last, header.items, header.shard, header.wall_s) == (2, 9, 3, "3/16", 1.235)
    assert [each.index for each in read_part(store, name)] == [2, 5, 9]


def measured() -> Latency:
    latency = Latency()
    for seconds in (0.5, 2.64, 2.65):
        latency.chunk.add(seconds)
    latency.item.add(6.0)
    return latency


def test_header_keeps_latency_and_peak_memory(store: Store) -> None:
    """Latencies and peak memory are read back as committed; without a measurement they are None."""
    made = checkpoint(store)
    made.commit([entry(1)], 1.0, measured(), 14_500_000_000)
    made.commit([entry(2)], 1.0)
    with_all, without = (read_header(store, name) for name in part_names(store))
    assert (with_all.latency, with_all.peak_gpu_bytes) == (measured(), 14_500_000_000)
    assert (without.latency, without.peak_gpu_bytes) == (None, None)


def test_part_of_older_version_is_read(store: Store) -> None:
    """Parts from before latencies or workers were recorded are still read."""
    checkpoint(store).commit([entry(1)], 1.5)
    spoil(store, lambda data: re.sub(rb', "worker".*?}\n', b"}\n", data, count=1))
    (name,) = part_names(store)
    header = read_header(store, name)
    assert (header.wall_s, header.worker, header.latency, header.peak_gpu_bytes) == (1.5, 0, None, None)
    assert committed(store) == [1]
    assert checkpoint(store).done[1]


def test_resume_marks_failed_items(store: Store) -> None:
    """A resumed run knows which finished items had failed, because its exit code covers all items."""
    checkpoint(store).commit([entry(1), entry(2, "failure")], 1.0)
    again = checkpoint(store)
    assert [i for i in range(ITEMS) if again.failed[i]] == [2]


def test_resume_reads_parts_of_other_shard_counts(store: Store) -> None:
    """Items done by four shards are done for a run with another number of shards."""
    checkpoint(store, 1, 4).commit([entry(1), entry(5)], 1.0)
    alone = checkpoint(store)
    assert [i for i in range(ITEMS) if alone.done[i]] == [1, 5]
    assert [e.index for e in alone.commit([entry(5), entry(6)], 1.0)] == [6]


def test_parts_of_sibling_shards_are_not_read(store: Store) -> None:
    """Shards of one run contain different items, so none reads the parts of another, and damage
    there does not stop it.
    """
    checkpoint(store, 1, 4).commit([entry(1)], 1.0)
    spoil(store, lambda data: data[:-5])
    assert not any(checkpoint(store, 0, 4).done)


def test_deleted_part_reopens_its_items_only(store: Store) -> None:
    """The remedy for a damaged part is to delete it: its items are open again, and the others stay done."""
    first = checkpoint(store)
    for i in range(4):
        first.commit([entry(i)], 1.0)
    Path(store.place, part_names(store)[1]).unlink()
    again = checkpoint(store)
    assert [i for i in range(ITEMS) if again.done[i]] == [0, 2, 3]
    again.commit([entry(i) for i in range(6)], 1.0)
    assert sorted(committed(store)) == [0, 1, 2, 3, 4, 5]


def test_only_last_shard_finds_all_shards_complete(store: Store) -> None:
    """Only the last shard finds all shards complete; completing twice counts once."""
    shards = [checkpoint(store, i, 3) for i in range(3)]
    seen = []
    for each in shards:
        each.mark_complete(4)
        each.mark_complete(4)
        seen.append(each.are_all_complete())
    assert seen == [False, False, True]
    assert not checkpoint(store).are_all_complete()


def spoil(store: Store, change: object) -> str:
    """Change the bytes of the only part and return its path."""
    (name,) = part_names(store)
    path = Path(store.place, name)
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    return f"{store.place}/{name}"


DAMAGE = {
    "empty": (lambda data: b"", "its first line is not a header: b''"),
    "cut off": (lambda data: data[:-5], "line 3 is not an entry"),
    "a line short": (
        lambda data: b"".join(data.splitlines(True)[:-1]),
        "1 entries up to item 1, but its",
    ),
    "a line more": (lambda data: data + data.splitlines(True)[-1], "line 4 has item 2, which is out of order"),
    "no header": (lambda data: b"".join(data.splitlines(True)[1:]), "its first line is not a header"),
    "an array": (lambda data: b"[]\n" + data, "its first line is not a header"),
    "another version": (lambda data: data.replace(b'"version": 1', b'"version": 9'), "another version of voxbatch"),
    "another kind": (lambda data: data.replace(b'"kind":"transcript"', b'"kind":"guess"'), "line 2 is not an entry"),
    "latency": (
        lambda data: data.replace(b'"latency": null', b'"latency": {"chunk": 1}'),
        "its first line is not a header",
    ),
    "items not a number": (
        lambda data: data.replace(b'"items": 2', b'"items": "2"'),
        "its first line is not a header",
    ),
    "shard not a shard": (
        lambda data: data.replace(b'"shard": "', b'"shard": "x'),
        "its first line is not a header",
    ),
    "nested too deep": (lambda data: b"[" * 100_000 + data, "its first line is not a header"),
    "index too long": (lambda data: data.replace(b'{"index":2', b'{"index":' + b"9" * 5000), "line 3 is not an entry"),
    "zeros": (lambda data: bytes(len(data)), "its first line is not a header"),
    "out of range": (
        lambda data: data.replace(b'{"index":2', b'{"index":99'),
        "2 entries up to item 99",
    ),
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
