"""The speed to expect of Parakeet TDT 0.6B v3 on a GPU, by arithmetic from one measurement."""

from __future__ import annotations

from collections.abc import Mapping

from voxbatch.engines import gpu
from voxbatch.engines.gpu_specs import GPU_SPECS
from voxbatch.engines.known_models import find
from voxbatch.engines.previews import ExpectedSpeed
from voxbatch.storage.columns import Column
from voxbatch.transducers.model import DEFAULT_MODEL

PARAMETERS = 0.6e9
FLOPS = 2 * PARAMETERS * 12.5 * 1.06
"""Operations for a second of audio: each weight takes part in two for each of 12.5 frames; attention adds 6 %."""
STEPS_S = 6e-6
"""Seconds of decoding for a second of audio. Its steps are short, so that no GPU is much faster at them."""
BYTES = 155e6
"""Bytes through memory for a second of audio: what is left of the 17,175 times real time of an H200
(benchmarks/RESULTS.md) after the operations at its 790 TFLOP/s and the steps."""
ERROR = 0.4
"""Relative error of a speed on another GPU than the measured one."""


def expected_speed(
    model: str | None,
    options: Mapping[str, str],
    durations: Column | None = None,
    gpu_name: str | None = None,
    num_gpus: int = 1,
) -> ExpectedSpeed | None:
    """Return the expected speed of the default model; see previews.expected_speed. None for another model."""
    known = find(model or DEFAULT_MODEL, "transducers")
    if gpu_name is None:
        gpu_name = next((info.name for info in gpu.visible_gpus()), None)
    if known is None or known.name != DEFAULT_MODEL or gpu_name not in GPU_SPECS:
        return None
    spec = GPU_SPECS[gpu_name]
    rtfx = num_gpus / (FLOPS / spec.flops + BYTES / spec.bytes_per_s + STEPS_S)
    gpus = f"{num_gpus} {gpu_name}" if num_gpus > 1 else f"an {gpu_name}"
    return ExpectedSpeed(float(f"{rtfx:.2g}"), ERROR, f"{gpus} by PyTorch")
