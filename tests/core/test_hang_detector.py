"""Tests for the hang detector and its clock: only time in which a process could work, and did not, counts as idle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psutil
import pytest
from waits import Clock, until

from voxbatch.process import hang_detector
from voxbatch.process.hang_detector import HangDetector, SilenceClock, is_stopped

SLEEPS = "import time; print(flush=True); time.sleep(600)"
WORKS = "print(flush=True)\nwhile True: pass"
READS = "print(flush=True)\nwhile True: open('/proc/self/stat').read(); import time; time.sleep(0.01)"
ITS_CHILD_WORKS = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORKS!r}])"

Start = Callable[[str], int]


@pytest.fixture
def session() -> Iterator[Start]:
    """Start a program in a session of its own, and return its process id when it is at work."""
    with ExitStack() as stack:

        def start(program: str) -> int:
            command = [sys.executable, "-c", program]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True))
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
            if program == SLEEPS:  # what it does before may count as work
                until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING)
            return process.pid

        yield start


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often, so that a test takes no seconds."""
    monkeypatch.setattr(hang_detector, "LOOK_S", 0.05)
    monkeypatch.setattr(hang_detector, "MIN_CPU_S", 0.02)


def look(detector: HangDetector, looks: int) -> None:
    for _ in range(looks):
        time.sleep(hang_detector.LOOK_S)
        detector.look()


@pytest.mark.slow
def test_a_waiting_process_is_idle(session: Start) -> None:
    """A process that does nothing is idle from the second look on, until a message comes."""
    detector = HangDetector(session(SLEEPS))
    look(detector, 21)
    assert detector.silent_s == pytest.approx(21 * 0.05)
    assert detector.idle_s == pytest.approx(20 * 0.05)
    detector.reset()
    assert (detector.silent_s, detector.idle_s) == (0.0, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("program", [WORKS, READS, ITS_CHILD_WORKS])
def test_a_working_process_is_silent_and_not_idle(session: Start, program: str) -> None:
    """A process that computes or reads, or whose child does, is not idle, however long it sends nothing."""
    detector, most = HangDetector(session(program)), 0.0
    for _ in range(40):
        look(detector, 1)
        most = max(most, detector.idle_s)
    assert detector.silent_s == pytest.approx(40 * 0.05)
    assert most < 20 * 0.05


@pytest.mark.slow
def test_a_stopped_process_is_neither(session: Start) -> None:
    """The time in which a process is stopped by a signal does not count."""
    pid = session(SLEEPS)
    detector = HangDetector(pid)
    os.kill(pid, signal.SIGSTOP)
    while not is_stopped(pid):
        time.sleep(0.01)
    look(detector, 10)
    assert (detector.silent_s, detector.idle_s) == (0.0, 0.0)
    os.kill(pid, signal.SIGCONT)
    while is_stopped(pid):
        time.sleep(0.01)
    look(detector, 10)
    assert detector.silent_s == pytest.approx(10 * 0.05)


def test_looks_that_follow_each_other_at_once_count_once(session: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller may look more often than every LOOK_S."""
    monkeypatch.setattr(hang_detector, "LOOK_S", 3600.0)
    detector = HangDetector(session(SLEEPS))
    for _ in range(100):
        detector.look()
    assert detector.silent_s == 0.0


@pytest.fixture
def clock(short: None, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(hang_detector, "time", clock)
    monkeypatch.setattr(hang_detector, "LOOK_S", 1.0)
    return clock


def test_warnings_come_at_intervals(clock: Clock) -> None:
    """A warning is due after each interval without progress, and progress begins a new interval."""
    silence, due = SilenceClock(3.0), []
    for _ in range(20):
        clock.now += 0.5
        due.append(silence.look())
    assert [number for number, is_due in enumerate(due, 1) if is_due] == [6, 12, 18]
    assert silence.silent_s == 10.0
    silence.reset()
    assert silence.silent_s == 0.0
    clock.now += 0.5
    assert not silence.look()


def test_suspension_does_not_count(clock: Clock) -> None:
    """A night in which the whole machine was suspended counts as a second."""
    silence = SilenceClock(3.0)
    clock.now += 8 * 3600
    assert not silence.look()
    assert silence.silent_s == 1.0
