"""One command, several processes: the bytes of one, one progress, one merge; a worker that dies costs time only."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from conftest import ManifestWriter, Starter, Voxbatch

from voxbatch import fleet
from voxbatch.config import Config
from voxbatch.errors import ManifestError, UsageError
from voxbatch.log import Log
from voxbatch.manifest import open_source
from voxbatch.pipeline import Interrupted, Progress, Stop

SECONDS = (0.6, 1.2, None, 2, 33, 0.7, 1.1, 1.6, 0.5, 16, 1, 1, 0.9, 2.2, 1.4, 0.8)
"""Sixteen recordings: two of several chunks, one that is missing."""
SETTINGS = ("--engine", "scripted", "--log-format", "text", "--decoders", "1", "--part-items", "1")


def options(**given: object) -> list[str]:
    return [word for name, value in given.items() for word in ("--engine-option", f"{name}={value}")]


SLOWLY = options(max_chunk_s=15, concurrency=1, delay_s=0.03)
GLACIALLY = options(max_chunk_s=15, concurrency=1, delay_s=1)


def outputs(out: Path) -> dict[str, bytes]:
    files = [out / "transcripts.jsonl", out / "failures.jsonl", *sorted(out.glob("srt/*"))]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def committed(out: Path) -> list[bytes]:
    """What is in parts, by index; an item that is there twice is here twice."""
    parts = [path.read_bytes().splitlines()[1:] for path in out.glob("parts/*/part-*.jsonl")]
    return sorted(line.split(b",")[0] for part in parts for line in part)


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


def at_work(process: subprocess.Popen[str], workers: int) -> list[psutil.Process]:
    """All processes of a fleet that works glacially, when each worker has had time to finish an item or two."""
    fleet = psutil.Process(process.pid)
    until(lambda: len(fleet.children()) == workers)
    until(lambda: len(fleet.children(recursive=True)) >= 2 * workers)  # each has its decoder: it has started up
    time.sleep(3)
    return fleet.children(recursive=True)


@pytest.fixture
def alone(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> dict[str, bytes]:
    """What the manifest of sixteen comes to in one process."""
    done = voxbatch("run", manifest(*SECONDS, text="w0 w1"), "-o", "alone", *SETTINGS, *SLOWLY, "--formats", "srt")
    assert done.returncode == 3, done.stderr
    assert "workers" not in done.stderr
    return outputs(tmp_path / "alone")


@pytest.mark.slow
def test_the_same_bytes_however_many_workers(alone: dict[str, bytes], voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Three workers, two of the three, or one: the outputs are those of one process, each item is in one part."""
    for limit, workers in (("auto", 3), ("2", 2), ("1", 1)):
        out = tmp_path / limit
        extra = (*options(workers=3), "--workers", limit, "--formats", "srt")
        done = voxbatch("run", "m.jsonl", "-o", out, *SETTINGS, *SLOWLY, *extra)
        assert done.returncode == 3, done.stderr
        assert (f"{workers} workers side by side" in done.stderr) == (workers > 1)
        assert "15 done + 1 failed = 16 items (1 AudioError)" in done.stdout
        assert outputs(out) == alone
        assert len(committed(out)) == len(set(committed(out))) == 16
        summary = json.loads((out / "summary.json").read_text())
        assert summary["workers"] == workers
        assert (summary["process_s"] > summary["wall_s"]) == (workers > 1)
        assert summary["rtfx"] == pytest.approx(summary["audio_s"] / summary["wall_s"], abs=0.01)


@pytest.mark.slow
def test_one_worker_is_killed(alone: dict[str, bytes], voxbatch: Voxbatch, tmp_path: Path) -> None:
    """The others do what it left; a warning names it and its device; the exit code is the items'."""
    extra = (*options(workers=3, only_worker=1, kill_after=2), "--formats", "srt")
    done = voxbatch("run", "m.jsonl", "-o", "out", *SETTINGS, *SLOWLY, *extra)
    assert done.returncode == 3, done.stderr
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert warnings[0] == (
        "warning: worker 1 (VOXBATCH_SCRIPTED_WORKER=1) is lost: killed by signal 9; what it has committed is safe"
    )
    assert warnings[1].endswith("items that were left behind are dealt out anew, to the workers that are left: 0, 2")
    assert len(warnings) == 2
    assert outputs(tmp_path / "out") == alone
    assert len(committed(tmp_path / "out")) == len(set(committed(tmp_path / "out"))) == 16


@pytest.mark.slow
def test_all_workers_die(alone: dict[str, bytes], voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Exit 1; why is said once where all died alike; another number of workers goes on from what is safe."""
    dying = voxbatch("run", "m.jsonl", "-o", "out", *SETTINGS, *SLOWLY, *options(workers=3, die_after=2))
    safe = len(committed(tmp_path / "out"))
    assert dying.returncode == 1
    assert 1 <= safe < 16
    names = ", ".join(f"worker {i} (VOXBATCH_SCRIPTED_WORKER={i})" for i in range(3))
    assert dying.stderr.splitlines()[-2:] == [
        f"error: no worker is left: {names}: scripted to die after 2 results",
        f"{safe} of 16 items are safe in out; run the same command again to go on from there",
    ]
    again = voxbatch("run", "m.jsonl", "-o", "out", *SETTINGS, *SLOWLY, *options(workers=2), "--formats", "srt")
    assert again.returncode == 3, again.stderr
    assert f"{safe} of 16 items were done before" in again.stderr
    assert outputs(tmp_path / "out") == alone


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_stops_all_softly(
    alone: dict[str, bytes], voxbatch: Voxbatch, start: Starter, tmp_path: Path, number: int, code: int
) -> None:
    """SIGTERM, or Ctrl-C to the whole process group: what is in hand is committed, nobody is left, the run goes on."""
    patient = (*GLACIALLY, *options(workers=3), "--part-items", "100")
    running = start("run", "m.jsonl", "-o", "out", *SETTINGS, *patient, start_new_session=True)
    others = at_work(running, 3)
    os.killpg(running.pid, number)
    asked = time.monotonic()
    out, err = running.communicate(timeout=20)
    assert time.monotonic() - asked < 5
    assert (running.returncode, out) == (code, "")
    assert not psutil.wait_procs(others, timeout=5)[1]
    safe = len(committed(tmp_path / "out"))
    assert 1 <= safe < 16
    assert err.splitlines()[-1] == (
        f"warning: interrupted; {safe} of 16 items are safe in out; run the same command again to go on from there"
    )
    assert "is lost" not in err
    assert voxbatch("run", "m.jsonl", "-o", "out", *SETTINGS, *SLOWLY, "--formats", "srt").returncode == 3
    assert outputs(tmp_path / "out") == alone


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_worker_outlives_the_fleet(manifest: ManifestWriter, start: Starter, tmp_path: Path, number: int) -> None:
    """Killed outright, or by a second signal while it waits: the workers commit what is in hand, and follow."""
    extra = (*GLACIALLY, *options(workers=2), "--part-items", "100")
    running = start("run", manifest(*SECONDS), "-o", "out", *SETTINGS, *extra)
    others = at_work(running, 2)
    running.send_signal(number)
    running.send_signal(number)
    assert running.wait(5) in (-number, 128 + number)
    assert not psutil.wait_procs(others, timeout=10)[1]
    assert committed(tmp_path / "out")


@pytest.mark.slow
def test_sources_that_cannot_be_opened_twice(alone: dict[str, bytes], voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Standard input and gzip come to every worker; relative paths and --limit mean what they mean alone."""
    text = (tmp_path / "m.jsonl").read_text()
    extra = (*SLOWLY, *options(workers=3), "--formats", "srt")
    done = voxbatch("run", "-", *SETTINGS, *extra, input=text)
    assert done.returncode == 3, done.stderr
    assert outputs(tmp_path / "stdin.voxbatch") == alone
    (tmp_path / "g.jsonl.gz").write_bytes(gzip.compress((text + "no json\n").encode()))
    done = voxbatch("run", "g.jsonl.gz", "--limit", "16", *SETTINGS, *extra)
    assert done.returncode == 3, done.stderr
    assert outputs(tmp_path / "g.voxbatch") == alone


@pytest.mark.slow
def test_shards_of_fleets(alone: dict[str, bytes], voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Hosts with different numbers of GPUs, each on a shard: the last one merges, and it is one run like any other."""
    command = ("run", "m.jsonl", "-o", "out", *SETTINGS, *SLOWLY, "--formats", "srt")
    first = voxbatch(*command, "--shard", "1/2", *options(workers=3))
    assert "shard 1/2 is done: " in first.stderr.splitlines()[-1]
    assert not (tmp_path / "out" / "summary.json").exists()
    last = voxbatch(*command, "--shard", "0/2", *options(workers=2))
    assert last.returncode == 3, last.stderr
    assert outputs(tmp_path / "out") == alone
    status = json.loads(voxbatch("status", "out", "--json").stdout)
    assert [(shard["shard"], shard["complete"]) for shard in status["shards"]] == [("0/2", True), ("1/2", True)]


@pytest.mark.slow
def test_logs_of_workers_in_json(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Each line is an event; what a worker's libraries print is one too, and says whose; --quiet keeps warnings."""
    (tmp_path / "noisy").mkdir()
    noise = "import os\nif 'VOXBATCH_SCRIPTED_WORKER' in os.environ: print('loading a library', flush=True)\n"
    (tmp_path / "noisy" / "sitecustomize.py").write_text(noise)
    path = os.pathsep.join([str(tmp_path / "noisy"), str(Path(fleet.__file__).parents[2])])
    command = ("run", manifest(1, 1, 1, 1), *SETTINGS, "--log-format", "json", "--overwrite")
    extra = options(workers=2, only_worker=1, kill_after=1)
    done = voxbatch(*command, *extra, env={"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stderr.splitlines()]
    printed = {event["worker"]: event["text"] for event in events if event["message"] == "worker_printed"}
    assert printed == {i: f"worker {i}: loading a library" for i in range(2)}
    (lost,) = [event for event in events if event["message"] == "worker_lost"]
    assert (lost["severity"], lost["worker"]) == ("WARNING", 1)
    quiet = voxbatch(*command, *extra, "--quiet", env={"PYTHONPATH": path})
    assert (quiet.returncode, quiet.stdout) == (0, "")
    assert [json.loads(line)["message"] for line in quiet.stderr.splitlines()] == ["worker_lost", "items_dealt_anew"]


@pytest.mark.slow
def test_what_a_worker_forked_goes_with_it(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A process that an engine forked keeps the worker's end of everything open: it holds up nothing, and is killed."""
    forking = "import os, sys, time\nif 'fleet.worker' in sys.orig_argv[-2] and not os.fork():\n    time.sleep(120)\n"
    (tmp_path / "forks").mkdir()
    (tmp_path / "forks" / "sitecustomize.py").write_text(forking)
    path = os.pathsep.join([str(tmp_path / "forks"), str(Path(fleet.__file__).parents[2])])
    extra = options(workers=2, only_worker=1, kill_after=1)
    done = voxbatch("run", manifest(1, 1, 1, 1), *SETTINGS, *extra, env={"PYTHONPATH": path}, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "worker 1 (VOXBATCH_SCRIPTED_WORKER=1) is lost: killed by signal 9" in done.stderr
    places = [each.info["environ"] or {} for each in psutil.process_iter(["environ"])]
    assert not any(str(tmp_path) in place.get("PYTHONPATH", "") for place in places)


def test_what_can_be_refused_is_refused_before_any_worker_starts(voxbatch: Voxbatch, tmp_path: Path) -> None:
    """A bad line: exit 2, and nobody spoke of workers."""
    (tmp_path / "m.jsonl").write_text('{"audio_filepath": "a.wav"}\nx\n')
    done = voxbatch("run", "m.jsonl", *SETTINGS, *options(workers=3))
    assert (done.returncode, "workers" in done.stderr) == (2, False)
    assert not (tmp_path / "m.voxbatch").exists()


# -- the fleet in this process, its workers in others ----------------------------------------------------------------


class Bench:
    """A run whose progress and log are kept."""

    def __init__(self, source: Path, part_items: int = 1, **options: object):
        given = {"max_chunk_s": "15", **{name: str(value) for name, value in options.items()}}
        self.config = Config(
            source=str(source), out=str(source.parent / "out"), engine="scripted", engine_options=given, decoders=1,
            part_items=part_items,
        )  # fmt: skip
        self.seen: list[Progress] = []
        self.log: list[str] = []
        self.on_progress: Callable[[], object] = lambda: None

    def run(self, stop: Stop | None = None) -> fleet.Finished:
        return fleet.run(self.config, Log(write=self.log.append), self._observe, stop)

    def _observe(self, progress: Progress) -> None:
        self.seen.append(replace(progress))
        self.on_progress()


@pytest.mark.slow
def test_one_progress(manifest: ManifestWriter) -> None:
    """The workers' sums: never more than there is, never less than before, and all of it in the end."""
    bench = Bench(manifest(*SECONDS), workers=3, delay_s=0.1, concurrency=1)
    finished = bench.run()
    last = bench.seen[-1]
    assert (last.items, last.done, last.failed, last.committed, last.parts) == (16, 15, 1, 16, 16)
    assert last.audio_s == pytest.approx(sum(seconds or 0 for seconds in SECONDS), abs=0.1)
    assert len({p.done for p in bench.seen}) > 4
    for name in ("done", "failed", "audio_s", "committed", "parts"):
        values = [getattr(p, name) for p in bench.seen]
        assert values == sorted(values)
    assert all(p.done + p.failed <= p.items for p in bench.seen)
    assert finished.usage is not None
    assert finished.usage.engine_s > 1.5
    assert finished.summary is not None
    assert finished.summary["process_s"] <= 3 * finished.progress.wall_s


@pytest.mark.slow
def test_progress_after_a_death_is_what_is_in_parts(manifest: ManifestWriter) -> None:
    """What a worker had in hand when it died counts no more, and is counted when another has done it."""
    bench = Bench(manifest(*[0.5] * 12, None), 3, workers=2, only_worker=0, kill_after=4, delay_s=0.1, concurrency=1)
    progress = bench.run().progress
    assert (progress.done, progress.failed, progress.committed) == (12, 1, 13)
    assert all(p.committed <= p.items for p in bench.seen)


@pytest.mark.slow
def test_a_manifest_that_changes_under_the_fleet(manifest: ManifestWriter) -> None:
    """A worker that finds another file than was surveyed refuses, and so does the run."""
    path = manifest(1, 1, 1)
    bench = Bench(path, workers=2)
    bench.on_progress = lambda: len(bench.seen) == 1 and path.write_text("{}\n")
    with pytest.raises(UsageError, match="changed while it was being read"):
        bench.run()
    assert not any("is lost" in line for line in bench.log), bench.log


@pytest.mark.slow
def test_a_worker_that_does_not_stop(manifest: ManifestWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """When its time is over it is killed, and the run is interrupted all the same."""
    monkeypatch.setattr(fleet, "PATIENCE_S", 0.5)
    bench, stop = Bench(manifest(1, 1), workers=2, delay_s=60), Stop()

    def workers() -> list[psutil.Process]:
        return [each for each in psutil.Process().children() if "fleet.worker" in " ".join(each.cmdline())]

    def freeze() -> None:
        until(lambda: len(workers()) == 2)
        for each in workers():
            each.suspend()
        stop.asked.set()

    threading.Thread(target=freeze).start()
    with pytest.raises(Interrupted):
        bench.run(stop)
    assert not workers()


def test_a_handle_is_the_same_bytes_or_none(tmp_path: Path) -> None:
    """A source that another process opens by its descriptor gives the lines that were surveyed, or is refused."""
    path = tmp_path / "m.jsonl"
    path.write_text('{"audio_filepath": "a.wav"}\n')
    with open_source(path) as source:
        handle = source.handle()
        with replace(handle, fd=os.dup(handle.fd)).open() as same:
            assert (list(same.lines()), same.base, same.name) == (list(source.lines()), source.base, source.name)
        path.write_text("{}\n")
        with replace(handle, fd=os.dup(handle.fd)).open() as other, pytest.raises(ManifestError, match="changed while"):
            list(other.lines())
