"""Tests for an OUT that two runs write to: whatever a process of an earlier run does, the outputs are those of the run
that owns OUT.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import killed_at
import pytest
from conftest import Recorder, Starter, Voxbatch
from holds import Hold
from outputs import RUN, keys
from waits import until

from voxbatch.output import run_file
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.output.erase import erase
from voxbatch.output.layout import list_name, part_names
from voxbatch.output.lists import Listing
from voxbatch.output.parts import PartEntry
from voxbatch.output.reserve import reserve
from voxbatch.process.hang_detector import is_stopped
from voxbatch.storage import Stores

pytestmark = pytest.mark.forks_children

ITEMS = 4
ENGINE = ("--engine", "scripted", "--log-format", "text", "--decoders", "1", "--part-items", "1")
SLOWLY = ("--engine-option", "concurrency=1", "--engine-option", "delay_s=0.1")
TAKEN = "took OUT over with --overwrite"


@pytest.fixture
def two_manifests(recording: Recorder, tmp_path: Path) -> None:
    """Write a.jsonl and b.jsonl: the same recordings and ids, and another row in each."""
    for i in range(ITEMS):
        recording(f"{i}.wav", 1 + i / 2)
    for name in "ab":
        rows = [{"audio_filepath": f"{i}.wav", "id": f"i{i}", "of": name * 10} for i in range(ITEMS)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def owners(out: Path) -> list[str]:
    """Return the value of `of` in each line of the merged outputs."""
    lines = "".join(path.read_text() for path in sorted(out.glob("*.jsonl"), reverse=True))
    return [json.loads(line)["of"][0] for line in lines.splitlines()]


def parts(out: Path, shard: str) -> list[Path]:
    """Return the parts of a shard, in any generation."""
    return [*out.glob(f"parts/{shard}/part-*"), *out.glob(f"parts/*/{shard}/part-*")]


def finished(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for the end of a process, and return its exit code and its stderr."""
    _, stderr = process.communicate(timeout=120)
    return process.returncode, stderr


@pytest.mark.usefixtures("two_manifests")
def test_zombie_of_another_shard_count_after_overwrite(start: Starter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A suspended shard of an earlier run, of another number of shards, commits nothing that the new run reads."""
    out = tmp_path / "out"
    first = Hold(tmp_path / "first")
    zombie = start("run", "a.jsonl", "-o", out, "--shard", "1/2", *ENGINE, *SLOWLY, *first.options)
    first.reached(process=zombie)
    until(lambda: parts(out, "shard-00001-of-00002"), process=zombie)
    zombie.send_signal(signal.SIGSTOP)  # another item is still to be committed
    died = voxbatch("run", "b.jsonl", "-o", out, "--overwrite", *ENGINE, "--engine-option", "die_after=1")
    assert died.returncode == 1
    for shard in range(3):
        assert voxbatch("run", "b.jsonl", "-o", out, "--shard", f"{shard}/4", *ENGINE).returncode == 0
    latest = Hold(tmp_path / "latest", after=0)
    last = start("run", "b.jsonl", "-o", out, "--shard", "3/4", *ENGINE, *SLOWLY, *latest.options)
    latest.reached(process=last)  # it has read the parts
    first.release()
    zombie.send_signal(signal.SIGCONT)
    code, stderr = finished(zombie)
    latest.release()
    assert (code, TAKEN in stderr, "Traceback" in stderr) == (1, True, False), stderr
    assert "safe" not in stderr
    assert finished(last)[0] == 0
    assert owners(out) == ["b"] * ITEMS


@pytest.mark.usefixtures("two_manifests")
def test_an_out_inside_the_parts_of_another(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """An OUT in parts/ of a later OUT is not read; in parts/ or srt/ of an existing OUT it is refused."""
    out = tmp_path / "out"
    inner = voxbatch("run", "a.jsonl", "-o", out / "parts" / "inner", *ENGINE, "--engine-option", "die_after=3")
    assert inner.returncode == 1
    assert voxbatch("run", "b.jsonl", "-o", out, *ENGINE).returncode == 0
    assert owners(out) == ["b"] * ITEMS
    for folder in ("parts", "parts/inner", "parts/x/y", "srt"):
        refused = voxbatch("run", "a.jsonl", "-o", out / folder, *ENGINE)
        assert refused.returncode == 2
        name = folder.split("/")[0]
        assert f"-o {out}/{folder} lies in {name}/ of {out}, which holds the outputs of another run" in refused.stderr
    assert not (out / "srt").exists()


@pytest.mark.usefixtures("two_manifests")
def test_overwrite_during_another_runs_merge(start: Starter, tmp_path: Path) -> None:
    """A run that is suspended during its merge replaces nothing of the run that took OUT over meanwhile, and what it
    has created is replaced.
    """
    out = tmp_path / "out"
    rows = [{"audio_filepath": "0.wav", "id": f"i{i}", "of": "a" * 10} for i in range(1500)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "b.jsonl").write_text((tmp_path / "a.jsonl").read_text().replace("a" * 10, "b" * 10))
    many = ("--part-items", "500", "--formats", "srt")
    merging = start("run", "a.jsonl", "-o", out, *ENGINE, *many, env={killed_at.STOPPED_AT: "srt/i3.srt"})
    until(lambda: (out / "srt" / "i3.srt").exists() and is_stopped(merging.pid), process=merging)
    assert not (out / "transcripts.jsonl").exists()
    loading = Hold(tmp_path / "loading", after=0)
    owner = start("run", "b.jsonl", "-o", out, "--overwrite", *ENGINE, *many, *loading.options)
    loading.reached(process=owner)
    assert not (out / "srt" / "i3.srt").exists()
    merging.send_signal(signal.SIGCONT)
    code, stderr = finished(merging)
    loading.release()
    assert (code, TAKEN in stderr, "Traceback" in stderr) == (1, True, False), stderr
    assert finished(owner)[0] == 0
    assert owners(out) == ["b"] * 1500


@pytest.mark.usefixtures("two_manifests")
def test_overwrite_twice_at_once(start: Starter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """If two runs take OUT over at the same time, one ends well and the other with a clear error; the outputs are those
    of the owner.
    """
    out = tmp_path / "out"
    assert voxbatch("run", "a.jsonl", "-o", out, *ENGINE, "--formats", "srt").returncode == 0
    holds = {name: Hold(tmp_path / name) for name in "ab"}
    both = [
        start("run", f"{name}.jsonl", "-o", out, "--overwrite", "--formats", "srt", *ENGINE, *hold.options)
        for name, hold in holds.items()
    ]
    until(lambda: all(hold.pids() or run.poll() is not None for hold, run in zip(holds.values(), both, strict=True)))
    for hold in holds.values():  # each run has taken OUT over, or has ended
        hold.release()
    ends = [finished(process) for process in both]
    codes = sorted(code for code, _ in ends)
    assert codes == [0, 1], ends
    assert all(TAKEN in stderr for code, stderr in ends if code == 1), ends
    owner = "ab"[next(i for i, (code, _) in enumerate(ends) if code == 0)]
    assert owners(out) == [owner] * ITEMS
    assert voxbatch("run", f"{owner}.jsonl", "-o", out, *ENGINE, "--formats", "srt").returncode == 0
    assert owners(out) == [owner] * ITEMS


@pytest.mark.usefixtures("two_manifests")
def test_overwrite_that_was_killed_is_continued(start: Starter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """If --overwrite is killed after it took OUT over, the same command without it ends with its own outputs only."""
    out = tmp_path / "out"
    assert voxbatch("run", "a.jsonl", "-o", out, *ENGINE, "--formats", "srt,txt").returncode == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != "run.json"}
    loading = Hold(tmp_path / "loading", after=0)
    slow = start("run", "b.jsonl", "-o", out, "--overwrite", *ENGINE, *SLOWLY, *loading.options)
    until(lambda: "generation" in (out / "run.json").read_text(), process=slow)
    slow.kill()
    slow.wait()
    for path, content in before.items():  # as if it was killed before it deleted anything
        path.write_bytes(content)
    assert json.loads(voxbatch("status", out, "--json").stdout)["finished"] is False
    assert voxbatch("run", "b.jsonl", "-o", out, *ENGINE, "--formats", "srt").returncode == 0
    assert owners(out) == ["b"] * ITEMS
    assert not list(out.glob("txt/*"))
    assert len(list(out.glob("srt/*"))) == ITEMS
    assert not list(out.glob("parts/shard-*/*"))


@pytest.mark.usefixtures("two_manifests")
def test_out_that_is_deleted_during_a_run(start: Starter, tmp_path: Path) -> None:
    """A run whose OUT is deleted ends with a clear error."""
    out = tmp_path / "out"
    hold = Hold(tmp_path / "hold")
    process = start("run", "a.jsonl", "-o", out, *ENGINE, *SLOWLY, *hold.options)
    hold.reached(process=process)
    until(lambda: parts(out, "shard-00000-of-00001"), process=process)
    (out / "run.json").unlink()
    hold.release()
    code, stderr = finished(process)
    assert (code, f"{out}/run.json is gone: OUT was deleted or moved during the run" in stderr) == (1, True), stderr


@pytest.mark.usefixtures("two_manifests")
def test_takeover_ends_a_fleet(start: Starter, tmp_path: Path) -> None:
    """If OUT has another owner, worker processes end, and the run ends with the clear error."""
    out = tmp_path / "out"
    hold = Hold(tmp_path / "hold")
    fleet = start("run", "a.jsonl", "-o", out, *ENGINE, "--engine-option", "workers=2", *SLOWLY, *hold.options)
    hold.reached(2, process=fleet)
    until(lambda: parts(out, "shard-00000-of-00001"), process=fleet)
    owner = json.loads((out / "run.json").read_text()) | {"generation": "0123456789ab"}
    (out / "new.json").write_text(json.dumps(owner))
    (out / "new.json").rename(out / "run.json")
    hold.release()
    code, stderr = finished(fleet)
    assert (code, f"Error: {out}: another run, " in stderr, TAKEN in stderr) == (1, True, True), stderr
    assert len(parts(out, "shard-00000-of-00001")) < ITEMS


@pytest.mark.usefixtures("two_manifests")
def test_changed_outputs_are_noticed_by_a_second_run(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A second run names an output that was changed and leaves it; when it is moved away, a run writes it again."""
    out = tmp_path / "out"
    command = ("run", "a.jsonl", "-o", out, *ENGINE)
    assert voxbatch(*command).returncode == 0
    whole = (out / "transcripts.jsonl").read_bytes()
    changed = whole.replace(b"aaa", b"xyz")
    (out / "transcripts.jsonl").write_bytes(changed)
    done = voxbatch(*command)
    assert done.returncode == 1
    assert f"{out}/transcripts.jsonl was changed or damaged: it has " in done.stderr
    assert (out / "transcripts.jsonl").read_bytes() == changed
    assert f"voxbatch correct {out}" in done.stderr
    (out / "transcripts.jsonl").rename(tmp_path / "mine.jsonl")
    assert voxbatch(*command).returncode == 0
    assert (out / "transcripts.jsonl").read_bytes() == whole


@pytest.mark.usefixtures("two_manifests")
def test_outputs_that_lost_their_bytes_are_written_again(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """An empty output and a damaged summary, as a loss of power may leave them, are written again
    from the parts, with a warning."""
    out = tmp_path / "out"
    command = ("run", "a.jsonl", "-o", out, *ENGINE)
    assert voxbatch(*command).returncode == 0
    names = ("transcripts.jsonl", "summary.json", "summary.json")
    commands = (command, command, ("merge", out))
    whole = {name: (out / name).read_bytes() for name in names}
    for name, content, again in zip(names, (b"", b"", bytes(1000)), commands, strict=True):
        (out / name).write_bytes(content)
        done = voxbatch(*again)
        assert done.returncode == 0, done.stderr
        assert f"{out}/{name} is " in done.stderr
        assert "it is written again from the parts" in done.stderr
        assert {name: (out / name).read_bytes() for name in names} == whole


@pytest.mark.parametrize("moment", ["before the new run owns OUT", "after it has erased the old files"])
def test_merge_of_an_earlier_run_that_deletes_the_new_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A list that the merge of an earlier run takes for a leftover, just before its run loses OUT, is created again."""
    store = Stores().out(str(tmp_path / "out"))
    first = reserve(store, RUN, Listing(keys=keys(2)), overwrite=True).run
    Checkpoint(store, first, keys(2)).commit([PartEntry(0, "failure", b'{"id": "r0"}')], 1.0)

    def delete_new_list() -> None:
        for name in store.names("lists"):
            if first.generation not in name:
                store.delete(name)

    if moment.startswith("before"):
        write = store.write

        def write_late(name: str, blocks: Iterable[bytes]) -> None:
            delete_new_list()
            write(name, blocks)

        monkeypatch.setattr(store, "write", write_late)
    else:

        def erase_and_delete(*args: Any) -> None:
            erase(*args)
            delete_new_list()

        monkeypatch.setattr("voxbatch.output.erase.erase", erase_and_delete)
    taken = reserve(store, RUN, Listing(keys=keys(2)), overwrite=True).run
    assert run_file.read(store) == taken
    assert store.names("lists") == [list_name(1, taken.generation)]
    assert part_names(store, first.generation) == []
