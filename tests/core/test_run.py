"""Tests for runs that are killed, stopped, sharded or out of disk: after a restart, the outputs are the bytes of an
undisturbed run.
"""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import ManifestWriter, Recorder, Starter, Voxbatch, environment
from holds import Hold
from outputs import committed_items, output_files
from scripted_engine import ScriptedTestEngine
from waits import until

from voxbatch import runner
from voxbatch.audio import libraries
from voxbatch.audio.ffmpeg import executable
from voxbatch.config import Config
from voxbatch.log import Log
from voxbatch.output.merge_again import merge_again
from voxbatch.storage import Stores

SCRIPTED = ("--engine", "scripted", "--engine-option", "max_chunk_s=15", "--formats", "srt,txt", "--log-format", "text")
SLOWLY = ("--engine-option", "delay_s=0.05", "--engine-option", "concurrency=1", "--decoders", "1")
SECONDS = (0.5, 40, None, 1.2, 0.001, 2, 33, 0.7)
"""Durations in seconds of eight recordings: two of several chunks, and one that is missing."""
CHUNKS = 11


def last_line(text: str) -> str:
    return text.splitlines()[-1]


def counts(out: Path) -> tuple[int, int, int]:
    """Return (items, done, failed) of the summary."""
    summary = json.loads((out / "summary.json").read_text())
    return summary["items"], summary["done"], summary["failed"]


def hears_sigterm(process: subprocess.Popen[str]) -> bool:
    """Return whether the process has installed its SIGTERM handler (SigCgt in /proc, Linux)."""
    fields = Path(f"/proc/{process.pid}/status").read_text().split()
    return bool(int(fields[fields.index("SigCgt:") + 1], 16) & 1 << (signal.SIGTERM - 1))


@pytest.fixture
def undisturbed(manifest: ManifestWriter, tmp_path: Path, warm_decoders: None) -> dict[str, bytes]:
    """Return the outputs of an undisturbed run of the eight recordings."""
    config = Config(
        source=str(manifest(*SECONDS, mine={"a": [1, "é"]})), out=str(tmp_path / "peace"), formats=("srt", "txt"),
        engine="scripted", engine_options={"max_chunk_s": "15"},
    )  # fmt: skip
    runner.run(config, Log(quiet=True))
    assert counts(tmp_path / "peace") == (8, 7, 1)
    return output_files(tmp_path / "peace")


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.long)])
def test_killed_anywhere_and_resumed(
    undisturbed: dict[str, bytes], voxbatch: Voxbatch, tmp_path: Path, stride: int
) -> None:
    """After SIGKILL at every single result, twice in a row, no item is lost and none is there twice."""
    for k in range(CHUNKS, 0, -stride):
        codes = []
        for kill_after in (k, k, -1):
            extra = ("--engine-option", f"kill_after={kill_after}", "--part-items", "1")
            codes.append(voxbatch("run", "m.jsonl", "-o", f"killed{k}", *SCRIPTED, *extra).returncode)
        assert codes in ([-signal.SIGKILL, -signal.SIGKILL, 3], [-signal.SIGKILL, 3, 3])
        assert output_files(tmp_path / f"killed{k}") == undisturbed
        latency = json.loads((tmp_path / f"killed{k}" / "summary.json").read_text())["latency"]
        assert (latency["chunk"]["count"], latency["item"]["count"]) == (CHUNKS, 7), "each committed chunk, once"


def test_the_order_of_results_does_not_show(undisturbed: dict[str, bytes], voxbatch: Voxbatch, tmp_path: Path) -> None:
    """The order and timing of an engine's results do not change the output bytes."""
    extra = ("--engine-option", "shuffle=true", "--engine-option", "delay_s=0.02", "--part-items", "2")
    voxbatch("run", "m.jsonl", "-o", "out", *SCRIPTED, *extra, "--decoders", "3")
    assert output_files(tmp_path / "out") == undisturbed


@pytest.mark.forks_children
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.long)]
)
def test_a_signal_commits_what_is_in_hand(
    undisturbed: dict[str, bytes], voxbatch: Voxbatch, start: Starter, tmp_path: Path, number: int, code: int
) -> None:
    """A signal commits the finished items at once, even if no part was due; the last line is plain, and the run can be
    resumed.
    """
    hold = Hold(tmp_path / "hold")
    running = start("run", "m.jsonl", "-o", "out", *SCRIPTED, *SLOWLY, *hold.options)
    hold.reached(process=running)
    running.send_signal(number)
    out, err = running.communicate(timeout=200)
    committed = len(committed_items(tmp_path / "out"))
    assert (running.returncode, out) == (code, "")
    assert last_line(err) == (
        f"Warning: interrupted; {committed} of 8 items are safe in out; run the same command again to continue"
    )
    assert 1 <= committed < 8
    assert voxbatch("run", "m.jsonl", "-o", "out", *SCRIPTED).returncode == 3
    assert output_files(tmp_path / "out") == undisturbed


@pytest.mark.parametrize(
    ("workers", "delay_s"), [(1, 1.0), *(pytest.param(*case, marks=pytest.mark.long) for case in ((1, 0.0), (2, 0.3)))]
)
def test_sigterm_to_every_process_fails_no_item(
    recording: Recorder, voxbatch: Voxbatch, start: Starter, tmp_path: Path, workers: int, delay_s: float
) -> None:
    """SIGTERM to all processes of a run, decoders and ffmpeg before their parent, commits no failure; a resume gives
    the bytes of an undisturbed run.
    """
    import psutil

    for i in range(4):
        source, path = recording(f"{i}.wav", 150), tmp_path / f"{i}.mka"
        subprocess.run([executable(), "-v", "error", "-i", source, "-c", "copy", path], check=True)
    (tmp_path / "m.jsonl").write_text("".join(json.dumps({"audio_filepath": f"{i}.mka"}) + "\n" for i in range(4)))
    assert voxbatch("run", "m.jsonl", "-o", "peace", *SCRIPTED).returncode == 0
    several, hold = ("--engine-option", f"workers={workers}"), Hold(tmp_path / "hold")
    running = start("run", "m.jsonl", "-o", "out", *SCRIPTED, *SLOWLY, *several, *hold.options, "--part-items", "1")
    until(psutil.Process(running.pid).children)
    time.sleep(delay_s)
    for process in reversed([psutil.Process(running.pid), *psutil.Process(running.pid).children(recursive=True)]):
        with suppress(psutil.NoSuchProcess):  # ffmpeg may have ended
            process.terminate()
    _, err = running.communicate(timeout=200)
    assert running.returncode == 143, err
    assert not [part for part in tmp_path.glob("out/parts/*/*.jsonl") if "AudioError" in part.read_text()]
    assert voxbatch("run", "m.jsonl", "-o", "out", *SCRIPTED).returncode == 0
    assert output_files(tmp_path / "out") == output_files(tmp_path / "peace")


def test_a_signal_while_the_manifest_is_read(start: Starter, tmp_path: Path) -> None:
    """A signal during the reading of the manifest ends the run, and the last line says that nothing was started."""
    running = start("run", "-", *SCRIPTED, stdin=subprocess.PIPE)
    until(lambda: hears_sigterm(running))
    running.send_signal(signal.SIGTERM)
    assert running.stderr is not None
    err = running.stderr.read()
    assert running.wait(200) == 143
    assert err == (
        "Warning: interrupted; no item was started, and all committed items are safe; "
        "run the same command again to continue\n"
    )
    assert not (tmp_path / "stdin.voxbatch").exists()


@pytest.mark.forks_children
def test_two_processes_on_one_shard(undisturbed: dict[str, bytes], start: Starter, tmp_path: Path) -> None:
    """Two tasks on one shard, as after a retry of one that still lives, both end normally. Every item is in one part,
    and the outputs are those of one process.
    """
    task = {"CLOUD_RUN_TASK_INDEX": "0", "CLOUD_RUN_TASK_COUNT": "1"}
    command = ("run", "m.jsonl", "-o", "out", *SCRIPTED, *SLOWLY, "--part-items", "1")
    both = [start(*command, env=task) for _ in range(2)]
    for process in both:
        process.communicate(timeout=200)
    assert [process.returncode for process in both] == [3, 3]
    assert committed_items(tmp_path / "out") == [b'{"index":%d' % i for i in range(8)]
    assert output_files(tmp_path / "out") == undisturbed


def test_a_shard_tells_of_the_failures_of_earlier_runs(manifest: ManifestWriter, voxbatch: Voxbatch) -> None:
    """Resuming a finished shard gives the exit code of its items every time, while other shards are unfinished."""
    command = ("run", manifest(None, None, 1, 1), *SCRIPTED, "--shard", "0/2")
    for _ in range(2):
        done = voxbatch(*command)
        assert done.returncode == 3
        assert last_line(done.stderr) == (
            "shard 0/2 is done: 1 done + 1 failed = 2 items; the last shard to finish merges"
        )


def test_quiet_shards_count_what_they_tell_of(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """The failures that a shard counts are of its own items, until the last one counts those of the whole run."""
    command = ("run", manifest(None, None, 1, 1), *SCRIPTED, "--log-format", "text", "--quiet", "--shard")
    first, last = (voxbatch(*command, shard) for shard in ("0/2", "1/2"))
    failures = tmp_path / "m.voxbatch" / "failures.jsonl"
    assert first.stderr == f"1 of 2 items failed: {failures} will list them when all shards are done\n"
    assert last.stderr == f"2 of 4 items failed: see {failures}\n"


def test_more_shards_than_items(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A shard without items ends normally, and merges if it is the last."""
    path = manifest(1)
    for i in range(3):
        done = voxbatch("run", path, *SCRIPTED, "--shard", f"{i}/3")
        assert done.returncode == 0, done.stderr
    assert counts(tmp_path / "m.voxbatch") == (1, 1, 0)


def test_resuming_what_is_finished(undisturbed: dict[str, bytes], voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Resuming a finished run does nothing, and says so: without old texts and totals, unless they are asked for. The
    exit code is the same, and failures are shown."""
    done = voxbatch("run", "m.jsonl", "-o", "peace", *SCRIPTED, "--engine-option", "die_after=0")
    assert done.returncode == 3
    assert re.search(r"^nothing to do: 7 items done and 1 failed before \(20\d\d-", done.stderr, re.MULTILINE), (
        done.stderr
    )
    assert re.match(r"transcripts +peace/transcripts.jsonl\n(?s:.*)\n1 failed:\n", done.stdout), done.stdout
    assert " of audio in " not in done.stdout
    asked = voxbatch("run", "m.jsonl", "-o", "peace", *SCRIPTED, "--engine-option", "die_after=0", "-v")
    assert "7 done + 1 failed = 8 items (1 not found)" in asked.stdout
    assert output_files(tmp_path / "peace") == undisturbed


def test_a_limit_on_file_sizes(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A part that cannot be written gives exit code 1 and a plain last line; with a higher limit the run resumes. The
    limit is between the sizes of a chunk in shared memory and of a part.
    """
    path = Path(manifest(1.2))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mine": "x" * 300_000}) + "\n")
    command = ("run", "m.jsonl", *SCRIPTED, "-o")
    full = voxbatch(*command, "out", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)))
    assert full.returncode == 1
    assert "Traceback" not in full.stderr
    part = f"{tmp_path}/out/parts/shard-00000-of-00001/part-00000.jsonl"
    assert full.stderr.splitlines()[-2:] == [
        f"Error: cannot write {part}: the file grew past the allowed size: raise the limit (ulimit -f)",
        "0 of 1 items are safe in out; run the same command again to continue",
    ]
    assert voxbatch(*command, "out").returncode == 0
    assert voxbatch(*command, "peace").returncode == 0
    assert output_files(tmp_path / "out") == output_files(tmp_path / "peace")


def test_parts_that_vanish_during_a_run_are_not_called_safe(
    manifest: ManifestWriter, start: Starter, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """The last line counts the items that are in parts, and after a damaged part, it counts none: the error has the
    command that repairs it."""
    manifest(1, 1.5, 2, 2.5)
    hold = Hold(tmp_path / "hold", after=3)
    command = ("run", "m.jsonl", "-o", "out", *SCRIPTED, *SLOWLY, "--part-items", "1", *hold.options)
    process = start(*command)
    hold.reached(process=process)
    until(lambda: len(list((tmp_path / "out").rglob("part-*.jsonl"))) >= 2)
    for part in sorted((tmp_path / "out").rglob("part-*.jsonl"))[:2]:
        part.unlink()
    hold.release()
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert said.splitlines()[-1] == "2 of 4 items are safe in out"
    assert "parts with some of their items are missing; run again (each shard)" in said
    assert voxbatch(*command).returncode == 0
    part = next((tmp_path / "out").rglob("part-*.jsonl"))
    part.write_bytes(part.read_bytes()[:-5])
    done = voxbatch(*command)
    assert done.returncode == 1
    assert "safe" not in done.stderr
    assert f"delete this part and run again, so that its items are transcribed again: rm {part}" in done.stderr


def test_another_model_is_another_run(undisturbed: dict[str, bytes], voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Settings that change the text belong to the identity of a run; settings that change only the speed do not."""
    faster = voxbatch("run", "m.jsonl", "-o", "peace", *SCRIPTED, "--decoders", "3", "--part-items", "7")
    assert faster.returncode == 3
    other = voxbatch("run", "m.jsonl", "-o", "peace", *SCRIPTED, "--model", "other", "--audio-stream", "1")
    assert other.returncode == 2
    assert "model was count, and is other now; audio_stream was not given, and is 1 now. Choose" in other.stderr


def test_an_out_that_holds_a_strangers_outputs(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A transcripts.jsonl that voxbatch did not create is neither erased nor taken for the result."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "transcripts.jsonl").write_text("mine")
    for extra in ((), ("--overwrite",)):
        done = voxbatch("run", manifest(1), "-o", "out", *SCRIPTED, *extra)
        assert done.returncode == 2
        assert last_line(done.stderr) == (
            f"Error: {tmp_path}/out holds transcripts.jsonl but no run.json: voxbatch did not make these files and "
            "does not replace them; choose another OUT with -o, or move them away"
        )
    assert (tmp_path / "out" / "transcripts.jsonl").read_text() == "mine"


def test_another_folder_is_said(voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path) -> None:
    """The same lines in another folder may be the same recordings mounted elsewhere, or others: the run warns of it."""
    manifest(0.5)
    shutil.copytree(tmp_path, tmp_path / "else")
    assert voxbatch("run", "m.jsonl", "-o", "out", *SCRIPTED).returncode == 0
    done = voxbatch("run", "else/m.jsonl", "-o", "out", *SCRIPTED)
    warning = (
        f"Warning: this run was started with recordings in {tmp_path} and continues with those in {tmp_path}/else: "
        "voxbatch assumes that they are the same"
    )
    assert (done.returncode, warning in done.stderr.splitlines()) == (0, True), done.stderr


@pytest.mark.slow
def test_an_engines_warnings(manifest: ManifestWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine's warnings are logged once and are in the summary, also after `merge`; a later run may lack them."""

    class Slow(ScriptedTestEngine):
        def __init__(self, *arguments: Any):
            super().__init__(*arguments)
            self.spec = replace(self.spec, warnings=("it is slow",))

    config = Config(source=str(manifest(0.5)), out=str(tmp_path / "out"), engine="scripted")
    monkeypatch.setattr("scripted_engine.ScriptedTestEngine", Slow)
    said: list[str] = []
    finished = runner.run(config, Log(write=said.append))
    assert finished.summary
    assert finished.summary.facts.engine.warnings == ("it is slow",)
    assert merge_again(Stores().out(config.out)).facts.engine.warnings == ("it is slow",)
    assert said.count("Warning: it is slow") == 1
    monkeypatch.undo()
    assert runner.run(config, Log(quiet=True)).progress.resumed == 1


def test_failures_of_ffmpeg_are_the_same_bytes(
    ffmpeg: dict[str, str], voxbatch: Voxbatch, recording: Recorder, tmp_path: Path
) -> None:
    """Two runs record the same bytes for failures of ffmpeg, whatever descriptors were open, and name no descriptor."""
    contents = {"a.flac": b"<html>404</html>", "b.wav": b"RIFF\x24\0\0\0WAVEdata\0\0\0\0", "c.m3u8": b"#EXTM3U\nx.ts\n"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    for i in range(3):
        recording(f"{i}.wav", 20.0)
    rows = [{"audio_filepath": name} for name in ("0.wav", "a.flac", "1.wav", "b.wav", "c.m3u8", "2.wav")]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for out, decoders in (("one", "1"), ("three", "3")):
        done = voxbatch("run", "m.jsonl", "-o", out, *SCRIPTED, "--decoders", decoders, env=ffmpeg)
        assert done.returncode == 3, done.stderr
    assert output_files(tmp_path / "one") == output_files(tmp_path / "three")
    failures = (tmp_path / "one" / "failures.jsonl").read_text()
    assert failures.count("not audio in a format that libsndfile or ffmpeg knows") >= 2
    assert "/dev/fd" not in failures


def test_the_versions_of_the_audio_libraries(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """summary.json and the list contain the versions of Python and the audio libraries; a run that resumes with other
    versions is warned.
    """
    run = ("run", manifest(0.5), "-o", "out", *SCRIPTED)
    assert voxbatch(*run).returncode == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["libraries"] == libraries()
    assert summary["python"] == platform.python_version()
    header, keys = (tmp_path / "out" / "lists" / "00001.bin").read_bytes().split(b"\n", 1)
    recorded = json.loads(header)
    assert recorded["facts"]["libraries"] == libraries()

    assert "texts may differ" not in voxbatch(*run).stderr
    recorded["facts"]["libraries"]["ffmpeg"] = "5.1.9 (system)"
    (tmp_path / "out" / "lists" / "00001.bin").write_bytes(json.dumps(recorded).encode() + b"\n" + keys)
    done = voxbatch(*run)
    assert "ffmpeg 5.1.9 (system)" in done.stderr
    assert "texts may differ" in done.stderr


UNREAD = """
import voxbatch.display
voxbatch.display.EVENT_S = 0.3  # seconds between two lines of progress
from voxbatch.cli import main
main()
"""


def fill(pipe: int) -> None:
    """Fill a pipe to its end."""
    os.set_blocking(pipe, False)
    with suppress(BlockingIOError):
        while os.write(pipe, b"." * 4096):
            pass
    with suppress(BlockingIOError):
        while os.write(pipe, b"."):
            pass
    os.set_blocking(pipe, True)


@pytest.mark.slow
@pytest.mark.parametrize("log_format", ["json", pytest.param("text", marks=pytest.mark.long)])
def test_stop_while_nobody_reads_standard_error(manifest: ManifestWriter, tmp_path: Path, log_format: str) -> None:
    """A run whose standard error is a full pipe waits for its reader. SIGTERM commits what is finished and ends it."""
    read, write = os.pipe()
    command = [sys.executable, "-c", UNREAD, "run", str(manifest(*[1.0] * 200)), "--engine", "scripted"]
    options = ["--engine-option", "delay_s=0.1", "--engine-option", "concurrency=1", "--log-format", log_format]
    running = subprocess.Popen([*command, *options], stderr=write, stdout=write, env=environment(), cwd=tmp_path)
    try:
        seen = b""
        while not re.search(rb'done": [1-9]|[1-9] / 200 items', seen):
            seen += os.read(read, 4096)
        fill(write)
        time.sleep(1.0)  # it finishes items, and then waits in its next line of progress
        running.send_signal(signal.SIGTERM)
        assert running.wait(200) == 143
    finally:
        running.kill()
        os.close(write)
        os.close(read)
    assert 1 <= len(committed_items(tmp_path / "m.voxbatch")) < 200


@pytest.mark.slow
def test_stop_while_nobody_reads_standard_output(manifest: ManifestWriter, tmp_path: Path) -> None:
    """A finished run that cannot print its outcome waits for the reader. SIGTERM ends it."""
    read, write = os.pipe()
    fill(write)
    command = [sys.executable, "-m", "voxbatch", "run", str(manifest(1.0)), *SCRIPTED]
    running = subprocess.Popen(command, stdout=write, stderr=subprocess.DEVNULL, env=environment(), cwd=tmp_path)
    try:
        until((tmp_path / "m.voxbatch" / "summary.json").exists)
        time.sleep(0.5)
        assert running.poll() is None
        running.send_signal(signal.SIGTERM)
        assert running.wait(200) == 143
    finally:
        running.kill()
        os.close(write)
        os.close(read)
    assert counts(tmp_path / "m.voxbatch") == (1, 1, 0)


def test_an_engine_without_kernels_ignores_their_place(
    voxbatch: Voxbatch, manifest: ManifestWriter, tmp_path: Path
) -> None:
    """--kernel-cache is a setting of the machine: an engine that compiles nothing says so, and the run is the same."""
    first = voxbatch("run", manifest(1.0), "-o", "out", *SCRIPTED, env={"VOXBATCH_KERNEL_CACHE": "kernels"})
    assert first.returncode == 0
    assert "--kernel-cache has no effect: the engine scripted compiles no kernels" in first.stderr
    assert not (tmp_path / "kernels").exists()
    again = voxbatch("run", manifest(1.0), "-o", "out", *SCRIPTED)
    assert again.returncode == 0, again.stderr
    refused = voxbatch("run", manifest(1.0), "-o", "new", *SCRIPTED, "--kernel-cache", "https://host/kernels")
    assert refused.returncode == 2
    assert "--kernel-cache https://host/kernels: " in refused.stderr
