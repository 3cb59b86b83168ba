"""Sample the first visible GPU's clock, power and memory while a benchmark runs."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from statistics import fmean

LOOK_S = 0.5
"""Seconds between two samples."""


@contextlib.contextmanager
def watched() -> Iterator[dict[str, float]]:
    """Give a dict that holds figures of this context after it: the mean clock (`mhz`), the mean power (`watts`) and the
    largest memory in use by all programs (`peak_gb`). Without a GPU the dict stays empty.
    """
    from voxbatch.engines.vllm.gpu import visible_gpus

    found: dict[str, float] = {}
    if not visible_gpus():
        yield found
        return
    import pynvml

    pynvml.nvmlInit()
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]  # NVML numbers all GPUs of the machine
    handle = pynvml.nvmlDeviceGetHandleByIndex(int(first) if first.isdigit() else 0)
    ended, seen = threading.Event(), list[tuple[float, float, int]]()

    def watch() -> None:
        while not ended.wait(LOOK_S):
            clock = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
            power, used = pynvml.nvmlDeviceGetPowerUsage(handle), pynvml.nvmlDeviceGetMemoryInfo(handle).used
            seen.append((clock, power / 1000, used))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
        if seen:
            found |= {
                "mhz": round(fmean(mhz for mhz, _, _ in seen)),
                "watts": round(fmean(watts for _, watts, _ in seen)),
            }
            found["peak_gb"] = round(max(used for _, _, used in seen) / 1e9, 1)
