"""Memory of a vLLM worker on its GPU: the planned memory beside the memory in use.

The engine adds `MemoryUsage` to vLLM's worker class by vLLM's own setting (worker_extension_cls), with the plugin or
without it.
"""

from __future__ import annotations

from typing import Any

import torch


class MemoryUsage:
    """Extra methods of vLLM's worker class."""

    def voxbatch_memory(self) -> dict[str, int]:
        """Return the GPU memory of this worker in bytes, by name; an empty dict without a GPU.

        - `planned` is vLLM's plan. `weights`, `activations`, `libraries`, `graphs` and `blocks` are its parts. A value
          that this vLLM does not report is 0.
        - `total` is the memory of the card, and `used` is the part that CUDA reports as taken now. `used` includes
          other processes, but not the memory that the driver keeps for itself.
        - `allocated` is the peak memory of tensors since vLLM began to measure, and `reserved` is the peak memory that
          PyTorch's allocator took for them.
        """
        if not torch.cuda.is_available():
            return {}
        free, total = torch.cuda.mem_get_info()
        stats = torch.cuda.memory_stats()
        return {
            "used": total - free,
            "total": total,
            "allocated": int(stats["allocated_bytes.all.peak"]),
            "reserved": int(stats["reserved_bytes.all.peak"]),
            **{name: int(_attribute(self, attribute)) for name, attribute in PLAN.items()},
        }


PLAN = {
    "planned": "requested_memory",
    "weights": "model_runner.model_memory_usage",
    "activations": "peak_activation_memory",
    "libraries": "non_torch_memory",
    "graphs": "cudagraph_memory_estimate",
    "blocks": "available_kv_cache_memory_bytes",
}
"""Names of the parts of the plan → attributes of vLLM's GPU worker (v1/worker/gpu_worker.py)."""


def _attribute(worker: Any, path: str) -> Any:
    """Return the attribute at a dotted path, or 0 if a level of the path is missing."""
    for name in path.split("."):
        worker = getattr(worker, name, 0)
    return worker
