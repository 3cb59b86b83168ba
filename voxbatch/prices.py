"""Prices of one hour of a cloud's machine: a small dated table in prices.yaml, and the choice of a task's entry.

The module asks no cloud. `--usd-per-hour` gives another price.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources
from typing import Any

CLOUD_RUN_L4, CLOUD_RUN_CPU = "cloudrun-l4", "cloudrun-cpu"
"""Names of the table's entries for Cloud Run tasks with a GPU and without."""


@functools.cache
def price_table() -> Mapping[str, Mapping[str, Any]]:
    """Return the entries of prices.yaml by machine: CLOUD_RUN_L4, CLOUD_RUN_CPU, and SageMaker's instance types. Beside
    `usd_per_hour` an entry says for people which `machine` it is for, and where and when its price was read."""
    import yaml

    entries: Mapping[str, Mapping[str, Any]] = yaml.safe_load((resources.files("voxbatch") / "prices.yaml").read_text())
    return entries


def usd_per_hour(machine: str | None) -> float | None:
    """Return the price of a machine, or None if the table does not have it."""
    price: float | None = price_table().get(machine or "", {}).get("usd_per_hour")
    return price


def machine(platform: str, instance_type: str | None, has_gpu: bool) -> str | None:
    """Return the table's entry for the machine of a task, or None for a platform whose machines have no price in the
    table.

    A Cloud Run task cannot see how many CPUs and GiB it pays for. It is assumed to have those of the table's entry.

    Args:
        platform: a name in tasks.PLATFORMS.
        instance_type: the type of the host according to SageMaker, or None.
    """
    if platform == "cloud-run":
        return CLOUD_RUN_L4 if has_gpu else CLOUD_RUN_CPU
    return instance_type if platform == "sagemaker" else None
