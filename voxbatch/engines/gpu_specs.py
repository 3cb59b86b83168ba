"""The capacities of GPUs, by the names that NVML gives them.

The values come from NVIDIA's datasheets and from measured matrix products. Only GPUs whose name stands for a single
variant are listed, because other variants of a GPU have another memory.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """The memory and the speed of a GPU."""

    total_bytes: float
    """Size of the memory, as NVML reports it."""
    bytes_per_s: float
    """Bandwidth of the memory, from the datasheet."""
    flops: float
    """FLOP/s that PyTorch reaches with large bfloat16 matrix products on a warm GPU. The value is measured. The
    datasheet's value is in the comment: a GPU that may draw only 72 W falls to half of it."""
    multiprocessors: int
    tile_rows: tuple[int, int]
    """Number of query rows that one tile of the attention kernel computes, needed or not, for heads of up to 64 numbers
    and for heads of 128 numbers. The kernel is FlashAttention 3 on Hopper (hopper/tile_size.h: 192 and 128) and
    FlashAttention 2 on other GPUs (its split kernel: 64)."""
    error: float
    """Relative error of a speed calculated for the GPU. It is 0.2 if the error was measured (benchmarks/RESULTS.md),
    larger if not, and largest if the power limits the speed."""
    reserved_bytes: float = 0.64e9
    """Number of bytes of total_bytes that the driver keeps for itself. The default is the value of an H200."""


_HOPPER, _OTHER = (192, 128), (64, 64)

GPU_SPECS = {
    "NVIDIA H200": GpuSpec(150.75e9, 4.8e12, 790e12, 132, _HOPPER, 0.2),  # 989
    "NVIDIA H100 80GB HBM3": GpuSpec(85.5e9, 3.35e12, 786e12, 132, _HOPPER, 0.25),  # 989
    "NVIDIA A100-SXM4-80GB": GpuSpec(85.9e9, 2.04e12, 264e12, 108, _OTHER, 0.3),  # 312
    "NVIDIA L40S": GpuSpec(48.3e9, 864e9, 269e12, 142, _OTHER, 0.3),  # 362
    "NVIDIA L4": GpuSpec(24.15e9, 300e9, 57e12, 58, _OTHER, 0.3),  # 121; 71 while it is cold
    "NVIDIA A10G": GpuSpec(24.15e9, 600e9, 56e12, 80, _OTHER, 0.35),  # 70; no measurement was found: 0.8 of it
}
"""Capacities by NVML's names of the GPUs. `total_bytes` was read on an H200 (143,771 MiB) and an L4 (23,034 MiB); for
the other GPUs it is the value that NVML usually shows. `flops` comes from
github.com/zzc0721/torch-performance-test-data, read on 2026-11-22: from database.md, and for the L4 from issue 120
(bfloat16, sides of 8,192 and 10,240: 59 and 57 TFLOP/s; of 2,048: 71)."""
