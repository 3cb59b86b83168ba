"""Prices of machines and services, and speeds of models: the dated tables of prices.yaml.

The module asks no cloud. `--usd-per-hour` gives another price of a machine.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from importlib import resources
from typing import Any

CLOUD_RUN_L4, CLOUD_RUN_CPU = "cloudrun-l4", "cloudrun-cpu"
"""Names of the table's entries for Cloud Run tasks with a GPU and without."""
RENTED_H200 = "rented-h200"
"""Name of the table's entry for the H200 on which the speeds of `voxbatch models` were measured."""

MEASURED_GPU = "NVIDIA H200"
"""NVML's name of its GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """A published price, and where it was read."""

    usd_per_hour: float
    """Price of one hour: of the machine, or of audio for a service."""
    source: str
    quote: str
    read_on: date
    """Day on which `source` was read."""
    priced_on: date | str | None
    """Day for which the source gives the price, or its year and month. None if the source does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine(Price):
    """The price of one task's machine."""

    machine: str
    """Description for people."""
    title: str | None = None
    """Name in the table of 10,000 hours of docs/costs.md. None: the machine is not in it."""
    gpu: str | None = None
    """NVML's name of the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service(Price):
    """The price of an hour of audio at a service that transcribes."""

    service: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The speed of a model on one GPU."""

    model: str
    gpu: str
    """NVML's name of the GPU."""
    rtfx: float
    """Seconds of audio per second."""
    kind: str
    """How it is known: "measured" or "modelled"."""
    source: str
    error: float = 0.0
    """Relative error of a modelled speed."""


@functools.cache
def _tables() -> Mapping[str, Any]:
    import yaml

    tables: Mapping[str, Any] = yaml.safe_load((resources.files("voxbatch") / "prices.yaml").read_text())
    return tables


@functools.cache
def machines() -> Mapping[str, Machine]:
    """Return the machines by name: CLOUD_RUN_L4, CLOUD_RUN_CPU, SageMaker's instance types, and machines for rent."""
    return {name: Machine(**entry) for name, entry in _tables()["machines"].items()}


def cheapest(gpu: str) -> Machine | None:
    """Return the cheapest machine with a GPU, by NVML's name of it; None if the table has none."""
    with_gpu = (entry for entry in machines().values() if entry.gpu == gpu)
    return min(with_gpu, key=lambda entry: entry.usd_per_hour, default=None)


def services() -> list[Service]:
    """Return the services, the cheapest first."""
    return [Service(**entry) for entry in _tables()["services"]]


def speeds() -> list[Speed]:
    """Return the speeds of models on GPUs."""
    return [Speed(**entry) for entry in _tables()["speeds"]]


def usd_per_hour(machine: str | None) -> float | None:
    """Return the price of a machine, or None if the table does not have it."""
    entry = machines().get(machine or "")
    return entry.usd_per_hour if entry else None


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
