"""Tests for runs whose list of recordings grows, changes or shrinks, and for failures that are done again: exactly the
new and changed recordings are transcribed, no transcript is lost, and a kill at any step changes no byte.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import killed_at
import pytest
import servers
from conftest import ManifestWriter, Recorder, Starter, Voxbatch
from holds import Hold
from outputs import outputs
from scripted_engine import ScriptedTestEngine
from waits import until

from voxbatch import runner
from voxbatch.config import Config
from voxbatch.engines.feed import Feed
from voxbatch.errors import CheckpointError, ConfigError, RunMismatchError
from voxbatch.log import Log
from voxbatch.output.verify import verify
from voxbatch.runner import RunResult
from voxbatch.storage import Stores
from voxbatch.works.ask.options import QuestionOptions

pytestmark = [pytest.mark.usefixtures("warm_decoders"), pytest.mark.forks_children]
SCRIPTED = ("--engine", "scripted", "--log-format", "text", "--decoders", "1")


def lines(out: Path, name: str = "transcripts.jsonl") -> dict[str, dict[str, Any]]:
    """Return the lines of a merged output by id. No id comes twice."""
    rows = [json.loads(line) for line in (out / name).read_bytes().splitlines()]
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row for row in rows}


def raw_lines(out: Path) -> dict[str, bytes]:
    """Return the bytes of each transcript by id."""
    return {json.loads(line)["id"]: line for line in (out / "transcripts.jsonl").read_bytes().splitlines()}


@pytest.fixture
def engine_items(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the index of the item of each chunk that the engine works on in this process."""
    seen: list[int] = []

    class Counting(ScriptedTestEngine):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.spec = dataclasses.replace(self.spec, translates=True)

        def stream(self, feed: Feed) -> Iterator[Any]:
            for result in super().stream(feed):
                if hasattr(result, "item"):
                    seen.append(result.item)
                yield result

    monkeypatch.setattr("scripted_engine.ScriptedTestEngine", Counting)
    return seen


Run = Callable[..., RunResult]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs a source in this process: run("talks", said, update=True)."""

    def begin(source: object, said: list[str] | None = None, **settings: Any) -> RunResult:
        log = Log(quiet=True) if said is None else Log(write=said.append)
        config = Config(source=str(tmp_path / str(source)), out=str(tmp_path / "out"), engine="scripted", **settings)
        return runner.run(config, log)

    return begin


def test_ten_recordings_more(recording: Recorder, run: Run, engine_items: list[int], tmp_path: Path) -> None:
    """A second run over a folder of 1,000 recordings, to which 10 were added, does exactly these 10, and leaves the
    lines of the others as they are. A third run does nothing.
    """
    sample = recording("talks/day/0500.wav", 1.2)
    for i in range(1000):
        if i != 500:
            os.link(sample, tmp_path / f"talks/day/{i:04d}.wav")
    assert run("talks").progress.done == 1000
    assert (len(engine_items), len(set(engine_items))) == (1000, 1000)
    before = raw_lines(tmp_path / "out")
    engine_items.clear()
    for i in range(10):  # among the others, so that their indexes change
        shutil.copy(sample, tmp_path / f"talks/day/{i * 100:04d}b.wav")
    said: list[str] = []
    result = run("talks", said)
    assert len(engine_items) == len(set(engine_items)) == 10
    assert (result.progress.resumed, result.progress.done) == (1000, 10)
    assert result.summary
    assert (result.summary.items, result.summary.done) == (1010, 1010)
    assert any("10 new; 1,000 done before, kept as they are" in text for text in said), said
    after = raw_lines(tmp_path / "out")
    assert {item: after[item] for item in before} == before
    assert len(after) == 1010
    assert list(after) == sorted(after)
    assert verify(Stores().out(str(tmp_path / "out"))) == []
    assert run("talks").progress.resumed == 1010
    assert len(engine_items) == 10


def test_changed_removed_and_renamed(recording: Recorder, run: Run, engine_items: list[int], tmp_path: Path) -> None:
    """A changed recording is transcribed again; the transcript of a removed one stays and is told; a renamed one is
    both; the transcript returns to its place when the recording does.
    """
    for name, seconds in (("a", 1.1), ("b", 1.6), ("c", 2.1), ("d", 2.6), ("e", 3.1)):
        recording(f"talks/{name}.wav", seconds)
    (tmp_path / "talks/x.wav").write_bytes(b"no audio")
    run("talks", formats=("srt",))
    before, state = raw_lines(tmp_path / "out"), os.stat(tmp_path / "talks/b.wav")
    assert list(lines(tmp_path / "out", "failures.jsonl")) == ["x.wav"]
    engine_items.clear()
    recording("talks/a.wav", 5.1)
    shutil.move(tmp_path / "talks/b.wav", tmp_path / "b.wav")
    (tmp_path / "talks/c.wav").rename(tmp_path / "talks/f.wav")
    (tmp_path / "talks/x.wav").unlink()
    said: list[str] = []
    result = run("talks", said, formats=("txt",))
    text = next(text for text in said if "continues" in text)
    assert text.endswith(
        "continues with 4 recordings: 1 new; 2 done before, kept as they are; 1 changed; 2 no "
        "longer in the list, with transcripts that stay; 1 failed before and no longer in the list, left out"
    )
    assert len(engine_items) == 2
    assert result.summary
    assert (result.summary.items, result.summary.done, result.summary.failed) == (6, 6, 0)
    after = raw_lines(tmp_path / "out")
    assert list(after) == ["a.wav", "d.wav", "e.wav", "f.wav", "b.wav", "c.wav"]
    assert {name: after[name] for name in before if name != "a.wav"} == {
        name: before[name] for name in before if name != "a.wav"
    }
    assert lines(tmp_path / "out")["a.wav"]["audio_duration"] == 5.1
    subtitles = sorted(path.name for path in (tmp_path / "out/srt").iterdir())
    assert subtitles == [f"{name}.srt" for name in "bcde"], "not those of the old a.wav; srt is not asked for now"
    assert verify(Stores().out(str(tmp_path / "out"))) == []
    shutil.move(tmp_path / "b.wav", tmp_path / "talks/b.wav")
    assert os.stat(tmp_path / "talks/b.wav").st_mtime_ns == state.st_mtime_ns
    run("talks", formats=("srt",))
    assert len(engine_items) == 2
    assert list(raw_lines(tmp_path / "out")) == ["a.wav", "b.wav", "d.wav", "e.wav", "f.wav", "c.wav"]
    assert len(list((tmp_path / "out/srt").iterdir())) == 6


def test_a_limit_and_then_the_whole(
    recording: Recorder, manifest: ManifestWriter, run: Run, engine_items: list[int], tmp_path: Path
) -> None:
    """--limit 2 and then more of the same folder or manifest file just works. --limit 2 after the whole folder keeps
    all transcripts; for a manifest file it is refused.
    """
    for name in "abcd":
        recording(f"talks/{name}.wav", 1.1)
    assert run("talks", limit=2).progress.done == 2
    assert run("talks").progress.done == 2
    whole = raw_lines(tmp_path / "out")
    assert run("talks", limit=2).progress.done == 0
    assert raw_lines(tmp_path / "out") == whole
    assert run("talks").progress.done == 0
    assert raw_lines(tmp_path / "out") == whole
    shutil.rmtree(tmp_path / "out")
    manifest(1.1, 1.6, 2.1, 2.6)
    engine_items.clear()
    for limit, done in ((2, 2), (3, 1), (None, 1)):
        assert run("m.jsonl", limit=limit).progress.done == done
    assert len(engine_items) == 4
    before = (tmp_path / "out/transcripts.jsonl").read_bytes()
    with pytest.raises(RunMismatchError, match="holds another run"):
        run("m.jsonl", limit=2)
    assert (tmp_path / "out/transcripts.jsonl").read_bytes() == before


def test_a_manifest_file_takes_update(manifest: ManifestWriter, run: Run, tmp_path: Path) -> None:
    """A changed manifest file is refused with a message that names --update; with it, unchanged lines are kept. Another
    model is refused in any case.
    """
    manifest(1.1, 1.6, 2.1)
    run("m.jsonl")
    before = raw_lines(tmp_path / "out")
    text = (tmp_path / "m.jsonl").read_text().splitlines()
    row = {"audio_filepath": "r1.wav", "text": "w0 w1", "md5": "0"}
    (tmp_path / "m.jsonl").write_text("\n".join([text[2], json.dumps(row), text[0]]) + "\n")
    with pytest.raises(RunMismatchError, match=r"lines of the manifest differ.* add --update"):
        run("m.jsonl")
    with pytest.raises(RunMismatchError, match=r"engine|model"):
        run("m.jsonl", update=True, model="other")
    result = run("m.jsonl", update=True)
    assert (result.progress.done, result.progress.resumed) == (1, 2)
    after = raw_lines(tmp_path / "out")
    assert list(after) == ["r2.wav", "r1.wav", "r0.wav"]
    assert (after["r0.wav"], after["r2.wav"]) == (before["r0.wav"], before["r2.wav"])
    assert lines(tmp_path / "out")["r1.wav"]["text"] == "w0 w1"
    assert run("m.jsonl", update=True).progress.resumed == 3


def test_retry_failed(recording: Recorder, run: Run, engine_items: list[int], tmp_path: Path) -> None:
    """--retry-failed does the retryable failures again, all of them with `all`, and takes nothing over if there are
    none. A repaired recording becomes a transcript whose line has no trace of the failure.
    """
    for i in range(4):
        recording(f"r{i}.wav", 1.1 + i)
    rows = [{"audio_filepath": f"r{i}.wav", "speaker": i} for i in (0, 1, 2, 3, 9)]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    failing = {"engine_options": {"fail_items": "1,2"}}
    result = run("m.jsonl", **failing)
    assert result.summary
    assert (result.summary.done, result.summary.failed) == (2, 3)
    before, summary = raw_lines(tmp_path / "out"), (tmp_path / "out/summary.json").read_bytes()
    engine_items.clear()
    result = run("m.jsonl", retry_failed="retryable")
    assert sorted(engine_items) == [1, 2]
    assert list(lines(tmp_path / "out", "failures.jsonl")) == ["r9.wav"]
    after = raw_lines(tmp_path / "out")
    assert list(after) == ["r0.wav", "r1.wav", "r2.wav", "r3.wav"]
    assert (after["r0.wav"], after["r3.wav"]) == (before["r0.wav"], before["r3.wav"])
    assert not {"error", "message", "retryable", "line"} & set(lines(tmp_path / "out")["r1.wav"])
    summary, said = (tmp_path / "out/summary.json").read_bytes(), list[str]()
    run("m.jsonl", said, retry_failed="retryable")
    assert any("no failure to retry" in text for text in said)
    assert (tmp_path / "out/summary.json").read_bytes() == summary
    recording("r9.wav", 2.2)
    assert run("m.jsonl").progress.resumed_failed == 1
    engine_items.clear()
    result = run("m.jsonl", retry_failed="all")
    assert engine_items == [4]
    assert result.summary
    assert (result.summary.done, result.summary.failed) == (5, 0)
    assert not (tmp_path / "out/failures.jsonl").exists()
    assert not {"error", "message", "retryable", "line"} & set(lines(tmp_path / "out")["r9.wav"])
    assert verify(Stores().out(str(tmp_path / "out"))) == []


def test_a_retry_of_a_changed_recording(recording: Recorder, run: Run, engine_items: list[int], tmp_path: Path) -> None:
    """--retry-failed finds the failure of a recording that has changed since its first transcript."""
    recording("talks/a.wav", 1.1)
    run("talks")
    recording("talks/a.wav", 5.1)
    run("talks", engine_options={"fail_items": "0"})
    assert list(lines(tmp_path / "out", "failures.jsonl")) == ["a.wav"]
    engine_items.clear()
    run("talks", retry_failed="retryable")
    assert engine_items == [0]
    assert lines(tmp_path / "out")["a.wav"]["audio_duration"] == 5.1


@pytest.mark.parametrize("formats", [("srt",), ("txt",)])
def test_an_id_that_is_the_short_name_of_a_new_one(
    recording: Recorder, run: Run, tmp_path: Path, formats: tuple[str, ...]
) -> None:
    """An update with the item `a.wav` keeps the files of the item `a`, also in a format that is not written now."""
    recording("1.wav", 1.1)
    rows = [json.dumps({"audio_filepath": "1.wav", "id": item_id}) for item_id in ("a", "b.wav", "a.wav")]
    (tmp_path / "m.jsonl").write_text("\n".join(rows[:2]))
    run("m.jsonl", formats=("srt",))
    (tmp_path / "m.jsonl").write_text("\n".join([*rows, rows[1].replace("b.wav", "b.mp3")]))
    run("m.jsonl", update=True, formats=formats)
    names = {path.name for path in (tmp_path / "out/srt").iterdir()}
    assert names == ({"a.srt", "a.wav.srt", "b.wav.srt", "b.mp3.srt"} if "srt" in formats else {"a.srt"})


def test_several_tasks_cannot_change_the_list(recording: Recorder, run: Run, tmp_path: Path) -> None:
    """Shards refuse another list, --update and --retry-failed; one task changes it, and shards continue with it."""
    for i in range(6):
        recording(f"talks/{i}.wav", 1.1 + i / 2)
    for shard in range(3):
        run("talks", shard=shard, shards=3)
    before = raw_lines(tmp_path / "out")
    wall_s = json.loads((tmp_path / "out/summary.json").read_text())["process_s"]
    for i in range(6, 9):
        recording(f"talks/{i}.wav", 1.1)
    with pytest.raises(ConfigError, match=r"3 shards or tasks cannot change the list together.*as one task"):
        run("talks", shard=0, shards=3)
    for settings in ({"update": True}, {"retry_failed": "all"}):
        with pytest.raises(ConfigError, match="as one task"):
            run("talks", shard=0, shards=3, **settings)
    with pytest.raises(ConfigError, match="leave out one"):
        run("talks", overwrite=True, update=True)
    result = run("talks")
    assert (result.progress.done, result.progress.resumed) == (3, 6)
    after = raw_lines(tmp_path / "out")
    assert {name: after[name] for name in before} == before
    assert json.loads((tmp_path / "out/summary.json").read_text())["process_s"] > wall_s
    for shard in range(2):
        assert run("talks", shard=shard, shards=2).progress.done == 0


def checkpoint_files(out: Path) -> dict[str, bytes]:
    """Return the parts, the lists and run.json."""
    paths = (out / "run.json", *out.glob("parts/**/*"), *out.glob("lists/**/*"))
    return {str(path): path.read_bytes() for path in paths if path.is_file()}


def test_nothing_is_rewritten(recording: Recorder, run: Run, tmp_path: Path) -> None:
    """A run with another list, or that does failures again, changes no file of the checkpoint, and adds others."""
    for name, seconds in (("a", 1.1), ("b", 1.6), ("c", 2.1)):
        recording(f"talks/{name}.wav", seconds)
    (tmp_path / "talks/x.wav").write_bytes(b"no audio")
    run("talks", part_items=2)
    before = checkpoint_files(tmp_path / "out")
    steps: tuple[Callable[[], object], ...] = (
        lambda: recording("talks/0.wav", 1.1),
        lambda: recording("talks/a.wav", 5.1),
        (tmp_path / "talks/b.wav").unlink,
        lambda: None,
    )
    for step in steps:
        step()
        run("talks", retry_failed="all")
        after = checkpoint_files(tmp_path / "out")
        assert after.items() > before.items()
        before = after
    assert list(raw_lines(tmp_path / "out")) == ["0.wav", "a.wav", "c.wav", "b.wav"]
    assert verify(Stores().out(str(tmp_path / "out"))) == []


def test_several_workers(recording: Recorder, run: Run, tmp_path: Path) -> None:
    """A run with several worker processes does the new recordings only, and keeps the transcripts of removed ones."""
    for i in range(8):
        recording(f"talks/{i}.wav", 1.1 + i / 2)
    workers = {"engine_options": {"workers": "2"}}
    assert run("talks", **workers).progress.done == 8
    before = raw_lines(tmp_path / "out")
    (tmp_path / "talks/3.wav").unlink()
    for i in range(8, 12):
        recording(f"talks/{i}.wav", 1.1)
    result = run("talks", **workers)
    assert (result.progress.resumed, result.progress.done) == (8, 4)
    after = raw_lines(tmp_path / "out")
    assert {name: after[name] for name in before} == before
    assert len(after) == 12


@pytest.fixture
def grown(recording: Recorder, voxbatch: Voxbatch, tmp_path: Path) -> tuple[object, ...]:
    """Make OUT `first` of a folder that changes afterwards in every way. Return the arguments of a run of it."""
    for name, seconds in (("a", 1.1), ("b", 1.6), ("c", 2.1), ("d", 2.6)):
        recording(f"talks/{name}.wav", seconds)
    (tmp_path / "talks/x.wav").write_bytes(b"no audio")
    command = ("run", "talks", *SCRIPTED, "--formats", "srt")
    assert voxbatch(*command, "-o", "first", "--part-items", "2").returncode == 3
    recording("talks/a.wav", 5.1)
    (tmp_path / "talks/b.wav").unlink()
    recording("talks/0.wav", 1.1)
    recording("talks/e.wav", 3.1)
    return command


@pytest.mark.parametrize(
    ("stride", "is_moved"),
    [(5, False), pytest.param(1, False, marks=pytest.mark.long), pytest.param(5, True, marks=pytest.mark.long)],
)
def test_killed_at_every_step_of_an_update(
    grown: tuple[object, ...], voxbatch: Voxbatch, tmp_path: Path, stride: int, is_moved: bool
) -> None:
    """An update that is killed after any of its changes of OUT ends in the bytes of an undisturbed one, also if the
    folder has moved; between two kills, the merged outputs are those of before.
    """
    if is_moved:
        (tmp_path / "talks").rename(tmp_path / "moved")
        grown = ("run", "moved", *grown[2:], "--update")
    shutil.copytree(tmp_path / "first", tmp_path / "peace")
    assert voxbatch(*grown, "-o", "peace").returncode == 3
    wanted = outputs(Stores().out(str(tmp_path / "peace")))
    assert all(line["words"] for line in lines(tmp_path / "peace").values())
    number, code = 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        out = tmp_path / f"killed{number}"
        shutil.copytree(tmp_path / "first", out)
        code = voxbatch(*grown, "-o", out, env={killed_at.VARIABLE: str(number)}).returncode
        assert (out / "transcripts.jsonl").read_bytes()
        again = voxbatch(*grown, "-o", out)
        assert again.returncode == 3, again.stderr
        assert outputs(Stores().out(str(out))) == wanted, number
        assert verify(Stores().out(str(out))) == []
        shutil.rmtree(out)
        number += stride
    assert code == 3
    assert number > 15


def test_a_folder_that_grows_after_an_early_kill(recording: Recorder, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A run that was killed before it wrote its list may go on with further recordings, and is then a sound one; a
    change of its settings in run.json is still told."""
    recording("talks/a.wav", 0.6)
    command, out = ("run", "talks", "-o", "out", "--engine", "scripted", "--decoders", "1"), tmp_path / "out"
    number = 1
    while not (out / "run.json").exists():
        assert voxbatch(*command, env={killed_at.VARIABLE: str(number)}).returncode == -signal.SIGKILL
        number += 1
    assert not (out / "lists").exists()
    recording("talks/b.wav", 0.7)
    done = voxbatch(*command)
    assert done.returncode == 0, done.stderr
    assert verify(Stores().out(str(out))) == []
    run_file = out / "run.json"
    run_file.write_text(run_file.read_text().replace("scripted", "scribbled", 1))
    assert [problem.file for problem in verify(Stores().out(str(out)))][:1] == ["run.json"]


@pytest.mark.parametrize("written", ["run.json", "lists/00001.bin"])
def test_the_formats_of_a_run_that_grows_before_its_end(
    written: str, recording: Recorder, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """Two recordings that are added one by one to a killed run have the subtitles and the texts of the first one."""
    recording("talks/a.wav", 0.6)
    command, number = ("run", "talks", *SCRIPTED), 1
    while not (tmp_path / "talks.voxbatch" / written).exists():
        assert voxbatch(*command, env={killed_at.VARIABLE: str(number)}).returncode == -signal.SIGKILL
        number += 1
    recording("talks/b.wav", 0.7)
    number = 1
    while not (tmp_path / "talks.voxbatch/lists/00002.bin").exists() and written != "run.json":
        assert voxbatch(*command, env={killed_at.VARIABLE: str(number)}).returncode == -signal.SIGKILL
        number += 1
    recording("talks/c.wav", 0.8)
    done = voxbatch(*command)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "talks.voxbatch/srt").iterdir()} == {"a.srt", "b.srt", "c.srt"}
    assert {path.name for path in (tmp_path / "talks.voxbatch/txt").iterdir()} == {"a.txt", "b.txt", "c.txt"}


def test_an_update_during_an_update(
    grown: tuple[object, ...], recording: Recorder, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """If an update is killed at any step and the folder changes once more, the next run has all transcripts of all
    generations.
    """
    kept = raw_lines(tmp_path / "first")
    for number in (1, 9):
        out = tmp_path / f"killed{number}"
        shutil.copytree(tmp_path / "first", out)
        assert voxbatch(*grown, "-o", out, env={killed_at.VARIABLE: str(number)}).returncode == -signal.SIGKILL
        recording(f"talks/more{number}.wav", 1.6)
        (tmp_path / "talks/c.wav").rename(tmp_path / "c.wav")
        again = voxbatch(*grown, "-o", out)
        assert again.returncode == 3, again.stderr
        (tmp_path / "c.wav").rename(tmp_path / "talks/c.wav")
        found = raw_lines(out)
        assert {name: found[name] for name in ("b.wav", "c.wav", "d.wav")} == {
            name: kept[name] for name in ("b.wav", "c.wav", "d.wav")
        }
        assert found.keys() >= {"a.wav", "0.wav", "e.wav", f"more{number}.wav"}
        assert found["a.wav"] != kept["a.wav"]
        assert verify(Stores().out(str(out))) == []


def test_an_update_in_a_bucket(
    google: servers.Server,
    grown: tuple[object, ...],
    voxbatch: Voxbatch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An update of an OUT in a bucket that is killed ends in the bytes of one with files."""
    assert voxbatch(*grown, "-o", "first").returncode == 3
    wanted = raw_lines(tmp_path / "first")
    with servers.placed(google, monkeypatch):
        bucket = f"grow-{os.getpid()}"
        google.make(bucket)
        out = f"gs://{bucket}/out"
        for path in sorted((tmp_path / "talks").glob("[0ae].wav")):
            path.rename(tmp_path / path.name)
        assert voxbatch(*grown, "-o", out).returncode == 3
        for name in "0ae":
            (tmp_path / f"{name}.wav").rename(tmp_path / f"talks/{name}.wav")
        assert voxbatch(*grown, "-o", out, env={killed_at.VARIABLE: "9"}).returncode == -signal.SIGKILL
        again = voxbatch(*grown, "-o", out)
        assert again.returncode == 3, again.stderr
        store = Stores().out(out)
        assert {"0.srt", "a.srt"} <= {name.removeprefix("srt/") for name in store.names("srt")}
        merged = (store.read("transcripts.jsonl") or b"").splitlines()
        assert set(merged) >= {line for item, line in wanted.items() if item != "b.wav"}
        assert verify(store) == []


def test_a_process_of_the_old_list(recording: Recorder, start: Starter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """While a run is at work, a task with more recordings takes its committed items over. The first one ends with a
    message that says so, and nothing is transcribed twice. A process that is no task is refused.
    """
    for i in range(8):
        recording(f"talks/{i}.wav", 1.1)
    hold = Hold(tmp_path / "hold", after=2)
    slow = ("--part-items", "1", "--engine-option", "concurrency=1", *hold.options)
    first = start("run", "talks", "-o", "out", *SCRIPTED, *slow)
    until(lambda: len(list(tmp_path.glob("out/parts/*/part-*"))) >= 2, process=first)
    recording("talks/9.wav", 1.6)
    assert f"pid {first.pid} on " in voxbatch("run", "talks", "-o", "out", *SCRIPTED).stderr
    task = {"CLOUD_RUN_TASK_INDEX": "0", "CLOUD_RUN_TASK_COUNT": "1"}
    second = voxbatch("run", "talks", "-o", "out", *SCRIPTED, env=task)
    assert second.returncode == 0, second.stderr
    hold.release()
    _, stderr = first.communicate(timeout=120)
    assert first.returncode == 1
    assert "another process continues this OUT with the present list of recordings" in stderr
    assert "--overwrite" not in stderr
    assert "Traceback" not in stderr
    assert len(lines(tmp_path / "out")) == 9
    resumed = json.loads((tmp_path / "out/summary.json").read_text())
    assert resumed["latency"]["chunk"]["count"] == 9


def test_another_reference_is_scored_and_not_transcribed(
    recording: Recorder, run: Run, engine_items: list[int], tmp_path: Path
) -> None:
    """A reference that changed, came or went gives the bytes of a fresh run, without a chunk for the engine. A
    recording that changed, too, is transcribed again."""
    for name, seconds in (("a", 1.1), ("b", 1.6), ("c", 2.1), ("d", 2.6), ("e", 1.3)):
        recording(f"talks/{name}.wav", seconds)
    for name in ("a", "b", "d", "e"):
        (tmp_path / f"talks/{name}.txt").write_text("w0 w1 w2")
    run("talks", formats=("srt",))
    before = raw_lines(tmp_path / "out")
    engine_items.clear()
    (tmp_path / "talks/a.txt").write_text("w0 other words")
    (tmp_path / "talks/b.txt").unlink()
    (tmp_path / "talks/c.txt").write_text("w0")
    (tmp_path / "talks/d.txt").write_text("w0")
    recording("talks/d.wav", 3.1)
    said: list[str] = []
    result = run("talks", said, formats=("srt",))
    assert engine_items == [3]
    assert any("3 changed items with the same audio and language: rows and scores are new" in text for text in said)
    assert result.summary
    assert (result.summary.items, result.summary.done) == (5, 5)
    after = raw_lines(tmp_path / "out")
    assert {name for name in after if after[name] != before[name]} == {"a.wav", "b.wav", "c.wav", "d.wav"}
    shutil.move(tmp_path / "out", tmp_path / "grown")
    fresh = run("talks", formats=("srt",)).summary
    assert raw_lines(tmp_path / "out") == after
    assert fresh
    assert fresh.score == result.summary.score
    assert verify(Stores().out(str(tmp_path / "grown"))) == []
    assert (tmp_path / "grown/srt/a.srt").read_bytes() == (tmp_path / "out/srt/a.srt").read_bytes()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda rows: [*rows, rows[0] | {"id": "more"}], "1 new; 3 as before"),
        (lambda rows: [rows[0] | {"topic": 2}, *rows[1:]], "1 changed; 2 as before"),
        (lambda rows: rows[1:], "1 gone; 2 as before"),
        (lambda rows: rows[::-1], "3 as before, in another order"),
        (
            lambda rows: [row | {"id": f"call {row['id']}"} for row in rows],
            "3 new; 3 gone; 0 as before; they match by id",
        ),
    ],
)
def test_a_refusal_counts_the_lines_that_differ(
    manifest: ManifestWriter, run: Run, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], told: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    """A changed manifest without --update is refused, with the numbers of new, changed, gone and equal lines."""
    manifest(1, 1, 1)
    rows = [json.loads(line) | {"id": str(k)} for k, line in enumerate((tmp_path / "m.jsonl").read_text().splitlines())]

    def write(present: list[dict[str, Any]]) -> None:
        (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in present))

    write(rows)
    run("m.jsonl")
    write(change(rows))
    with pytest.raises(RunMismatchError, match=re.escape(f"the lines of the manifest differ ({told}). ")):
        run("m.jsonl")


@pytest.mark.parametrize("task", ["transcribe", "translate"])
def test_other_columns_in_a_manifest(
    manifest: ManifestWriter, run: Run, engine_items: list[int], task: str, tmp_path: Path
) -> None:
    """With --update, columns that no transcription reads are carried over and scored, with the bytes of a fresh run.
    Rows with other audio, another state of it, another language or other hotwords are transcribed again."""
    words = [{"word": "w0", "start": 0.0, "end": 0.5}]
    options: dict[str, Any] = {"task": task, "formats": ("srt",)}
    manifest(*[1.5] * 11, text="w0 w1", topic=1, message="mine", line=7, md5="1")
    rows = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    run("m.jsonl", **options)
    engine_items.clear()
    rows[0] |= {"text": "w0 w9", "words": words}
    del rows[1]["text"]
    rows[2] |= {"lang": "fr"}
    rows[3] |= {"text": "w0", "topic": True}
    rows[4] |= {"text": "w0", "speaker": "Ada", "size": None}
    rows[5] |= {"offset": 0.5, "id": rows[5]["audio_filepath"]}
    rows[6] |= {"md5": "2"}
    rows[7] |= {"message": "yours", "line": 8, "segments": [], "recognised": 1, "cascade": 2, "answer": 3}
    del rows[8]["topic"]
    rows[9] |= {"duration": 1.2}
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [rows[10], *rows[:10]]))
    updated = run("m.jsonl", update=True, **options).summary
    assert sorted(engine_items) == [3, 6, 7, 10]
    assert run("m.jsonl", **options).progress.resumed == 11
    assert sorted(engine_items) == [3, 6, 7, 10]
    assert verify(Stores().out(str(tmp_path / "out"))) == []
    after = raw_lines(tmp_path / "out")
    shutil.move(tmp_path / "out", tmp_path / "grown")
    fresh = run("m.jsonl", **options).summary
    assert raw_lines(tmp_path / "out") == after
    assert updated
    assert fresh
    assert (updated.score, updated.word_times) == (fresh.score, fresh.word_times)


def test_another_reference_in_a_cascade(
    manifest: ManifestWriter, run: Run, engine_items: list[int], tmp_path: Path
) -> None:
    """Both passes keep their texts, and each line is that of a fresh run."""
    options: dict[str, Any] = {"engine_options": {"confidence": "true"}, "cascade": "little,big:0.5"}
    manifest(*[1.5] * 6, text="w0 w1")
    run("m.jsonl", **options)
    engine_items.clear()
    (tmp_path / "m.jsonl").write_text((tmp_path / "m.jsonl").read_text().replace("w0 w1", "w0 little"))
    run("m.jsonl", update=True, **options)
    assert engine_items == []
    after = raw_lines(tmp_path / "out")
    shutil.move(tmp_path / "out", tmp_path / "grown")
    run("m.jsonl", **options)
    assert raw_lines(tmp_path / "out") == after


def test_another_reference_of_a_question(
    manifest: ManifestWriter, run: Run, engine_items: list[int], tmp_path: Path
) -> None:
    """An answer is asked for again when a row changes: only a transcript is independent of `text`."""
    manifest(1.5, 1.5, text="w0 w1", prompt="Who?")
    options: dict[str, Any] = {"own": QuestionOptions()}
    run("m.jsonl", **options)
    engine_items.clear()
    (tmp_path / "m.jsonl").write_text((tmp_path / "m.jsonl").read_text().replace("w0 w1", "w0"))
    run("m.jsonl", update=True, **options)
    assert sorted(engine_items) == [0, 1]


def test_the_command_line(recording: Recorder, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """--retry-failed stands before SOURCE without a value, or with one; a wrong combination is refused."""
    recording("talks/a.wav", 1.1)
    (tmp_path / "talks/b.wav").write_bytes(b"no audio")
    assert voxbatch("run", "talks", *SCRIPTED).returncode == 3
    recording("talks/b.wav", 1.6)
    update = voxbatch("run", "--retry-failed", "talks", *SCRIPTED)
    assert (update.returncode, "1 changed" in update.stderr) == (0, True), update.stderr
    done = voxbatch("run", "--retry-failed", "all", "talks", *SCRIPTED)
    assert (done.returncode, "no failure to retry" in done.stderr) == (0, True), done.stderr
    assert voxbatch("run", "talks", "--retry-failed=all", *SCRIPTED).returncode == 0
    both = voxbatch("run", "talks", "--retry-failed", "--overwrite", *SCRIPTED)
    assert (both.returncode, "leave out one of them" in both.stderr) == (2, True)


def test_the_end_of_a_run_shows_what_this_run_made(recording: Recorder, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """The texts at the end are those of the items that were to do; without any, nothing is shown again."""
    for name in "abcdef":
        recording(f"talks/{name}.wav", 1.1)
    assert voxbatch("run", "talks", *SCRIPTED).stdout.startswith("a.wav: w0 w1\n")
    recording("talks/x.wav", 1.6)
    assert voxbatch("run", "talks", *SCRIPTED).stdout.startswith("x.wav: w0 w1 w2\n… and 6 more\n\n7 done")
    recording("talks/c.wav", 2.1)
    assert voxbatch("run", "talks", *SCRIPTED).stdout.startswith("c.wav: w0 w1 w2 w3\n")
    assert "w0" not in voxbatch("run", "talks", *SCRIPTED).stdout
    assert voxbatch("run", "talks", *SCRIPTED, "--overwrite").stdout.startswith("a.wav: w0 w1\n")


def test_a_model_that_never_loaded(
    manifest: ManifestWriter, start: Starter, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """A run whose model cannot be loaded, or that is stopped before its model is loaded, does not claim OUT, also if a
    recording is missing. A run that has committed something does.
    """
    manifest(1.1, None)
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("model.bin", "tokenizer.json", "vocabulary.txt", "config.json"):
        (broken / name).write_bytes(b"{}")
    wrong = voxbatch("run", "m.jsonl", "-o", "out", "--engine", "faster-whisper", "--model", "broken")
    assert (wrong.returncode, "cannot load the model" in wrong.stderr) == (1, True), wrong.stderr
    assert not (tmp_path / "out/run.json").exists(), wrong.stderr
    assert not list(tmp_path.glob("out/parts/**/*.*"))
    slow = ("--engine-option", "load_s=60", "--part-seconds", "0.01", "--part-items", "1")
    stopped = start("run", "m.jsonl", "-o", "out", *SCRIPTED, *slow)
    until((tmp_path / "out/run.json").exists)
    time.sleep(2)  # the missing recording has failed
    stopped.terminate()
    stopped.communicate(timeout=60)
    assert stopped.returncode == 143
    assert not (tmp_path / "out/run.json").exists()
    lost = voxbatch("run", "m.jsonl", "-o", "out", *SCRIPTED, "--engine-option", "workers=2", "--model", "x", *slow[2:])
    assert lost.returncode == 3, lost.stderr
    other = voxbatch("run", "m.jsonl", "-o", "out", *SCRIPTED)
    assert (other.returncode, "model was x, and is count now" in other.stderr) == (2, True)


def test_outputs_as_a_manifest(recording: Recorder, run: Run, tmp_path: Path) -> None:
    """If an output of a run is the manifest of another run, the lines hold none of the old results. Keys of the user's
    own that have such names pass through.
    """
    recording("a.wav", 1.1)
    rows = [{"audio_filepath": "a.wav", "speaker": 1}, {"audio_filepath": "b.wav", "message": "mine", "text": "w0"}]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run("m.jsonl")
    failure = lines(tmp_path / "out", "failures.jsonl")["b.wav"]
    assert (failure["line"], failure["error"]) == (2, "AudioError")
    shutil.copy(tmp_path / "out/failures.jsonl", tmp_path / "again.jsonl")
    shutil.copy(tmp_path / "out/transcripts.jsonl", tmp_path / "transcribed.jsonl")
    shutil.rmtree(tmp_path / "out")
    recording("b.wav", 1.6)
    run("again.jsonl")
    done = lines(tmp_path / "out")["b.wav"]
    assert not {"error", "message", "retryable", "line"} & set(done)
    assert (done["text"], done["version"]) == ("w0", 1)
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "a.wav").unlink()
    run("transcribed.jsonl")
    failed = lines(tmp_path / "out", "failures.jsonl")["a.wav"]
    assert sorted(failed) == [
        "audio_filepath", "error", "error_kind", "id", "lang", "line", "message", "retryable", "speaker", "version",
    ]  # fmt: skip
    shutil.rmtree(tmp_path / "out")
    mine = {"audio_filepath": "b.wav", "message": "mine", "line": 7, "words": ["w"], "engine": "V8"}
    (tmp_path / "m.jsonl").write_text(json.dumps(mine) + "\n")
    run("m.jsonl")
    assert (lines(tmp_path / "out")["b.wav"]["message"], lines(tmp_path / "out")["b.wav"]["line"]) == ("mine", 7)


def test_a_changed_output_is_not_replaced(recording: Recorder, run: Run, tmp_path: Path) -> None:
    """If somebody has changed transcripts.jsonl, a run with more recordings does them, and its error names the file,
    which stays. When it is moved away, the next run writes it, and transcribes nothing."""
    recording("talks/a.wav", 1.1)
    run("talks")
    transcripts = tmp_path / "out/transcripts.jsonl"
    transcripts.write_bytes(transcripts.read_bytes().replace(b"w0", b"hello"))
    corrected = transcripts.read_bytes()
    recording("talks/b.wav", 1.1)
    with pytest.raises(CheckpointError, match=r"transcripts.jsonl was changed or damaged.*It stays as it is"):
        run("talks")
    assert transcripts.read_bytes() == corrected
    transcripts.rename(tmp_path / "mine.jsonl")
    result = run("talks")
    assert (result.progress.resumed, result.progress.done) == (2, 0)
    assert sorted(lines(tmp_path / "out")) == ["a.wav", "b.wav"]


def test_a_damaged_list_of_items(recording: Recorder, run: Run, tmp_path: Path) -> None:
    """verify names a damaged list; after the repair, the run takes more recordings, and removed ones keep theirs."""
    for name in "abc":
        recording(f"talks/{name}.wav", 1.1)
    run("talks")
    (tmp_path / "talks/b.wav").unlink()
    recording("talks/d.wav", 1.1)
    run("talks")
    before = raw_lines(tmp_path / "out")
    items = tmp_path / "out/lists/00002.bin"
    items.write_bytes(items.read_bytes()[:-3] + b"xyz")
    found = verify(Stores().out(str(tmp_path / "out")))
    assert [problem.file for problem in found] == [str(items.relative_to(tmp_path / "out"))]
    subprocess.run(found[0].repair[0], shell=True, check=True)
    assert run("talks").progress.resumed == 4
    recording("talks/e.wav", 1.1)
    assert run("talks").progress.done == 1
    after = raw_lines(tmp_path / "out")
    assert {name: after[name] for name in before} == before
    assert verify(Stores().out(str(tmp_path / "out"))) == []


@pytest.mark.parametrize("settings", [{}, {"update": True}, {"retry_failed": "retryable"}], ids=str)
def test_a_damaged_list_that_was_retried(
    manifest: ManifestWriter, run: Run, engine_items: list[int], tmp_path: Path, settings: dict[str, Any]
) -> None:
    """After a damaged list was removed whose recordings are those of the list before, the next run has all items. A
    shard names the remedy.
    """
    manifest(1.1, 1.6)
    run("m.jsonl", engine_options={"fail_items": "1"})
    run("m.jsonl", retry_failed="retryable")
    before, items = raw_lines(tmp_path / "out"), tmp_path / "out/lists/00002.bin"
    items.write_bytes(b"{}")
    with pytest.raises(CheckpointError, match=r"lists/00002.bin: not a list .* run again with the same recordings: rm"):
        run("m.jsonl", **settings)
    items.unlink()
    if not settings:
        with pytest.raises(CheckpointError, match=r"list 2 of the run, which is missing.* as one task"):
            run("m.jsonl", shard=0, shards=2)
    engine_items.clear()
    run("m.jsonl", **settings)
    assert (raw_lines(tmp_path / "out"), engine_items) == (before, [])
    assert verify(Stores().out(str(tmp_path / "out"))) == []
    assert run("m.jsonl").progress.resumed == 2
    assert len(list((tmp_path / "out/lists").iterdir())) == 2


def test_two_updates_at_once(recording: Recorder, start: Starter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """If two processes find the same new recordings at the same time, nothing is lost or transcribed twice."""
    for i in range(4):
        recording(f"talks/{i}.wav", 1.1)
    for number in range(2):
        assert voxbatch("run", "talks", "-o", "out", *SCRIPTED).returncode == 0
        before = raw_lines(tmp_path / "out")
        recording(f"talks/more{number}.wav", 1.1)
        both = [start("run", "talks", "-o", "out", *SCRIPTED) for _ in range(2)]
        said = [process.communicate(timeout=120)[1] for process in both]
        assert sorted(process.returncode for process in both) in ([0, 0], [0, 1]), said
        after = raw_lines(tmp_path / "out")
        assert {name: after[name] for name in before} == before
        assert len(after) == 5 + number
        assert verify(Stores().out(str(tmp_path / "out"))) == []


def test_a_list_of_another_run(recording: Recorder, run: Run, tmp_path: Path) -> None:
    """A list that a run of another model has left is refused with the command that removes it."""
    recording("talks/a.wav", 1.1)
    run("talks", model="other")
    shutil.rmtree(tmp_path / "out/parts")
    for name in ("run.json", "transcripts.jsonl", "summary.json", "report.html"):
        (tmp_path / "out" / name).unlink()
    with pytest.raises(CheckpointError, match=r"lists/00001.bin: not a list .* again with the same recordings: rm "):
        run("talks")
    (tmp_path / "out/lists/00001.bin").unlink()
    run("talks")
    recording("talks/b.wav", 1.6)
    assert run("talks").progress.done == 1
    assert {row["model"] for row in lines(tmp_path / "out").values()} == {"count"}


def test_another_folder_needs_another_out(recording: Recorder, run: Run, tmp_path: Path) -> None:
    """Recordings of another folder, which may have the same names, do not replace transcripts. --update says that the
    folder has moved.
    """
    recording("monday/a.wav", 1.1)
    run("monday")
    before = (tmp_path / "out/transcripts.jsonl").read_bytes()
    recording("tuesday/a.wav", 2.1)
    with pytest.raises(RunMismatchError, match=r"recordings in .*monday, and this run those in .*tuesday.*--update"):
        run("tuesday")
    assert (tmp_path / "out/transcripts.jsonl").read_bytes() == before
    shutil.rmtree(tmp_path / "tuesday")
    shutil.move(tmp_path / "monday", tmp_path / "moved")
    assert run("moved").progress.resumed == 1
    recording("moved/b.wav", 2.1)
    assert run("moved", update=True).progress.done == 1
    assert run("moved").progress.resumed == 2


def test_ids_of_a_run_stay(recording: Recorder, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --update, the ids of absolute paths stay those of the first list, although another folder is common to all
    paths; also in an OUT of a version that left no folder out of the ids."""
    first, second = recording("talks/a.wav", 1), recording("other/b.wav", 1)
    rows = [json.dumps({"audio_filepath": str(path)}) + "\n" for path in (first, second)]
    manifest, long_id = tmp_path / "m.jsonl", str(first).lstrip("/")
    for ids_before, id_root in ((["a.wav"], None), ([long_id], "")):
        manifest.write_text(rows[0])
        with monkeypatch.context() as patch:
            if id_root is not None:
                patch.setattr("voxbatch.manifest.source.Source.id_root", id_root)
            run("m.jsonl", overwrite=id_root is not None)
        before = raw_lines(tmp_path / "out")
        assert list(before) == ids_before
        manifest.write_text("".join(rows))
        result = run("m.jsonl", update=True)
        assert (result.progress.resumed, result.progress.done) == (1, 1)
        after = raw_lines(tmp_path / "out")
        assert list(after) == [*ids_before, str(second).lstrip("/")]
        assert after[ids_before[0]] == before[ids_before[0]]
        assert run("m.jsonl").progress.resumed == 2
