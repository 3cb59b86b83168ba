"""Runs in several worker processes: the bytes of one process, progress and merge. A lost worker costs only time."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import servers
from conftest import IMPORT_PATH, ManifestWriter, Recorder, Starter, Voxbatch, environment, gone
from holds import Hold
from outputs import committed_items, output_files
from waits import until

from voxbatch import runner
from voxbatch.config import Config
from voxbatch.errors import StorageError
from voxbatch.log import Log
from voxbatch.runner import Progress, Stop, StopRequested, workers
from voxbatch.runner.workers import process
from voxbatch.storage.retry import NO_WAIT, STORE_REQUEST

SECONDS = (0.6, 1.2, None, 2, 33, 0.7, 1.1, 1.6, 0.5, 16, 1, 1, 0.9, 2.2, 1.4, 0.8)
"""Durations of sixteen recordings: two have several chunks, and one file is missing."""
SETTINGS = ("--engine", "scripted", "--log-format", "text", "--decoders", "1", "--part-items", "1")
Outputs = dict[str, bytes]


def options(**given: object) -> list[str]:
    return [word for name, value in given.items() for word in ("--engine-option", f"{name}={value}")]


SLOWLY = options(max_chunk_s=15, concurrency=1, delay_s=0.03)


def warnings(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith("Warning: ")]


def at_work(run: subprocess.Popen[str], hold: Hold, workers: int) -> list[psutil.Process]:
    """Return all processes of a run, when each worker has the result of an item and waits."""
    hold.reached(workers, run)
    processes: list[psutil.Process] = psutil.Process(run.pid).children(recursive=True)
    return processes


@pytest.fixture
def alone(manifest: ManifestWriter, tmp_path: Path, warm_decoders: None) -> Outputs:
    """Return the outputs of one process for the manifest of sixteen recordings."""
    config = Config(
        source=str(manifest(*SECONDS, text="w0 w1")), out=str(tmp_path / "alone"), formats=("srt",), decoders=1,
        engine="scripted", engine_options={"max_chunk_s": "15"},
    )  # fmt: skip
    runner.run(config, Log(quiet=True))
    return output_files(tmp_path / "alone")


def test_number_of_workers_does_not_change_the_outputs(alone: Outputs, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Three workers, or two of the three: the outputs equal those of one process, and each item is in one part."""
    for limit, count in (("auto", 3), ("2", 2)):
        out = tmp_path / limit
        extra = (*options(workers=3), "--workers", limit, "--formats", "srt")
        done = voxbatch("run", "m.jsonl", "-o", out, *SETTINGS, *SLOWLY, *extra)
        assert done.returncode == 3, done.stderr
        assert f"{count} workers in parallel" in done.stderr
        assert "15 done + 1 failed = 16 items (1 not found)" in done.stdout
        assert output_files(out) == alone
        assert len(committed_items(out)) == len(set(committed_items(out))) == 16
        summary = json.loads((out / "summary.json").read_text())
        assert summary["workers"] == count
        assert summary["process_s"] > summary["wall_s"]
        assert summary["latency"]["item"]["count"] == 15, "all workers' parts; the missing recording has none"
        assert summary["rtfx"] == pytest.approx(summary["audio_s"] / summary["wall_s"], abs=0.01)


def test_one_recording_needs_no_workers(manifest: ManifestWriter, voxbatch: Voxbatch) -> None:
    """A single recording is transcribed in the process of the run, however many GPUs there are."""
    done = voxbatch("run", manifest(1.2, text="w0 w1"), "-o", "out", *SETTINGS, *SLOWLY, *options(workers=3))
    assert done.returncode == 0, done.stderr
    assert "workers in parallel" not in done.stderr
    assert "1 done + 0 failed = 1 item" in done.stdout


def test_remaining_workers_do_the_items_of_a_killed_worker(alone: Outputs, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """The other workers do its items with the engines that they have already loaded, a warning names it and its device,
    and only the items decide the exit code.
    """
    extra = (*options(workers=3, only_worker=1, kill_after=2, load_s=0.5), "--formats", "srt")
    done = voxbatch("run", "m.jsonl", "-o", "out", *SETTINGS, *SLOWLY, *extra)
    assert done.returncode == 3, done.stderr
    lost, reassigned = warnings(done.stderr)
    assert lost == (
        "Warning: worker 1 (VOXBATCH_SCRIPTED_WORKER=1) is lost: killed by signal 9; its committed items are safe"
    )
    assert reassigned.endswith("uncommitted items are reassigned to workers 0, 2")
    loaded = [line for line in done.stderr.splitlines() if line.endswith("scripted is loaded")]
    loaded = [line for line in loaded if not line.startswith("worker 1:")]  # it may be killed before it can say so
    assert sorted(loaded) == [f"worker {number}: scripted is loaded" for number in (0, 2)]
    assert output_files(tmp_path / "out") == alone
    assert len(committed_items(tmp_path / "out")) == len(set(committed_items(tmp_path / "out"))) == 16


def test_run_fails_if_all_workers_die(alone: Outputs, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Exit 1, and an equal reason is named once. Another number of workers resumes from the committed items."""
    dying = voxbatch("run", "m.jsonl", "-o", "out", *SETTINGS, *SLOWLY, *options(workers=3, die_after=2))
    safe = len(committed_items(tmp_path / "out"))
    assert dying.returncode == 1
    assert 1 <= safe < 16
    names = ", ".join(f"worker {i} (VOXBATCH_SCRIPTED_WORKER={i})" for i in range(3))
    assert dying.stderr.splitlines()[-2:] == [
        f"Error: no worker is left: {names}: scripted to die after 2 results",
        f"{safe} of 16 items are safe in out; run the same command again to continue",
    ]
    again = voxbatch("run", "m.jsonl", "-o", "out", *SETTINGS, *SLOWLY, *options(workers=2), "--formats", "srt")
    assert again.returncode == 3, again.stderr
    assert f"{safe} of 16 items were done before" in again.stderr
    assert output_files(tmp_path / "out") == alone


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.long)]
)
def test_signal_stops_all_workers_gracefully(
    alone: Outputs, voxbatch: Voxbatch, start: Starter, tmp_path: Path, number: int, code: int
) -> None:
    """SIGTERM or Ctrl-C to the process group: finished items are committed, all processes end, the run can resume."""
    hold = Hold(tmp_path / "hold")
    patient = (*SLOWLY, *hold.options, *options(workers=3), "--part-items", "100")
    running = start("run", "m.jsonl", "-o", "out", *SETTINGS, *patient, start_new_session=True)
    others = at_work(running, hold, 3)
    os.killpg(running.pid, number)
    out, err = running.communicate(timeout=200)
    assert (running.returncode, out) == (code, "")
    assert gone(others, 60)
    safe = len(committed_items(tmp_path / "out"))
    assert 1 <= safe < 16
    assert err.splitlines()[-1] == (
        f"Warning: interrupted; {safe} of 16 items are safe in out; run the same command again to continue"
    )
    assert "is lost" not in err
    assert voxbatch("run", "m.jsonl", "-o", "out", *SETTINGS, *SLOWLY, "--formats", "srt").returncode == 3
    assert output_files(tmp_path / "out") == alone


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_when_the_parent_ends(
    manifest: ManifestWriter, start: Starter, tmp_path: Path, number: int
) -> None:
    """The parent is killed, or ended by a second signal while waiting: the workers commit finished items and end."""
    hold = Hold(tmp_path / "hold")
    extra = (*SLOWLY, *hold.options, *options(workers=2), "--part-items", "100")
    running = start("run", manifest(*SECONDS), "-o", "out", *SETTINGS, *extra)
    others = at_work(running, hold, 2)
    running.send_signal(number)
    running.send_signal(number)
    assert running.wait(60) in (-number, 128 + number)
    assert gone(others, 60)
    assert committed_items(tmp_path / "out")


def test_workers_read_sources_that_cannot_be_opened_twice(alone: Outputs, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Every worker reads standard input and gzip. Relative paths and --limit mean the same as in one process."""
    text = (tmp_path / "m.jsonl").read_text()
    extra = (*SLOWLY, *options(workers=3), "--formats", "srt")
    done = voxbatch("run", "-", *SETTINGS, *extra, input=text)
    assert done.returncode == 3, done.stderr
    assert output_files(tmp_path / "stdin.voxbatch") == alone
    (tmp_path / "g.jsonl.gz").write_bytes(gzip.compress((text + "no json\n").encode()))
    done = voxbatch("run", "g.jsonl.gz", "--limit", "16", *SETTINGS, *extra)
    assert done.returncode == 3, done.stderr
    assert output_files(tmp_path / "g.voxbatch") == alone


def test_shards_on_hosts_with_several_workers(alone: Outputs, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Hosts with different numbers of GPUs work on one shard each: the last host merges, as in any other run."""
    command = ("run", "m.jsonl", "-o", "out", *SETTINGS, *SLOWLY, "--formats", "srt")
    first = voxbatch(*command, "--shard", "1/2", *options(workers=3))
    assert "shard 1/2 is done: " in first.stderr.splitlines()[-1]
    assert not (tmp_path / "out" / "summary.json").exists()
    last = voxbatch(*command, "--shard", "0/2", *options(workers=2))
    assert last.returncode == 3, last.stderr
    assert output_files(tmp_path / "out") == alone
    status = json.loads(voxbatch("status", "out", "--json").stdout)
    assert [(shard["shard"], shard["complete"]) for shard in status["shards"]] == [("0/2", True), ("1/2", True)]


def test_json_log_names_the_worker(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Each line is an event. An event for a line that a library prints names the worker."""
    (tmp_path / "noisy").mkdir()
    noise = "import os\nif 'VOXBATCH_SCRIPTED_WORKER' in os.environ: print('loading a library', flush=True)\n"
    (tmp_path / "noisy" / "sitecustomize.py").write_text(noise)
    path = os.pathsep.join([str(tmp_path / "noisy"), IMPORT_PATH])
    extra = options(workers=2, only_worker=1, kill_after=1)
    command = ("run", manifest(1, 1, 1, 1), *SETTINGS, "--log-format", "json", *extra)
    done = voxbatch(*command, env={"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stderr.splitlines()]
    printed = {event["worker"]: event["text"] for event in events if event["message"] == "worker_printed"}
    assert printed == {i: f"worker {i}: loading a library" for i in range(2)}
    (lost,) = [event for event in events if event["message"] == "worker_lost"]
    assert (lost["severity"], lost["worker"]) == ("WARNING", 1)


def test_processes_that_a_worker_forked_are_killed(
    manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """A process that an engine forked keeps the worker's descriptors open. It delays nothing and is killed."""
    forking = "import os, sys, time\nif 'workers.worker' in sys.orig_argv[-2] and not os.fork():\n    time.sleep(120)\n"
    (tmp_path / "forks").mkdir()
    (tmp_path / "forks" / "sitecustomize.py").write_text(forking)
    path = os.pathsep.join([str(tmp_path / "forks"), IMPORT_PATH])
    extra = options(workers=2, only_worker=1, kill_after=1)
    done = voxbatch("run", manifest(1, 1, 1, 1), *SETTINGS, *extra, env={"PYTHONPATH": path}, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "worker 1 (VOXBATCH_SCRIPTED_WORKER=1) is lost: killed by signal 9" in done.stderr

    def is_left() -> bool:
        places = [each.info["environ"] or {} for each in psutil.process_iter(["environ"])]
        return any(str(tmp_path) in place.get("PYTHONPATH", "") for place in places)

    until(lambda: not is_left())


# -- recordings in a bucket that some workers can fetch and others cannot ----------------------------------------------


class Bucket:
    """Recordings 0.wav, 1.wav, … in a bucket behind a proxy, and a manifest of them."""

    def __init__(self, server: servers.Server, proxy: servers.Proxy, recording: Recorder, run: Voxbatch):
        self.server, self.proxy, self._recording, self._run = server, proxy, recording, run
        self.root = f"{server.scheme}://workers-{uuid.uuid4().hex[:8]}"
        server.make(self.root.partition("://")[2])

    def manifest(self, items: int) -> str:
        for i in range(items):
            self._put(f"{i}.wav", self._recording(f"{i}.wav", 0.5 + i / 10).read_bytes())
        rows = [json.dumps({"audio_filepath": f"{i}.wav"}) + "\n" for i in range(items)]
        self._put("m.jsonl", "".join(rows).encode())
        return f"{self.root}/m.jsonl"

    def _put(self, key: str, data: bytes) -> None:
        self.server.put(self.root.partition("://")[2], key, data)

    def run(self, manifest: str, out: str, *extra: str) -> subprocess.CompletedProcess[str]:
        return self._run("run", manifest, "-o", out, *SETTINGS, "--formats", "srt", *extra, env={NO_WAIT: "1"})


@pytest.fixture
def bucket(
    google: servers.Server, recording: Recorder, voxbatch: Voxbatch, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bucket]:
    with servers.led_through(google, monkeypatch) as proxy:
        yield Bucket(google, proxy, recording, voxbatch)


def refusing(*names: str) -> Callable[[servers.Asked], servers.Fault]:
    """Return the fault of a store that refuses these objects to everybody."""
    return lambda asked: "403" if asked.name in names else ""


def silent_until_others_come(name: str) -> Callable[[servers.Asked], servers.Fault]:
    """Return the fault of a store that never delivers this recording, and delivers the others after all attempts for
    this one have failed."""
    tried, lock, is_over = Counter[str](), threading.Lock(), threading.Event()

    def spoil(asked: servers.Asked) -> servers.Fault:
        if not asked.name.endswith(".wav"):
            return ""
        if asked.name != name:
            is_over.wait(60)
            return ""
        with lock:
            tried[name] += 1
            if tried[name] == STORE_REQUEST.attempts:
                is_over.set()
        return "503"

    return spoil


def down(asked: servers.Asked) -> servers.Fault:
    """Return the fault of a store that delivers no recording."""
    return "503" if asked.name.endswith(".wav") else ""


@pytest.mark.parametrize(
    "spoil", [lambda: refusing("1.wav"), lambda: silent_until_others_come("1.wav")], ids=["refused", "silent"]
)
def test_unreachable_recording_of_one_worker_fails_by_itself(
    bucket: Bucket, tmp_path: Path, spoil: Callable[[], Callable[[servers.Asked], servers.Fault]]
) -> None:
    """Its place delivers another recording when it is asked, so the recording itself failed, as in one process. No
    worker stops."""
    manifest = bucket.manifest(3)
    for limit in ("1", "3"):
        bucket.proxy.spoil = spoil()
        done = bucket.run(manifest, limit, *options(workers=3), "--workers", limit)
        assert done.returncode == 3, done.stderr
        assert "2 done + 1 failed = 3 items (1 " in done.stdout
        (failure,) = map(json.loads, (tmp_path / limit / "failures.jsonl").read_text().splitlines())
        assert (failure["id"], failure["retryable"]) == ("1.wav", True)
        assert not warnings(done.stderr)
    assert output_files(tmp_path / "3") == output_files(tmp_path / "1")


def test_run_stops_if_the_place_of_all_recordings_is_down(bucket: Bucket, tmp_path: Path) -> None:
    """Exit 1 with the error of the store. No recording fails and no GPU is lost. The run can be resumed when the place
    is reachable again."""
    manifest = bucket.manifest(4)
    bucket.proxy.spoil = down
    stopped = bucket.run(manifest, "out", *options(workers=2))
    assert stopped.returncode == 1
    assert "is lost" not in stopped.stderr
    error, safe = stopped.stderr.splitlines()[-2:]
    assert error.startswith("Error: cannot read gs://")
    assert f"; nothing arrived from {bucket.root}/ in the meantime (" in error
    assert error.endswith(" tried; --fail-unreachable records such recordings as failed)")
    assert safe == "0 of 4 items are safe in out; run the same command again to continue"
    assert not committed_items(tmp_path / "out")
    bucket.proxy.spoil = lambda asked: ""
    assert bucket.run(manifest, "out", *options(workers=2)).returncode == 0
    assert len(committed_items(tmp_path / "out")) == 4


# -- the parent in this process, its workers in other processes ------------------------------------------------------


class RecordedRun:
    """A run that records its progress and its log."""

    def __init__(self, source: Path, part_items: int = 1, **options: object):
        given = {"max_chunk_s": "15", **{name: str(value) for name, value in options.items()}}
        self.config = Config(
            source=str(source), out=str(source.parent / "out"), engine="scripted", engine_options=given, decoders=1,
            part_items=part_items,
        )  # fmt: skip
        self.seen: list[Progress] = []
        self.log: list[str] = []
        self.on_progress: Callable[[], object] = lambda: None

    def run(self, stop: Stop | None = None) -> runner.RunResult:
        return runner.run(self.config, Log(write=self.log.append), self._observe, stop)

    def _observe(self, progress: Progress) -> None:
        self.seen.append(replace(progress))
        self.on_progress()


@pytest.mark.slow
def test_progress_is_the_sum_over_the_workers(manifest: ManifestWriter) -> None:
    """The sums over the workers never exceed the total, never decrease, and reach the total at the end."""
    recorded = RecordedRun(manifest(*SECONDS), workers=3, delay_s=0.1, concurrency=1)
    finished = recorded.run()
    last = recorded.seen[-1]
    assert (last.items, last.done, last.failed, last.committed) == (16, 15, 1, 16)
    assert last.parts in (15, 16), "the missing recording waits for the first result of its worker"
    assert last.audio_s == pytest.approx(sum(seconds or 0 for seconds in SECONDS), abs=0.1)
    assert len({p.done for p in recorded.seen}) > 4
    for name in ("done", "failed", "audio_s", "committed", "parts"):
        values = [getattr(p, name) for p in recorded.seen]
        assert values == sorted(values)
    assert all(p.done + p.failed <= p.items for p in recorded.seen)
    assert finished.usage is not None
    assert finished.usage.engine_s > 1.5
    assert finished.summary is not None
    assert finished.summary.process_s <= 3 * finished.progress.wall_s


@pytest.mark.slow
def test_uncommitted_progress_of_a_dead_worker_is_subtracted(manifest: ManifestWriter) -> None:
    """The uncommitted items of a dead worker are subtracted, and count again when another worker has done them."""
    recorded = RecordedRun(
        manifest(*[0.5] * 12, None), 3, workers=2, only_worker=0, kill_after=4, delay_s=0.1, concurrency=1
    )
    progress = recorded.run().progress
    assert (progress.done, progress.failed, progress.committed) == (12, 1, 13)
    assert all(p.committed <= p.items for p in recorded.seen)


@pytest.mark.slow
def test_worker_that_does_not_stop_is_killed(manifest: ManifestWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that does not stop in time is killed, and the run still ends with StopRequested."""
    monkeypatch.setattr(process, "KILL_AFTER_S", 0.5)
    recorded, stop = RecordedRun(manifest(1, 1), workers=2, delay_s=60), Stop()

    def running() -> list[psutil.Process]:
        return [each for each in psutil.Process().children() if "workers.worker" in " ".join(each.cmdline())]

    def freeze() -> None:
        until(lambda: len(running()) == 2)
        for each in running():
            each.suspend()
        stop.requested.set()

    threading.Thread(target=freeze).start()
    with pytest.raises(StopRequested):
        recorded.run(stop)
    assert not running()


@pytest.mark.parametrize(("worth", "who"), [(100, "worker 0"), pytest.param(3, "workers 0, 1", marks=pytest.mark.long)])
def test_items_are_retried_after_an_outage(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worth: int, who: str
) -> None:
    """Items that no worker could fetch are distributed once more, to as many workers as the number of items justifies.
    These workers are the same processes as before."""
    monkeypatch.setattr(workers, "MIN_ITEMS_PER_WORKER", worth)
    recorded, pids = RecordedRun(tmp_path / "m.jsonl", workers=2), set[int]()
    recorded.config = replace(recorded.config, source=bucket.manifest(4))
    bucket.proxy.spoil = down

    def look() -> None:
        for each in psutil.Process().children():
            with contextlib.suppress(psutil.Error):  # the process has ended
                pids.update([each.pid] if "workers.worker" in " ".join(each.cmdline()) else [])

    def write(line: str) -> None:
        look()
        recorded.log.append(line)
        if "are reassigned" in line:
            bucket.proxy.spoil = lambda asked: ""

    progress = runner.run(recorded.config, Log(write=write), lambda progress: look()).progress
    assert (progress.done, progress.failed, progress.committed) == (4, 0, 4)
    assert len(pids) == 2
    assert recorded.log[-1] == f"Warning: 4 uncommitted items are reassigned to {who}"


@pytest.mark.slow
def test_unwritable_output_stops_the_run_after_a_retry(manifest: ManifestWriter, tmp_path: Path) -> None:
    """The error of the workers becomes the error of the run after a second try. No GPU is lost."""
    recorded, shard = RecordedRun(manifest(1, 1), workers=2), tmp_path / "out" / "parts" / "shard-00000-of-00001"

    def stand_in_the_way() -> None:
        if len(recorded.seen) == 1:
            shard.parent.mkdir(exist_ok=True)
            shard.write_text("in the way")

    recorded.on_progress = stand_in_the_way
    with pytest.raises(StorageError, match="a file stands where a folder is needed"):
        recorded.run()
    said = [line for line in recorded.log if line.startswith("Warning: ")]
    assert sum("has stopped" in line for line in said) == 3
    assert len(said) == 4


SILENCE = """
import signal, sys
from voxbatch.runner import workers
from voxbatch.runner.workers import process
process.SILENCE_WARNING_S, limit_s = float(sys.argv.pop(1)), float(sys.argv.pop(1))
signal.signal(signal.SIGUSR1, lambda *_: setattr(workers, "SILENCE_LIMIT_S", limit_s))
from voxbatch.cli import main
main()
"""
"""A command that warns of silent workers soon. From SIGUSR1 on, it loses them soon: before, they may take their time to
start."""


@pytest.mark.slow
@pytest.mark.parametrize("is_continued", [pytest.param(True, marks=pytest.mark.long), False])
def test_stopped_worker(manifest: ManifestWriter, tmp_path: Path, is_continued: bool) -> None:
    """A person is warned of a stopped worker. If it is continued, nothing is lost; if not, the other worker does its
    items when it has finished its own.
    """
    limits = ("6", "1000" if is_continued else "9")
    command = [sys.executable, "-c", SILENCE, *limits, "run", str(manifest(*[1.0] * 16)), *SETTINGS]
    hold = Hold(tmp_path / "hold")
    extra = (*options(workers=2, concurrency=1, delay_s=0.1), *hold.options)
    running = subprocess.Popen([*command, *extra], stderr=subprocess.PIPE, text=True, env=environment(), cwd=tmp_path)
    try:
        hold.reached(2, running)
        until(lambda: len(committed_items(tmp_path / "m.voxbatch")) == 2)
        stopped = psutil.Process(min(hold.pids()))
        stopped.suspend()
        hold.release()
        until(lambda: len(committed_items(tmp_path / "m.voxbatch")) > 2)
        running.send_signal(signal.SIGUSR1)
        assert running.stderr is not None
        seen = ""
        while f"a signal has stopped its process; kill -CONT {stopped.pid} continues it" not in seen:
            seen = running.stderr.readline()
            assert seen, "the run ended without a warning"
        assert "has sent nothing" in seen
        if is_continued:
            stopped.resume()
        _, rest = running.communicate(timeout=200)
    finally:
        running.kill()
    assert running.returncode == 0, rest
    assert ("is lost: worker" in rest) == (not is_continued)
    assert len(committed_items(tmp_path / "m.voxbatch")) == len(set(committed_items(tmp_path / "m.voxbatch"))) == 16


SOON = """
import sys
from voxbatch.runner import workers
workers.STOPPED_LIMIT_S = 4.0
from voxbatch.cli import main
main()
"""
"""A command whose idle workers soon do the items of a stopped one."""


@pytest.mark.slow
@pytest.mark.parametrize("is_continued", [False, True])
def test_idle_workers_do_the_items_of_a_stopped_one(
    manifest: ManifestWriter, tmp_path: Path, voxbatch: Voxbatch, is_continued: bool
) -> None:
    """The run ends while the worker is still stopped. If it continues before, it commits the items that it had
    finished, and each item is in one part. The outputs are those of one process."""
    path = manifest(*[1.0] * 40)
    assert voxbatch("run", path, "-o", "alone", *SETTINGS).returncode == 0
    hold = Hold(tmp_path / "hold", after=3)
    extra = ("--part-items", "4", *options(workers=4, concurrency=1, delay_s=0.3), *hold.options)
    command = [sys.executable, "-c", SOON, "run", str(path), "-o", "out", *SETTINGS, *extra]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(), cwd=tmp_path)
    try:
        hold.reached(4, running)  # three results of each are not committed
        stopped = psutil.Process(min(hold.pids()))
        stopped.suspend()
        hold.release()
        assert running.stderr is not None
        seen = ""
        while "uncommitted items are reassigned to workers" not in seen:
            seen += running.stderr.readline()
        assert f"a signal has stopped its process; kill -CONT {stopped.pid} continues it" in seen
        if is_continued:
            stopped.resume()
        _, rest = running.communicate(timeout=200)
    finally:
        running.kill()
    assert running.returncode == 0, rest
    assert len(committed_items(tmp_path / "out")) == len(set(committed_items(tmp_path / "out"))) == 40
    assert output_files(tmp_path / "out") == output_files(tmp_path / "alone")
    assert gone([stopped], 60)
    if is_continued:
        headers = [json.loads(part.read_text().splitlines()[0]) for part in (tmp_path / "out").rglob("part-*.jsonl")]
        assert sum(header["worker"] == lost_number(seen) for header in headers) == 1, (
            "it committed what it had finished"
        )


def lost_number(stderr: str) -> int:
    """Return the number of the worker that is lost."""
    (line,) = [line for line in warnings(stderr) if "is lost" in line]
    return int(line.split()[2])


@pytest.mark.slow
def test_run_ends_if_all_workers_are_stopped(manifest: ManifestWriter, tmp_path: Path) -> None:
    """If no worker is at work any more, the run ends with exit code 1, and the same command finishes it."""
    command = [sys.executable, "-c", SILENCE, "4", "6", "run", str(manifest(*[1.0] * 8)), *SETTINGS]
    hold = Hold(tmp_path / "hold")
    extra = (*options(workers=2, concurrency=1), *hold.options)
    running = subprocess.Popen([*command, *extra], stderr=subprocess.PIPE, text=True, env=environment(), cwd=tmp_path)
    try:
        hold.reached(2, running)
        until(lambda: len(committed_items(tmp_path / "m.voxbatch")) == 2)
        for child in psutil.Process(running.pid).children():
            child.suspend()
        running.send_signal(signal.SIGUSR1)
        _, err = running.communicate(timeout=200)
    finally:
        running.kill()
    assert running.returncode == 1, err
    assert "no worker is left" in err
    hold.release()
    again = subprocess.run([*command, *options(workers=1)], env=environment(), cwd=tmp_path, check=False)
    assert again.returncode == 0
    assert len(committed_items(tmp_path / "m.voxbatch")) == len(set(committed_items(tmp_path / "m.voxbatch"))) == 8
