"""Tests that processes which are started as vLLM starts its own end with their parent, whatever they are doing."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from conftest import environment, gone
from waits import until

GONE_S = 60.0
"""Seconds within which the processes must have ended."""
STUCK = """
import ctypes, multiprocessing, os, subprocess, sys, threading, time

def spawn(target, *args):
    process = multiprocessing.get_context("spawn").Process(target=target, args=args)
    process.start()
    return process

def engine():
    spawn(worker)
    hold_the_gil()

def worker():
    hold_the_gil()

def inspecting():
    subprocess.run([sys.executable, "-c", "import stuck; stuck.inspected()"])

def inspected():
    from voxbatch.vllm.plugin.parent_watchdog import DieWithParent
    DieWithParent()
    hold_the_gil()

def hold_the_gil():
    open(os.environ["MARKS"] + f"/{os.getpid()}", "w").close()
    ctypes.PyDLL(None).sleep(600)

class Slow:
    '''Takes its time to be unpickled, as vLLM takes to be imported.'''
    def __reduce__(self):
        return hold_the_gil, ()

def importing(slow):
    pass
"""
MAIN = """
import os, threading, time
from stuck import Slow, engine, importing, inspecting, spawn
from voxbatch.vllm.plugin import parent_watchdog

def start():
    with parent_watchdog.kills_children():
        process = spawn({target})
    {then}
thread = threading.Thread(target=start)
thread.start()
time.sleep(600)
"""

Begin = Callable[..., list[psutil.Process]]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Return a function: begin("engine", processes=2) gives the main process and two others, all of which are stuck."""
    marks, started = tmp_path / "marks", list[psutil.Process]()
    marks.mkdir()
    (tmp_path / "stuck.py").write_text(STUCK)

    def run(target: str, processes: int, then: str = "time.sleep(600)") -> list[psutil.Process]:
        env = environment(MARKS=str(marks))
        env["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"
        started.append(psutil.Popen([sys.executable, "-c", MAIN.format(target=target, then=then)], env=env))
        until(lambda: len(list(marks.iterdir())) == processes)
        started.extend(psutil.Process(int(mark.name)) for mark in sorted(marks.iterdir(), key=lambda m: int(m.name)))
        return started

    yield run
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):  # its parent ended, and so does it
            process.kill()
    started[0].wait()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_children_and_grandchildren_end_with_the_parent(begin: Begin, number: int) -> None:
    """Children and grandchildren end with the main process, even while native code holds the GIL in each of them."""
    main, engine, worker = begin("engine", 2)
    assert worker.ppid() == engine.pid
    main.send_signal(number)
    assert gone([main, engine, worker], GONE_S)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_plain_subprocess_ends_with_its_parent(begin: Begin, number: int) -> None:
    """A process that is not spawned by multiprocessing asks for the signal when it sets up logging, as vLLM does."""
    main, inspected = begin("inspecting", 1)
    main.send_signal(number)
    assert gone([main, inspected], GONE_S)


@pytest.mark.slow
def test_workers_end_with_the_engine(begin: Begin) -> None:
    """The engine's process is killed alone: its workers end, and the parent lives."""
    main, engine, worker = begin("engine", 2)
    engine.kill()
    assert gone([engine, worker], GONE_S)
    assert main.status() != psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_importing_child_ends_with_the_parent(begin: Begin) -> None:
    """A child that is still importing ends with its parent."""
    main, child = begin("importing, Slow()", 1)
    main.kill()
    assert gone([main, child], GONE_S)


@pytest.mark.slow
def test_children_live_as_long_as_the_thread_that_started_them(begin: Begin, tmp_path: Path) -> None:
    """Children end with the thread that started them, so it must live as long as they are needed."""
    end = tmp_path / "end"
    main, engine, worker = begin("engine", 2, then=f"while not os.path.exists({str(end)!r}): time.sleep(0.01)")
    assert engine.is_running()
    end.touch()
    assert gone([engine, worker], GONE_S)
    assert main.status() != psutil.STATUS_ZOMBIE


def test_main_module_is_restored() -> None:
    """Processes that are spawned after the context are not affected, and no variable is left."""
    from voxbatch.vllm.plugin import parent_watchdog

    spec = sys.modules["__main__"].__spec__
    with parent_watchdog.kills_children():
        assert sys.modules["__main__"].__spec__ is not spec
    assert sys.modules["__main__"].__spec__ is spec
    assert parent_watchdog.PARENT not in os.environ
