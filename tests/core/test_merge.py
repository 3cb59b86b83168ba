"""Tests for the merge: it restores manifest order from any parts, gives the same bytes in every process, and erases no
other files.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outputs import FACTS, RUN, keys, owned, problems

from voxbatch.errors import CheckpointError, ConfigError, RunMismatchError
from voxbatch.output import layout, merge, run_file
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.output.entries import Entries
from voxbatch.output.erase import erase, find_old_files
from voxbatch.output.item_files import ItemFiles
from voxbatch.output.latency import Latency, LatencyPercentiles, Percentiles
from voxbatch.output.lists import Listing
from voxbatch.output.merged_file import MergedFile
from voxbatch.output.own_files import OwnFiles, sha256
from voxbatch.output.ownership import Ownership
from voxbatch.output.parts import Measurements, PartEntry
from voxbatch.output.reserve import reserve
from voxbatch.output.stored_json import json_bytes
from voxbatch.output.summary import Summary, read_summary, summarise
from voxbatch.output.totals import Totals
from voxbatch.scoring.corpus import CorpusScore, Tally
from voxbatch.storage import Store, Stores
from voxbatch.storage.columns import ItemSet
from voxbatch.storage.local import LocalStore

LISTING = Listing(keys=keys(2))
"""The list of the two items of RUN."""


def transcript(index: int, reference: str | None = None) -> PartEntry:
    line: dict[str, Any] = {"audio_filepath": "/r.wav", "id": f"r{index}", "pred_text": "w0", "audio_duration": 1.5}
    line |= {
        "words": [{"word": "w0", "start": 0.0, "end": 0.5}],
        "segments": [{"text": "w0", "start": 0.0, "end": 0.5}],
        "confidence": None,
        "flags": [],
        "warnings": [],
    }
    if reference is not None:
        line |= {"text": reference, "substitutions": 0, "insertions": 0, "deletions": 1, "reference_length": 2}
    return PartEntry(index, "transcript", json_bytes(line))


def failure(index: int, reference: str | None = None) -> PartEntry:
    line = {"audio_filepath": "/r.wav", "id": f"r{index}", "error": "AudioError", "retryable": False}
    line |= {"error_kind": "damaged", "message": "no"}
    return PartEntry(index, "failure", json_bytes({**line, "text": reference} if reference is not None else line))


def commit(
    store: Store, batches: Sequence[Sequence[PartEntry]], items: int, shard: int = 0, shards: int = 1, worker: int = 0
) -> None:
    """Commit each batch as a part of 2 s."""
    made = Checkpoint(store, owned(store, items=items), keys(items), shard, shards, worker)
    for batch in batches:
        made.commit(batch, 2.0)


def merged(store: Store, items: int, formats: Sequence[str] = ()) -> Summary:
    return merge.merge(store, owned(store, items=items), ItemFiles(tuple(formats)))


def snapshot(place: str) -> dict[str, bytes]:
    """Return the bytes of all files below a folder, by relative path."""
    return {str(path.relative_to(place)): path.read_bytes() for path in Path(place).rglob("*") if path.is_file()}


def without_digests(store: Store) -> set[str]:
    """Return the names of all files except for the digests of files, which --overwrite leaves."""
    return {name for name in snapshot(store.place) if not name.startswith("digests/")}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Stores().out(str(tmp_path / "out"))


class NarrowStore(LocalStore):
    """A store that counts the objects that are read at a time, and permits three."""

    max_open = 3

    def __init__(self, place: str):
        super().__init__(place)
        self.num_open = self.most_open = 0

    def lines(self, name: str) -> Generator[bytes]:
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        try:
            yield from super().lines(name)
        finally:
            self.num_open -= 1


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=30))
def test_entries_are_in_manifest_order_over_any_partition(places: list[tuple[int, int]]) -> None:
    """Entries come in manifest order and each once, whatever shards and parts contain them."""
    with tempfile.TemporaryDirectory() as folder:
        store = NarrowStore(folder)
        for shard in range(4):
            batches = [[transcript(i) for i, at in enumerate(places) if at == (shard, part)] for part in range(6)]
            commit(store, batches, len(places), shard, 4)
        assert [entry.index for entry in Entries(store, replace(RUN, items=len(places)))] == list(range(len(places)))


@pytest.mark.parametrize("shards", [1, 2, 30])
def test_few_parts_are_open_at_a_time(tmp_path: Path, shards: int) -> None:
    """However many shards a run has, no more parts are read at a time than the store permits."""
    store = NarrowStore(str(tmp_path))
    for shard in range(shards):
        commit(store, [[transcript(i) for i in range(shard, 60, shards)]], 60, shard, shards)
    entries = Entries(store, replace(RUN, items=60))
    assert [entry.index for entry in entries] == list(range(60))
    assert (store.most_open, store.num_open) == (min(shards, NarrowStore.max_open), 0)


def test_item_committed_under_several_shardings_counts_once(tmp_path: Path) -> None:
    """An item that runs with different numbers of shards committed counts once, from the first part by name."""
    store = NarrowStore(str(tmp_path))
    commit(store, [[transcript(0), transcript(1)]], 3, shards=9)
    for shards in range(8, 0, -1):
        commit(store, [[transcript(0), failure(1), transcript(2)]], 3, shards=shards)
    entries = list(Entries(store, replace(RUN, items=3)))
    assert [(entry.index, entry.kind) for entry in entries] == [(0, "transcript"), (1, "failure"), (2, "transcript")]
    assert {entry.part for entry in entries} == {"parts/shard-00000-of-00001/part-00000.jsonl"}
    assert merged(store, 3).done == 2


@pytest.mark.parametrize("done", [(1, 2, 3), (0, 2, 3), (0, 1, 2), (2,), ()])
def test_merge_with_missing_items_writes_no_summary(store: Store, done: tuple[int, ...]) -> None:
    """If any item is missing, nothing is merged, and the error counts the missing items."""
    commit(store, [[transcript(i) for i in done]], 4)
    with pytest.raises(CheckpointError) as caught:
        merged(store, 4)
    expected = f"{4 - len(done)} of 4 items are not done yet; run again (each shard) to finish them"
    assert str(caught.value) == f"{store.place}: {expected}"
    assert not Path(store.place, layout.SUMMARY).exists()


def test_summary_adds_up_items_errors_and_times(store: Store) -> None:
    """done + failed = items; the reference of a failed item counts as deletions; the slowest shard gives wall_s."""
    commit(store, [[transcript(0, "a b")], [failure(2, "c d e")]], 4, shard=0, shards=2)
    commit(store, [[transcript(1), transcript(3)]], 4, shard=1, shards=2)
    summary = merged(store, 4)
    assert (summary.items, summary.done, summary.failed) == (4, 3, 1)
    assert (summary.failures_by_error, summary.failures_by_kind) == ({"AudioError": 1}, {"damaged": 1})
    assert summary.audio_s == 4.5
    assert (summary.wall_s, summary.process_s, summary.rtfx) == (4.0, 6.0, 1.12)
    assert summary.score is not None
    words = summary.score.to_dict()["words"]
    assert (words["deletions"], words["reference_words"], words["missing"]) == (4, 5, 1)
    assert summary.facts.engine == FACTS.engine


def test_time_and_cost_count_each_machine_once(store: Store) -> None:
    """The slowest worker of a shard gives its wall time, and all workers add to the process time. A price is paid for
    the time of each shard, and only once for workers that share a machine.
    """
    commit(store, [[transcript(0)], [transcript(1)]], 5, 0, 2, worker=0)
    commit(store, [[transcript(2)]], 5, 0, 2, worker=1)
    commit(store, [[transcript(3)]], 5, 0, 2, worker=2)
    commit(store, [[transcript(4)]], 5, 1, 2)
    facts = replace(FACTS, config={"usd_per_hour": 1800.0})
    summary = merge.merge(store, replace(RUN, items=5, facts=facts), ItemFiles())
    assert (summary.wall_s, summary.process_s, summary.usd) == (4.0, 10.0, 3.0)


def latency(*chunks: float) -> Latency:
    """Return latencies of one item with these chunks."""
    made = Latency()
    for seconds in chunks:
        made.chunk.add(seconds)
    made.item.add(sum(chunks))
    return made


def test_summary_merges_latencies_of_all_parts(store: Store) -> None:
    """Latencies are merged over parts, workers and shards; parts without measurements add nothing."""
    run = owned(store, items=4)
    first, second = Checkpoint(store, run, None, 0, 2, worker=0), Checkpoint(store, run, None, 0, 2, worker=1)
    first.commit([transcript(0)], 2.0, {0: latency(1.0, 1.0, 1.0)}, 9_800_000_000)
    second.commit([transcript(1)], 2.0, {1: latency(1.0, 8.0)}, 14_500_000_000)
    other = Checkpoint(store, run, None, 1, 2)
    other.commit([failure(2)], 2.0, {2: latency(100.0)})
    other.commit([transcript(3)], 2.0)
    summary = merged(store, 4)
    assert (summary.completion_rate, summary.peak_gpu_bytes) == (0.75, 14_500_000_000)
    assert summary.latency is not None
    chunk, item = summary.latency.chunk, summary.latency.item
    assert (chunk.count, item.count) == (6, 3)
    assert [chunk.p50_s, chunk.p90_s, chunk.p95_s] == pytest.approx([1.0, 100.0, 100.0], rel=0.011)
    assert [item.p50_s, item.p90_s, item.p95_s] == pytest.approx([9.0, 100.0, 100.0], rel=0.011)


def test_latencies_are_those_of_the_committed_items(store: Store) -> None:
    """A process whose item another process committed first does not count the latency of that item."""
    run = owned(store, items=3)
    first, late = Checkpoint(store, run), Checkpoint(store, run)
    measured = {0: latency(1.0), 1: latency(2.0), 2: latency(4.0)}
    first.commit([transcript(0), transcript(1)], 2.0, measured)
    assert [entry.index for entry in late.commit([transcript(1), transcript(2)], 2.0, measured)] == [2]
    figures = merged(store, 3).latency
    assert (figures.chunk.count, figures.item.count) == (3, 3)
    assert figures.item.p50_s == pytest.approx(2.0, rel=0.011)


def test_summary_of_parts_without_measurements(store: Store) -> None:
    """Parts without measurements give no percentiles and no memory; an empty manifest has no completion rate."""
    commit(store, [[transcript(0), failure(1)]], 2)
    summary = merged(store, 2)
    none = Percentiles(count=0, p50_s=None, p90_s=None, p95_s=None)
    assert (summary.latency, summary.peak_gpu_bytes) == (LatencyPercentiles(none, none), None)
    assert summary.completion_rate == 0.5
    assert summarise(Totals(), replace(RUN, items=0), Measurements()).completion_rate is None


def _merge_in_process(place: str, items: int, barrier: Any, results: Any) -> None:
    barrier.wait()
    results.put(merged(Stores().out(place), items, ["srt", "json"]))


class FoldingStore(LocalStore):
    """A folder in which Talk and talk are one name. It stands in for a file system that few kernels can mount."""

    def read(self, name: str) -> bytes | None:
        return super().read(name.lower())

    def exists(self, name: str) -> bool:
        return super().exists(name.lower())

    def create(self, name: str, blocks: Iterable[bytes], durable: bool = True) -> bool:
        return super().create(name.lower(), blocks, durable)

    def write(self, name: str, blocks: Iterable[bytes], durable: bool = True) -> None:
        super().write(name.lower(), blocks, durable)

    def delete(self, name: str, check: Callable[[], None] | None = None) -> None:
        super().delete(name.lower(), check)


@pytest.mark.parametrize("kind", [LocalStore, FoldingStore])
def test_items_whose_names_differ_only_in_case_have_a_file_each(tmp_path: Path, kind: type[LocalStore]) -> None:
    """On each file system, each transcript has a file of its own, which `--verify` finds, and `--overwrite` deletes."""
    store = kind(str(tmp_path / "out"))
    ids = ["Talk.wav", "talk.wav", "caf\u00e9.wav", "cafe\u0301.wav"]
    entries = []
    for i, item_id in enumerate(ids):
        line = {**json.loads(transcript(i).line), "id": item_id, "pred_text": item_id}
        line["segments"] = [{"text": item_id, "start": 0.0, "end": 0.5}]
        entries.append(PartEntry(i, "transcript", json_bytes(line)))
    commit(store, [entries], 4)
    merged(store, 4, ["txt"])
    files = [path.read_text().strip() for path in Path(store.place, "txt").iterdir()]
    assert sorted(files) == sorted(ids)
    assert problems(store) == []
    run = reserve(store, RUN, LISTING, overwrite=True).run
    assert without_digests(store) == {"lists/" + f"generation-{run.generation}/00001.bin", "run.json"}


@pytest.mark.slow
def test_concurrent_merges_give_the_outputs_of_one(store: Store, tmp_path: Path) -> None:
    """Two last shards that merge at the same time both succeed, and the outputs are those of one."""
    entries = [transcript(i, "a b") if i % 3 else failure(i) for i in range(60)]
    commit(store, [entries[i::4] for i in range(4)], 60)
    alone = Stores().out(str(shutil.copytree(store.place, tmp_path / "alone")))  # a part has the time of its commit
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_merge_in_process, args=(store.place, 60, barrier, results)) for _ in range(2)]
    for process in processes:
        process.start()
    summaries = [results.get(timeout=200) for _ in processes]
    for process in processes:
        process.join()
    assert summaries[0] == summaries[1] == merged(alone, 60, ["srt", "json"])
    assert snapshot(store.place) == snapshot(alone.place)


def test_erase_keeps_foreign_files(store: Store) -> None:
    """`erase` keeps files of others, beside the outputs or in the folder of a format."""
    reserve(store, RUN, LISTING)
    commit(store, [[transcript(0), failure(1)]], 2)
    merged(store, 2, ["srt", "txt"])
    Checkpoint(store, RUN).mark_complete(ItemSet(2, is_full=True))
    foreign = ("notes.txt", "txt/reference.txt", "json/data.json", "parts/readme.md", "shard-00000-of-00001/a")
    for name in foreign:
        store.write(name, [b"mine"])
    erase(store, find_old_files(store), Ownership(store, RUN))
    assert without_digests(store) == {"run.json", *foreign}


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


@pytest.mark.parametrize("is_merged", [True, False])
def test_erase_removes_files_of_items_in_damaged_parts(store: Store, is_merged: bool) -> None:
    """`erase` works with damaged parts, because --overwrite repairs a damaged OUT: transcripts.jsonl has the ids, else
    the lines that are intact.
    """
    reserve(store, RUN, LISTING)
    commit(store, [[transcript(0), transcript(1)]], 2)
    merged(store, 2, ["srt"])
    part = Path(store.place, "parts/shard-00000-of-00001/part-00000.jsonl")
    if is_merged:
        part.write_bytes(b"\0")
    else:
        part.write_bytes(b"\0" * 50 + b"\n" + b"".join(part.read_bytes().splitlines(True)[1:]))
        Path(store.place, "transcripts.jsonl").unlink()
    erase(store, find_old_files(store), Ownership(store, RUN))
    assert without_digests(store) == {"run.json"}


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"version": 99}', b"\xff"])
def test_foreign_run_file_is_refused(store: Store, content: bytes) -> None:
    """A run.json that voxbatch did not write is refused."""
    store.write("run.json", [content])
    with pytest.raises(CheckpointError) as caught:
        run_file.read(store)
    reason = "was not written by this version of voxbatch; continue with the one that wrote it, or choose another OUT"
    assert str(caught.value) == f"{store.place}/run.json {reason} with -o"


def test_first_run_file_stays(store: Store) -> None:
    """Two shards that start together use the record of the first."""
    assert reserve(store, RUN, LISTING).run == RUN
    assert reserve(store, replace(RUN, folder="/other"), LISTING).run == RUN
    with pytest.raises(RunMismatchError, match="holds another run: model was count, and is other now"):
        reserve(store, replace(RUN, run_id="b", identity={"model": "other"}), LISTING)
    assert (Path(store.place) / "run.json").read_text() == json.dumps(
        {"version": 1, "run": "run", "identity": RUN.identity, "language": "en"}, indent=2
    ) + "\n"


def test_records_are_read_back_from_json(store: Store) -> None:
    """run.json with its list, and summary.json, are read back as the records that were written; the keys of the summary
    keep their order.
    """
    commit(store, [[transcript(0, "a b")], [failure(1, "c")]], 2)
    assert run_file.read(store) == RUN
    summary = summarise(Totals(score=CorpusScore({"en": Tally(missing=1)})), RUN, Measurements())
    for record in (summary, merged(store, 2)):
        stored = json.dumps(record.to_dict())
        again = Summary.from_dict(json.loads(stored))
        assert again == record
        assert json.dumps(again.to_dict()) == stored


@pytest.mark.parametrize("value", [None, "1", -1, 10**30, [], {}, True, 1.5])
def test_score_with_a_value_of_another_type_is_damaged(store: Store, value: object) -> None:
    """A summary whose score has a count of another type is damaged, wherever the count is."""
    commit(store, [[transcript(0, "a b"), transcript(1)]], 2)
    merged(store, 2)
    stored = json.loads(store.read(layout.SUMMARY) or b"")
    score = stored["score"]
    for tally in (score["words"], score["characters"], score["by_language"]["en"]):
        for name in ("substitutions", "items", "empty_references"):
            before, tally[name] = tally[name], value
            store.write(layout.SUMMARY, [json_bytes(stored)])
            with pytest.raises(CheckpointError, match="damaged"):
                read_summary(store)
            tally[name] = before


@pytest.mark.parametrize("name", ["transcripts.jsonl", "failures.jsonl"])
@pytest.mark.parametrize("change", [{"list_number": 2}, {"generation": "0123456789ab"}], ids=str)
def test_output_that_an_earlier_process_creates_late(
    store: Store, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], name: str
) -> None:
    """A merged output that a process of an earlier list or run creates during the merge is replaced."""
    run = replace(RUN, **change)
    store.write("run.json", [run.to_bytes()])
    run_file.create_list(store, run, keys(2))
    Checkpoint(store, run, keys(2)).commit([transcript(0), failure(1)], 2.0)
    write = MergedFile._write

    def write_late(file: MergedFile) -> bool:
        OwnFiles(store).record([(name, sha256(b"{}\n"))])
        store.create(name, [b"{}\n"])
        return write(file)

    monkeypatch.setattr(MergedFile, "_write", write_late)
    merge.merge(store, run, ItemFiles())
    assert Path(store.place, "transcripts.jsonl").read_bytes() == transcript(0).line + b"\n"
    assert Path(store.place, "failures.jsonl").read_bytes() == failure(1).line + b"\n"
