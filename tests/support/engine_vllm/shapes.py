"""Shapes of the published models, and graphics cards, for calculations without either."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts import imported

from voxbatch.engines.vllm import gpu

L4 = gpu.GpuInfo("0", "NVIDIA L4", 24_152_899_584, 23_600_000_000, 470_000_000, (8, 9))
H200 = gpu.GpuInfo("0", "NVIDIA H200", 150_754_820_096, 150_000_000_000, 640_000_000, (9, 0))


def params(**encoder: Any) -> dict[str, Any]:
    """Return the params.json of Voxtral-Mini-4B-Realtime-2602."""
    shape = {"dim": 1280, "n_layers": 32, "head_dim": 64, "hidden_dim": 5120, "n_heads": 32, "n_kv_heads": 32}
    return {
        "dim": 3072, "n_layers": 26, "head_dim": 128, "hidden_dim": 9216, "n_heads": 32, "n_kv_heads": 8,
        "vocab_size": 131_072, "tied_embeddings": True,
        "multimodal": {"whisper_model_args": {"encoder_args": {
            **shape, "ffn_type": "swiglu", "sliding_window": 750, **encoder}}},
    }  # fmt: skip


def full_size() -> Any:
    """Return benchmarks/gpu/full_size.py as a module."""
    return imported(Path(__file__).parents[3] / "benchmarks" / "gpu" / "full_size.py")
