"""Shared parts of the GPU benchmarks: feeding an engine, the GPU's figures, noise, a process for each configuration."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from voxbatch.engines import Result
    from voxbatch.records import Chunk

RATE = 16_000
LOOK_S = 0.5
"""Seconds between two samples."""


def fed(engine: Any, chunks: Iterable[Chunk]) -> Iterator[tuple[float, Result]]:
    """Yield each result of chunks, and the time at which it came. The engine is not closed, and loads once.

    Raises:
        RuntimeError: a chunk failed.
    """
    from voxbatch.engines import Feed
    from voxbatch.records import ChunkFailure

    feed = Feed((engine.spec.prefetch + engine.spec.concurrency) * engine.spec.max_chunk_samples)

    def fill() -> None:
        for chunk in chunks:
            feed.put(chunk)
        feed.close()

    threading.Thread(target=fill, daemon=True).start()
    for result in engine.stream(feed):
        if isinstance(result, ChunkFailure):
            raise RuntimeError(result.message)
        yield time.monotonic(), result


@contextlib.contextmanager
def watched() -> Iterator[dict[str, float]]:
    """Give a dict that holds figures of this context after it: the mean clock (`mhz`), the mean power (`watts`) and the
    largest memory in use by all programs (`peak_gb`). Without a GPU the dict stays empty.
    """
    from voxbatch.engines.gpu import visible_gpus

    figures: dict[str, float] = {}
    if not visible_gpus():
        yield figures
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
        yield figures
    finally:
        ended.set()
        thread.join()
        if seen:
            mhz, watts, used = zip(*seen, strict=True)
            figures |= {"mhz": round(fmean(mhz)), "watts": round(fmean(watts)), "peak_gb": round(max(used) / 1e9, 1)}


def swelling_noise(num_samples: int, seed: int, swells: float = 25.0) -> np.ndarray:
    """Return noise of shape (num_samples,) between -1 and 1, whose loudness rises and falls: steady noise is silence.

    Args:
        num_samples: samples at 16 kHz.
        seed: equal seeds give equal noise.
        swells: radians of the loudness per second.
    """
    loudness = 0.02 + 0.1 * (1 + np.sin(np.arange(num_samples) / RATE * swells)) ** 2
    return np.clip(np.random.default_rng(seed).standard_normal(num_samples) * loudness * 0.3, -1, 1)


def environment() -> dict[str, str]:
    """Return an environment in which vLLM's processes, too, find this checkout of voxbatch and its package metadata."""
    path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH", "")) if part)
    return {**os.environ, "PYTHONPATH": path}


def measured_lines(script: str, configuration: str, limit_s: float | None = None) -> Iterator[dict[str, Any]]:
    """Run `script --one CONFIGURATION` with the arguments of this process, and yield its lines as they are printed.

    Args:
        limit_s: seconds after which the process is killed.
    """
    command = [sys.executable, script, *sys.argv[1:], "--one", configuration]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment())
        assert process.stdout
        limit = threading.Timer(limit_s or threading.TIMEOUT_MAX, process.kill)
        limit.daemon = True
        limit.start()
        for line in process.stdout:
            if line.startswith("RESULT "):
                yield json.loads(line[7:])
        code = process.wait()
        limit.cancel()
        if code:
            errors.seek(0)
            yield {"failed": errors.read()[-3000:], "code": code}


def print_results(lines: Iterable[dict[str, Any]]) -> None:
    """Print the lines for `measured_lines`, and end this process at once: an engine would end slowly."""
    for line in lines:
        print("RESULT " + json.dumps(line), flush=True)
    os._exit(0)


def tell(line: dict[str, Any], out: Path | None) -> None:
    """Print a line, and append it to the file."""
    print(json.dumps(line), flush=True)
    if out:
        with out.open("a") as file:
            file.write(json.dumps(line) + "\n")
