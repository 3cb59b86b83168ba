"""Loaded inside vLLM's own processes: Voxtral Realtime for whole chunks, whose encoder runs once a chunk.

Stock vLLM runs the model as if the audio were still arriving: the encoder inside every decode step, its K/V cache ten
times the decoder's. A batch job has the whole chunk. Here the encoder runs when a chunk is admitted, for all chunks of
a step together and without a K/V cache; a decode step holds the decoder alone (`model`). What is said is the same.

The plugin also loads Voxtral Realtime's weights from Hugging Face's format, for this model and for stock's (`loader`).

vLLM calls `register` in each of its processes, by the entry point `vllm.general_plugins` of this package. It does
nothing unless the environment asks for it, so that other users of the same vLLM get the stock model. The engine asks
(`voxbatch.engines.vllm.prefill`). Of vLLM's own names only those in `private` are touched.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
from importlib import metadata

SWITCH = "VOXBATCH_VLLM_PLUGIN"
"""The environment variable by which the engine asks for this model: ON."""
LOADER_SWITCH = "VOXBATCH_VLLM_LOADER"
"""The environment variable by which the engine asks for the load format: ON."""
ON = "1"
LOAD_FORMAT = "voxbatch_huggingface"
"""The load format of Voxtral Realtime's weights in Hugging Face's format (see `loader`)."""
ATTENTION = "CUSTOM"
"""vLLM's name for the attention backend that `register` brings (see `decoding`)."""
GROUP, ENTRY = "vllm.general_plugins", "voxbatch"
"""Of the entry point, in pyproject.toml."""
GROUP_FRAMES = 8_192
"""Encoded at a time: four chunks of 512 tokens. More gain nothing on an H200, and each frame takes some 45 KB of
working memory in the 4B model: 0.4 GB."""


def asked() -> bool:
    return os.environ.get(SWITCH) == ON


def is_installed() -> bool:
    """Whether vLLM will find `register` and call it: voxbatch is installed as a package, and nobody has told vLLM to
    load other plugins only."""
    allowed = os.environ.get("VLLM_PLUGINS")
    wanted = allowed is None or ENTRY in allowed.split(",")
    return wanted and any(each.name == ENTRY for each in metadata.entry_points(group=GROUP))


def register() -> None:
    """Put our model in the place of vLLM's, and make our load format known to vLLM, each where it is asked for.

    Raises:
        RuntimeError: this vLLM is not one that the model was read against.
    """
    if os.environ.get(LOADER_SWITCH) == ON:
        importlib.import_module("voxbatch.vllm_plugin.loader")
    if asked():
        from voxbatch.vllm_plugin import private

        private.require_version()
        if multiprocessing.parent_process() is not None:  # one that vLLM has started, to hold a model
            private.require_names()
        from vllm import ModelRegistry
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        ModelRegistry.register_model(private.ARCHITECTURE, "voxbatch.vllm_plugin.model:PrefillRealtime")
        register_backend(AttentionBackendEnum[ATTENTION], "voxbatch.vllm_plugin.decoding.Decoding")
