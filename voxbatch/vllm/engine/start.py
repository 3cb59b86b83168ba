"""Import vLLM and start its engine, both in a thread that lives as long as the engine."""

from __future__ import annotations

import contextlib
import json
import logging.config
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any

from voxbatch.engines import gpu
from voxbatch.process.output_redirection import outputs_to
from voxbatch.vllm.engine import compat
from voxbatch.vllm.engine.engine_log import EngineLog
from voxbatch.vllm.engine.environment import allocator, set_environment, threads, variables_set
from voxbatch.vllm.engine.preloaded_process import PreloadedProcess
from voxbatch.vllm.plugin import LOAD_FORMAT, WORKER_EXTENSION, lazy_imports, parent_watchdog, preload


class Preload:
    """vLLM that is being imported, in this process and in the one that will be the engine.

    Each import takes many seconds, and vLLM makes the second process only when the first one has an engine's whole
    configuration. So this is begun while a model is still being prepared. The owner gives it to a VllmProcess, or
    abandons it.

    Args:
        plugin: true if the encoder runs once per chunk (vllm.plugin), and not as in stock vLLM.
        arguments: the arguments of vLLM's `LLM` that are known already, at least its model, load format, tokenizer mode
            and number of GPUs.
        prompt_processes: number of processes that make the prompts of requests; 0 makes them where they are added.
        reproducible: true if the result of a request must not depend on the other requests.
    """

    def __init__(
        self, plugin: bool, arguments: Mapping[str, Any], prompt_processes: int = 0, reproducible: bool = False
    ):
        self.began = time.monotonic()
        self.log = EngineLog()
        set_environment(plugin, arguments.get("load_format") == LOAD_FORMAT, reproducible)
        os.environ["VLLM_LOGGING_CONFIG_PATH"] = str(self.log.config)
        if "vllm.logger" in sys.modules:  # it reads the variable only when it is imported
            logging.config.dictConfig(json.loads(self.log.config.read_text()))
        tokenizer = str(arguments["model"]) if arguments.get("tokenizer_mode") == "mistral" else ""
        num_gpus = arguments.get("tensor_parallel_size", 1)
        self.parent = ParentThread(self.log, num_gpus, tokenizer, prompt_processes)

    def wait(self) -> None:
        """Wait until this process has imported vLLM, or failed to."""
        self.parent.imported.wait()

    def abandon(self) -> None:
        """Let the thread end the process that was to be the engine, as soon as its own import is done."""
        self.parent.arguments.cancel()


_LOADING = threading.Lock()
"""Held while processes of an engine are started, which changes the environment, the main module and the standard
streams of this process. A Transcriber that was closed early may still be importing vLLM when the next one starts."""


class ParentThread(threading.Thread):
    """The thread that starts the engine's process and lives as long as the engine.

    The kernel kills the process when this thread ends (see vllm.plugin.parent_watchdog). The thread that uses the
    engine may end earlier, because an engine can be kept for the next run.
    """

    def __init__(self, log: EngineLog, num_gpus: int, tokenizer: str, prompt_processes: int):
        super().__init__(daemon=True, name="vllm-parent")
        self._log, self._num_gpus, self._tokenizer = log, num_gpus, tokenizer
        self._prompt_processes, self.prompts = prompt_processes, list[socket.socket]()
        self.arguments: Future[Mapping[str, Any]] = Future()
        """The keyword arguments of vLLM's `LLM`. If they are cancelled, no engine is started."""
        self.llm: Future[Any] = Future()
        self.imported, self.unneeded = threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        """Start the engine, and wait until it is not needed any more."""
        try:
            with contextlib.ExitStack() as imports:  # until vLLM has started its engine, which then does the work
                imports.enter_context(preload.without_gc())
                with self._while_loading():
                    one_gpu = self._num_gpus == 1 and bool(gpu.visible_gpus())
                    preloaded = PreloadedProcess(one_gpu, self._tokenizer, imports.close, self._prompt_processes)
                    self.prompts = preloaded.prompts
                    imports.enter_context(lazy_imports.lazily())  # begins to import vLLM
                    from vllm import LLM

                    preload.note("vLLM is imported in the parent")
                self.imported.set()
                try:
                    arguments = self.arguments.result()
                    with self._while_loading(), compat.engine_process(preloaded):
                        from voxbatch.vllm.plugin.patches import skip_decoder_start_token, supported_mm_limits

                        skip_decoder_start_token.add_no_start_token()
                        supported_mm_limits.raise_limits(arguments.get("limit_mm_per_prompt", {}))
                        llm = LLM(**arguments, worker_extension_cls=WORKER_EXTENSION)
                finally:
                    preloaded.end_if_unused()
            self.llm.set_result(llm)  # only now, after the environment and the outputs are restored
        except CancelledError:
            self._log.remove()
            return
        except BaseException as e:  # noqa: BLE001 the thread that waits for the engine raises it again
            self.llm.set_exception(e)
            self.imported.set()
            return
        self.unneeded.wait()

    @contextlib.contextmanager
    def _while_loading(self) -> Iterator[None]:
        """Return the context in which processes of the engine are started."""
        own_threads = threads(on_gpu=bool(gpu.visible_gpus()))
        with (
            _LOADING,
            variables_set({**allocator(self._num_gpus), **own_threads}),
            parent_watchdog.kills_children(),
            outputs_to(self._log.file),
        ):
            yield
