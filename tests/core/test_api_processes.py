"""Tests that programs with processes of their own use the Python interface: forks and interrupts."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import ROOT, environment

pytestmark = pytest.mark.slow
WEATHER = ROOT / "examples" / "recordings" / "weather.flac"
LONG = ROOT / "examples" / "recordings" / "street-garden.ogg"


def printed(text: str, folder: Path) -> list[str]:
    """Run a program with a real model, and return the lines that it prints."""
    program = folder / "program.py"
    program.write_text(f"WEATHER, LONG = {str(WEATHER)!r}, {str(LONG)!r}\n{textwrap.dedent(text)}")
    done = subprocess.run([sys.executable, program], env=environment(), capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.timeout(240)
def test_a_fork_of_a_program_with_a_loaded_model_transcribes(tmp_path: Path) -> None:
    """A web server may load the model before it forks its workers; the fork and the parent go on to transcribe."""
    program = """
        import os, signal, voxbatch

        text = voxbatch.transcribe(WEATHER, duration=2.2).text
        if not (pid := os.fork()):
            signal.alarm(100)
            print(voxbatch.transcribe(WEATHER, duration=2.2).text == text, flush=True)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        print(voxbatch.transcribe(WEATHER, duration=2.2).text == text)
    """
    assert printed(program, tmp_path) == ["True", "0", "True"]


@pytest.mark.timeout(240)
def test_an_interrupt_leaves_the_model_usable(tmp_path: Path) -> None:
    """Ctrl-C in `transcribe` and in a loop over `stream` stops the work, and the next call has the engine."""
    program = """
        import os, threading, voxbatch

        def transcribe():
            voxbatch.transcribe(LONG)

        def stream():
            for segment in voxbatch.stream(LONG):
                pass

        text = voxbatch.transcribe(WEATHER, duration=2.2).text
        for work in (transcribe, stream):
            threading.Timer(0.5, os.kill, (os.getpid(), 2)).start()
            try:
                work()
            except KeyboardInterrupt:
                print(voxbatch.transcribe(WEATHER, duration=2.2).text == text)
    """
    assert printed(program, tmp_path) == ["True", "True"]


@pytest.mark.timeout(240)
def test_a_transcriber_that_is_forgotten_leaves_no_process(tmp_path: Path) -> None:
    """The end of the last reference unloads the model, and no process of it is left, also no zombie."""
    program = """
        import psutil, time, voxbatch

        def transcribe():
            transcriber = voxbatch.Transcriber()
            print(len(transcriber.transcribe(WEATHER, duration=2.2).words), len(psutil.Process().children()) > 0)

        transcribe()
        limit = time.monotonic() + 20
        while psutil.Process().children() and time.monotonic() < limit:
            time.sleep(0.1)
        print(psutil.Process().children())
    """
    assert printed(program, tmp_path) == ["8 True", "[]"]
