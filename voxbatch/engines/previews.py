"""Previews of an engine, before its library is imported: the expected speed, and the library's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from voxbatch.engines import ENGINES, registered
from voxbatch.storage.columns import Column


@dataclass(frozen=True, slots=True)
class ExpectedSpeed:
    """The calculated speed of an engine."""

    rtfx: float
    """Seconds of audio per second, rounded to two digits."""
    error: float
    """Relative error that `rtfx` may have, e.g. 0.2."""
    of: str
    """The GPU and the way in which it runs the model, as text for people."""

    def __str__(self) -> str:
        error = f"{100 * self.error:.0f} %"
        remedy = "give a measured value with --expected-rtfx"
        return f"calculated for {self.of}, not measured, and may be {error} off; {remedy}"


def expected_speed(
    name: str,
    model: str | None,
    options: Mapping[str, str],
    durations: Column | None = None,
    gpu: str | None = None,
    gpus: int = 1,
) -> ExpectedSpeed | None:
    """Return the expected speed of an engine, calculated and not measured, or None if it cannot be calculated.

    The function does not search for the model on the network and does not import the library of the engine.

    Args:
        durations: seconds of each recording of the run. None means infinitely many long recordings.
        gpu: NVML's name of a GPU of another machine. None means the GPU of this machine.
        gpus: number of GPUs that share the work, each with its own engine.

    Raises:
        ConfigError: the engine does not accept an option.
    """
    engine = registered(name, ENGINES)
    if engine is None or not engine.speed_path:
        return None
    speed: ExpectedSpeed | None = resolve_name(engine.speed_path)(model, options, durations, gpu, gpus)
    return speed


def preview_arguments(name: str, model: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that the library of an engine would get, for people. The dict is empty if there are none to
    show."""
    engine = registered(name, ENGINES)
    if engine is None or not engine.preview_path:
        return {}
    arguments: dict[str, Any] = resolve_name(engine.preview_path)(model, options)
    return arguments
