"""Tests for limits of threads, processes and memory: they end the run with their names, and blame no recording."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import ManifestWriter, Recorder, environment

from voxbatch.decoding import DecoderPool, DecodeTask
from voxbatch.errors import AudioError, RunError
from voxbatch.process.limits import find_limit, limits_are_run_errors
from voxbatch.runner.decode_thread import decoder_count
from voxbatch.runner.long_texts import LongPair, LongTextCounter
from voxbatch.runner.shared import EventQueue, ThreadFailed

END_S = 60.0
"""Seconds within which a limited run must end: it used to wait for ever."""

Limited = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Limited]:
    """Return a function: limited(30, "-m", "voxbatch", …) runs Python in a cgroup with so many tasks."""
    is_version_1 = Path("/sys/fs/cgroup/pids/cgroup.procs").exists()
    group = Path("/sys/fs/cgroup", "pids" if is_version_1 else "", f"voxbatch-test-{uuid.uuid4().hex[:8]}")
    try:
        group.mkdir()
        has_limit = (group / "pids.max").exists()
    except OSError:
        has_limit = False
    if not has_limit:
        pytest.skip("limiting tasks takes root and a writable cgroup")

    def start(tasks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
        (group / "pids.max").write_text(str(tasks))
        program = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", sys.executable, *arguments]
        return subprocess.run(program, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=END_S)

    yield start
    until = time.monotonic() + 60
    while left := (group / "cgroup.procs").read_text():
        assert time.monotonic() < until, f"processes are left: {left}"
        time.sleep(0.05)
    group.rmdir()


@pytest.mark.slow
@pytest.mark.parametrize(("tasks", "workers"), [(4, 1), (16, 1), (6, 3)])
def test_a_limit_of_tasks_is_the_error_of_the_run(
    tasks: int, workers: int, limited: Limited, manifest: ManifestWriter, tmp_path: Path
) -> None:
    """The run ends with the limit and what to do, no item fails, and no process is left."""
    path = manifest(*[1.2] * 8)
    engine = ("--engine", "scripted", "--engine-option", f"workers={workers}", "--decoders", "2")
    done = limited(tasks, "-m", "voxbatch", "run", str(path), "-o", "out", *engine)
    assert done.returncode == 1, done.stderr
    assert f"pids.max of the container is {tasks}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "failures.jsonl").exists()


@pytest.mark.slow
def test_a_limit_of_address_space_is_the_error_of_the_run(manifest: ManifestWriter, tmp_path: Path) -> None:
    """The same with `ulimit -v`. A thread's stack takes more than the limit, so that the first thread is refused on
    every machine: what a whole run needs differs.
    """
    command = (
        'ulimit -s 1000000; ulimit -v 900000; exec "$0" -m voxbatch run "$1" -o out --engine scripted --decoders 1'
    )
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, str(manifest(1.2, 1.3))],
        cwd=tmp_path, env=environment(OPENBLAS_NUM_THREADS="1"), capture_output=True, text=True, timeout=END_S,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "ulimit -v (KB of address space) is 900,000" in done.stderr
    assert not (tmp_path / "out" / "failures.jsonl").exists()


@pytest.mark.slow
def test_a_limit_of_file_sizes_is_the_error_of_the_run(manifest: ManifestWriter, tmp_path: Path) -> None:
    """The same with `ulimit -f`, which the samples that processes share count for, too: no recording is to blame."""
    command = 'ulimit -f 80; exec "$0" -m voxbatch run "$1" -o out --engine scripted --decoders 1'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, str(manifest(1.2, 1.3))],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=END_S,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "ulimit -f (KB of a file, and of shared memory) is 40; raise the limit: ulimit -f unlimited" in done.stderr
    assert not (tmp_path / "out" / "failures.jsonl").exists()
    assert not list((tmp_path / "out").glob("parts/*/part-*"))


@pytest.mark.slow
def test_decoders_of_one_machine_are_limited_together(limited: Limited, monkeypatch: pytest.MonkeyPatch) -> None:
    """All workers together have a bounded number of decoders, and a container's limit of tasks lowers it."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(512))
    assert [decoder_count(0, workers) for workers in (1, 4, 8, 100)] == [16, 16, 8, 1]
    assert decoder_count(20, 8) == 20
    program = (
        "import os; os.sched_getaffinity = lambda pid: range(512)\n"
        "from voxbatch.runner.decode_thread import decoder_count\n"
        "print(*(decoder_count(0, workers) for workers in (1, 2, 8)))"
    )
    assert limited(280, "-c", program).stdout.split() == ["10", "5", "1"]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("can't start new thread"),
        BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        OSError(errno.EFBIG, "File too large"),
        AudioError("cannot decode a.mp3: pthread_create() failed: Resource temporarily unavailable"),
    ],
)
def test_errors_of_limits_are_recognised(error: Exception) -> None:
    """Errors of limits are recognised, also those that ffmpeg prints."""
    assert find_limit(error)


@pytest.mark.slow
def test_a_command_may_have_as_many_files_as_the_system_admits() -> None:
    """The soft limit of open files becomes the hard one, also for child processes."""
    program = (
        "import resource, subprocess, sys\n"
        "from voxbatch.process.limits import raise_open_files\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 256))\n"
        "raise_open_files()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE), subprocess.getoutput('ulimit -n'))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True)
    assert done.stdout == "(256, 256) 256\n"


def test_only_errors_of_limits_become_errors_of_the_run() -> None:
    """An error of a limit is raised as RunError, and any other as it is."""
    with pytest.raises(RunError, match="refuses a further thread or process"), limits_are_run_errors():
        raise RuntimeError("can't start new thread")
    for other in (FileNotFoundError(errno.ENOENT, "No such file"), MemoryError(), RuntimeError("a bug")):
        with pytest.raises(type(other)), limits_are_run_errors():
            raise other


def test_a_counter_of_long_texts_that_cannot_start_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error reaches the main thread, which used to wait for the counts for ever."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    events = EventQueue()
    counter = LongTextCounter(events)
    counter.count(LongPair(0, "a", "b", None))
    event = None
    while event is None:
        event = events.receive()
    assert isinstance(event, ThreadFailed)
    assert isinstance(event.error, FileNotFoundError)
    counter.close()


@pytest.mark.slow
def test_a_pool_names_the_refusal_of_its_decoder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recording: Recorder
) -> None:
    """A decoder whose threads cannot start ends the pool with an error, and fails no task."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, threading\n"
        "if 'decoding.decoder' in sys.orig_argv[-2]:\n"
        '    def start(thread):\n        raise RuntimeError("can\'t start new thread")\n'
        "    threading.Thread.start = start\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RunError, match="refuses a further thread or process"), DecoderPool(1) as pool:
        list(pool.run(iter([DecodeTask(0, str(recording("a.wav", 1.2)), 0.0, None, None, None, 240_000)])))
