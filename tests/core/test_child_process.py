"""Tests for child processes: messages, captured output, and the end of a process with all that it started."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path

import psutil
import pytest
from conftest import gone
from waits import until

from voxbatch.process.child import ChildProcess

PROGRAM = """
import os, subprocess, sys, threading, time

def main(connection):
    while True:
        try:
            call, *arguments = connection.recv()
        except EOFError:
            return
        connection.send({"exit": sys.exit, **globals()}[call](*arguments))

def echo(text):
    print(text, flush=True)
    return text

def start():
    return subprocess.Popen(["sleep", "600"], close_fds=False).pid

def fail(text):
    raise ValueError(text)

def fail_in_thread(text):
    thread = threading.Thread(target=fail, args=(text,))
    thread.start()
    thread.join()

def read(fd):
    return os.pread(fd, 100, 0).decode() + os.environ["COLOUR"] + os.environ["OPENBLAS_NUM_THREADS"]
"""

Start = Callable[..., ChildProcess]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Return a function that starts a child, with the arguments of ChildProcess after the first."""
    (tmp_path / "program_of_child.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    started = list[ChildProcess]()

    def begin(captures_output: bool = True, **arguments: object) -> ChildProcess:
        started.append(ChildProcess("program_of_child", captures_output=captures_output, **arguments))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for child in started:
        child.end()


def answer(connection: Connection) -> object:
    assert connection.poll(200)
    return connection.recv()


def ended(child: ChildProcess) -> None:
    until(child.has_ended)


def test_messages_and_output(start: Start) -> None:
    """Messages go both ways; the lines that the child prints are read beside them, also the last ones."""
    child = start()
    for text in ("one", "10 %\r20 %\rtwo", "three"):
        child.send(("echo", text))
        assert answer(child.connection) == text
    assert list(child.printed()) == ["one", "two", "three"]
    child.send(("echo", "four"))
    assert answer(child.connection) == "four"
    assert child.end() == ["four"]
    assert child.end() == []
    assert child.output is None


def test_files_and_variables_are_inherited(start: Start, tmp_path: Path) -> None:
    """A child reads the files it was given under the same descriptors, and has its own variables."""
    (tmp_path / "a.txt").write_text("sky ")
    with (tmp_path / "a.txt").open() as file:
        child = start(files=(file.fileno(),), environment={"COLOUR": "blue"})
        child.send(("read", file.fileno()))
        assert answer(child.connection) == "sky blue1"


@pytest.mark.slow
def test_the_reason_of_the_end(start: Start) -> None:
    """The reason is the exit code with the last printed line, or the signal."""
    failing, leaving, living, silent = start(), start(), start(), start(captures_output=False)
    failing.send(("fail", "no such card"))
    leaving.send(("exit", 7))
    silent.send(("fail", "no such card"))
    for child in (failing, leaving, silent):
        with pytest.raises(EOFError):
            answer(child.connection)
        child.end(patience_s=200)
    living.end()
    reasons = [child.exit_reason for child in (failing, leaving, silent, living)]
    assert reasons == ["exit code 1: ValueError: no such card", "exit code 7", "exit code 1", "killed by signal 9"]


def test_an_exception_in_a_thread_ends_the_child(start: Start) -> None:
    """A child in which a thread fails ends with its message: the other threads might wait for it for ever."""
    child = start()
    child.send(("fail_in_thread", "no such card"))
    with pytest.raises(EOFError):
        answer(child.connection)
    child.end(patience_s=200)
    assert child.exit_reason == "exit code 1: ValueError: no such card"


@pytest.mark.slow
def test_the_processes_of_a_child_end_with_it(start: Start) -> None:
    """A child that ends while a process of its own holds the connection is gone; `end` kills that process, too."""
    child = start()
    child.send(("start",))
    number = answer(child.connection)
    assert isinstance(number, int)
    other = psutil.Process(number)
    child.send(("exit", 0))
    ended(child)
    assert not wait([child.connection], 0.1)
    assert child.is_gone()
    assert other.is_running()
    child.end()
    assert gone([other], 60)


@pytest.mark.slow
def test_a_message_to_a_child_that_has_ended(start: Start) -> None:
    """Sending is no error; reading reports the end."""
    child = start()
    child.send(("exit", 0))
    ended(child)
    child.send(("echo", "anybody?"))
    with pytest.raises((EOFError, OSError)):
        answer(child.connection)
