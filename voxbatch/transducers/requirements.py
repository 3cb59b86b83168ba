"""Check what the engine needs of a machine: the version of transformers, PyTorch's build, the driver, and memory.

PyTorch is not imported. The module serves `voxbatch doctor` as EngineChecks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from voxbatch import engines
from voxbatch.config import RunOptions
from voxbatch.engines import gpu, hub
from voxbatch.engines.checks import CheckedModel, Finding, require_room
from voxbatch.errors import ConfigError, EngineError
from voxbatch.settings import parse
from voxbatch.transducers.model import WEIGHTS, TransducerModel, locate
from voxbatch.transducers.options import TransducerOptions

TRANSFORMERS = (5, 16)
"""The first transformers that has all classes of model.ARCHITECTURES."""
STORED_BYTES = 4
"""Bytes of a weight as NVIDIA publishes it: float32."""
CUDA_BYTES = 0.6e9
"""Bytes of a GPU that CUDA itself and PyTorch's libraries take."""
ROW_BYTES = 83e6
"""Bytes of a row of 35 s, for each byte of a number: 64 rows, the weights and CUDA itself filled 12.5 GB of an H200 in
bfloat16 (benchmarks/RESULTS.md). Most of it is the output of the first convolution, the same for all sizes of model."""


def require_transformers(version: str) -> None:
    """Check the version of transformers.

    Raises:
        ConfigError: it is too old to have the networks.
    """
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < TRANSFORMERS:
        raise ConfigError(
            f"transformers {version} is installed, and the engine transducers needs {'.'.join(map(str, TRANSFORMERS))} "
            f"or later: {engines.ENGINES['transducers'].install}"
        )


def require_gpu() -> None:
    """Check, before anything is downloaded, that PyTorch can use the GPUs of a machine that has NVIDIA's driver. On
    another machine the engine runs on the CPU.

    Raises:
        EngineError: no GPU is visible, PyTorch is a build without CUDA, or the driver is too old for it.
    """
    if not engines.has_gpu():
        return
    if not gpu.visible_gpus():
        raise EngineError(
            "an NVIDIA driver is there, but no GPU is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES, give the "
            "container access to its GPUs, or use --engine onnx-asr; without the package nvidia-ml-py, "
            f"{engines.ENGINES['transducers'].install}"
        )
    built_for = gpu.torch_cuda()
    if built_for is None:
        raise EngineError(gpu.why_unusable(None))
    if too_old := gpu.why_too_old(built_for):
        raise EngineError(too_old)


def weights_bytes(model: TransducerModel) -> int:
    """Return the size of a model's weights as they are stored, here or on the hub. 0 if the hub does not say it.

    Raises:
        ConfigError, EngineError: see `hub.snapshot`.
    """
    if model.path.is_file():
        return model.path.stat().st_size
    if model.has_weights:
        return sum(file.stat().st_size for file in model.path.glob(WEIGHTS))
    return sum(hub.file_sizes(model.repository, model.path.name, [WEIGHTS]).values())


def memory_warning(name: str, weights: int, dtype: str, rows: int) -> str:
    """Return, as text for people, how many rows the memory of the smallest GPU surely suffices for, if they are fewer
    than the option `rows`; otherwise an empty string. A machine without a GPU has enough.

    Args:
        name: the model.
        weights: size of its weights as they are stored, in bytes.

    Raises:
        EngineError: the memory does not suffice for a single row.
    """
    cards = gpu.visible_gpus()
    if not cards:
        return ""
    number_bytes = 4 if dtype == "float32" else 2
    room = min(card.total_bytes - card.reserved_bytes for card in cards) - CUDA_BYTES
    fitting = int((room - weights * number_bytes / STORED_BYTES) / (ROW_BYTES * number_bytes))
    smallest = f"the smallest GPU has {min(card.total_bytes for card in cards) / 1e9:.1f} GB"
    if fitting < 1:
        raise EngineError(f"{name}: its weights take {weights / 1e9:.1f} GB, and {smallest}: take a larger GPU")
    return f"{rows} rows may not fit, as {smallest}: --engine-option rows={fitting}" if fitting < rows else ""


def findings(asked: RunOptions) -> Iterator[Finding]:
    """Yield the versions of PyTorch and transformers; see EngineChecks."""
    if install := engines.install_command("transducers"):
        yield Finding("transducers", "missing", f"for Parakeet on GPUs: {install}")
        return
    try:
        check_installed()
    except ConfigError as e:
        yield Finding("transducers", "failed", str(e))
        return
    versions = f"PyTorch {metadata.version('torch')} with transformers {metadata.version('transformers')}"
    yield Finding("transducers", "ok", versions)


def needs_gpu() -> bool:
    """Return whether there is an NVIDIA driver, without which the engine runs on the CPU; see EngineChecks."""
    return engines.has_gpu() and engines.install_command("transducers") is None


def check_installed() -> None:
    """Check the version of transformers; see EngineChecks."""
    require_transformers(metadata.version("transformers"))


def check_model(asked: RunOptions, folder: Path) -> CheckedModel:
    """Check the files, the disk and the memory of the GPUs; see EngineChecks."""
    options, model = parse(TransducerOptions, "transducers", asked.engine_options), locate(asked.model, asked.stores)
    weights = weights_bytes(model)
    if not model.has_weights:
        require_room(model.name, weights, model.path)
    return CheckedModel(asked.model, weights, memory_warning(model.name, weights, options.dtype, options.rows))
