"""The memory that vLLM may plan with: what the settings leave of the visible GPUs. `memory` has the reasons."""

from __future__ import annotations

from voxbatch.engines import gpu
from voxbatch.errors import ConfigError
from voxbatch.vllm.engine import memory
from voxbatch.vllm.engine.settings import VllmSettings


def room(settings: VllmSettings) -> float | None:
    """Return the bytes that vLLM may plan with on all GPUs of an engine together, or None without GPUs.

    Raises:
        ConfigError: see planned_bytes.
    """
    planned = [planned_bytes(settings, gpu_info) for gpu_info in gpu.visible_gpus()]
    return min(planned) * settings.tensor_parallel_size if planned else None


def planned_bytes(settings: VllmSettings, gpu_info: gpu.GpuInfo) -> float:
    """Return the bytes of one GPU that vLLM may plan with and fill with encoded audio.

    These are the bytes that may be in use, less the memory that the driver, CUDA and uncounted buffers take (see
    `memory`).

    Raises:
        ConfigError: the settings require more memory than the GPU has, or leave nothing for vLLM.
    """
    limit = settings.gpu_memory_gb * 1e9 or settings.gpu_memory_utilization * gpu_info.total_bytes
    if limit > gpu_info.total_bytes:
        raise ConfigError(
            f"engine option gpu_memory_gb={settings.gpu_memory_gb}: {gpu_info.name} has only "
            f"{gpu_info.total_bytes / 1e9:.1f} GB; give less"
        )
    besides = gpu_info.reserved_bytes + memory.UNCOUNTED_BYTES + settings.beside_gb * 1e9
    if limit <= besides:
        raise ConfigError(
            f"{limit / 1e9:.1f} GB of {gpu_info.name} may be filled, and the driver, CUDA and CUDA graphs alone take "
            f"{besides / 1e9:.1f} GB: increase gpu_memory_gb or gpu_memory_utilization"
        )
    return limit - besides
