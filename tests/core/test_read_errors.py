"""Tests for recordings whose file cannot be read, or changes while it is read: a failure that can be retried, never a
shorter transcript or a mixture of two contents.

strace makes the reads of one file fail with EIO, as a broken disk or a network file system does.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from conftest import Recorder, Starter, Voxbatch, environment
from holds import Hold
from waits import until

from voxbatch.audio.ffmpeg import executable
from voxbatch.audio.waveforms import decode
from voxbatch.decoding import Decoded, DecoderPool, DecodeTask, Message, Undecodable
from voxbatch.decoding.pool import MAX_TASKS
from voxbatch.errors import StorageError
from voxbatch.records import Chunk
from voxbatch.storage import Stores
from voxbatch.storage.circuit_breaker import Reachable

pytestmark = pytest.mark.slow

DECODE = """
import contextlib, sys
from voxbatch.audio.waveforms import decode
from voxbatch.errors import VoxbatchError
from voxbatch.storage import Stores
path, warnings = sys.argv[1], []
with contextlib.closing(Stores().recording(path)) as recording:
    try:
        samples = sum(len(block.samples) for block in decode(recording, path, warn=warnings.append))
        print("decoded", samples / 16_000, warnings)
    except VoxbatchError as error:
        print(type(error).__name__, error, warnings)
"""


def failing(*paths: Path, faults: tuple[str, ...]) -> list[str]:
    """Return the beginning of a command in which reads of the files fail as the faults say, such as "read,5+": the
    fifth read and all later ones of each process.
    """
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("there is no strace on PATH: apt-get install strace")
    command = [strace, "-f", "-qq", "-o", "/dev/null", "-e", "trace=read,pread64"]
    for path in paths:
        command += ["-P", str(path)]
    for fault in faults:
        call, when = fault.split(",")
        command += ["-e", f"inject={call}:error=EIO:when={when}"]
    if subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("strace may not trace processes here")
    return command


@pytest.fixture
def speech(tmp_path: Path) -> Path:
    """Return a WAV file of 60 s of noise."""
    soundfile.write(tmp_path / "a.wav", np.random.default_rng(0).normal(0, 0.1, 60 * 48_000), 48_000)
    return tmp_path / "a.wav"


@pytest.mark.parametrize(
    ("name", "when"),
    [("a.wav", 1), ("a.m4a", 1), ("a.m4a", 2)]
    + [(f"a.{suffix}", 6) for suffix in ("wav", "mp3", "m4a", "wma")]
    + [
        pytest.param(f"a.{suffix}", 6, marks=pytest.mark.long)
        for suffix in ("flac", "ogg", "aiff", "webm", "ac3", "wv")
    ],
)
def test_read_error_is_no_end_of_the_file(speech: Path, ffmpeg: dict[str, str], name: str, when: int) -> None:
    """A file that cannot be read, from its start or from a later place on, is neither damaged nor short, whichever
    decoder reads it.
    """
    path = speech.with_name(name)
    if path != speech:
        subprocess.run([executable(), "-y", "-loglevel", "error", "-i", speech, path], check=True)
    command = [*failing(path, faults=(f"read,{when}+", f"pread64,{when}+")), sys.executable, "-c", DECODE, str(path)]
    done = subprocess.run(command, env=environment(**ffmpeg), capture_output=True, text=True)
    assert done.stdout.startswith("LocalReadError Input/output error"), done.stdout + done.stderr


@pytest.mark.parametrize("when", [*range(4, 12), 16, 24])
@pytest.mark.parametrize("name", ["a.wav", "a.mp3"])
def test_one_failed_read_changes_no_sample(speech: Path, name: str, when: int) -> None:
    """A read that fails once, as of a network file system that answers again, is a failure that can be retried, also in
    the header of a WAV file, where libsndfile takes it for other values.
    """
    path = speech.with_name(name)
    if path != speech:
        subprocess.run([executable(), "-y", "-loglevel", "error", "-i", speech, path], check=True)
    for call in ("read", "pread64"):
        command = [*failing(path, faults=(f"{call},{when}",)), sys.executable, "-c", DECODE, str(path)]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True)
        assert done.stdout.startswith(("LocalReadError Input/output error", "decoded 60.0 []")), done.stdout


@pytest.mark.usefixtures("ffmpeg")
def test_truncated_file_is_no_read_error(speech: Path) -> None:
    """A truncated file gives its first part, also if ffmpeg reports its end as a read error."""
    for name in ("a.wv", "a.webm", "a.wma", "a.ac3"):
        path = speech.with_name(name)
        subprocess.run([executable(), "-y", "-loglevel", "error", "-i", speech, path], check=True)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with contextlib.closing(Stores().recording(str(path))) as recording:
            assert list(decode(recording, str(path)))


@pytest.mark.parametrize("unreadable", [1, 3])
def test_unreadable_recording_is_a_retryable_failure(
    tmp_path: Path, recording: Recorder, voxbatch: Voxbatch, unreadable: int
) -> None:
    """A recording that cannot be read fails, and a retry is worthwhile, if others of its file system can be read. If
    none can be read, the run stops, and can be resumed.
    """
    folder = tmp_path / "calls"
    for i in range(3):
        recording(f"{i}.wav", 20.0, folder)
    (manifest := tmp_path / "m.jsonl").write_text(
        "".join(json.dumps({"audio_filepath": f"calls/{i}.wav"}) + "\n" for i in range(3))
    )
    paths = [folder / f"{i}.wav" for i in range(unreadable)]
    run = ["run", str(manifest), "--engine", "scripted", "--log-format", "text", "-o", str(tmp_path / "out")]
    run += ["--engine-option", "max_chunk_s=15"]
    command = [*failing(*paths, faults=("read,3+", "pread64,1+")), sys.executable, "-m", "voxbatch", *run]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    if unreadable < 3:
        assert done.returncode == 3, done.stderr
        (failure,) = (tmp_path / "out" / "failures.jsonl").read_text().splitlines()
        row = json.loads(failure)
        assert row["retryable"]
        assert row["message"].startswith(f"cannot read {paths[0]}: Input/output error at byte ")
    else:
        assert done.returncode == 1, done.stderr
        assert ".wav: Input/output error" in done.stderr
        assert "nothing arrived from /" in done.stderr
        again = voxbatch(*run)
        assert again.returncode == 0, again.stderr


# ── recordings that change ────────────────────────────────────────────────────────────────────────────────────────────


def tasks(*paths: Path) -> Iterator[DecodeTask]:
    """Yield a task for each recording."""
    for i, path in enumerate(paths):
        yield DecodeTask(i, str(path), 0.0, None, None, None, 15 * 16_000)


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(32_000))


def rewrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-32_000, os.SEEK_END)
        file.write(bytes(32_000))


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("change", "size"), [(append, "from 19,200,044 to"), (rewrite, ""), (truncate, "to 9,600,022")]
)
def test_changed_recording_is_a_retryable_failure(
    recording: Recorder, change: Callable[[Path], None], size: str
) -> None:
    """A recording that is appended to, rewritten or truncated while it is decoded is not transcribed as a mixture. It
    is not decoded again at once, because its chunks so far may be of the earlier content.
    """
    path = recording("a.wav", 600.0)
    with DecoderPool(1) as pool:
        messages = pool.run(tasks(path))
        assert isinstance(next(messages), Chunk)
        change(path)
        *_, last = messages
    assert isinstance(last, Undecodable)
    assert last.failure.retryable
    assert size in last.failure.message
    assert last.failure.message.endswith("while it was read: let its writer finish, then run the item again")


def test_recording_that_is_replaced_by_rename_is_decoded_whole(recording: Recorder) -> None:
    """A recording that is replaced by another file while it is decoded gives the samples of the first file."""
    path, other = recording("a.wav", 120.0), recording("b.wav", 60.0)
    with DecoderPool(1) as pool:
        messages = pool.run(tasks(path))
        chunks = [next(messages)]
        other.replace(path)
        *more, last = messages
    assert isinstance(last, Decoded)
    assert last.spans[-1].core_end == 120 * 16_000
    assert len(chunks) + len(more) == len(last.spans)


# ── manifests that change ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("engine_processes", [1, pytest.param(2, marks=pytest.mark.long)])
def test_manifest_rewritten_during_a_run_stops_it(
    tmp_path: Path, recording: Recorder, start: Starter, engine_processes: int
) -> None:
    """A run whose manifest is rewritten in place stops, with no line of the new content in OUT. When the manifest is
    restored, the run continues and ends.
    """
    recording("a.wav", 0.3)
    rows = [{"audio_filepath": "a.wav", "id": f"{i:03}", "note": "old", "filler": "x" * 4_000} for i in range(600)]
    old = "".join(json.dumps(row) + "\n" for row in rows)
    (manifest := tmp_path / "m.jsonl").write_text(old)
    arguments = [manifest, "-o", tmp_path / "out", "--engine", "scripted", "--part-items", "5", "--log-format", "text"]
    arguments += ["--engine-option", "max_chunk_s=15", "--engine-option", "concurrency=1"]
    arguments += ["--engine-option", f"workers={engine_processes}"]
    hold = Hold(tmp_path / "hold", after=5)
    process = start("run", *arguments, *hold.options)
    until(lambda: list((tmp_path / "out").rglob("part-*.jsonl")), process=process)
    with manifest.open("r+") as file:
        file.write(old.replace('"old"', '"new"'))
    hold.release()
    _, messages = process.communicate()
    assert process.returncode == 1, messages
    assert f"{manifest}: changed while it was being read, after line " in messages
    parts = list((tmp_path / "out").rglob("part-*.jsonl"))
    assert parts
    assert all('"new"' not in path.read_text() for path in parts)
    manifest.write_text(old)
    process = start("run", *arguments)
    _, messages = process.communicate()
    assert process.returncode == 0, messages
    lines = (tmp_path / "out" / "transcripts.jsonl").read_text().splitlines()
    assert [json.loads(line)["note"] for line in lines] == ["old"] * 600


# ── folders that disappear ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("left", ["nothing", "an empty folder"])
def test_folder_that_disappears_stops_the_run(tmp_path: Path, recording: Recorder, left: str) -> None:
    """If the folder of the recordings disappears in the middle of a run, or is empty as the mount point of a file
    system that is not mounted, the run stops. The recordings do not fail.
    """
    folder = tmp_path / "calls"
    paths = [recording(f"{i}.wav", 0.5, folder) for i in range(60)]

    def vanishing() -> Iterator[DecodeTask]:
        for task in tasks(*paths):
            if task.item == 30:
                folder.rename(tmp_path / "unmounted")
                if left == "an empty folder":
                    folder.mkdir()
            yield task

    messages: list[Message] = []
    with DecoderPool(2) as pool, pytest.raises(StorageError, match="is its file system mounted"):
        messages.extend(pool.run(vanishing()))
    assert not messages or all(isinstance(each, Chunk | Decoded) for each in messages)


def test_missing_folder_among_others_fails_its_recordings(tmp_path: Path, recording: Recorder) -> None:
    """If a folder is missing and others can be read, its recordings fail, and a retry may succeed. A file that is
    missing in a folder with other files fails permanently.

    A decoder opens the recordings of its tasks at the same time. The last one here is sent after the failure of the
    second one has arrived, so that its folder answers later.
    """
    paths = [recording("a.wav", 0.5), tmp_path / "missing" / "b.wav", tmp_path / "c.wav"]
    paths += [recording(f"{i}.wav", 0.1) for i in range(MAX_TASKS)]
    with DecoderPool(1) as pool:
        failures = {each.item: each.failure for each in pool.run(tasks(*paths)) if isinstance(each, Undecodable)}
    assert failures[1].retryable
    assert failures[1].message == f"cannot open {paths[1]}: its folder is missing; is its file system mounted?"
    assert not failures[2].retryable
    assert failures[2].message == f"cannot open {paths[2]}: No such file or directory"


def test_damaged_recording_proves_that_its_place_answers(tmp_path: Path) -> None:
    """A recording that was read and is not audio is an answer of its place."""
    (path := tmp_path / "a.wav").write_bytes(b"no audio")
    with DecoderPool(1) as pool:
        (failed,) = pool.run(tasks(path))
    assert isinstance(failed, Undecodable)
    assert isinstance(failed.report, Reachable)


def test_run_whose_folder_is_missing_stops(tmp_path: Path, voxbatch: Voxbatch) -> None:
    """A run whose recordings are all in a missing folder stops with one message; --fail-unreachable records them as
    failures that can be retried.
    """
    (manifest := tmp_path / "m.jsonl").write_text(
        "".join(json.dumps({"audio_filepath": f"calls/{i}.wav"}) + "\n" for i in range(40))
    )
    run = ("run", manifest, "--engine", "scripted", "-o", "out")
    stopped = voxbatch(*run)
    assert stopped.returncode == 1
    assert "its folder is missing; is its file system mounted?; nothing arrived from /" in stopped.stderr
    failed = voxbatch(*run, "--fail-unreachable")
    assert failed.returncode == 3
    rows = [json.loads(line) for line in (tmp_path / "out" / "failures.jsonl").read_text().splitlines()]
    assert len(rows) == 40
    assert all(row["retryable"] for row in rows)
