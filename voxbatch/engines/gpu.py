"""Read the visible GPUs from NVML, with their names and memory, and hide GPUs that are not to be used.

CUDA is not initialised. The module also reads the version of the driver, and tests whether PyTorch can use the GPUs
with this driver.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from voxbatch.errors import ConfigError


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """A GPU, as NVML describes it."""

    device: str
    """Id of the GPU, as CUDA_VISIBLE_DEVICES names it."""
    name: str
    total_bytes: int
    free_bytes: int
    reserved_bytes: int = 0
    """Number of bytes of total_bytes that the driver keeps for itself. CUDA shows only the rest."""
    capability: tuple[int, int] = (0, 0)
    """Compute capability: (8, 0) for an A100 (Ampere), (8, 9) for an L4 (Ada), (9, 0) for Hopper. (0, 0) if the driver
    does not state it."""

    @property
    def used_bytes(self) -> int:
        """Return the bytes in use by all processes, without those that the driver keeps for itself.

        nvidia-smi shows the same number.
        """
        return max(0, self.total_bytes - self.free_bytes - self.reserved_bytes)


def visible_gpus() -> list[GpuInfo]:
    """Return the visible GPUs. The list is empty if there is no driver, or if pynvml is not installed."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_gpu_info(pynvml, device) for device in _visible(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _visible(count: int) -> list[str]:
    """Return the ids of the visible GPUs, as CUDA reads CUDA_VISIBLE_DEVICES.

    CUDA ignores the list from the first id that does not exist (CUDA C++ Programming Guide, environment variables).
    """
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    if variable is None:
        return [str(i) for i in range(count)]
    named = (device.strip() for device in variable.split(","))

    def exists(device: str) -> bool:
        return device.startswith(("GPU-", "MIG-")) or (device.isdecimal() and int(device) < count)

    return list(takewhile(exists, named))


def _gpu_info(nvml: Any, device: str) -> GpuInfo:
    by_index = device.isdigit()
    get = nvml.nvmlDeviceGetHandleByIndex if by_index else nvml.nvmlDeviceGetHandleByUUID
    handle = get(int(device) if by_index else device)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    name = nvml.nvmlDeviceGetName(handle)
    reserved_bytes, capability = 0, (0, 0)
    with contextlib.suppress(nvml.NVMLError):  # the driver is too old to state the value
        reserved_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).reserved)
    with contextlib.suppress(nvml.NVMLError):
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        capability = int(major), int(minor)
    return GpuInfo(
        device,
        name if isinstance(name, str) else name.decode(),
        int(memory.total),
        int(memory.free),
        reserved_bytes,
        capability,
    )


def worker_environments(size: int = 1) -> tuple[Mapping[str, str], ...]:
    """Return the environment of one worker for each group of `size` visible GPUs. GPUs that are left over stay
    idle."""
    devices = [info.device for info in visible_gpus()]
    num_used = len(devices) // size * size
    groups = (devices[i : i + size] for i in range(0, num_used, size))
    return tuple({"CUDA_VISIBLE_DEVICES": ",".join(group)} for group in groups)


def use_only(devices: str) -> None:
    """Hide all other GPUs from this process and from its child processes.

    If CUDA_VISIBLE_DEVICES is set, only the GPUs that both it and `devices` name are used. So each of several worker
    processes, which was given its own GPU, keeps that GPU.

    Args:
        devices: ids as nvidia-smi shows them, e.g. "0,1". Empty hides nothing.

    Raises:
        ConfigError: `devices` holds something other than ids, or names no visible GPU. If CUDA_VISIBLE_DEVICES is not
            set, all GPUs that `devices` names must be visible.
    """
    requested = list(dict.fromkeys(device.strip() for device in devices.split(",") if device.strip()))
    if bad := [device for device in requested if not re.fullmatch(r"\d+|(GPU|MIG)-[\w/-]+", device)]:
        raise ConfigError(
            f"engine option devices={devices}: {bad[0]!r} is not the id of a GPU; give ids with commas, such as 0,1"
        )
    visible = [info.device for info in visible_gpus()]
    if not requested or not visible:  # without a GPU there is nothing to hide
        return
    used = [device for device in requested if device in visible]
    if not used or (len(used) < len(requested) and "CUDA_VISIBLE_DEVICES" not in os.environ):
        raise ConfigError(
            f"engine option devices={devices}: the visible GPUs are {', '.join(visible)}; give some of these"
        )
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as NVML; CUDA would count the fastest first
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(used)


FIRST_DRIVERS = {12: 525, 13: 580}
"""The first driver that runs each major version of CUDA without compatibility libraries (NVIDIA, CUDA compatibility).
jobs/image/entrypoint.sh has the same numbers."""
PROBE_S = 120.0
"""Seconds that the probe may take. The import of PyTorch from a cold network disk alone takes 30 s."""
PROBE = "import torch; [torch.zeros(1, device=f'cuda:{i}') for i in range(max(1, torch.cuda.device_count()))]"


@dataclass(frozen=True, slots=True)
class Driver:
    """NVIDIA's driver."""

    version: str
    """Version of the driver, e.g. "580.95.05"."""
    cuda: tuple[int, int]
    """The newest version of CUDA that the driver runs, e.g. (13, 0). If compatibility libraries are in use, this is
    their version."""


def driver() -> Driver | None:
    """Return NVIDIA's driver, or None if no driver answers."""
    try:
        import pynvml

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        cuda = int(pynvml.nvmlSystemGetCudaDriverVersion())
        pynvml.nvmlShutdown()
    except Exception:  # noqa: BLE001 no library, no driver, or no answer: the result is the same
        return None
    return Driver(version if isinstance(version, str) else version.decode(), (cuda // 1000, cuda % 1000 // 10))


def torch_cuda() -> str | None:
    """Return the version of CUDA for which PyTorch is built, such as "13.0", without importing PyTorch.

    Returns:
        None if PyTorch is not installed, or is a build without CUDA.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    with contextlib.suppress(OSError):
        text = (Path(spec.origin).parent / "version.py").read_text()
        if version := re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE):
            return version[1]
    return None


def probe(timeout_s: float = PROBE_S) -> str:
    """Allocate a tensor on each visible GPU, in a child process, so that CUDA is not initialised in this process.

    Returns:
        The error message of PyTorch, or an empty string if the allocation succeeds.
    """
    command = [sys.executable, "-P", "-c", PROBE]
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {timeout_s:.0f} s"
    if child.returncode == 0:
        return ""
    error_lines = child.stderr.strip().splitlines()
    return error_lines[-1] if error_lines else f"it exits with {child.returncode}"


def why_unusable(built_for: str | None, error: str = "") -> str:
    """Return, as text for people, why PyTorch cannot use the GPUs that NVML shows, and what to do.

    Args:
        built_for: the version of CUDA for which PyTorch is built; None for a build without CUDA.
        error: the error message of PyTorch, if there is one.
    """
    if built_for is None:
        return (
            "this PyTorch is a build without CUDA: pip install 'voxbatch[vllm]', or 'voxbatch[parakeet]', into an "
            "environment of its own"
        )
    if too_old := why_too_old(built_for, error):
        return too_old
    loaded_driver, note = driver(), f" ({error})" if error else ""
    version = loaded_driver.version if loaded_driver else "unknown"
    return (
        f"PyTorch for CUDA {built_for} cannot use the GPU with driver {version}{note}: check nvidia-smi, and "
        "whether LD_LIBRARY_PATH leads to a libcuda.so.1 that is not the driver's"
    )


def why_too_old(built_for: str, error: str = "") -> str:
    """Return, as text for people, what to do if the driver is too old for PyTorch's CUDA, or an empty string.

    This takes some milliseconds, and does not import PyTorch.

    Args:
        built_for: the version of CUDA for which PyTorch is built.
        error: the error message of PyTorch, if there is one.
    """
    loaded_driver, needed_cuda = driver(), int(built_for.partition(".")[0])
    if loaded_driver is None or loaded_driver.cuda[0] >= needed_cuda:
        return ""
    note = f" ({error})" if error else ""
    needed = f"driver {FIRST_DRIVERS[needed_cuda]}" if needed_cuda in FIRST_DRIVERS else "a driver"
    major, minor = loaded_driver.cuda
    return (
        f"driver {loaded_driver.version} runs CUDA {major}.{minor}, and this PyTorch is built for CUDA "
        f"{built_for}{note}: install {needed} or later for it; on a data-centre GPU CUDA's compatibility libraries do "
        "too (package cuda-compat), if LD_LIBRARY_PATH names their folder before voxbatch starts, as the image does"
    )
