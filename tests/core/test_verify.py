"""Tests for `voxbatch status --verify`: every kind of damage is named, and the commands that it prints repair it."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import ManifestWriter, Voxbatch
from outputs import keys, owned, problems

from voxbatch.analysis.calibrate import calibrate_run
from voxbatch.analysis.compare import compare_places
from voxbatch.analysis.export import export_items
from voxbatch.analysis.flagged import find_flagged
from voxbatch.analysis.report import write_report
from voxbatch.analysis.results import read_results
from voxbatch.analysis.score import score_run
from voxbatch.analysis.status import read_status
from voxbatch.errors import CheckpointError, VoxbatchError
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.output.merge_again import merge_again
from voxbatch.output.parts import PartEntry
from voxbatch.output.run_file import create_list
from voxbatch.output.stored_json import json_bytes
from voxbatch.output.verify import verify
from voxbatch.storage import Store, Stores
from voxbatch.storage.columns import ItemSet

ENGINE = ("--engine", "scripted", "--formats", "srt,txt", "--part-items", "2")
PART = "parts/shard-00000-of-00001/part-00001.jsonl"
Change = Callable[[bytes], bytes | None]


def snapshot(out: Path) -> dict[str, bytes]:
    """Return the outputs: all files except for the checkpoint, the digests of files that were replaced since, and the
    summary, whose times differ."""
    files = [path for path in out.rglob("*") if path.is_file() and {"parts", "digests"}.isdisjoint(path.parts)]
    return {str(path.relative_to(out)): path.read_bytes() for path in files if path.name != "summary.json"}


DAMAGE: dict[str, tuple[str, Change, str]] = {
    "part cut off": (PART, lambda data: data[:-9], "is not an entry"),
    "letter of a part": (PART, lambda data: data.replace(b'"pred_text": "w', b'"pred_text": "v', 1), "the checksum"),
    "part of another shard": (PART, lambda data: data.replace(b'"0/1"', b'"0/2"', 1), "shard-00000-of-00002/"),
    "part removed": (PART, lambda data: None, "2 of 4 items are not done yet"),
    "list": ("lists/00001.bin", lambda data: data[:-1] + b"x", "not a list of the items of run "),
    "complete.json": ("parts/shard-00000-of-00001/complete.json", lambda data: b"{}", "not written by run "),
    "transcripts cut off": ("transcripts.jsonl", lambda data: data[:-9], "changed or damaged: "),
    "transcripts missing": ("transcripts.jsonl", lambda data: None, "missing"),
    "subtitles cut off": ("srt/r1.srt", lambda data: data[:-9], "damaged; the first is srt/r1.srt"),
    "summary cut off": ("summary.json", lambda data: data[:-9], "damaged"),
    "count in the summary": ("summary.json", lambda data: data.replace(b'"done": 3', b'"done": 4'), "give it: done"),
    "figures in the summary": (
        "summary.json",
        lambda data: re.sub(rb'"(audio_s|wall_s)": [\d.]+', rb'"\1": 7.5', data),
        "not as the parts give it: audio_s, wall_s",
    ),
    "score in the summary": ("summary.json", lambda data: data.replace(b'"wer": ', b'"wer": 1'), "give it: score"),
    "figures of a part": (PART, lambda data: re.sub(rb'"wall_s": [\d.]+', b'"wall_s": 99.5', data), "its own checksum"),
    "middle of the report": ("report.html", lambda data: data.replace(b"</header>", b"</heaper>"), "missing, damaged"),
    "summary of another run": ("summary.json", lambda data: data.replace(b'"run": "', b'"run": "ff'), "which is not f"),
}


SPAN = {"start": 0.0, "end": 0.5}
TRANSCRIBED = {
    "audio_filepath": "/a.wav", "id": "a", "lang": "en", "text": "w0", "pred_text": "w0",
    "words": [{"word": "w0", **SPAN, "confidence": 0.5}], "segments": [{"text": "w0", **SPAN}],
    "audio_duration": 1.5, "wer": 0.0, "substitutions": 0, "insertions": 0, "deletions": 0, "reference_length": 1,
    "confidence": 0.5, "flags": [{"kind": "cut_off", "reason": "long", **SPAN}], "warnings": [], "version": 1,
}  # fmt: skip
FAILED = {
    "audio_filepath": "/b.wav", "id": "b", "lang": "en", "text": "w0", "line": 2, "error": "AudioError",
    "error_kind": "not_found", "message": "gone", "retryable": False, "version": 1,
}  # fmt: skip


@pytest.fixture
def finished(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> Path:
    """Return the OUT of a finished run of four items, of which one failed."""
    manifest(1, 1.5, 2, None, text="w0 w1")
    assert voxbatch("run", "m.jsonl", "-o", "out", *ENGINE).returncode == 3
    return tmp_path / "out"


def test_sound_outputs_have_no_problem(finished: Path, voxbatch: Voxbatch) -> None:
    """A finished run, and a run in progress, have no problem."""
    done = voxbatch("status", "out", "--verify")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "verified: no problem found")
    assert json.loads(voxbatch("status", "out", "--verify", "--json").stdout)["problems"] == []
    assert "problems" not in json.loads(voxbatch("status", "out", "--json").stdout)
    for name in ("summary.json", "transcripts.jsonl", PART):
        (finished / name).unlink()
    assert voxbatch("status", "out", "--verify").returncode == 0


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_and_repaired(finished: Path, voxbatch: Voxbatch, kind: str) -> None:
    """Each damage is a problem with exit code 1; after the steps that are printed, OUT is as it was."""
    before = snapshot(finished)
    name, change, reason = DAMAGE[kind]
    data = change((finished / name).read_bytes())
    if data is None:
        (finished / name).unlink()
    else:
        assert data != (finished / name).read_bytes()
        (finished / name).write_bytes(data)
    listed = voxbatch("status", "out", "--verify", "--json")
    assert (listed.returncode, listed.stderr) == (1, "")
    (problem,) = json.loads(listed.stdout)["problems"]
    assert name.startswith(problem["file"])
    assert reason in problem["problem"]
    for step in problem["repair"]:
        if step.startswith("run the same command again"):
            assert voxbatch("run", "m.jsonl", "-o", "out", *ENGINE).returncode == 3
        elif step.startswith("voxbatch "):
            assert voxbatch(*shlex.split(step)[1:]).returncode in (0, 3)
        else:
            subprocess.run(step, shell=True, cwd=finished.parent, check=True)
    assert verify(Stores().out(str(finished))) == []
    after = snapshot(finished)
    if kind.startswith("list"):  # parts name the list that was removed, so the next one follows it; the report names it
        assert after.pop("lists/00002.bin")
        del before["lists/00001.bin"], before["report.html"], after["report.html"]
    assert after == before


@pytest.mark.parametrize(
    ("before", "after"), [('"engine": "scripted"', '"engine": "other"'), ('"language": "en"\n}', '"language": "de"\n}')]
)
def test_changed_settings_of_a_run_are_named(voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path, before: str,
                                             after: str) -> None:  # fmt: skip
    """An engine or a language in run.json that the run did not have is a problem."""
    manifest(1, 1.5)
    assert voxbatch("run", "m.jsonl", "-o", "out", *ENGINE, "--language", "en").returncode == 0
    file = tmp_path / "out" / "run.json"
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))
    (problem,) = verify(Stores().out(str(tmp_path / "out")))
    assert (problem.file, problem.repair) == ("run.json", ())
    assert "its settings are not those that run " in problem.problem


def test_files_of_no_item_are_named(finished: Path) -> None:
    """A subtitle that no item has may be of a person: it is named, and no command removes it."""
    for name in ("srt/day1/old.srt", "srt/zoo.srt", "srt/notes.md", "own/r1.srt"):
        (finished / name).parent.mkdir(exist_ok=True)
        (finished / name).write_text("…")
    (problem,) = verify(Stores().out(str(finished)))
    assert (problem.file, problem.repair) == ("srt/", ())
    assert "files of no item of the run: 2, the first is srt/day1/old.srt; remove them unless" in problem.problem


def test_summary_of_an_earlier_list_is_named(tmp_path: Path) -> None:
    """If a run with a later list is not finished, the problem names both lists."""
    store = Stores().out(str(tmp_path / "out"))
    run = owned(store)
    entries = [PartEntry(index, "failure", json_bytes(FAILED)) for index in range(2)]
    Checkpoint(store, run).commit(entries, 1.0)
    merge_again(store)
    create_list(store, replace(run, list_number=2), keys(2))
    (problem,) = problems(store)
    expected = "it is of list 1 of run run; OUT belongs to list 2 of run run, which is not finished"
    assert (problem.file, problem.problem) == ("summary.json", expected)


@pytest.mark.parametrize("call", [read_status, verify, merge_again, lambda store: write_report(store, "report.html")])
def test_missing_list_is_named(tmp_path: Path, call: Callable[[Store], object]) -> None:
    """An OUT whose list was removed is not one without a run."""
    store = Stores().out(str(tmp_path / "out"))
    owned(store)
    store.delete("lists/00001.bin")
    with pytest.raises(CheckpointError, match="the list of the items of run run is missing; run again with the same"):
        call(store)


WRONG: tuple[Any, ...] = (None, True, -1, 10**30, float("nan"), "x", [1], {"x": []})


def paths(value: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each key of a JSON object and of the objects in it."""
    for key, each in value.items():
        yield (*above, key)
        if isinstance(each, dict):
            yield from paths(each, (*above, key))


def changed(value: dict[str, Any], path: tuple[str, ...], wrong: Any) -> bytes:
    """Return the JSON object with another value at a path."""
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = wrong
    return json.dumps(copy).encode() + b"\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run.json", "summary.json", "parts/shard-00000-of-00001/part-00000.jsonl",
                                  "parts/shard-00000-of-00001/complete.json", "lists/00001.bin"])  # fmt: skip
@pytest.mark.parametrize("values", [1, pytest.param(len(WRONG), marks=pytest.mark.long)])
def test_wrong_types_never_cause_another_exception(tmp_path: Path, name: str, values: int) -> None:
    """A wrong value in a field of a stored file ends status, verify and merge with an error of voxbatch, if at all."""
    store = Stores().out(str(tmp_path / "out"))
    run = owned(store)
    checkpoint = Checkpoint(store, run)
    line = {key: TRANSCRIBED[key] for key in ("audio_filepath", "id", "pred_text", "audio_duration", "warnings")}
    line |= {"words": [], "segments": [], "confidence": None, "flags": []}
    entries = [PartEntry(0, "transcript", json_bytes(line)), PartEntry(1, "failure", json_bytes(FAILED))]
    assert checkpoint.commit(entries, 1.0, {}, 5) == entries
    checkpoint.mark_complete(ItemSet(2, is_full=True))
    merge_again(store, {"formats": ["srt"]})
    files = {each: store.read(each) or b"" for each in store.names("")}
    first, rest = files[name], b""
    if name.endswith((".jsonl", ".bin")):
        first, rest = files[name].split(b"\n", 1)
    stored = json.loads(first)
    for first_value, path in enumerate(paths(stored)):
        for wrong in (WRONG * 2)[first_value % len(WRONG) :][:values]:
            store.write(name, [changed(stored, path, wrong), rest])
            for call in (read_status, verify, merge_again, lambda store: Checkpoint(store, run).load()):
                with contextlib.suppress(VoxbatchError):
                    call(store)
            for each in files.keys() - {name}:  # merge_again may have replaced it
                if store.read(each) != files[each]:
                    store.write(each, [files[each]])


READERS: dict[str, Callable[[Store, Path], object]] = {
    "status": lambda store, _: read_status(store),
    "verify": lambda store, _: verify(store),
    "merge": lambda store, _: merge_again(store, {"formats": ["srt"]}),
    "report": lambda store, folder: write_report(store, str(folder / "page.html")),
    "score": lambda store, _: score_run(store),
    "compare": lambda store, _: compare_places(store.place, store.place),
    "flags": lambda store, _: find_flagged(store, None),
    "export": lambda store, folder: export_items(store, str(folder / "items.csv")),
    "calibrate": lambda store, _: calibrate_run(store),
    "results": lambda store, _: list(read_results(store)),
}
"""Everything that reads the lines in OUT."""


def forged(line: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the line with each of its values, and of those in its lists, changed, and then removed."""
    inner = {(key, 0): line[key][0] for key in ("words", "segments", "flags") if key in line}
    for number, path in enumerate([*((key,) for key in line), *((*at, key) for at in inner for key in inner[at])]):
        copy = json.loads(json.dumps(line))
        place = copy
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = WRONG[number % len(WRONG)]
        yield json.loads(json.dumps(copy))
        del place[path[-1]]
        yield copy


def committed(folder: Path, lines: tuple[dict[str, Any], dict[str, Any]]) -> Store:
    """Return an OUT whose part has these lines, of a transcript and a failure, and a sound checksum."""
    store = Stores().out(str(folder))
    entries = zip(("transcript", "failure"), lines, strict=True)
    checkpoint = Checkpoint(store, owned(store))
    checkpoint.commit([PartEntry(index, kind, json_bytes(line)) for index, (kind, line) in enumerate(entries)], 1.0)
    checkpoint.mark_complete(ItemSet(1, is_full=True))
    return store


def called(store: Store, folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Call readers of an OUT, and return the messages of those that refuse it."""
    messages = {}
    for name in names:
        try:
            READERS[name](store, folder)
        except VoxbatchError as error:
            messages[name] = str(error)
    return messages


@pytest.mark.slow
def test_forged_lines_are_refused_by_each_reader(tmp_path: Path) -> None:
    """A line of a part with wrong types, or without a key, ends a command with an error of voxbatch, if at all."""
    assert called(committed(tmp_path / "sound", (TRANSCRIBED, FAILED)), tmp_path, READERS).keys() == {"calibrate"}
    pairs = [*((line, FAILED) for line in forged(TRANSCRIBED)), *((TRANSCRIBED, line) for line in forged(FAILED))]
    for number, lines in enumerate(pairs):
        called(committed(tmp_path / str(number), lines), tmp_path, [*READERS][number % 5 :: 5])
    messages = called(committed(tmp_path / "id", ({**TRANSCRIBED, "id": 5}, FAILED)), tmp_path, READERS)
    assert messages.keys() == READERS.keys() - {"verify"}
    assert (
        "part-00000.jsonl: the line of item 0 is no output line (Expected `str`, got `int` - at `$.id`)"
        in messages["merge"]
    )


@pytest.mark.slow
def test_changed_merged_lines_are_named(tmp_path: Path) -> None:
    """A changed line of a merged output ends a command with its file, its number and the repair, if at all."""
    store = committed(tmp_path / "out", (TRANSCRIBED, FAILED))
    merge_again(store)
    for name, line in ("transcripts.jsonl", TRANSCRIBED), ("failures.jsonl", FAILED):
        sound = store.read(name) or b""
        for changed_line in forged(line):
            store.write(name, [json_bytes(changed_line) + b"\n"])
            called(store, tmp_path, ("score", "compare"))
        store.write(name, [sound, b"{\n"])
        place = re.escape(f"{store.place}/{name}")
        expected = (
            rf"{place}, line 2: was changed or damaged: it is no JSON; remove the file and run again, .*: rm {place}"
        )
        for message in called(store, tmp_path, ("score", "compare")).values():
            assert re.fullmatch(expected, message)
        store.write(name, [sound])
