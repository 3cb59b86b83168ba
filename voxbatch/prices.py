"""Prices of one hour of a cloud's machine: a small dated table in prices.yaml, and the choice of a task's entry.

The module asks no cloud. `--usd-per-hour` gives another price.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

CLOUD_RUN_L4, CLOUD_RUN_CPU = "cloudrun-l4", "cloudrun-cpu"
"""Names of the table's entries for Cloud Run tasks with a GPU and without."""


@dataclass(frozen=True, slots=True)
class Price:
    """An entry of the table."""

    usd_per_hour: float
    """Price of one task's machine, including all that its entry lists."""
    machine: str
    """Description of the machine, for people."""
    source: str
    """Place where the price was read."""
    quote: str
    """Statement of the source when it was read."""
    read_on: str
    """Day on which the source was read, for example 2026-11-21."""


@functools.cache
def price_table() -> Mapping[str, Price]:
    """Return the prices by machine: CLOUD_RUN_L4, CLOUD_RUN_CPU, and SageMaker's instance types."""
    import yaml

    found = yaml.safe_load((resources.files("voxbatch") / "prices.yaml").read_text())
    return {name: Price(**{**entry, "read_on": str(entry["read_on"])}) for name, entry in found.items()}


def usd_per_hour(machine: str | None) -> float | None:
    """Return the price of a machine, or None if the table does not have it."""
    price = price_table().get(machine or "")
    return price.usd_per_hour if price else None


def machine(platform: str, instance_type: str | None, has_gpu: bool) -> str | None:
    """Return the table's entry for the machine of a task, or None for a platform whose machines have no price in the
    table.

    A Cloud Run task cannot see how many CPUs and GiB it pays for. It is assumed to have those of the table's entry.

    Args:
        platform: a name in tasks.PLATFORMS.
        instance_type: the type of the host according to SageMaker, or None.
        has_gpu: whether the task has a GPU.
    """
    if platform == "cloud-run":
        return CLOUD_RUN_L4 if has_gpu else CLOUD_RUN_CPU
    return instance_type if platform == "sagemaker" else None
