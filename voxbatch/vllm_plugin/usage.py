"""What a worker of vLLM's has on its GPU: what it planned, beside what is really there.

Added to vLLM's worker class by its own setting for that (worker_extension_cls), plugin or not.
"""

from __future__ import annotations

from typing import Any

import torch


class Usage:
    def voxbatch_memory(self) -> dict[str, int]:
        """Bytes, nothing where there is no GPU. `planned` is vLLM's plan, and `weights`, `activations`, `libraries`,
        `graphs` and `blocks` what it is made of, as far as this vLLM says so. `used` is what CUDA sees on the card now,
        other processes included, what the driver keeps for itself not; `allocated` and `reserved` are the most that
        tensors took, and PyTorch's allocator for them, since vLLM began to measure."""
        if not torch.cuda.is_available():
            return {}
        free, total = torch.cuda.mem_get_info()
        stats = torch.cuda.memory_stats()
        return {
            "used": total - free,
            "total": total,
            "allocated": int(stats["allocated_bytes.all.peak"]),
            "reserved": int(stats["reserved_bytes.all.peak"]),
            **{name: int(_of(self, attribute)) for name, attribute in PLAN.items()},
        }


PLAN = {
    "planned": "requested_memory",
    "weights": "model_runner.model_memory_usage",
    "activations": "peak_activation_memory",
    "libraries": "non_torch_memory",
    "graphs": "cudagraph_memory_estimate",
    "blocks": "available_kv_cache_memory_bytes",
}
"""Attributes of vLLM's GPU worker (v1/worker/gpu_worker.py)."""


def _of(worker: Any, path: str) -> Any:
    """0 for what is not there."""
    for name in path.split("."):
        worker = getattr(worker, name, 0)
    return worker
