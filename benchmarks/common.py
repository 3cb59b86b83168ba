"""Shared parts of the benchmarks: the recordings, the machine, voxbatch as a process, and the bars.

This module itself measures nothing, and nothing is kept: every benchmark works in a temporary folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
VOXBATCH = [sys.executable, "-m", "voxbatch"]
TRACED = [sys.executable, str(Path(__file__).with_name("traced.py"))]
SAMPLE_S = 0.05
"""Seconds between two samples of the process tree's memory."""
LIBRARIES = ("numpy", "soundfile", "soxr", "faster-whisper", "ctranslate2")


# ── recordings ────────────────────────────────────────────────────────────────────────────────────────────────────────


def corpus() -> Path:
    """Return the folder of the test recordings; if there is none, say so and end the benchmark without a verdict."""
    place = Path(os.environ.get("VOXBATCH_TEST_DATA") or ROOT.parent / "shared" / "data")
    if (place / "speech" / "manifest.jsonl").exists():
        return place
    print(f"skipped: no speech/manifest.jsonl in {place}; set VOXBATCH_TEST_DATA to the folder of the test recordings")
    sys.exit(0)


def english_rows() -> list[dict[str, Any]]:
    """Return the English rows of speech/, with absolute paths and with their relative path as id."""
    folder = corpus() / "speech"
    with open(folder / "manifest.jsonl", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [
        {"id": row["audio_filepath"], **row, "audio_filepath": str(folder / row["audio_filepath"])}
        for row in rows
        if row["lang"] == "en"
    ]


def is_long(row: dict[str, Any]) -> bool:
    """Return whether a row is one of the recordings of longform/."""
    return str(row["id"]).startswith("longform/")


def write_manifest(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """Write rows as a manifest, and return its path."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return path


# ── what is printed ───────────────────────────────────────────────────────────────────────────────────────────────────


def machine() -> str:
    """Return one line: processor, cores, memory, Python, and the libraries that do the work."""
    cores = len(os.sched_getaffinity(0))
    memory = psutil.virtual_memory().total / 2**30
    versions = ", ".join(f"{name} {_version(name)}" for name in LIBRARIES)
    return f"{_processor()}, {cores} cores, {memory:.0f} GiB; Python {platform.python_version()}, {versions}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


@dataclass(slots=True)
class Bars:
    """Figures and the bars that they must reach. `leave` exits with 1 if a bar was missed."""

    missed: list[str] = field(default_factory=list)

    def at_most(self, name: str, value: float, bar: float, unit: str = "") -> None:
        """Print a figure that must not exceed its bar."""
        self._judge(name, value, f"≤ {bar:g}", value <= bar, unit)

    def at_least(self, name: str, value: float, bar: float, unit: str = "") -> None:
        """Print a figure that must not fall below its bar."""
        self._judge(name, value, f"≥ {bar:g}", value >= bar, unit)

    def holds(self, name: str, truth: bool, otherwise: str = "") -> None:
        """Print a condition that must be true."""
        print(f"{name}: {'yes' if truth else f'NO {otherwise}'.rstrip()}")
        if not truth:
            self.missed.append(name)

    def _judge(self, name: str, value: float, bar: str, met: bool, unit: str) -> None:
        shown = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        print(f"{name}: {shown}{unit and ' ' + unit} (bar: {bar}) {'ok' if met else 'MISSED'}")
        if not met:
            self.missed.append(name)

    def leave(self) -> None:
        """Print the missed bars and exit: 1 if there are any, else 0."""
        print(f"missed: {', '.join(self.missed)}" if self.missed else "all bars met")
        sys.exit(1 if self.missed else 0)


# ── voxbatch as a process ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of voxbatch, seen from outside."""

    code: int
    wall_s: float
    """Seconds from the start of Python to the end of the process."""
    tree_mb: float
    """Peak of the summed RSS of the process and its children; shared pages count once in each process."""
    stdout: str
    stderr: str
    usage: dict[str, float]
    """Figures from traced.py: cpu_s, children_cpu_s. Empty without traced.py."""

    def event(self, name: str) -> dict[str, Any]:
        """Return the last JSON event with this name; {} if there is none."""
        events = [json.loads(line) for line in self.stderr.splitlines() if line.startswith("{")]
        return next((event for event in reversed(events) if event.get("message") == name), {})


def run(
    arguments: Sequence[object], *, ok: Iterable[int] = (0,), traced: bool = False, cores: int | None = None
) -> Ran:
    """Run voxbatch to its end and return the result; exit with its stderr if its exit code is not in `ok`.

    Args:
        traced: run through traced.py, which records the CPU time of the main process and of its children.
        cores: pin the process and its children to this number of cores.
    """
    note = _temporary_note() if traced else None
    command = [*TRACED, "--usage", str(note)] if note else VOXBATCH
    began = time.monotonic()
    with pinned(cores):
        process = subprocess.Popen(
            [*command, *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        )  # fmt: skip
    watcher = Watcher(process.pid)
    stdout, stderr = process.communicate()
    wall_s = time.monotonic() - began
    if process.returncode not in set(ok):
        sys.exit(f"voxbatch {' '.join(map(str, arguments))} ended with {process.returncode}:\n{stderr[-3000:]}")
    usage = json.loads(note.read_text()) if note else {}
    if note:
        note.unlink()
    return Ran(process.returncode, wall_s, watcher.stop(), stdout, stderr, usage)


def _temporary_note() -> Path:
    fd, name = tempfile.mkstemp(prefix="voxbatch-usage-")
    os.close(fd)
    return Path(name)


@contextlib.contextmanager
def pinned(cores: int | None) -> Iterator[None]:
    """Pin the processes that start in this context to the first `cores` cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Watcher:
    """Samples the memory of a process and of all its descendants, in a thread."""

    def __init__(self, pid: int):
        self._pid, self._peak, self._over = pid, 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """Stop sampling and return the peak in MB."""
        self._over.set()
        self._thread.join()
        return self._peak / 1e6

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self._peak = max(self._peak, sum(map(_rss, tree(self._pid))))


def tree(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants; [] if it has ended."""
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
