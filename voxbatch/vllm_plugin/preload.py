"""The first thing that runs in the engine's process: it imports vLLM while the parent still prepares the engine.

The parent's side is `voxbatch.engines.vllm.preloaded_process`. vLLM alone would start the process when the parent has
imported vLLM, too, and the second import would take as long again.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection

MODULES = (
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu_worker",
    "voxbatch.vllm_plugin.worker_extension",
)
"""The modules that take long to import, of those that every engine imports."""


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Switch Python's garbage collector off within this context.

    It would look through the objects of vLLM's modules again and again while they are imported: 13 to 22 % of the
    time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def run(connection: Connection) -> None:
    """Import vLLM, wait for the parent's message, and run what it names.

    Args:
        connection: gets (environment, target, kwargs) once, or is closed if the engine is not wanted.
    """
    with (
        without_gc(),
        contextlib.suppress(Exception),
    ):  # whatever is missing is imported later, where an error can be reported
        for name in MODULES:
            importlib.import_module(name)
        importlib.import_module("vllm.plugins").load_general_plugins()
    try:
        environment, target, kwargs = connection.recv()
    except EOFError:
        return
    connection.close()
    multiprocessing.current_process().daemon = False  # it was one so that this program can end while it waits here
    # only what has changed: setproctitle finds no place for its title once all variables have moved
    os.environ.update({name: value for name, value in environment.items() if os.environ.get(name) != value})
    target(**kwargs)
