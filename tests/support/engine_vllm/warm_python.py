"""Run Python programs in forks of a process that has imported vLLM: an import takes many seconds of a core, a fork a
few milliseconds.

`python`, `start` and `call` start such a process at the first call in a test process. It ends with the test process.

Where voxbatch and vLLM ask multiprocessing for a spawned process, a program that runs here forks, so that the process
of the engine need not import vLLM either. Tests about processes (signals, kills, a plain script) start Python itself.
"""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fork_server import ForkServer, run_to_end, serve
from forked_spawns import fork_in_place_of_spawning

HERE = Path(__file__).parent
SUPPORT = HERE.parent
"""Folder of fork_server, on the path of the server."""
INTERPRETER = SUPPORT / "triton_interpreter"
"""Folder on the path of a process in which Triton runs its kernels by its interpreter."""
FIXED = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
"""Variables that are read when PyTorch, vLLM and what they need are imported."""
INTERPRETED = {"TRITON_INTERPRET": "1"}
MODULES = (
    "vllm.entrypoints.llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.model_executor.model_loader",
    "vllm.model_executor.models.voxtral_realtime",
)
INTERPRETED_MODULES = "torch", "triton"
"""Modules that kernels need in Triton's interpreter."""


def python(
    *arguments: object, folder: Path, environment: Mapping[str, str], interpreted: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` in a folder, and return it when it has ended. The arguments begin with -c and code, or -m
    and a module.

    Args:
        environment: variables besides those of this process that concern neither Python's path, vLLM nor voxbatch.
        interpreted: Triton runs its kernels by its interpreter, without a GPU.
    """
    variables = {**_inherited(), **FIXED, **environment}
    if interpreted:
        variables |= {**INTERPRETED, "PYTHONPATH": f"{INTERPRETER}:{variables.get('PYTHONPATH', '')}"}
    return _server(interpreted).run([*map(str, arguments)], variables, folder)


def start(*arguments: object, folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start `python ARGUMENTS` as `python` does, and return it while it runs."""
    variables, pipe = {**_inherited(), **FIXED, **environment}, subprocess.PIPE
    return _server(False).start([*map(str, arguments)], variables, folder, pipe, pipe)


def call(function: str, *arguments: object, folder: Path, environment: Mapping[str, str]) -> Any:
    """Return what a function, "module.function", returns in such a fork. Arguments and result are pickled."""
    folder.mkdir(exist_ok=True)
    exchange = folder / f"{function}.pickle"
    exchange.write_bytes(pickle.dumps(arguments))
    code = (
        "import pathlib, pickle, pkgutil, sys\n"
        "exchange = pathlib.Path(sys.argv[1])\n"
        "arguments = pickle.loads(exchange.read_bytes())\n"
        "exchange.write_bytes(pickle.dumps(pkgutil.resolve_name(exchange.stem)(*arguments)))"
    )
    done = python("-c", code, exchange, folder=folder, environment=environment)
    assert done.returncode == 0, done.stderr[-4_000:]
    return pickle.loads(exchange.read_bytes())


def run_code(code: str, folder: Path, interpreted: bool = False) -> None:
    """Run code that imports voxbatch and this folder's modules, and check that it raises nothing."""
    path = {"PYTHONPATH": f"{HERE.parents[2]}:{HERE}"}
    done = python("-c", code, folder=folder, environment=path, interpreted=interpreted)
    assert done.returncode == 0, done.stderr[-3_000:]


class _WarmServer(ForkServer):
    """A server whose forks set Python's path by themselves, and whose modules read FIXED only."""

    def can_run(self, environment: Mapping[str, str]) -> bool:
        return environment.items() >= FIXED.items()


@functools.cache
def _server(interpreted: bool) -> ForkServer:
    """Start the process that has imported vLLM. It ends with this process."""
    path = f"{INTERPRETER}:{SUPPORT}" if interpreted else str(SUPPORT)
    variables = {**_inherited(), **FIXED, **(INTERPRETED if interpreted else {}), "PYTHONPATH": path}
    return _WarmServer(variables, __file__)


def _inherited() -> dict[str, str]:
    """Return the environment without what would change Python's path, vLLM or voxbatch."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "VLLM_", "VOXBATCH_"))
    }


def _start(arguments: list[str]) -> None:
    """Run the code or the module that the arguments begin with."""
    option, program, *others = arguments
    sys.argv = [option, *others]
    if option == "-c":
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


def _import_once() -> None:
    """Let no process of this one import vLLM again: multiprocessing forks in place of spawning, and vLLM looks at the
    class of a model in its own process."""
    fork_in_place_of_spawning()
    registry: Any = importlib.import_module("vllm.model_executor.models.registry")
    registry._run_in_subprocess = lambda look: look()


if __name__ == "__main__":
    sys.path.remove(str(SUPPORT))
    interprets = INTERPRETED.items() <= os.environ.items()
    for name in INTERPRETED_MODULES if interprets else MODULES:
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork of a process that has threads can deadlock"
    serve()
    sys.path[:1] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    importlib.invalidate_caches()
    if not interprets:
        _import_once()
    run_to_end(lambda: _start(sys.argv[1:]))
