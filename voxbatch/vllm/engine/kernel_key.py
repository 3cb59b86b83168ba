"""The key of the kernels that vLLM compiles for a model and its settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from voxbatch.engines.kernel_cache import kernels_key
from voxbatch.vllm.engine.model import Model
from voxbatch.vllm.engine.settings import VllmSettings

UNUSED_SETTINGS = frozenset(
    {
        "devices", "gpu_memory_gb", "gpu_memory_utilization", "ignore_eos", "kernel_cache", "restarts", "revision",
        "watch",
    }
)  # fmt: skip
"""Engine options that change no compiled code. `revision` is in the key by what it stands for."""


def cache_key(model: Model, settings: VllmSettings, prefilled: bool, folder: Path) -> str:
    """Return 16 hex digits for all that decides what vLLM, PyTorch and Triton compile.

    Args:
        folder: the folder from which vLLM loads the model; its path is a part of vLLM's own keys.
    """
    options = dataclasses.asdict(settings)
    facts = {
        "model": [model.revision, model.fingerprint, str(folder)],
        "encoder once per chunk": prefilled,
        "settings": {name: value for name, value in options.items() if name not in UNUSED_SETTINGS},
    }
    return kernels_key(facts, settings.tensor_parallel_size)
