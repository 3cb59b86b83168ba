"""Tests for a store whose listing lacks what was written last, for some seconds or for ever: what is complete is asked
for by its name, so that a run ends with the same bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import ManifestWriter, Recorder
from lagging_store import LaggingStore
from outputs import RUN, keys, output_files, owned

from voxbatch import runner
from voxbatch.analysis.dataset import export_dataset
from voxbatch.analysis.dataset_options import DatasetOptions
from voxbatch.analysis.results import read_results
from voxbatch.analysis.status import read_status
from voxbatch.config import Config
from voxbatch.errors import CheckpointError, StorageError, TakenOverError
from voxbatch.log import Log
from voxbatch.output import run_file
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.output.layout import list_names, part_name, part_names
from voxbatch.output.lists import Listing
from voxbatch.output.merge_again import merge_again
from voxbatch.output.ownership import Ownership
from voxbatch.output.parts import PartEntry
from voxbatch.output.reserve import reserve
from voxbatch.output.run_file import create_list
from voxbatch.output.verify import verify
from voxbatch.storage import Stores
from voxbatch.storage.local import LocalStore
from voxbatch.storage.retry import NO_WAIT
from voxbatch.works.correct.taking import find_changes, take_in
from voxbatch.works.correct.times import NONE, Aligner

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_decoders")]
SECONDS = (0.5, 0.6, None, 0.7, 0.8, 0.9, 1.0, 1.1)
SETTINGS: dict[str, Any] = {"engine": "scripted", "formats": ("srt",), "decoders": 1, "part_items": 2, "report": False}
Lag = Callable[..., dict[str, LaggingStore]]


@pytest.fixture
def lag(monkeypatch: pytest.MonkeyPatch) -> Lag:
    """Return a function after which all outputs go to stores that lag, by their places."""
    real, made = Stores.out, dict[str, LaggingStore]()

    def begin(lag_s: float = math.inf, hides: Callable[[str], bool] = lambda name: True) -> dict[str, LaggingStore]:
        def out(self: Stores, place: str) -> LaggingStore:
            if place not in made:
                made[place] = LaggingStore(real(self, place), lag_s, hides)
            return made[place]

        monkeypatch.setattr(Stores, "out", out)
        return made

    return begin


def run(source: Path, out: Path, **settings: Any) -> runner.RunResult:
    return runner.run(Config(**{"source": str(source), "out": str(out), **SETTINGS, **settings}), Log(quiet=True))


def entry(index: int) -> PartEntry:
    return PartEntry(index, "transcript", b'{"id":"%d"}' % index)


@pytest.mark.parametrize("lag_s", [1.0, math.inf])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_run_ends_with_the_same_bytes(
    lag: Lag, manifest: ManifestWriter, tmp_path: Path, lag_s: float, shards: int
) -> None:
    """No object of OUT is listed, for a second or for ever: the last shard merges, a second start has nothing to do,
    and what reads OUT finds everything."""
    path, out = manifest(*SECONDS), tmp_path / "out"
    run(path, tmp_path / "calm")
    stores = lag(lag_s)
    summaries = [run(path, out, shard=shard, shards=shards).summary for shard in range(shards)]
    assert summaries[-1] is not None
    assert output_files(out) == output_files(tmp_path / "calm")
    store = stores[str(out)]
    assert store.calls.total() < 100 + 100 * shards, "it asks each thing some times"
    if shards == 1:
        assert len(list(read_results(store))) == 8
        assert run(path, out).usage is None, "a second start has nothing to do"
        assert verify(store) == []
        assert read_status(store).committed == 8
        assert merge_again(store).items == 8


@pytest.mark.parametrize("lag_s", [1.0, math.inf])
def test_a_folder_that_grows(lag: Lag, recording: Recorder, tmp_path: Path, lag_s: float) -> None:
    """Each further list is found by its name, and so are the parts of the lists before it."""
    folder, calm, out = tmp_path / "recordings", tmp_path / "calm", tmp_path / "out"
    lag(lag_s)[str(calm)] = LaggingStore(LocalStore(str(calm)), 0.0)
    for number in range(3):
        recording(f"{number}.wav", 0.5 + number / 10, folder)
        for place in (calm, out):
            assert run(folder, place).summary is not None
    assert output_files(out) == output_files(calm)
    assert len(list((out / "lists").iterdir())) == 3


@pytest.mark.parametrize("hidden", ["corrected", "digests", ""])
def test_what_a_person_changed_is_known(lag: Lag, manifest: ManifestWriter, tmp_path: Path, hidden: str) -> None:
    """Corrections and the digests of voxbatch's files are found by their names: all formats follow a correction, a
    further one counts, other settings replace the other files, and nothing is taken for somebody's change."""
    path, out, warnings = manifest(0.8, 1.1), tmp_path / "out", list[str]()
    lag(hides=lambda name: hidden in name)
    run(path, out, formats=("srt", "txt"))
    stores, log = Stores(), Log(write=warnings.append)
    store = stores.out(str(out))
    for number, text in enumerate(("hello", "hello again")):
        (out / "txt/r0.txt").write_text(text)
        current = run_file.read_existing(store)
        changes = find_changes(store, current, stores, ())
        assert [taken.item.line["id"] for taken in changes.taken] == ["r0.wav"]
        take_in(store, current, changes, Aligner(NONE), log)
        assert sorted(out.rglob("corrected-*"))[number].name == f"corrected-{number:05d}.jsonl"
    assert next(iter(read_results(store))).line["pred_text"] == "hello again"
    merge_again(store, {"formats": ["srt", "txt"], "max_line": 10}, log)
    assert "\nhello\nagain\n" in (out / "srt/r0.srt").read_text()
    assert [line for line in warnings if "changed by somebody" in line] == []


@pytest.mark.parametrize("pass_name", ["part", "second", ""])
def test_a_cascade_chooses_from_all_items(lag: Lag, manifest: ManifestWriter, tmp_path: Path, pass_name: str) -> None:
    """Parts of the first or the second pass are not listed: the same items are chosen, and the large model's texts are
    in the outputs."""
    path, out = manifest(*SECONDS), tmp_path / "out"
    cascade = {"cascade": "little,big:0.4", "engine_options": {"confidence": "true"}}
    run(path, tmp_path / "calm", **cascade)
    lag(hides=lambda name: pass_name in name)
    run(path, out, **cascade)
    assert output_files(out) == output_files(tmp_path / "calm")
    assert any(json.loads(line)["cascade"] for line in (out / "transcripts.jsonl").read_text().splitlines())


def test_a_data_set_has_all_cuts(lag: Lag, manifest: ManifestWriter, tmp_path: Path) -> None:
    """An export of a finished run has the cuts of parts that are not listed, and an export whose own files are not
    listed continues."""
    path = manifest(*(3.5 + number / 10 for number in range(7)))
    lag()
    run(path, tmp_path / "out")
    stores, exports = Stores(), []
    for _ in range(2):
        exported = export_dataset(
            stores.out(str(tmp_path / "out")), str(tmp_path / "set"), DatasetOptions(), stores, shard_s=10.0
        )
        exports.append((sum(exported.cuts.values()), sum(exported.shards.values())))
    assert exports[0] == exports[1]
    assert exports[0][0] == 7


def test_processes_that_create_a_list_at_once(tmp_path: Path) -> None:
    """A list that another process has created is found by its name although it is never listed: no loop asks for it
    again and again."""
    store = LaggingStore(Stores().out(str(tmp_path / "out")))
    owned(store)
    reserved = reserve(store, RUN, Listing(keys=keys(2)))
    assert reserved.run.list_number == 1
    assert store.calls.total() < 20


@pytest.mark.parametrize("appears", [True, False])
def test_a_store_that_contradicts_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, appears: bool) -> None:
    """Create-if-absent says that a list exists, and its name gives nothing, as on a network file system: it is waited
    for, with a warning, and in the end the run says so. If it appears meanwhile, the run goes on."""
    monkeypatch.setenv(NO_WAIT, "1")
    place, warnings = tmp_path / "out", list[str]()
    store = LaggingStore(LocalStore(str(place)), hides=lambda name: name.startswith("lists"), name_lag_s=math.inf)
    owned(store)

    def write(line: str) -> None:
        warnings.append(line)
        store.name_lag_s = 0.0 if appears else math.inf

    if appears:
        assert reserve(store, RUN, Listing(keys=keys(2)), log=Log(write=write)).run.list_number == 1
    else:
        with pytest.raises(StorageError, match=r"lists/00001.bin exists, and the store does not show it; run again"):
            reserve(store, RUN, Listing(keys=keys(2)), log=Log(write=write))
    (warning,) = warnings
    assert warning.endswith("exists, and the store does not show it; waiting for the store")
    assert store.calls.total() < 60


def test_a_process_of_an_earlier_list_ends_although_the_later_one_is_not_listed(tmp_path: Path) -> None:
    """The check of the owner asks for the next list by its name."""
    store = LaggingStore(Stores().out(str(tmp_path / "out")))
    run = owned(store)
    Ownership(store, run).check()
    assert create_list(store, replace(run, list_number=2), keys(2))
    assert list_names(store)[-1] == "lists/00002.bin"
    with pytest.raises(TakenOverError, match="another process continues this OUT"):
        Ownership(store, run).check()


def test_parts_that_are_not_listed_are_found(tmp_path: Path) -> None:
    """Parts are found in gaps, after the last one, and in shards of which nothing is listed. A part that a person
    deleted stays a gap."""
    hidden = {1, 4, 5}
    store = LaggingStore(
        Stores().out(str(tmp_path / "out")),
        hides=lambda name: "00000-of-00002" in name or any(f"part-{number:05}" in name for number in hidden),
    )
    run, names = owned(store, items=9), []
    for shard, count in ((0, 2), (1, 6)):
        made = Checkpoint(store, run, keys(9), shard, shards=2)
        for number in range(count):
            made.commit([entry(shard + number)], 1.0)
        names += [part_name(made.folder, number) for number in range(count)]
    assert part_names(store, shards=2) == names
    assert part_names(store) == names, "other shards of the same number are listed"
    resumed = Checkpoint(store, run, keys(9), shard=1, shards=2)
    resumed.load()
    assert [index for index, is_done in enumerate(resumed.done) if is_done] == [*range(1, 7)]
    store.delete(names[4])
    names.remove(names[4])
    assert part_names(store) == names
    resumed.commit([entry(8)], 1.0)
    assert part_names(store)[-1] == part_name(resumed.folder, 6)


def test_a_merge_does_not_begin_with_missing_parts(
    manifest: ManifestWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each shard is recorded as complete, and a part is gone: nothing is merged, and the message says what to do."""
    monkeypatch.setenv(NO_WAIT, "1")
    path, out = manifest(*SECONDS), tmp_path / "out"
    run(path, out, shard=0, shards=2)
    run(path, out, shard=1, shards=2)
    for name in ("summary.json", "transcripts.jsonl", "parts/shard-00000-of-00002/part-00000.jsonl"):
        (out / name).unlink()
    with pytest.raises(CheckpointError, match="all shards are complete, and parts with some"):
        run(path, out, shard=1, shards=2)
    assert not (out / "transcripts.jsonl").exists()
    run(path, out, shard=0, shards=2)
    assert (out / "summary.json").exists()
