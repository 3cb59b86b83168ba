"""The findings of `voxbatch doctor` about vLLM: see EngineChecks."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from voxbatch.config import RunOptions
from voxbatch.engines import gpu
from voxbatch.engines.checks import CheckedModel, Finding, require_room
from voxbatch.engines.model_files import cache_folder
from voxbatch.errors import EngineError, StorageError
from voxbatch.safe_text import counted
from voxbatch.storage import Stores
from voxbatch.storage.address import is_bucket_address, parse_bucket_address
from voxbatch.vllm.engine import compat, prefill
from voxbatch.vllm.engine.families.choice import resolve
from voxbatch.vllm.engine.model import (
    DEFAULT_MODEL,
    REALTIME,
    SMALL_FILES,
    check_weights,
    in_hub_cache,
    locate,
    missing_weights,
    weights_bytes,
)
from voxbatch.vllm.engine.planned_memory import planned_bytes


def findings(asked: RunOptions) -> Iterator[Finding]:
    """Yield the state of vLLM, of the plugin and of the default model; see EngineChecks."""
    yield _vllm()
    if needs_gpu():
        plugin = prefill.decide(REALTIME, resolve(REALTIME, {}))
        if plugin.on:
            yield Finding("vllm-plugin", "ok", "Voxtral Realtime's encoder runs once a chunk")
        else:
            yield Finding("vllm-plugin", "warning", plugin.warning)
    if asked.model not in (None, DEFAULT_MODEL):
        return
    if in_hub_cache(DEFAULT_MODEL):
        yield Finding("vllm-model", "ok", f"{DEFAULT_MODEL} is in the hub's cache here")
    else:
        download = f"for vLLM: the first run on a GPU downloads it, or now: hf download {DEFAULT_MODEL}"
        yield Finding("vllm-model", "missing", download)


def _vllm() -> Finding:
    installed = compat.find()
    if installed is None:
        return Finding("vllm", "missing", "for Voxtral and Whisper on GPUs: pip install 'voxbatch[vllm]'")
    if warning := compat.warning(*installed):
        return Finding("vllm", "warning", warning)
    return Finding("vllm", "ok", f"{installed[1]} from the package {installed[0]}")


def needs_gpu() -> bool:
    """Return whether vLLM's build for GPUs is installed; see EngineChecks."""
    installed = compat.find()
    return installed is not None and installed[0] == "vllm"


def check_installed() -> None:
    """Check that there is one vLLM; see EngineChecks."""
    compat.installed()


def check_model(asked: RunOptions, folder: Path) -> CheckedModel:
    """Check the files, the disk and the memory of the GPUs; see EngineChecks."""
    if asked.model and is_bucket_address(asked.model):
        address = asked.model.rstrip("/") + "/"
        sizes = _listed(address, folder, asked.stores)
        model = locate(str(folder), None)
        weight_sizes = [size for name, size in sizes.items() if fnmatch(name, model.weights)]
        if not weight_sizes:
            raise EngineError(f"{address} has no {model.weights}: upload the whole model, with its weights")
        weights, fetched, place = sum(weight_sizes), sum(sizes.values()), cache_folder()
    else:
        model = locate(asked.model, asked.engine_options.get("revision"), asked.stores)
        fetched, place = missing_weights(model), model.path
        if model.revision is None:  # a run completes a model of the hub itself
            check_weights(model)
        weights = fetched or weights_bytes(model)
    require_room(asked.model or model.name, fetched, place)
    settings = resolve(model.family, asked.engine_options)
    room = [planned_bytes(settings, visible) for visible in gpu.visible_gpus()]
    if room and not settings.fp8_parts and not settings.quantization:
        shared = min(room) * settings.tensor_parallel_size
        if weights > shared:
            raise EngineError(
                f"{asked.model or model.name}: its weights take {weights / 1e9:.1f} GB, and there are "
                f"{shared / 1e9:.1f} GB for it on {counted(settings.tensor_parallel_size, 'GPU')}: take larger GPUs, "
                "or more of them (--engine-option tensor_parallel_size=N), or --engine-option quantization=fp8"
            )
    return CheckedModel(str(folder) if asked.model and is_bucket_address(asked.model) else asked.model, weights)


def _listed(address: str, folder: Path, stores: Stores) -> dict[str, int]:
    """Return the bytes of each file of a model in a bucket, and fetch the files that are read before the weights.

    Args:
        folder: an empty folder for these files.

    Raises:
        StorageError: nothing is there, or the bucket cannot be read.
    """
    try:
        prefix = parse_bucket_address(address).key
        sizes = {stat.key.removeprefix(prefix): stat.size for stat in stores.list(address)}
    except ValueError as e:
        raise StorageError(f"cannot read {address}: {e}") from e
    if not sizes:
        raise StorageError(f"there is no object below {address}: give the folder that holds the model's files")
    for name in sizes:
        if any(fnmatch(name, pattern) for pattern in SMALL_FILES):
            with stores.open(address + name) as file:
                (folder / name).write_bytes(file.read())
    return sizes
