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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import ManifestWriter, Recorder, Starter, Voxbatch, environment

from voxbatch import runner
from voxbatch.audio import libraries
from voxbatch.audio.ffmpeg import executable
from voxbatch.config import Config
from voxbatch.engines.scripted_test_engine import ScriptedTestEngine
from voxbatch.log import Log
from voxbatch.output.merge import merge_again
from voxbatch.storage import open_store

SCRIPTED = ("--engine", "scripted", "--engine-option", "max_chunk_s=15", "--formats", "srt,txt", "--log-format", "text")
SLOWLY = ("--engine-option", "delay_s=0.05", "--engine-option", "concurrency=1", "--decoders", "1")
SECONDS = (0.5, 40, None, 1.2, 0.001, 2, 33, 0.7)
"""Durations in seconds of eight recordings: two of several chunks, and one that is missing."""
CHUNKS = 11

Out = Callable[[Path], dict[str, bytes]]


def outputs(out: Path) -> dict[str, bytes]:
    """Return the merged lines and the subtitles, which must be the same for every course of a run."""
    files = [*sorted(out.glob("*.jsonl")), *sorted(out.glob("srt/*")), *sorted(out.glob("txt/*"))]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def last_line(text: str) -> str:
    return text.splitlines()[-1]


def counts(out: Path) -> tuple[int, int, int]:
    """Return (items, done, failed) of the summary."""
    summary = json.loads((out / "summary.json").read_text())
    return summary["items"], summary["done"], summary["failed"]


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Wait until the condition is true, for at most `seconds`."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


def hears_sigterm(process: subprocess.Popen[str]) -> bool:
    """Return whether the process has installed its SIGTERM handler (SigCgt in /proc, Linux)."""
    fields = Path(f"/proc/{process.pid}/status").read_text().split()
    return bool(int(fields[fields.index("SigCgt:") + 1], 16) & 1 << (signal.SIGTERM - 1))


@pytest.fixture
def undisturbed(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> dict[str, bytes]:
    """Return the outputs of an undisturbed run of the eight recordings."""
    done = voxbatch("run", manifest(*SECONDS, mine={"a": [1, "é"]}), "-o", "peace", *SCRIPTED)
    assert done.returncode == 3, done.stderr
    assert counts(tmp_path / "peace") == (8, 7, 1)
    return outputs(tmp_path / "peace")


@pytest.mark.slow
def test_killed_anywhere_and_resumed(undisturbed: dict[str, bytes], voxbatch: Voxbatch, tmp_path: Path) -> None:
    """After SIGKILL at every single result, twice in a row, no item is lost and none is there twice."""
    for k in range(1, CHUNKS + 1):
        codes = []
        for kill_after in (k, k, -1):
            extra = ("--engine-option", f"kill_after={kill_after}", "--part-items", "1")
            codes.append(voxbatch("run", "m.jsonl", "-o", f"killed{k}", *SCRIPTED, *extra).returncode)
        assert codes in ([-signal.SIGKILL, -signal.SIGKILL, 3], [-signal.SIGKILL, 3, 3])
        assert outputs(tmp_path / f"killed{k}") == undisturbed
        latency = json.loads((tmp_path / f"killed{k}" / "summary.json").read_text())["latency"]
        assert (latency["chunk"]["count"], latency["item"]["count"]) == (CHUNKS, 7), "each committed chunk, once"


def test_parts_of_an_older_version(undisturbed: dict[str, bytes], voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A run started by an older version, whose parts have no latencies, can be resumed, counted and merged."""
    parts = sorted((tmp_path / "peace").glob("parts/*/part-*.jsonl"))
    for part in parts:
        part.write_bytes(re.sub(rb', "latency".*?}\n', b"}\n", part.read_bytes(), count=1))
    for name in ("summary.json", "transcripts.jsonl", "failures.jsonl"):
        (tmp_path / "peace" / name).unlink()
    assert "8 of 8" in voxbatch("status", "peace").stdout
    assert voxbatch("merge", "peace").returncode in (0, 3)
    assert outputs(tmp_path / "peace") == undisturbed
    summary = json.loads((tmp_path / "peace" / "summary.json").read_text())
    assert (summary["latency"]["chunk"]["count"], summary["latency"]["chunk"]["p50_s"]) == (0, None)
    (tmp_path / "peace" / "summary.json").unlink()
    assert voxbatch("run", "m.jsonl", "-o", "peace", *SCRIPTED).returncode == 3
    assert outputs(tmp_path / "peace") == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("shuffled", [("shuffle=true", "delay_s=0.02"), ("concurrency=1",), ("concurrency=100",)])
def test_the_order_of_results_does_not_show(
    undisturbed: dict[str, bytes], voxbatch: Voxbatch, tmp_path: Path, shuffled: tuple[str, ...]
) -> None:
    """The order and timing of an engine's results do not change the output bytes."""
    extra = [word for setting in shuffled for word in ("--engine-option", setting)]
    voxbatch("run", "m.jsonl", "-o", "other", *SCRIPTED, *extra, "--part-items", "2", "--decoders", "3")
    assert outputs(tmp_path / "other") == undisturbed


@pytest.mark.slow
def test_an_engine_that_dies(undisturbed: dict[str, bytes], voxbatch: Voxbatch, tmp_path: Path) -> None:
    """An engine that dies gives exit code 1 and a last line with the committed items; the same command resumes."""
    dying = ("--engine-option", "die_after=5", "--decoders", "1")
    died = voxbatch("run", "m.jsonl", "-o", "out", *SCRIPTED, *dying)
    committed = sum(len(path.read_bytes().splitlines()) - 1 for path in tmp_path.glob("out/parts/*/*.jsonl"))
    assert died.returncode == 1
    assert died.stdout == ""
    assert died.stderr.splitlines()[-2:] == [
        "Error: scripted to die after 5 results",
        f"{committed} of 8 items are safe in out; run the same command again to continue",
    ]
    assert 1 <= committed < 8
    resumed = voxbatch("run", "m.jsonl", "-o", "out", *SCRIPTED)
    assert resumed.returncode == 3
    assert f"{committed} of 8 items were done before; {8 - committed} to do" in resumed.stderr
    assert outputs(tmp_path / "out") == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_commits_what_is_in_hand(
    undisturbed: dict[str, bytes], voxbatch: Voxbatch, start: Starter, tmp_path: Path, number: int, code: int
) -> None:
    """A signal commits the finished items within 5 s, even if no part was due; the last line is plain, and the run can
    be resumed.
    """
    running = start("run", "m.jsonl", "-o", "out", *SCRIPTED, *SLOWLY, "--engine-option", "delay_s=1")
    until((tmp_path / "out" / "run.json").exists)
    time.sleep(4)  # the engine has given a result or two
    running.send_signal(number)
    asked = time.monotonic()
    out, err = running.communicate(timeout=20)
    assert time.monotonic() - asked < 5
    committed = sum(len(path.read_bytes().splitlines()) - 1 for path in tmp_path.glob("out/parts/*/*.jsonl"))
    assert (running.returncode, out) == (code, "")
    assert 1 <= committed < 8
    assert last_line(err) == (
        f"Warning: interrupted; {committed} of 8 items are safe in out; run the same command again to continue"
    )
    assert voxbatch("run", "m.jsonl", "-o", "out", *SCRIPTED).returncode == 3
    assert outputs(tmp_path / "out") == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_to_every_process_fails_no_item(
    recording: Recorder, voxbatch: Voxbatch, start: Starter, tmp_path: Path, workers: int
) -> None:
    """SIGTERM to all processes of a run, decoders and ffmpeg before their parent, commits no failure; a resume gives
    the bytes of an undisturbed run.
    """
    import psutil

    for i in range(4):
        source, path = recording(f"{i}.wav", 300), tmp_path / f"{i}.mka"
        subprocess.run([executable(), "-v", "error", "-i", source, "-c", "copy", path], check=True)
    (tmp_path / "m.jsonl").write_text("".join(json.dumps({"audio_filepath": f"{i}.mka"}) + "\n" for i in range(4)))
    assert voxbatch("run", "m.jsonl", "-o", "peace", *SCRIPTED).returncode == 0
    for delay_s in (0.0, 0.3, 1.0):
        out, several = f"out{delay_s}", ("--engine-option", f"workers={workers}")
        running = start("run", "m.jsonl", "-o", out, *SCRIPTED, *SLOWLY, *several, "--part-items", "1")
        until(lambda pid=running.pid: psutil.Process(pid).children())  # type: ignore[misc]
        time.sleep(delay_s)
        for process in reversed([psutil.Process(running.pid), *psutil.Process(running.pid).children(recursive=True)]):
            process.terminate()
        _, err = running.communicate(timeout=20)
        assert running.returncode == 143, err
        assert not [part for part in tmp_path.glob(f"{out}/parts/*/*.jsonl") if "AudioError" in part.read_text()]
        assert voxbatch("run", "m.jsonl", "-o", out, *SCRIPTED).returncode == 0
        assert outputs(tmp_path / out) == outputs(tmp_path / "peace")


@pytest.mark.slow
@pytest.mark.parametrize(
    "victims", [("ffmpeg",), ("decoder",), ("ffmpeg", "ffmpeg"), ("decoder", "ffmpeg"), ("ffmpeg", "decoder")]
)
def test_killed_decoders_never_shorten_an_item(
    recording: Recorder, voxbatch: Voxbatch, start: Starter, tmp_path: Path, victims: tuple[str, ...]
) -> None:
    """If ffmpeg or its decoder is killed within a recording, the recording is retried and done with all its audio. If
    the retry is killed, too, it is a retryable failure. The other item is done in both cases.
    """
    import psutil

    def find(kind: str) -> list[psutil.Process]:
        """Return the running ffmpegs, or the decoders that have one."""
        found = []
        for each in psutil.Process(running.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # or a ZombieProcess
                if "pipe:1" in each.cmdline():
                    found.append(each if kind == "ffmpeg" else each.parent())
        return [each for each in found if each is not None and each not in killed]

    killed = list[psutil.Process]()
    long, short = tmp_path / "long.mka", recording("short.wav", 1)
    subprocess.run([executable(), "-v", "error", "-i", recording("long.wav", 900), "-c", "copy", long], check=True)
    rows = [json.dumps({"audio_filepath": path.name}) + "\n" for path in (long, short)]
    (tmp_path / "m.jsonl").write_text("".join(rows))
    assert voxbatch("run", "m.jsonl", "-o", "peace", *SCRIPTED).returncode == 0
    running = start("run", "m.jsonl", "-o", "out", *SCRIPTED, *SLOWLY)
    while len(killed) < len(victims):
        until(lambda: find(victims[len(killed)]))
        time.sleep(0.3)
        for found in find(victims[len(killed)]):  # none if it ended with the process that was killed before
            found.kill()
            killed.append(found)
    _, err = running.communicate(timeout=60)
    assert len(killed) == len(victims)
    if len(victims) == 1:
        assert running.returncode == 0, err
        assert outputs(tmp_path / "out") == outputs(tmp_path / "peace")
    else:
        assert running.returncode == 3, err
        (failure,) = map(json.loads, (tmp_path / "out" / "failures.jsonl").read_text().splitlines())
        assert (failure["audio_filepath"], failure["retryable"]) == (f"{tmp_path}/long.mka", True)
        assert "killed by signal 9" in failure["message"]
        (done,) = (tmp_path / "out" / "transcripts.jsonl").read_text().splitlines()
        assert done in (tmp_path / "peace" / "transcripts.jsonl").read_text()


def test_a_signal_while_the_manifest_is_read(start: Starter, tmp_path: Path) -> None:
    """A signal during the reading of the manifest ends the run, and the last line says that nothing was started."""
    running = start("run", "-", *SCRIPTED, stdin=subprocess.PIPE)
    until(lambda: hears_sigterm(running))
    running.send_signal(signal.SIGTERM)
    assert running.stderr is not None
    err = running.stderr.read()
    assert running.wait(5) == 143
    assert err == (
        "Warning: interrupted; no item was started, and all committed items are safe; "
        "run the same command again to continue\n"
    )
    assert not (tmp_path / "stdin.voxbatch").exists()


def test_a_signal_before_anything_is_done(manifest: ManifestWriter, start: Starter, tmp_path: Path) -> None:
    """The last line is plain if nothing is committed yet, too."""
    running = start("run", manifest(1, 1), *SCRIPTED, "--engine-option", "delay_s=30")
    until((tmp_path / "m.voxbatch" / "run.json").exists)
    time.sleep(0.3)
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=5)
    assert running.returncode == 143
    assert last_line(err) == (
        f"Warning: interrupted; 0 of 2 items are safe in {tmp_path}/m.voxbatch; run the same command again to continue"
    )


@pytest.mark.slow
def test_no_decoder_outlives_a_stopped_run(manifest: ManifestWriter, start: Starter, tmp_path: Path) -> None:
    """The decoder processes end with the program, however abruptly it ends."""
    import psutil

    running = start("run", manifest(600, 600), *SCRIPTED, "--engine-option", "delay_s=30")
    until(lambda: len(psutil.Process(running.pid).children()) >= 2)
    time.sleep(0.5)
    workers = psutil.Process(running.pid).children(recursive=True)
    running.send_signal(signal.SIGTERM)
    assert running.wait(5) == 143
    assert not psutil.wait_procs(workers, timeout=5)[1]


@pytest.mark.slow
def test_two_processes_on_one_shard(undisturbed: dict[str, bytes], start: Starter, tmp_path: Path) -> None:
    """Two processes on one shard, as after a redelivered message, both end normally. Every item is in one part, and the
    outputs are those of one process.
    """
    both = [start("run", "m.jsonl", "-o", "out", *SCRIPTED, *SLOWLY, "--part-items", "1") for _ in range(2)]
    for process in both:
        process.communicate(timeout=60)
    assert [process.returncode for process in both] == [3, 3]
    committed = [line.split(b",")[0] for path in tmp_path.glob("out/parts/*/*.jsonl")
                 for line in path.read_bytes().splitlines()[1:]]  # fmt: skip
    assert sorted(committed) == [b'{"index":%d' % i for i in range(8)]
    assert outputs(tmp_path / "out") == undisturbed


@pytest.mark.slow
def test_four_shards_side_by_side_and_one_killed(
    undisturbed: dict[str, bytes], voxbatch: Voxbatch, start: Starter, tmp_path: Path
) -> None:
    """Three shards finish without merging; the killed shard is restarted, finishes and merges all."""
    shards = [("run", "m.jsonl", "-o", "out", *SCRIPTED, "--shard", f"{i}/4") for i in range(4)]
    running = [start(*shards[i], *(("--engine-option", "kill_after=1") if i == 2 else ())) for i in range(4)]
    ended = [(process.communicate(timeout=60), process.returncode) for process in running]
    assert [code for _, code in ended].count(-signal.SIGKILL) == 1
    assert not (tmp_path / "out" / "summary.json").exists()
    assert all("shard" in err and "the last shard to finish merges" in err for (_, err), code in ended if code >= 0)
    last = voxbatch(*shards[2])
    assert last.returncode == 3
    assert "7 done + 1 failed = 8 items" in last.stdout
    assert outputs(tmp_path / "out") == undisturbed


def test_a_shard_tells_of_the_failures_of_earlier_runs(manifest: ManifestWriter, voxbatch: Voxbatch) -> None:
    """Resuming a finished shard gives the exit code of its items every time, while other shards are unfinished."""
    command = ("run", manifest(None, None, 1, 1), *SCRIPTED, "--shard", "0/2")
    for _ in range(2):
        done = voxbatch(*command)
        assert done.returncode == 3
        assert last_line(done.stderr) == (
            "shard 0/2 is done: 1 done + 1 failed = 2 items; the last shard to finish merges"
        )


@pytest.mark.slow
def test_more_shards_than_items(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A shard without items ends normally, and merges if it is the last."""
    path = manifest(1)
    for i in range(3):
        done = voxbatch("run", path, *SCRIPTED, "--shard", f"{i}/3")
        assert done.returncode == 0, done.stderr
    assert counts(tmp_path / "m.voxbatch") == (1, 1, 0)


@pytest.mark.slow
def test_resuming_what_is_finished(undisturbed: dict[str, bytes], voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Resuming a finished run does nothing, prints the outcome again and gives the same exit code."""
    done = voxbatch("run", "m.jsonl", "-o", "peace", *SCRIPTED, "--engine-option", "die_after=0")
    assert done.returncode == 3
    assert "8 of 8 items were done before; 0 to do" in done.stderr
    assert "7 done + 1 failed = 8 items (1 AudioError)" in done.stdout
    assert outputs(tmp_path / "peace") == undisturbed


@pytest.mark.slow
def test_a_limit_on_file_sizes(undisturbed: dict[str, bytes], voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A part that cannot be written gives exit code 1 and a plain last line; with a higher limit the run resumes."""
    command = ("run", "m.jsonl", "-o", "out", *SCRIPTED)
    full = voxbatch(*command, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)))
    assert full.returncode == 1
    assert "Traceback" not in full.stderr
    part = f"{tmp_path}/out/parts/shard-00000-of-00001/part-00000.jsonl"
    assert full.stderr.splitlines()[-2:] == [
        f"Error: cannot write {part}: the file grew past the allowed size: raise the limit (ulimit -f)",
        "0 of 8 items are safe in out; run the same command again to continue",
    ]
    assert voxbatch(*command).returncode == 3
    assert outputs(tmp_path / "out") == undisturbed


FULL_DISK = """
mount -t tmpfs -o size=256k none small || exit 77
head -c 249000 /dev/zero > small/filler
"$@"; echo "code $?" >&2
rm small/filler
"$@"; echo "code $?" >&2
cp -r small/out kept
"""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("unshare"), reason="needs unshare(1) to mount a small file system")
def test_a_full_disk(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    """A full disk gives exit code 1 with the reason; once space is free, the same command finishes the run."""
    (tmp_path / "small").mkdir()
    run = [sys.executable, "-m", "voxbatch", "run", "m.jsonl", "-o", "small/out", *SCRIPTED]
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", FULL_DISK, "sh", *run]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60)
    if not done.stderr.count("\ncode "):
        pytest.skip(f"cannot mount a small file system here: {done.stderr.strip()}")
    first, second, _ = done.stderr.split("code ")
    assert "the disk is full: free some space" in first
    assert last_line(first).endswith("of 8 items are safe in small/out; run the same command again to continue")
    assert second.startswith("1\n")
    assert done.stderr.endswith("code 3\n")
    assert outputs(tmp_path / "kept") == undisturbed


@pytest.mark.slow
def test_failures_are_a_manifest_of_what_failed(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """failures.jsonl, copied beside the manifest under another name, runs only the failed items with the same ids."""
    assert voxbatch("run", manifest(0.5, None, 0.7, topic="weather"), "-o", "first", *SCRIPTED).returncode == 3
    shutil.copy(tmp_path / "first" / "failures.jsonl", tmp_path / "again.jsonl")
    shutil.copy(tmp_path / "r0.wav", tmp_path / "r1.wav")
    done = voxbatch("run", "again.jsonl", "-o", "second", *SCRIPTED)
    assert done.returncode == 0, done.stderr
    (line,) = map(json.loads, (tmp_path / "second" / "transcripts.jsonl").read_text().splitlines())
    assert (line["id"], line["topic"]) == ("r1.wav", "weather")


@pytest.mark.slow
def test_a_manifest_that_changes_between_runs_is_another_run(
    undisturbed: dict[str, bytes], voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """A changed manifest is refused for the same OUT, with both fingerprints. --overwrite starts anew and keeps files
    that voxbatch did not create.
    """
    recorded = json.loads((tmp_path / "peace" / "run.json").read_text())
    (tmp_path / "peace" / "notes.md").write_text("mine")
    (tmp_path / "peace" / "txt" / "mine.txt").write_text("mine")
    (tmp_path / "m.jsonl").write_text('{"audio_filepath": "r0.wav"}\n')
    refused = voxbatch("run", "m.jsonl", "-o", "peace", *SCRIPTED)
    assert refused.returncode == 2
    assert refused.stderr.startswith(
        f"engine scripted: asked for; model count (Apache-2.0)\nError: {tmp_path}/peace holds another run ("
        f"{recorded['run']}, this one is "
    )
    assert f"manifest was {recorded['identity']['manifest'][:12]}…, is " in refused.stderr
    assert refused.stderr.endswith(
        ". Choose another OUT with -o (another name for an upload), or erase the old outputs with --overwrite\n"
    )
    assert outputs(tmp_path / "peace").items() >= undisturbed.items()
    anew = voxbatch("run", "m.jsonl", "-o", "peace", *SCRIPTED, "--overwrite")
    assert anew.returncode == 0, anew.stderr
    assert sorted(outputs(tmp_path / "peace")) == [
        "srt/r0.srt", "transcripts.jsonl", "txt/mine.txt", "txt/r0.txt",
    ]  # fmt: skip
    assert (tmp_path / "peace" / "notes.md").read_text() == "mine"


@pytest.mark.slow
def test_another_model_is_another_run(undisturbed: dict[str, bytes], voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Settings that change the text belong to the identity of a run; settings that change only the speed do not."""
    faster = voxbatch("run", "m.jsonl", "-o", "peace", *SCRIPTED, "--decoders", "3", "--part-items", "7")
    assert faster.returncode == 3
    other = voxbatch("run", "m.jsonl", "-o", "peace", *SCRIPTED, "--model", "other", "--audio-stream", "1")
    assert other.returncode == 2
    assert "model was count, is other; audio_stream was None, is 1. Choose" in other.stderr


@pytest.mark.slow
def test_foreign_and_damaged_parts(undisturbed: dict[str, bytes], voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Parts of another run and damaged parts stop the run with exit code 1 before it starts, with the remedy."""
    (part,) = tmp_path.glob("peace/parts/*/*.jsonl")
    recorded = json.loads((tmp_path / "peace" / "run.json").read_text())["run"]
    part.write_bytes(part.read_bytes().replace(recorded.encode(), b"f" * 16))
    foreign = voxbatch("run", "m.jsonl", "-o", "peace", *SCRIPTED)
    assert foreign.returncode == 1
    remedy = f"remove this part and run again: rm {part}"
    assert f"Error: {part}: belongs to run {'f' * 16}, this is run {recorded}; {remedy}\n" in foreign.stderr
    part.write_bytes(b"\0" * 100)
    damaged = voxbatch("run", "m.jsonl", "-o", "peace", *SCRIPTED)
    assert damaged.returncode == 1
    remedy = "delete this part and run again, so that its items are transcribed again"
    assert f"{remedy}: rm {part}\n" in damaged.stderr
    part.unlink()
    assert voxbatch("run", "m.jsonl", "-o", "peace", *SCRIPTED).returncode == 3
    assert outputs(tmp_path / "peace") == undisturbed


@pytest.mark.skipif(not os.path.exists("/proc/version"), reason="needs a folder that even root cannot write")
def test_an_out_that_cannot_be_written(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """An OUT that cannot be written gives exit code 1 and a plain reason, before a model is loaded."""
    path = manifest(1)
    (tmp_path / "file").write_text("")
    inside = voxbatch("run", path, "-o", "file/out", *SCRIPTED)
    assert (inside.returncode, inside.stderr.splitlines()[1:]) == (1, [
        f"Error: cannot create {tmp_path}/file/out: a file stands where a folder is needed: choose another OUT with -o",
        "no item was started, and all committed items are safe; run the same command again to continue",
    ])  # fmt: skip
    virtual = voxbatch("run", path, "-o", "/proc/out", *SCRIPTED)
    assert virtual.returncode == 1
    assert "Error: cannot create /proc/out: " in virtual.stderr
    assert "Traceback" not in inside.stderr + virtual.stderr


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


def test_an_engines_warnings(manifest: ManifestWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine's warnings are logged once and are in the summary, also after `merge`. A later run may resume without
    them.
    """

    class Slow(ScriptedTestEngine):
        def __init__(self, *arguments: Any):
            super().__init__(*arguments)
            self.spec = replace(self.spec, warnings=("it is slow",))

    config = Config(source=str(manifest(0.5)), out=str(tmp_path / "out"), engine="scripted")
    monkeypatch.setattr("voxbatch.engines.scripted_test_engine.ScriptedTestEngine", Slow)
    said: list[str] = []
    finished = runner.run(config, Log(write=said.append))
    assert finished.summary
    assert finished.summary.facts.engine.warnings == ("it is slow",)
    assert merge_again(open_store(config.out)).facts.engine.warnings == ("it is slow",)
    assert said.count("Warning: it is slow") == 1
    monkeypatch.undo()
    assert runner.run(config, Log(quiet=True)).progress.resumed == 1


@pytest.mark.slow
def test_failures_of_ffmpeg_are_the_same_bytes(
    ffmpeg: dict[str, str], voxbatch: Voxbatch, recording: Recorder, tmp_path: Path
) -> None:
    """Two runs record the same bytes for failures of ffmpeg, whatever file descriptors were open, and name no
    descriptor.
    """
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
    assert outputs(tmp_path / "one") == outputs(tmp_path / "three")
    failures = (tmp_path / "one" / "failures.jsonl").read_text()
    assert failures.count("not audio in a format that libsndfile or ffmpeg knows") >= 2
    assert "/dev/fd" not in failures


@pytest.mark.slow
def test_the_versions_of_the_audio_libraries(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """summary.json and run.json contain the versions of Python and the audio libraries; a run that resumes with other
    versions is warned.
    """
    run = ("run", manifest(0.5), "-o", "out", *SCRIPTED)
    assert voxbatch(*run).returncode == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["libraries"] == libraries()
    assert summary["python"] == platform.python_version()
    recorded = json.loads((tmp_path / "out" / "run.json").read_text())
    assert recorded["facts"]["libraries"] == libraries()

    assert "texts may differ" not in voxbatch(*run).stderr
    recorded["facts"]["libraries"]["ffmpeg"] = "5.1.9 (system)"
    (tmp_path / "out" / "run.json").write_text(json.dumps(recorded))
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
@pytest.mark.parametrize("log_format", ["json", "text"])
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
        assert running.wait(60) == 143
    finally:
        running.kill()
        os.close(write)
        os.close(read)
    committed = [len(part.read_bytes().splitlines()) - 1 for part in tmp_path.glob("m.voxbatch/parts/*/part-*.jsonl")]
    assert 1 <= sum(committed) < 200


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
        assert running.wait(60) == 143
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
