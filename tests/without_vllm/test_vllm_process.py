"""The cause of an engine's death is told in one line, and its log is kept as long as it may be needed."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from multiprocessing.process import BaseProcess as Process
from pathlib import Path
from types import SimpleNamespace

import pytest
from waits import until

from voxbatch.process.hang_detector import is_stopped
from voxbatch.vllm.engine import compat, hang_guard
from voxbatch.vllm.engine.engine_log import EngineDied, EngineLog, _logging, errors_as_death
from voxbatch.vllm.engine.hang_guard import HangGuard

TRACEBACK = """2026-01-01 00:00:00,000 7 ERROR [vllm.v1.engine.core] EngineCore encountered a fatal error.
2026-01-01 00:00:00,000 7 ERROR [vllm.v1.engine.core] Traceback (most recent call last):
  File "core.py", line 1, in run
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB
2026-01-01 00:00:00,001 7 ERROR [vllm.v1.engine.core] RuntimeError: Engine core initialization failed: see above
2026-01-01 00:00:00,002 7 ERROR [vllm.v1.engine.core] Note: this is no exception
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineLog:
    """Return an engine's log in a folder of the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return EngineLog()


def write_errors(log: EngineLog) -> None:
    """Write the errors that an engine would log."""
    (log.file.parent / "errors.log").write_text(TRACEBACK)


def test_the_cause_comes_from_the_engines_log(log: EngineLog) -> None:
    """The cause consists of the exceptions in the engine's log, and a lack of memory is recognised.

    Only the exception's own text names the log: the path differs from run to run, and `cause` becomes part of an item's
    failure.
    """
    write_errors(log)
    cause = log.cause(RuntimeError("Engine died"))
    assert cause == (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB; "
        "RuntimeError: Engine core initialization failed: see above"
    )
    assert EngineDied(cause).out_of_memory
    assert not EngineDied("it fell over").out_of_memory
    died = EngineDied(cause, log.file)
    assert (died.cause, str(died)) == (cause, f"{cause} (its log: {log.file})")


def test_without_a_log_the_exception_is_the_cause(log: EngineLog) -> None:
    """The exception is the cause of death if the process was killed and logged nothing."""
    assert log.cause(OSError("gone")) == "OSError: gone"


def test_a_log_that_a_message_names_is_kept(log: EngineLog) -> None:
    """A log that a message names is kept; without trouble, no file remains."""
    log.remove()
    assert not log.file.parent.exists()
    other = EngineLog()
    other.cause(OSError("gone"))
    other.remove()
    assert other.file.parent.exists()
    third = EngineLog()
    write_errors(third)
    third.remove()
    assert third.file.parent.exists()


@pytest.mark.parametrize("error", [ValueError("prompt too long"), TypeError("no such field")])
@pytest.mark.parametrize("has_errors", [False, True])
def test_a_refused_request_is_no_death(log: EngineLog, error: Exception, has_errors: bool) -> None:
    """A refused request is the fault of the request and no death, whatever the engine has logged before."""
    if has_errors:
        write_errors(log)
    with pytest.raises(ValueError, match=str(error)), errors_as_death(log, of_request=True):
        raise error


@pytest.mark.parametrize("error", [ValueError("bad option"), TypeError("x"), RuntimeError("y"), OSError("z")])
def test_any_other_exception_is_a_death(log: EngineLog, error: Exception) -> None:
    """Any other exception while loading or waiting is a death, with its cause attached."""
    with pytest.raises(EngineDied, match=f"^{type(error).__name__}: {error} ") as caught, errors_as_death(log):
        raise error
    assert caught.value.__cause__ is error
    with pytest.raises(EngineDied), errors_as_death(log, of_request=True):
        raise RuntimeError("EngineDeadError")


def test_the_engine_logs_to_files(tmp_path: Path) -> None:
    """The engine's processes log everything to one file, and errors to another file as well."""
    script = (
        "import json, logging, logging.config, sys; logging.config.dictConfig(json.loads(sys.argv[1]));"
        "log = logging.getLogger('vllm.x'); log.info('fine'); log.error('not fine')"
    )

    config = json.dumps(_logging(tmp_path / "all", tmp_path / "errors"))
    done = subprocess.run([sys.executable, "-c", script, config], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")
    lines = (tmp_path / "all").read_text().splitlines()
    assert [line.partition("[")[2] for line in lines] == ["vllm.x] fine", "vllm.x] not fine"]
    assert "not fine" in (tmp_path / "errors").read_text()
    assert "] fine" not in (tmp_path / "errors").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("install", [False, True])
def test_output_while_loading_goes_to_the_log(tmp_path: Path, unbuffered: str, install: bool) -> None:
    """Output while loading stays out of the results and off the terminal.

    It comes from other processes, native code and this thread's libraries. Other threads, such as the progress line's,
    still reach the user. Afterwards everything is as before, also for a log handler that was made meanwhile, without
    one more file descriptor. It is so with Python's own streams and with those of the command.
    """
    script = f"""
import logging, os, sys, threading
from pathlib import Path
from voxbatch.process.output_redirection import outputs_to
from voxbatch.process import streams
if {install}: streams.install()
before, names = len(os.listdir("/proc/self/fd")), [getattr(each, "name", "") for each in (sys.stdout, sys.stderr)]
def progress(): print("result"); print("progress", file=sys.stderr)
for _ in range(3):
    with outputs_to(Path({str(tmp_path / "log")!r})):
        os.write(1, b"native out,"); os.write(2, b"native err,"); os.system("echo child,")
        handler = logging.StreamHandler()
        print("library,", file=sys.stderr); print("noise,")
        thread = threading.Thread(target=progress); thread.start(); thread.join()
        assert (sys.stdout.encoding, sys.stdout.isatty()) == (sys.__stdout__.encoding, False)
assert len(os.listdir("/proc/self/fd")) == before
assert [getattr(each, "name", "") for each in (sys.stdout, sys.stderr)] == names
handler.stream.write("later\\n")
print("out"); print("err", file=sys.stderr)
"""
    done = ran(script, PYTHONUNBUFFERED=unbuffered)
    assert (done.stdout, done.stderr) == ("result\n" * 3 + "out\n", "progress\n" * 3 + "later\nerr\n")
    assert (tmp_path / "log").read_text() == "native out,native err,child,\nlibrary,\nnoise,\n" * 3


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_no_line_of_a_script_is_lost_while_an_engine_loads(tmp_path: Path, unbuffered: str) -> None:
    """Text that a script printed before, or writes meanwhile through an object that keeps a stream, reaches the
    user in its order. multiprocessing flushes the streams when it starts the engine's process, and so does a full
    buffer.
    """
    script = f"""
import csv, logging, multiprocessing.util, sys, threading
from pathlib import Path
from voxbatch.process.output_redirection import outputs_to
logging.basicConfig(format="%(message)s")
table, begun, written = csv.writer(sys.stdout, lineterminator="\\n"), threading.Event(), threading.Event()
print("begin")
def load():
    with outputs_to(Path({str(tmp_path / "log")!r})):
        multiprocessing.util._flush_std_streams()
        begun.set()
        written.wait()
        multiprocessing.util._flush_std_streams()
thread = threading.Thread(target=load); thread.start()
begun.wait()
for number in range(5_000): table.writerow([number, "text"])
logging.warning("a warning")
sys.stdout.flush(); sys.stdout.buffer.write(b"bytes\\n")
written.set()
thread.join()
print("end")
"""
    done = ran(script, PYTHONUNBUFFERED=unbuffered)
    assert done.stdout.splitlines() == ["begin", *(f"{number},text" for number in range(5_000)), "bytes", "end"]
    assert done.stderr == "a warning\n"
    assert (tmp_path / "log").read_text() == ""


@pytest.mark.slow
def test_two_engines_that_load_leave_the_streams_as_they_were(tmp_path: Path) -> None:
    """An engine is loaded after the other one, also if that was abandoned while it was importing vLLM: otherwise the
    second would put back the streams of the first, and what the script prints later would go to a log.
    """
    script = f"""
import os, sys, threading, time
from pathlib import Path
from types import SimpleNamespace
from voxbatch.vllm.engine.start import ParentThread
from voxbatch.vllm.plugin.parent_watchdog import PARENT
is_first, may_end = threading.Event(), threading.Event()
def load(name, enters, wait):
    engine = SimpleNamespace(_num_gpus=1, _log=SimpleNamespace(file=Path({str(tmp_path)!r}, name)))
    with ParentThread._while_loading(engine):
        enters.set()
        wait()
main = sys.modules["__main__"].__spec__
first = threading.Thread(target=load, args=("a", is_first, lambda: may_end.wait(10)))
second = threading.Thread(target=load, args=("b", may_end, lambda: time.sleep(0.2)))
first.start(); is_first.wait(); second.start(); time.sleep(0.2); may_end.set()
first.join(); second.join()
assert PARENT not in os.environ and sys.modules["__main__"].__spec__ is main
print("out"); print("err", file=sys.stderr)
"""
    done = ran(script)
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 0)


def ran(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env}
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=variables)


@pytest.mark.slow
def test_no_event_is_lost_when_loading_begins_or_ends(tmp_path: Path) -> None:
    """A line that is being logged at the beginning or end of loading reaches the user, as all others do."""
    script = f"""
import os, sys, threading
from pathlib import Path
from voxbatch.process.output_redirection import outputs_to
from voxbatch.log import Log
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})  # who wakes on one core interrupts who runs
done, log = threading.Event(), Log()
def say():
    for i in range(20_000): log.info(str(i))
    done.set()
threading.Thread(target=say).start()
while not done.is_set():
    with outputs_to(Path({str(tmp_path / "log")!r})): pass
"""
    done = ran(script)
    assert done.stderr.splitlines() == [str(i) for i in range(20_000)]
    assert (tmp_path / "log").read_text() == ""


@pytest.fixture
def sleeper(monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    """Yield a process that only sleeps. Guards look at it often."""
    monkeypatch.setattr(hang_guard, "LOOK_S", 0.02)
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,))
    process.start()
    yield process
    process.kill()
    process.join()


def waiting(guard: HangGuard, outputs: queue.SimpleQueue[str]) -> str:
    """Wait as VllmProcess.step does: without end, if there is no output."""
    with guard:
        return outputs.get(timeout=200)


def test_a_killed_engine_ends_the_waits(sleeper: Process) -> None:
    """A killed engine ends the wait for an output, and for other answers, such as its memory use. Earlier answers stay
    valid.

    A process that is killed, or crashes in native code, says nothing, and vLLM would wait forever.
    """
    answered, asked = Future[str](), Future[str]()
    answered.set_result("full")
    client = SimpleNamespace(outputs_queue=queue.SimpleQueue(), utility_results={1: answered, 2: asked})
    guard = HangGuard([sleeper], lambda: compat.wake(SimpleNamespace(engine_core=client)))
    threading.Timer(0.1, sleeper.kill).start()
    with guard, pytest.raises(RuntimeError, match="the engine's process is gone"):
        asked.result(timeout=200)
    assert answered.result() == "full"
    assert isinstance(client.outputs_queue.get(timeout=200), RuntimeError)


def test_an_engine_that_hangs_is_killed(sleeper: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that hangs is killed, but only while an output is awaited: between two outputs it may take its time."""
    monkeypatch.setattr(hang_guard, "HANG_S", 0.2)
    outputs: queue.SimpleQueue[str] = queue.SimpleQueue()
    guard = HangGuard([sleeper], lambda: outputs.put("dead"))
    time.sleep(0.3)
    assert sleeper.is_alive()
    assert waiting(guard, outputs) == "dead"
    assert not sleeper.is_alive()


@pytest.mark.slow
def test_a_suspended_engine_is_not_killed(sleeper: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time in which an engine is stopped by a signal does not count as a hang."""
    monkeypatch.setattr(hang_guard, "HANG_S", 0.5)
    outputs: queue.SimpleQueue[str] = queue.SimpleQueue()
    guard = HangGuard([sleeper], lambda: outputs.put("dead"))
    assert sleeper.pid is not None
    os.kill(sleeper.pid, signal.SIGSTOP)
    until(lambda: is_stopped(sleeper.pid or 0))
    with guard:
        time.sleep(1.5)
        assert sleeper.is_alive()
        os.kill(sleeper.pid, signal.SIGCONT)
        assert outputs.get(timeout=200) == "dead"


def test_the_hang_guard_ends_with_the_engine(sleeper: Process) -> None:
    """A closed engine leaves no thread behind."""
    before = set(threading.enumerate())
    guard = HangGuard([sleeper], lambda: None)
    assert set(threading.enumerate()) - before == {guard.thread}
    sleeper.kill()
    guard.thread.join(200)
    assert not set(threading.enumerate()) - before
