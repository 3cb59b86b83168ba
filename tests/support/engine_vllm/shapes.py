"""Shapes of the published models, and graphics cards, for calculations without either."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from scripts import imported

from voxbatch.engines import gpu

L4 = gpu.GpuInfo("0", "NVIDIA L4", 24_152_899_584, 23_600_000_000, 470_000_000, (8, 9))
H200 = gpu.GpuInfo("0", "NVIDIA H200", 150_754_820_096, 150_000_000_000, 640_000_000, (9, 0))


@cache
def full_size() -> Any:
    """Return benchmarks/gpu/full_size.py as a module."""
    return imported(Path(__file__).parents[3] / "benchmarks" / "gpu" / "full_size.py")


def params() -> dict[str, Any]:
    """Return the params.json of Voxtral-Mini-4B-Realtime-2602."""
    published: dict[str, Any] = full_size().params()
    return published
