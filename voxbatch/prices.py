"""What an hour of a cloud's machine costs: a small dated table, prices.yaml, and which of its entries a task runs on.

It asks no cloud. Who pays another price says so with --usd-per-hour.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

CLOUD_RUN_L4, CLOUD_RUN_CPU = "cloudrun-l4", "cloudrun-cpu"


@dataclass(frozen=True, slots=True)
class Price:
    """An entry of the table."""

    usd_per_hour: float
    """Of one task, everything it has included."""
    machine: str
    """For people."""
    source: str
    said: str
    """What the source said when it was read."""
    read: str
    """When, as 2026-11-21."""


@functools.cache
def table() -> Mapping[str, Price]:
    """The prices by machine: CLOUD_RUN_L4, CLOUD_RUN_CPU, and SageMaker's instance types."""
    import yaml

    found = yaml.safe_load((resources.files("voxbatch") / "prices.yaml").read_text())
    return {name: Price(**{**entry, "read": str(entry["read"])}) for name, entry in found.items()}


def usd_per_hour(machine: str | None) -> float | None:
    """None where the table does not know it."""
    price = table().get(machine or "")
    return price.usd_per_hour if price else None


def machine(engine: str, instance_type: str | None, has_gpu: bool) -> str | None:
    """Which entry a task's machine is, None for a task engine whose machines have no price here.

    A Cloud Run task cannot see how many CPUs and GiB it pays for; those of the table are taken for it.

    Args:
        engine: a name of tasks.ENGINES.
        instance_type: what SageMaker says that its host is.
    """
    if engine == "cloud-run":
        return CLOUD_RUN_L4 if has_gpu else CLOUD_RUN_CPU
    return instance_type if engine == "sagemaker" else None
