"""Shared parts of the benchmarks: the recordings, the machine, voxbatch as a process, and the bars.

This module itself measures nothing, and nothing is kept: every benchmark works in a temporary folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

try:
    import psutil
except ImportError:  # `make demo` installs only what a run needs
    sys.exit(
        "benchmarks measure memory by psutil, which is missing here: make .venv/.installed-dev, or pip install psutil"
    )

ROOT = Path(__file__).resolve().parent.parent
VOXBATCH = [sys.executable, "-m", "voxbatch"]
SAMPLE_S = 0.05
"""Seconds between two samples of a process tree."""
LIBRARIES = ("numpy", "soundfile", "soxr", "faster-whisper", "ctranslate2")


def import_path(*folders: Path | str) -> str:
    """Return a PYTHONPATH with these folders and that of the scripted engine."""
    return os.pathsep.join(map(str, filter(None, [*folders, ROOT / "tests" / "support" / "engines"])))


os.environ["PYTHONPATH"] = import_path(os.environ.get("PYTHONPATH", ""))  # for all processes of the benchmarks


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


# ── what is asked and printed ─────────────────────────────────────────────────────────────────────────────────────────


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of options whose help shows the docstring of a script as it is written."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


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
    """One run of a program, seen from outside."""

    wall_s: float
    """Seconds from the start of Python to the end of the process."""
    cpu_s: float
    """CPU seconds of the process and its children."""
    main_cpu_s: float
    """CPU seconds of the process alone, at the last sample."""
    peak_mb: float
    """Peak of the summed RSS of the process and its children; shared pages count once in each process."""
    stderr: str
    memory_mb: tuple[float, ...] = ()
    """The summed RSS at each sample, which are SAMPLE_S apart."""

    def event(self, name: str) -> dict[str, Any]:
        """Return the last JSON event with this name; {} if there is none."""
        events = [json.loads(line) for line in self.stderr.splitlines() if line.startswith("{")]
        return next((event for event in reversed(events) if event.get("message") == name), {})


def run(arguments: Iterable[object], *, cores: int | None = None) -> Ran:
    """Run voxbatch to its end. See `measured`."""
    return measured([*VOXBATCH, *arguments], cores=cores)


def measured(command: Iterable[object], *, cores: int | None = None, checkout: Path = ROOT) -> Ran:
    """Run a program to its end and return the result; exit with its stderr if it failed. Failed items are no failure.

    Args:
        cores: pin the process and its children to this number of cores.
        checkout: folder of the voxbatch that the program imports.
    """
    words = list(map(str, command))
    began, before_s = time.monotonic(), _children_cpu_s()
    with pinned(cores):
        process = subprocess.Popen(
            words, env={**os.environ, "PYTHONPATH": import_path(checkout)}, cwd=checkout,  # -m looks there first
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    watcher = Watcher(process.pid)
    _, stderr = process.communicate()
    wall_s, cpu_s = time.monotonic() - began, _children_cpu_s() - before_s
    main_cpu_s, memory_mb = watcher.stop()
    if process.returncode not in (0, 3):
        sys.exit(f"{' '.join(words)} ended with {process.returncode}:\n{stderr[-3000:]}")
    return Ran(wall_s, cpu_s, main_cpu_s, max(memory_mb, default=0.0), stderr, memory_mb)


def transcribed(folder: Path, rows: Iterable[dict[str, Any]], *options: object) -> list[dict[str, Any]]:
    """Return the lines of a run with faster-whisper over English rows. The manifest and OUT are in a folder."""
    manifest, out = write_manifest(folder / "rows.jsonl", rows), folder / "out"
    engine = ("--engine", "faster-whisper", "--language", "en")
    run(["run", manifest, "-o", out, *engine, "--allow-outside", "--overwrite", "--no-report", *options])
    return [json.loads(line) for line in (out / "transcripts.jsonl").read_text(encoding="utf-8").splitlines()]


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


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
    """Samples the CPU time of a process, and the memory of the process and all its descendants, in a thread."""

    def __init__(self, pid: int):
        self._pid, self._cpu_s, self._over = pid, 0.0, threading.Event()
        self._memory_mb = list[float]()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> tuple[float, tuple[float, ...]]:
        """Stop sampling, and return the CPU seconds of the process and the memory in MB at each sample."""
        self._over.set()
        self._thread.join()
        return self._cpu_s, tuple(self._memory_mb)

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_S):
            family = tree(self._pid)
            self._memory_mb.append(sum(map(_rss, family)) / 1e6)
            with contextlib.suppress(psutil.Error):
                self._cpu_s = sum(family[0].cpu_times()[:2]) if family else self._cpu_s


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
