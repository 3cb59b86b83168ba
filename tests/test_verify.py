"""Tests for `voxbatch status --verify`: every kind of damage is named, and the commands that it prints repair it."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ManifestWriter, Voxbatch, environment
from outputs import owned

from voxbatch.errors import VoxbatchError
from voxbatch.latency import Latency
from voxbatch.output.checkpoint import Checkpoint, PartEntry, encode_line
from voxbatch.output.merge import merge_again
from voxbatch.output.status import read_status
from voxbatch.output.verify import verify
from voxbatch.storage import open_store

ENGINE = ("--engine", "scripted", "--formats", "srt,txt", "--part-items", "2")
PART = "parts/shard-00000-of-00001/part-00001.jsonl"
Change = Callable[[bytes], bytes | None]


def snapshot(out: Path) -> dict[str, bytes]:
    """Return the outputs: all files except for the checkpoint and the summary, whose times differ."""
    files = [path for path in out.rglob("*") if path.is_file() and "parts" not in path.parts]
    return {str(path.relative_to(out)): path.read_bytes() for path in files if path.name != "summary.json"}


def shell(command: str, folder: Path) -> None:
    """Run a command that a message gives."""
    command = re.sub("^voxbatch ", f"{sys.executable} -m voxbatch ", command)
    done = subprocess.run(command, shell=True, cwd=folder, env=environment(), capture_output=True)
    assert done.returncode in (0, 3), done.stderr


DAMAGE: dict[str, tuple[str, Change, str]] = {
    "part cut off": (PART, lambda data: data[:-9], "is not an entry"),
    "part without its last line": (PART, lambda data: b"".join(data.splitlines(True)[:-1]), "1 entries up to item "),
    "letter of a part": (PART, lambda data: data.replace(b'"pred_text": "w', b'"pred_text": "v', 1), "the checksum"),
    "part of another run": (PART, lambda data: data.replace(b'"run": "', b'"run": "ff', 1), "belongs to run ff"),
    "part of another shard": (PART, lambda data: data.replace(b'"0/1"', b'"0/2"', 1), "shard-00000-of-00002/"),
    "part removed": (PART, lambda data: None, "2 of 4 items are not done yet"),
    "complete.json": ("parts/shard-00000-of-00001/complete.json", lambda data: b"{}", "not written by run "),
    "transcripts cut off": ("transcripts.jsonl", lambda data: data[:-9], "changed or damaged: "),
    "transcripts edited": ("transcripts.jsonl", lambda data: data.replace(b"w0", b"w9", 1), "changed or damaged: "),
    "transcripts missing": ("transcripts.jsonl", lambda data: None, "missing"),
    "failures missing": ("failures.jsonl", lambda data: None, "missing"),
    "subtitles cut off": ("srt/r1.srt", lambda data: data[:-9], "1 files are missing, changed or damaged"),
    "text missing": ("txt/r1.txt", lambda data: None, "the first is txt/r1.txt"),
    "summary cut off": ("summary.json", lambda data: data[:-9], "damaged"),
    "count in the summary": ("summary.json", lambda data: data.replace(b'"done": 3', b'"done": 4'), "its counts or"),
    "summary of another run": ("summary.json", lambda data: data.replace(b'"run": "', b'"run": "ff'), "which is not f"),
}


@pytest.fixture
def finished(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> Path:
    """Return the OUT of a finished run of four items, of which one failed."""
    manifest(1, 1.5, 2, None)
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


@pytest.mark.slow
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
    shown = voxbatch("status", "out", "--verify")
    assert (shown.returncode, shown.stderr) == (1, "")
    assert reason in shown.stdout
    listed = voxbatch("status", "out", "--verify", "--json")
    assert listed.returncode == 1
    (problem,) = json.loads(listed.stdout)["problems"]
    assert name.startswith(problem["file"])
    for step in problem["repair"]:
        if step.startswith("run the same command again"):
            assert voxbatch("run", "m.jsonl", "-o", "out", *ENGINE).returncode == 3
        else:
            shell(step, finished.parent)
    assert voxbatch("status", "out", "--verify").stdout.endswith("verified: no problem found\n")
    assert snapshot(finished) == before


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
                                  "parts/shard-00000-of-00001/complete.json"])  # fmt: skip
def test_wrong_types_never_cause_another_exception(tmp_path: Path, name: str) -> None:
    """A wrong value in a field of a stored file ends status, verify and merge with an error of voxbatch, if at all."""
    store = open_store(str(tmp_path / "out"))
    key = owned(store)
    words: dict[str, Any] = {"pred_text": "w0", "audio_duration": 1.5, "warnings": [], "words": [], "segments": []}
    line = {"audio_filepath": f"{tmp_path}/a.wav", "id": "a", **words}
    reason = {"line": 2, "error": "AudioError", "message": "no", "text": "x"}
    failed = {"audio_filepath": f"{tmp_path}/b.wav", "id": "b", **reason}
    checkpoint = Checkpoint(store, key, 2)
    entries = [PartEntry(0, "transcript", encode_line(line)), PartEntry(1, "failure", encode_line(failed))]
    assert checkpoint.commit(entries, 1.0, Latency(), 5) == entries
    checkpoint.mark_complete(2)
    merge_again(store, {"formats": ["srt"]})
    files = {each: store.read(each) or b"" for each in store.names("")}
    first, rest = files[name], b""
    if name.endswith(".jsonl"):
        first, rest = files[name].split(b"\n", 1)
    stored = json.loads(first)
    for path in paths(stored):
        for wrong in WRONG:
            store.write(name, [changed(stored, path, wrong), rest])
            for call in (read_status, verify, merge_again, lambda store: Checkpoint(store, key, 2).load()):
                with contextlib.suppress(VoxbatchError):
                    call(store)
            for each in files.keys() - {name}:  # merge_again may have replaced it
                if store.read(each) != files[each]:
                    store.write(each, [files[each]])
