"""Which GPUs this process may use, by NVML: their names and memory, without touching CUDA; and using fewer."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from itertools import takewhile
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

    @property
    def used_bytes(self) -> int:
        """In use by all processes, without what the driver keeps for itself: the number that nvidia-smi shows."""
        return max(0, self.total_bytes - self.free_bytes - self.reserved_bytes)


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


def driver_cuda() -> str | None:
    """The newest CUDA that the driver runs by itself, such as "12.2"; None where there is no driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
        version = int(pynvml.nvmlSystemGetCudaDriverVersion())
        pynvml.nvmlShutdown()
    except Exception:  # noqa: BLE001 no library, no driver, or one that does not answer: all the same here
        return None
    return f"{version // 1000}.{version % 1000 // 10}"
