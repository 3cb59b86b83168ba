"""Tests for the merge: it restores manifest order from any parts, gives the same bytes in every process, and erases no
other files.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outputs import FACTS, RUN, owned

from voxbatch.errors import CheckpointError, ConfigError, RunMismatchError
from voxbatch.latency import Latency, LatencyPercentiles, Percentiles
from voxbatch.output import layout, merge, run_file
from voxbatch.output.checkpoint import Checkpoint, PartEntry, encode_line
from voxbatch.output.erase import erase, find_old_files
from voxbatch.output.item_files import ItemFiles
from voxbatch.output.reserve import Listing, reserve
from voxbatch.output.run_file import Ownership, RunFile
from voxbatch.output.summary import Summary, Totals, summarise
from voxbatch.scoring import CorpusScore
from voxbatch.scoring.corpus import Tally
from voxbatch.storage import Store, open_store

LISTING = Listing(keys=np.arange(4, dtype=np.uint64).reshape(2, 2))
"""The list of the two items of RUN."""


def transcript(index: int, reference: str | None = None) -> PartEntry:
    line: dict[str, Any] = {"id": f"r{index}", "pred_text": "w0", "audio_duration": 1.5, "warnings": []}
    line |= {
        "words": [{"word": "w0", "start": 0.0, "end": 0.5}],
        "segments": [{"text": "w0", "start": 0.0, "end": 0.5}],
    }
    if reference is not None:
        line |= {"text": reference, "substitutions": 0, "insertions": 0, "deletions": 1, "reference_length": 2}
    return PartEntry(index, "transcript", encode_line(line))


def failure(index: int, reference: str | None = None) -> PartEntry:
    line = {"id": f"r{index}", "line": index + 1, "error": "AudioError", "message": "no"}
    return PartEntry(index, "failure", encode_line({**line, "text": reference} if reference is not None else line))


def commit(
    store: Store, batches: Sequence[Sequence[PartEntry]], items: int, shard: int = 0, shards: int = 1, worker: int = 0
) -> None:
    """Commit each batch as a part of 2 s."""
    made = Checkpoint(store, owned(store), items, shard, shards, worker)
    for batch in batches:
        made.commit(batch, 2.0)


def merged(store: Store, items: int, formats: Sequence[str] = ()) -> Summary:
    owned(store)
    return merge.merge(store, replace(RUN, items=items), ItemFiles(tuple(formats)))


def snapshot(place: str) -> dict[str, bytes]:
    """Return the bytes of all files below a folder, by relative path."""
    return {str(path.relative_to(place)): path.read_bytes() for path in Path(place).rglob("*") if path.is_file()}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "out"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=30))
def test_entries_are_in_manifest_order_over_any_partition(places: list[tuple[int, int]]) -> None:
    """Entries come in manifest order and each once, whatever shards and parts contain them."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(folder)
        for shard in range(4):
            batches = [[transcript(i) for i, at in enumerate(places) if at == (shard, part)] for part in range(6)]
            commit(store, batches, len(places), shard, 4)
        assert [entry.index for entry in merge.read_entries(store, RUN.key)] == list(range(len(places)))


def test_item_committed_under_two_shardings_counts_once(store: Store) -> None:
    """An item that runs with different numbers of shards both committed counts once, from the first part."""
    commit(store, [[transcript(0), transcript(1)]], 3, shard=0, shards=2)
    commit(store, [[failure(1), transcript(2)]], 3)
    assert [(entry.index, entry.kind) for entry in merge.read_entries(store, RUN.key)] == [
        (0, "transcript"), (1, "failure"), (2, "transcript"),
    ]  # fmt: skip
    assert merged(store, 3).done == 2


def test_merge_without_parts_counts_all_items_as_missing(store: Store) -> None:
    """An OUT without parts has no entries, and a merge reports the number of missing items."""
    assert list(merge.read_entries(store, RUN.key)) == []
    with pytest.raises(CheckpointError, match="3 of 3 items are not done yet"):
        merged(store, 3)


@pytest.mark.parametrize("done", [(1, 2, 3), (0, 2, 3), (0, 1, 2), (2,)])
def test_merge_with_missing_items_writes_no_summary(store: Store, done: tuple[int, ...]) -> None:
    """If any item is missing, nothing is merged, and the error counts the missing items."""
    commit(store, [[transcript(i) for i in done]], 4)
    with pytest.raises(CheckpointError) as caught:
        merged(store, 4)
    expected = f"{4 - len(done)} of 4 items are not done yet; run again (each shard) to finish them"
    assert str(caught.value) == f"{store.place}: {expected}"
    assert not Path(store.place, layout.SUMMARY).exists()


def test_summary_adds_up_items_errors_and_times(store: Store) -> None:
    """done + failed = items; the reference of a failed item counts as deletions; the slowest shard
    gives the wall time.
    """
    commit(store, [[transcript(0, "a b")], [failure(2, "c d e")]], 4, shard=0, shards=2)
    commit(store, [[transcript(1), transcript(3)]], 4, shard=1, shards=2)
    summary = merged(store, 4)
    assert (summary.items, summary.done, summary.failed) == (4, 3, 1)
    assert (summary.failures_by_error, summary.audio_s) == ({"AudioError": 1}, 4.5)
    assert (summary.wall_s, summary.process_s, summary.rtfx) == (4.0, 6.0, 1.12)
    assert summary.score is not None
    words = summary.score.to_dict()["words"]
    assert (words["deletions"], words["reference_words"], words["missing"]) == (4, 5, 1)
    assert summary.facts.engine == FACTS.engine


def test_slowest_worker_gives_wall_time(store: Store) -> None:
    """The slowest worker of a shard gives its wall time, and all workers add to the process time."""
    commit(store, [[transcript(0)], [transcript(1)]], 4, worker=0)
    commit(store, [[transcript(2)]], 4, worker=1)
    commit(store, [[transcript(3)]], 4, worker=2)
    summary = merged(store, 4)
    assert (summary.wall_s, summary.process_s, summary.rtfx) == (4.0, 8.0, 1.5)


def latency(*chunks: float) -> Latency:
    """Return latencies of one item with these chunks."""
    made = Latency()
    for seconds in chunks:
        made.chunk.add(seconds)
    made.item.add(sum(chunks))
    return made


def test_summary_merges_latencies_of_all_parts(store: Store) -> None:
    """Latencies are merged over parts, workers and shards; parts of versions that did not measure add nothing."""
    key = owned(store)
    first, second = Checkpoint(store, key, 4, 0, 2, worker=0), Checkpoint(store, key, 4, 0, 2, worker=1)
    first.commit([transcript(0)], 2.0, latency(1.0, 1.0, 1.0), 9_800_000_000)
    second.commit([transcript(1)], 2.0, latency(1.0, 8.0), 14_500_000_000)
    other = Checkpoint(store, key, 4, 1, 2)
    other.commit([failure(2)], 2.0, latency(100.0))
    other.commit([transcript(3)], 2.0)
    summary = merged(store, 4)
    assert (summary.completion_rate, summary.peak_gpu_bytes) == (0.75, 14_500_000_000)
    assert summary.latency is not None
    chunk, item = summary.latency.chunk, summary.latency.item
    assert (chunk.count, item.count) == (6, 3)
    assert [chunk.p50_s, chunk.p90_s, chunk.p95_s] == pytest.approx([1.0, 100.0, 100.0], rel=0.011)
    assert [item.p50_s, item.p90_s, item.p95_s] == pytest.approx([9.0, 100.0, 100.0], rel=0.011)


def test_summary_of_parts_without_measurements(store: Store) -> None:
    """With only parts of an older version there are no percentiles and no memory; an empty manifest has no completion
    rate.
    """
    commit(store, [[transcript(0), failure(1)]], 2)
    summary = merged(store, 2)
    none = Percentiles(count=0, p50_s=None, p90_s=None, p95_s=None)
    assert (summary.latency, summary.peak_gpu_bytes) == (LatencyPercentiles(none, none), None)
    assert summary.completion_rate == 0.5
    assert summarise(Totals(), replace(RUN, items=0), []).completion_rate is None


def test_merged_lines_are_the_committed_bytes(store: Store) -> None:
    """Transcripts and failures are copied to their files in manifest order, byte for byte."""
    entries = [transcript(0), failure(1), transcript(2), failure(3)]
    commit(store, [entries[2:], entries[:2]], 4)
    merged(store, 4)
    for name, kind in (("transcripts.jsonl", "transcript"), ("failures.jsonl", "failure")):
        lines = Path(store.place, name).read_bytes().splitlines()
        assert lines == [entry.line for entry in entries if entry.kind == kind]


def test_merging_twice_changes_nothing(store: Store) -> None:
    """A second merge, even with other facts, returns the existing outputs unchanged."""
    commit(store, [[transcript(0), failure(1)]], 2)
    first, files = merged(store, 2, ["srt"]), snapshot(store.place)
    again = merge.merge(store, replace(RUN, facts=replace(FACTS, workers=4)), ItemFiles(("srt",)))
    assert again == first
    assert snapshot(store.place) == files


def test_formats_can_be_added_later(store: Store) -> None:
    """A second merge writes additional formats; only transcripts have files."""
    commit(store, [[transcript(0), failure(1)]], 2)
    merged(store, 2)
    merged(store, 2, ["srt", "txt"])
    assert sorted(store.names("srt") + store.names("txt")) == ["srt/r0.srt", "txt/r0.txt"]


def _merge_in_process(place: str, items: int, barrier: Any, results: Any) -> None:
    barrier.wait()
    results.put(merged(open_store(place), items, ["srt", "json"]))


def test_concurrent_merges_give_the_outputs_of_one(store: Store, tmp_path: Path) -> None:
    """Two last shards that merge at the same time both succeed, and the outputs are those of one."""
    entries = [transcript(i, "a b") if i % 3 else failure(i) for i in range(60)]
    alone = open_store(str(tmp_path / "alone"))
    for each in (store, alone):
        commit(each, [entries[i::4] for i in range(4)], 60)
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_merge_in_process, args=(store.place, 60, barrier, results)) for _ in range(2)]
    for process in processes:
        process.start()
    summaries = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert summaries[0] == summaries[1] == merged(alone, 60, ["srt", "json"])
    assert snapshot(store.place) == snapshot(alone.place)


def test_erase_keeps_foreign_files(store: Store) -> None:
    """`erase` keeps files of others, beside the outputs or in the folder of a format."""
    reserve(store, RUN, LISTING)
    commit(store, [[transcript(0), failure(1)]], 2)
    merged(store, 2, ["srt", "txt"])
    Checkpoint(store, RUN.key, 2).mark_complete(2)
    foreign = ("notes.txt", "txt/reference.txt", "json/data.json", "parts/readme.md", "shard-00000-of-00001/a")
    for name in foreign:
        store.write(name, [b"mine"])
    erase(store, find_old_files(store), Ownership(store, RUN.key))
    assert set(snapshot(store.place)) == {"run.json", *foreign}


@pytest.mark.parametrize("run_json", [None, b"{}", b"mine", b'{"version": 1, "run": "run"}'])
def test_overwrite_deletes_nothing_without_a_run_file_of_its_own(store: Store, run_json: bytes | None) -> None:
    """An OUT without a run.json, or with another program's, is not overwritten, whatever the names of its files."""
    commit(store, [[transcript(0), failure(1)]], 2)
    merged(store, 2, ["srt"])
    store.delete("run.json")
    if run_json is not None:
        store.write("run.json", [run_json])
    before = snapshot(store.place)
    with pytest.raises(ConfigError, match=r"voxbatch did not make these files|--overwrite deletes nothing here"):
        reserve(store, RUN, LISTING, overwrite=True)
    assert snapshot(store.place) == before


def test_erase_removes_files_of_items_in_damaged_parts(store: Store) -> None:
    """`erase` works with damaged parts, whose ids transcripts.jsonl has: --overwrite repairs a damaged OUT."""
    reserve(store, RUN, LISTING)
    commit(store, [[transcript(0)], [transcript(1)]], 2)
    merged(store, 2, ["srt"])
    Path(store.place, "parts/shard-00000-of-00001/part-00000.jsonl").write_bytes(b"\0")
    erase(store, find_old_files(store), Ownership(store, RUN.key))
    assert set(snapshot(store.place)) == {"run.json"}


def test_erase_removes_files_of_items_in_readable_lines_of_damaged_parts(store: Store) -> None:
    """Also without transcripts.jsonl, `erase` removes the files of the items whose lines are intact."""
    reserve(store, RUN, LISTING)
    commit(store, [[transcript(0), transcript(1)]], 2)
    merged(store, 2, ["srt"])
    Path(store.place, "transcripts.jsonl").unlink()
    part = Path(store.place, "parts/shard-00000-of-00001/part-00000.jsonl")
    part.write_bytes(b"\0" * 50 + b"\n" + b"".join(part.read_bytes().splitlines(True)[1:]))
    erase(store, find_old_files(store), Ownership(store, RUN.key))
    assert set(snapshot(store.place)) == {"run.json"}


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"version": 99}', b"\xff"])
def test_foreign_run_file_is_refused(store: Store, content: bytes) -> None:
    """A run.json that voxbatch did not write is refused."""
    store.write("run.json", [content])
    with pytest.raises(CheckpointError) as caught:
        run_file.read(store)
    reason = "was not written by this version of voxbatch; choose another OUT with -o"
    assert str(caught.value) == f"{store.place}/run.json {reason}"


def test_first_run_file_stays(store: Store) -> None:
    """Two shards that start together use the record of the first."""
    assert reserve(store, RUN, LISTING).run == RUN
    assert reserve(store, replace(RUN, folder="/other"), LISTING).run == RUN
    with pytest.raises(RunMismatchError, match=r"holds another run \(run, this one is b\): model was count, is other"):
        reserve(store, replace(RUN, run_id="b", identity={"model": "other"}), LISTING)
    assert (Path(store.place) / "run.json").read_text() == json.dumps(RUN.to_dict(), indent=2) + "\n"


def test_records_are_read_back_from_json(store: Store) -> None:
    """run.json and summary.json are read back as the records that were written; their keys keep their order."""
    commit(store, [[transcript(0, "a b")], [failure(1, "c")]], 2)
    summary = summarise(Totals(score=CorpusScore({"en": Tally(missing=1)})), RUN, [])
    for record, kind in ((RUN, RunFile), (summary, Summary), (merged(store, 2), Summary)):
        stored = json.dumps(record.to_dict())
        again = kind.from_dict(json.loads(stored))
        assert again == record
        assert json.dumps(again.to_dict()) == stored


def test_records_of_old_versions_are_read() -> None:
    """Files of versions that did not measure latency, memory and cost, or record the folder, are read."""
    old = {name: value for name, value in json.loads(RUN.to_bytes()).items() if name != "folder"}
    del old["facts"]["libraries"]
    assert RunFile.from_dict(old) == replace(RUN, folder=None, facts=replace(FACTS, libraries={}))
    summary = summarise(Totals(), replace(RUN, items=0), [])
    added = ("latency", "peak_gpu_bytes", "usd", "run", "generation", "outputs")
    stored = {name: value for name, value in json.loads(json.dumps(summary.to_dict())).items() if name not in added}
    assert Summary.from_dict(stored) == replace(summary, latency=None, run="")


def test_cost_counts_each_machine_once(store: Store) -> None:
    """A price is paid for the time of each shard, and only once for workers that share a machine."""
    commit(store, [[transcript(0)]], 3, 0, 2, worker=0)
    commit(store, [[transcript(1)]], 3, 0, 2, worker=1)
    commit(store, [[transcript(2)]], 3, 1, 2)
    facts = replace(FACTS, config={"usd_per_hour": 1800.0})
    summary = merge.merge(store, replace(RUN, items=3, facts=facts), ItemFiles())
    assert (summary.process_s, summary.usd) == (6.0, 2.0)
