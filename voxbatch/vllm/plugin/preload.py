"""The first thing that runs in the engine's process: it imports vLLM while the parent still prepares the engine.

The parent's side is `voxbatch.vllm.engine.preloaded_process`. vLLM alone would start the process when the parent has
imported vLLM, too, and the second import would take as long again.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import multiprocessing
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

from voxbatch.vllm import plugin as vllm_plugin
from voxbatch.vllm.plugin import lazy_imports, prompts

MODULES = (
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu_worker",
    "voxbatch.vllm.plugin.worker_extension",
    "vllm.model_executor.model_loader",
    "vllm.model_executor.models.voxtral_realtime",  # brings those of the instruct models and of Whisper
    "vllm.model_executor.warmup.kernel_warmup",
    "vllm.v1.attention.backends.flash_attn",
)
"""The modules that take long to import, of those that nearly every engine imports before it is ready."""
PLUGIN_MODULES = ("voxbatch.vllm.plugin.model", "voxbatch.vllm.plugin.decode_attention")
"""The same, of an engine with the plugin."""


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Switch Python's garbage collector off within this context.

    It would look through the objects of vLLM's modules again and again while they are imported: 13 to 22 % of the
    time. At the end all objects move to the oldest generation, so that the next collection does not look through them
    either.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if not gc.get_freeze_count():  # the program has frozen nothing that would be unfrozen here
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def note(text: str) -> None:
    """Write a line to the engine's log, where the engine's process and its thread in the parent have their standard
    error. Some versions of vLLM configure their loggers too late for this."""
    now = datetime.now().astimezone().replace(tzinfo=None).isoformat(" ", "milliseconds").replace(".", ",")
    sys.stderr.write(f"{now} {os.getpid()} INFO [voxbatch] {text}\n")
    sys.stderr.flush()


def create_cuda_context(library: str = "libcuda.so.1") -> None:
    """Create the CUDA context of the first visible GPU, which PyTorch then uses.

    This calls the driver, and not PyTorch, so that it needs no import, and lets other threads run. Without a driver it
    does nothing. If a call fails, PyTorch will fail in the same way, and can report it.
    """
    began = time.monotonic()
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # as PyTorch does before it creates a context
    with contextlib.suppress(OSError, AttributeError):
        cuda, device, context = ctypes.CDLL(library), ctypes.c_int(), ctypes.c_void_p()
        if cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0:
            cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    note(f"tried to create a CUDA context for {time.monotonic() - began:.1f} s")


def load_tokenizer(folder: str) -> Any:
    """Let vLLM load the tokenizer of a Voxtral in Mistral's format, and keep it for its engine in this process.

    Returns:
        vLLM's MistralTokenizer. The same object the next time.

    vLLM keeps a tokenizer by the fields of a model's configuration that are named here. If a version of vLLM reads
    other fields, it loads the tokenizer once more.
    """
    model = SimpleNamespace(
        model=folder, tokenizer=folder, tokenizer_mode="mistral", tokenizer_revision=None, skip_tokenizer_init=False,
        runner_type="generate", trust_remote_code=False,
    )  # fmt: skip
    with kept_pieces():
        return importlib.import_module("vllm.tokenizers").cached_tokenizer_from_config(model)


@contextlib.contextmanager
def kept_pieces() -> Iterator[None]:
    """Keep the text of each token of a Tekkenizer within this context, and take it from the token's bytes.

    mistral-common asks for the texts of all 131,072 tokens when it loads a tokenizer, and then vLLM does. Each time
    takes a quarter of the load.
    """
    tekkenizer: Any = importlib.import_module("mistral_common.tokens.tokenizers.tekken").Tekkenizer
    usual = tekkenizer.id_to_piece

    @functools.cache
    def id_to_piece(tokenizer: Any, token_id: int) -> str:
        in_model = token_id - tokenizer.num_special_tokens
        if in_model < 0:
            return str(usual(tokenizer, token_id))
        return str(tokenizer._model.decode_single_token_bytes(in_model).decode(errors="replace"))

    tekkenizer.id_to_piece = id_to_piece
    try:
        yield
    finally:
        tekkenizer.id_to_piece = usual


def run(connection: Connection, on_gpu: bool, tokenizer: str, sockets: Sequence[socket.socket] = ()) -> None:
    """Import vLLM, wait for the parent's message, and run what it names.

    Args:
        connection: gets (environment, target, kwargs) once, or is closed if the engine is not wanted.
        on_gpu: create the CUDA context of the first visible GPU meanwhile. An engine that shares its model among
            several GPUs needs none in this process.
        tokenizer: folder of a tokenizer in Mistral's format that the engine will use. Empty for any other.
        sockets: one for each process that shall make prompts; see `prompts.fork`. They are forked before there is a
            CUDA context, which would live as long as they do.
    """
    cuda = threading.Thread(target=create_cuda_context, daemon=True)
    if on_gpu and not sockets:
        cuda.start()
    with contextlib.ExitStack() as lazy:
        with without_gc():
            lazy.enter_context(lazy_imports.lazily())
            names = (*MODULES, *(PLUGIN_MODULES if vllm_plugin.is_switched_on() else ()))
            for name in names:
                with contextlib.suppress(Exception):  # it is imported later, where an error can be reported
                    importlib.import_module(name)
            with contextlib.suppress(Exception):
                importlib.import_module("vllm.plugins").load_general_plugins()
            note("vLLM is imported in the engine's process")
            with contextlib.suppress(Exception):
                if tokenizer:
                    load_tokenizer(tokenizer)
                    note("the tokenizer is loaded in the engine's process")
        gc.freeze()  # vLLM collects garbage up to 13 times in a start, each time through all objects of its modules
        if sockets:
            prompts.fork(sockets)
            if on_gpu:
                cuda.start()
        try:
            environment, target, kwargs = connection.recv()
            note("the engine's process has its arguments")
        except EOFError:
            return
        connection.close()
        multiprocessing.current_process().daemon = False  # it was one so that this program can end while it waits here
        # only what has changed: setproctitle finds no place for its title once all variables have moved
        os.environ.update({name: value for name, value in environment.items() if os.environ.get(name) != value})
        target(**kwargs)
