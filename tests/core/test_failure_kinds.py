"""Tests that a failure has its kind from the place where it arises, and that kinds of a later version are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import soundfile
from clouds import Endpoint
from conftest import Recorder, Voxbatch
from outputs import owned, problems
from servers import Reply
from web_server import served

from voxbatch.failure_kinds import FailureKind
from voxbatch.output.checkpoint import Checkpoint
from voxbatch.output.lines import failure_line
from voxbatch.output.outcomes import read_failure
from voxbatch.output.parts import PartEntry
from voxbatch.output.stored_json import json_bytes
from voxbatch.records import Failure, Item
from voxbatch.storage import Stores


@pytest.fixture
def site() -> Iterator[str]:
    """Yield the address of a web server that refuses every request with the status in its path."""
    endpoint = Endpoint(lambda call, _: Reply(int(call.path[1:])))
    with served(endpoint):
        yield endpoint.url


def test_each_failure_has_its_kind(voxbatch: Voxbatch, recording: Recorder, tmp_path: Path, site: str) -> None:
    """One run with a recording of each kind: failures.jsonl, the summary and the last lines name the kinds, and the
    messages decide nothing.
    """
    recording("good.wav", 1.5)
    recording("long.wav", 5)
    samples, _ = soundfile.read(tmp_path / "good.wav")
    soundfile.write(tmp_path / "slow.wav", samples, 3)
    soundfile.write(tmp_path / "header.wav", samples[:0], 16_000)
    (tmp_path / "empty.mp3").touch()
    (tmp_path / "404 not found.mp3").write_text("permission denied: connection timed out")
    (tmp_path / "folder.wav").mkdir()
    kinds = {
        "gone.wav": "not_found", f"{site}/404": "not_found", f"{site}/410": "not_found", f"{site}/403": "no_access",
        f"{site}/451": "not_delivered", "folder.wav": "not_audio", "404 not found.mp3": "not_audio",
        "empty.mp3": "empty", "header.wav": "empty", "slow.wav": "damaged", "long.wav": "too_long",
    }  # fmt: skip
    rows: list[dict[str, object]] = [{"audio_filepath": path} for path in ("good.wav", *kinds)]
    rows += [{"audio_filepath": "good.wav", "id": "c", "channel": 1}, {"audio_filepath": "good.wav", "offset": 9}]
    (tmp_path / "m.jsonl").write_text("".join(f"{json.dumps({'id': f'i{n}', **row})}\n" for n, row in enumerate(rows)))
    options = ("--engine", "scripted", "--allow-private-addresses", "--max-hours", "0.001")
    done = voxbatch("run", "m.jsonl", "-o", "out", *options)
    assert done.returncode == 3, done.stderr
    failures = [json.loads(line) for line in (tmp_path / "out" / "failures.jsonl").read_text().splitlines()]
    assert [line["error_kind"] for line in failures] == [*kinds.values(), "no_such_part", "no_such_part"]
    by_kind = json.loads((tmp_path / "out" / "summary.json").read_text())["failures_by_kind"]
    assert sum(by_kind.values()) == len(failures) == 13
    assert next(iter(by_kind.items())) == ("not_found", 3)
    assert "1 done + 13 failed = 14 items (3 not found, 2 not audio, " in done.stdout
    assert "  long.wav: " not in done.stdout, "ten failures are named, and it is the eleventh"
    assert "  empty.mp3: the file is empty\n" in done.stdout
    assert "  … and 3 more in out/failures.jsonl\n3 not found: put the recordings in place\n" in done.stdout


def test_a_kind_of_a_later_version_is_unknown(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A run that a later version made, with a kind that only that version knows, is read: the kind is unknown, and
    nothing is called damaged. The line stays as it is.
    """
    store = Stores().out(str(tmp_path / "out"))
    item = Item(0, 1, "a", "/a.wav", row=b'{"audio_filepath": "/a.wav"}')
    line = failure_line(item, Failure(FailureKind.EMPTY, "it evaporated", retryable=True), None, "/day")
    content = json_bytes(line | {"error": "LaterError", "error_kind": "evaporated"})
    run = owned(store, items=1)
    Checkpoint(store, run).commit([PartEntry(0, "failure", content)], 2.0)
    merged = voxbatch("merge", "out")
    assert (merged.returncode, merged.stderr) == (3, "")
    assert "0 done + 1 failed = 1 item (1 of an unknown kind)" in merged.stdout
    assert store.read("failures.jsonl") == content + b"\n"
    summary = json.loads(store.read("summary.json") or b"")
    assert (summary["failures_by_kind"], summary["failures_by_error"]) == ({"unknown": 1}, {"LaterError": 1})
    assert problems(store) == []
    for command in (["status", "out"], ["flags", "out"]):
        done = voxbatch(*command)
        assert done.returncode == 0, done.stderr
        assert "damaged" not in done.stdout + done.stderr
    assert read_failure(json.loads(content)).kind is FailureKind.UNKNOWN
