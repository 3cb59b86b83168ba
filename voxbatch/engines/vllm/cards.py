"""What GPUs can do, by the names that NVML gives them: their makers' datasheets, and what matrix products were seen to
reach. Only cards that are alone under their name: another variant of one has another memory.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capacity:
    total_bytes: float
    """As NVML says it."""
    bytes_per_s: float
    """Of memory: the datasheet's."""
    flops: float
    """FLOP/s of large bfloat16 matrix products as PyTorch reaches them when the card is warm: seen, not the datasheet's
    (which is in the comment), for a card that may draw 72 W only falls to half of that."""
    multiprocessors: int
    tile_rows: tuple[int, int]
    """Rows of queries that one tile of the attention kernel computes, needed or not, at heads of up to 64 numbers and
    of 128: FlashAttention 3 on Hopper (hopper/tile_size.h: 192 and 128), 2 elsewhere (its split kernel: 64)."""
    error: float
    """Share by which a speed worked out for it may be wrong: 0.2 where that was measured (benchmarks/RESULTS.md), more
    where it was not, most where power decides."""
    reserved_bytes: float = 0.64e9
    """Of the total, what the driver keeps for itself: an H200's."""


_HOPPER, _OTHER = (192, 128), (64, 64)

CARDS = {
    "NVIDIA H200": Capacity(150.75e9, 4.8e12, 790e12, 132, _HOPPER, 0.2),  # 989
    "NVIDIA H100 80GB HBM3": Capacity(85.5e9, 3.35e12, 786e12, 132, _HOPPER, 0.25),  # 989
    "NVIDIA A100-SXM4-80GB": Capacity(85.9e9, 2.04e12, 264e12, 108, _OTHER, 0.3),  # 312
    "NVIDIA L40S": Capacity(48.3e9, 864e9, 269e12, 142, _OTHER, 0.3),  # 362
    "NVIDIA L4": Capacity(24.15e9, 300e9, 57e12, 58, _OTHER, 0.3),  # 121; 71 for as long as it is cold
    "NVIDIA A10G": Capacity(24.15e9, 600e9, 56e12, 80, _OTHER, 0.35),  # 70; nobody's figure was found: 0.8 of it
}
"""H200 and L4 say their own `total_bytes` (143,771 and 23,034 MiB); the others' are what NVML usually shows. `flops` is
from github.com/zzc0721/torch-performance-test-data, read 2026-11-22: database.md, and issue 120 for the L4 (bfloat16,
sides of 8,192 and 10,240: 59 and 57; of 2,048: 71)."""
