"""Which GPUs this process may use, by NVML: their names and memory, without touching CUDA; and using fewer.

Also the driver, and whether PyTorch can use the GPUs with it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from voxbatch.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Card:
    device: str
    """As CUDA_VISIBLE_DEVICES names it."""
    name: str
    total_bytes: int
    free_bytes: int
    reserved_bytes: int = 0
    """Of the total, what the driver keeps for itself: CUDA shows a card smaller by so much."""
    capability: tuple[int, int] = (0, 0)
    """NVIDIA's compute capability: (8, 0) Ampere's A100, (8, 9) Ada, such as an L4, (9, 0) Hopper."""


def cards() -> list[Card]:
    """The visible GPUs, none where there is no driver."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_card(pynvml, device) for device in _visible(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _visible(count: int) -> list[str]:
    """As CUDA reads its variable: up to the first device that there is not (CUDA C++ Programming Guide, environment
    variables)."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return [str(i) for i in range(count)]
    named = (device.strip() for device in given.split(","))
    return list(takewhile(lambda device: device.startswith(("GPU-", "MIG-")) or _is_index(device, count), named))


def _is_index(device: str, count: int) -> bool:
    return device.isdecimal() and int(device) < count


def _card(nvml: Any, device: str) -> Card:
    by_index = device.isdigit()
    get = nvml.nvmlDeviceGetHandleByIndex if by_index else nvml.nvmlDeviceGetHandleByUUID
    handle = get(int(device) if by_index else device)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    name = nvml.nvmlDeviceGetName(handle)
    return Card(
        device,
        name if isinstance(name, str) else name.decode(),
        int(memory.total),
        int(memory.free),
        _reserved(nvml, handle),
        _capability(nvml, handle),
    )


def _capability(nvml: Any, handle: Any) -> tuple[int, int]:
    """(0, 0) where the driver does not say."""
    try:
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    except nvml.NVMLError:
        return 0, 0
    return int(major), int(minor)


def _reserved(nvml: Any, handle: Any) -> int:
    """0 where the driver is too old to say."""
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).reserved)
    except nvml.NVMLError:
        return 0


def use_only(devices: str) -> None:
    """Hide all other GPUs from this process and from those it starts. CUDA_VISIBLE_DEVICES holds still: where it is
    set, what both name is used, so that a process of several that was given its own GPU keeps to that.

    Args:
        devices: ids as nvidia-smi shows them, e.g. "0,1"; empty hides nothing.

    Raises:
        ConfigError: these are no ids, or not those of visible GPUs.
    """
    asked = list(dict.fromkeys(each.strip() for each in devices.split(",") if each.strip()))
    if bad := [each for each in asked if not re.fullmatch(r"\d+|(GPU|MIG)-[\w/-]+", each)]:
        raise ConfigError(f"engine option devices={devices}: {bad[0]!r} is no GPU; give ids with commas, such as 0,1")
    visible = [card.device for card in cards()]
    if not asked or not visible:  # where there is no GPU, there is nothing to hide
        return
    used = [each for each in asked if each in visible]
    if not used or (len(used) < len(asked) and "CUDA_VISIBLE_DEVICES" not in os.environ):
        raise ConfigError(
            f"engine option devices={devices}: the visible GPUs are {', '.join(visible)}; give some of these"
        )
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # or CUDA counts the fastest first, and NVML by the bus
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(used)


FIRST_DRIVERS = {12: 525, 13: 580}
"""By CUDA's major version, the first driver that runs it without compatibility libraries (NVIDIA, CUDA compatibility).
jobs/image/entrypoint.sh has the same numbers."""
PROBE_S = 120.0
"""PyTorch alone takes 30 s to import from a cold network disk."""
PROBE = "import torch; [torch.zeros(1, device=f'cuda:{i}') for i in range(max(1, torch.cuda.device_count()))]"


@dataclass(frozen=True, slots=True)
class Driver:
    version: str
    """ "580.95.05"."""
    cuda: tuple[int, int]
    """The newest CUDA that it runs, (13, 0); of compatibility libraries that are in use, theirs."""


def driver() -> Driver | None:
    """Return NVIDIA's driver, or None where none answers."""
    try:
        import pynvml

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        cuda = int(pynvml.nvmlSystemGetCudaDriverVersion())
        pynvml.nvmlShutdown()
    except Exception:  # noqa: BLE001 no library, no driver, or one that does not answer: all the same here
        return None
    return Driver(version if isinstance(version, str) else version.decode(), (cuda // 1000, cuda % 1000 // 10))


def torch_cuda() -> str | None:
    """Return the CUDA that PyTorch is built for, such as "13.0", without importing PyTorch.

    None where PyTorch is not installed or is a build without CUDA.
    """
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    with contextlib.suppress(OSError):
        text = (Path(found.origin).parent / "version.py").read_text()
        if version := re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE):
            return version[1]
    return None


def probe(timeout_s: float = PROBE_S) -> str:
    """Allocate a tensor on each visible GPU, in a process of its own, so that CUDA is not initialised in this one.

    Returns:
        What PyTorch says where it cannot; an empty string where it can.
    """
    command = [sys.executable, "-P", "-c", PROBE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {timeout_s:.0f} s"
    if done.returncode == 0:
        return ""
    said = done.stderr.strip().splitlines()
    return said[-1] if said else f"it exits with {done.returncode}"


def why_unusable(built_for: str | None, error: str = "") -> str:
    """Say why PyTorch cannot use the GPUs that NVML shows, and what to do.

    Args:
        built_for: the CUDA that PyTorch is built for; None for a build without CUDA.
        error: what PyTorch says, where it was asked.
    """
    if built_for is None:
        return "this PyTorch is a build without CUDA: pip install 'voxbatch[vllm]' into an environment of its own"
    found, major = driver(), int(built_for.partition(".")[0])
    said = f" ({error})" if error else ""
    if found is None or found.cuda[0] >= major:
        version = found.version if found else "unknown"
        return (
            f"PyTorch for CUDA {built_for} cannot use the GPU with driver {version}{said}: check nvidia-smi, and "
            "whether LD_LIBRARY_PATH leads to a libcuda.so.1 that is not the driver's"
        )
    needed = f"driver {FIRST_DRIVERS[major]}" if major in FIRST_DRIVERS else "a driver"
    return (
        f"driver {found.version} runs CUDA {found.cuda[0]}.{found.cuda[1]}, and this PyTorch is built for CUDA "
        f"{built_for}{said}: install {needed} or later for it; on a data-centre GPU CUDA's compatibility libraries do "
        "too (package cuda-compat), if LD_LIBRARY_PATH names their folder before voxbatch starts, as the image does"
    )
