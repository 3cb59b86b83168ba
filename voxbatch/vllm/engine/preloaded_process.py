"""The parent's side of `voxbatch.vllm.plugin.preload`: a process that imports vLLM before vLLM starts its engine in it.

It takes the place of a multiprocessing context and of the process that the context makes. Whatever keeps the process
from taking the engine, vLLM gets a usual process instead, and the start only takes longer.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
from collections.abc import Callable, Mapping
from typing import Any

from voxbatch.vllm.plugin import parent_watchdog, preload, prompts

FIXED = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Variables that CUDA and PyTorch read once, when a process first uses a GPU."""


class PreloadedProcess:
    """A process that imports vLLM and then waits. Make it in the thread that will live as long as the engine.

    Args:
        on_gpu, tokenizer: see preload.run.
        on_start: function that is called when vLLM has given its engine to a process.
        prompt_processes: number of processes that make prompts.
    """

    def __init__(self, on_gpu: bool, tokenizer: str, on_start: Callable[[], object], prompt_processes: int = 0) -> None:
        self.on_start = on_start
        pairs = [socket.socketpair() for _ in range(prompt_processes)]
        self.prompts = [own for own, _ in pairs]
        """A socket for each process that makes prompts. They are of use once the process has taken the engine."""
        self._fixed = _fixed()
        self._context = multiprocessing.get_context("spawn")
        self._connection, childs_end = self._context.Pipe()
        arguments = childs_end, on_gpu, tokenizer, [end for _, end in pairs]
        self._preloaded = self._context.Process(target=preload.run, args=arguments, name="EngineCore", daemon=True)
        self._preloaded.start()
        childs_end.close()
        for own, end in pairs:
            own.settimeout(prompts.PATIENCE_S)
            end.close()
        self._is_used = False

    def end_if_unused(self) -> None:
        """End the process, unless it became an engine."""
        if not self._is_used:
            self._preloaded.kill()
            self._preloaded.join()
        self._connection.close()

    # -- as a multiprocessing context ---------------------------------------------------------------------------------

    def Process(self, target: Callable[..., object], name: str, kwargs: Mapping[str, Any]) -> Any:  # noqa: N802
        """Return the object of a process that is not started yet."""
        usual = self._context.Process(target=target, name=name, kwargs=kwargs)
        return usual if self._is_used else _StartedLate(self, usual, target, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def take(self, target: Callable[..., object], kwargs: Mapping[str, Any]) -> Any:
        """Run a function in the process, and return the process. Return None if it cannot take the function."""
        if _fixed() != self._fixed:
            return None
        try:
            environment = {name: value for name, value in os.environ.items() if name != parent_watchdog.PARENT}
            for own in self.prompts:
                prompts.send(own, kwargs["vllm_config"])
            self._connection.send((environment, target, kwargs))
        except (OSError, RuntimeError, TypeError, AttributeError, pickle.PicklingError):
            return None  # it has ended, or an argument can be given to a new process only
        self._is_used = True
        return self._preloaded


def _fixed() -> dict[str, str]:
    """Return the variables of FIXED that are set."""
    return {name: os.environ[name] for name in FIXED if name in os.environ}


class _StartedLate:
    """An object like multiprocessing's Process, whose `start` takes the preloaded process if it can."""

    def __init__(
        self, preloaded: PreloadedProcess, usual: Any, target: Callable[..., object], kwargs: Mapping[str, Any]
    ):
        self._preloaded, self._process, self._target, self._kwargs = preloaded, usual, target, kwargs

    def start(self) -> None:
        """Start the function in the preloaded process, or in a usual one."""
        if (process := self._preloaded.take(self._target, self._kwargs)) is not None:
            self._process = process
        else:
            self._process.start()
        self._preloaded.on_start()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)
