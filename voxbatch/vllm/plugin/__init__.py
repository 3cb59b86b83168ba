"""Plugin inside vLLM's processes: runs Voxtral Realtime's encoder once for each chunk.

Stock vLLM runs the model as if the audio were still arriving: the encoder runs inside every decode step, and its K/V
cache is ten times as large as the decoder's. A batch job has the whole chunk from the start. This plugin runs the
encoder when a chunk is admitted, for all chunks of a step together and without a K/V cache. A decode step then runs the
decoder alone (see `model`). The model's output is the same.

Stock vLLM runs the encoder of Mini 3B and Small 24B once per window already. For them the plugin brings the bursts, the
attention of steps that only decode, and the cheaper work on the host (see `instruct_model`).

The plugin also loads Voxtral Realtime's weights from Hugging Face's format, for this model and for the stock model (see
`loader`).

vLLM calls `register` in each of its processes, through the entry point `vllm.general_plugins` of this package.
`register` does nothing unless an environment variable switches it on, so that other users of the same vLLM get the
stock model. The engine sets the variable (`voxbatch.vllm.engine.prefill`). vLLM's setting additional_config cannot do
this: vLLM calls `register` without arguments, and in some processes before it has a configuration.

| module or package | its job |
|---|---|
| `model`, `encoder` | Realtime; its encoder (`encoder_*`, `packing`, `rotary`, `silence`, `spectrogram`) |
| `instruct_model` | Mini 3B and Small 24B |
| `speech/` | Voxtral TTS |
| `encoder_output_pool` | memory for encoded audio |
| `scheduler/` | vLLM's schedulers for batch jobs |
| `patches/` | one module for each method of vLLM that is replaced |
| `decode_attention`, `*_kernel` | attention of steps that only decode; CUDA kernels |
| `loader`, `weights` | the load format |
| `token_scores`, `score_kernel` | log-probability of each sampled token, with the plugin or without it |
| `preload`, `lazy_imports` | what the engine's process imports, and what it imports only when it is used |
| `server_guards` | addresses, samples, plain text and company of requests to `voxbatch serve` |
| `server_middleware` | rate limit and access log of `voxbatch serve` |
| `product_check` | the check of a reproducible run |
| `parent_watchdog`, `worker_extension` | used by the engine with the plugin or without it |
| `vllm_version` | the version of vLLM that the plugin is made for, and the installed one |
"""

from __future__ import annotations

import importlib
import os
from importlib import metadata

SWITCH = "VOXBATCH_VLLM_PLUGIN"
"""Environment variable that switches this model on. The engine sets it to ON."""
LOADER_SWITCH = "VOXBATCH_VLLM_LOADER"
"""Environment variable that switches the load format on. The engine sets it to ON."""
REPRODUCIBLE_SWITCH = "VOXBATCH_VLLM_REPRODUCIBLE"
"""Environment variable that makes the result of a request independent of the other requests. The engine sets it to ON,
together with vLLM's BATCH_INVARIANT."""
BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"
"""vLLM's variable for its batch-invariant mode."""
ON = "1"
LOAD_FORMAT = "voxbatch_huggingface"
"""Name of the load format for Voxtral Realtime's weights in Hugging Face's format (see `loader`)."""
WORKER_EXTENSION = "voxbatch.vllm.plugin.worker_extension.WorkerExtension"
"""The class that is mixed into vLLM's workers, for the methods that `VllmProcess` and `server_guards` call."""
ATTENTION_BACKEND = "CUSTOM"
"""vLLM's name for the attention backend that `register` adds (see `decode_attention`)."""
SCORES = "voxbatch_scores"
"""Key of a finished request's scores (see `token_scores`) in its kv_transfer_params: bytes of [tokens, 2], float32."""
ENTRY_POINT_GROUP, ENTRY_POINT = "vllm.general_plugins", "voxbatch"
"""Group and name of the entry point, as in pyproject.toml."""
GROUP_FRAMES = 8_192
"""Maximum number of frames that are encoded at a time: four chunks of 512 tokens. More frames gain nothing on an
H200."""
FRAME_BYTES = 45_000
"""Working memory of the encoder for each frame that is encoded at a time, in the 4B model on an H200: 0.4 GB for
GROUP_FRAMES. Mini 3B's encoder is of the same size, and was not measured."""


def is_switched_on() -> bool:
    """Return whether the environment switches this model on."""
    return os.environ.get(SWITCH) == ON


def is_reproducible() -> bool:
    """Return whether the environment asks for results that do not depend on the other requests."""
    return os.environ.get(REPRODUCIBLE_SWITCH) == ON


def is_installed() -> bool:
    """Return whether vLLM will find `register` and call it.

    Two conditions hold then: voxbatch is installed as a package, and VLLM_PLUGINS does not limit vLLM to other plugins.
    """
    allowed = os.environ.get("VLLM_PLUGINS")
    is_allowed = allowed is None or ENTRY_POINT in allowed.split(",")
    return is_allowed and any(
        entry_point.name == ENTRY_POINT for entry_point in metadata.entry_points(group=ENTRY_POINT_GROUP)
    )


def register() -> None:
    """Replace vLLM's model and its batch-invariant operations with ours, and add our load format to vLLM, each only if
    its environment variable is set.

    The engine sets the first one for VERSION of `vllm_version` alone.
    """
    if os.environ.get(LOADER_SWITCH) == ON:
        importlib.import_module("voxbatch.vllm.plugin.loader")
    if is_reproducible():
        for name in ("linear_batch_invariant", "flash_attn_varlen_func"):
            importlib.import_module(f"voxbatch.vllm.plugin.patches.{name}").replace()
    if is_switched_on():
        from vllm import ModelRegistry
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        from voxbatch.vllm.plugin import speech, vllm_version

        ModelRegistry.register_model(vllm_version.ARCHITECTURE, "voxbatch.vllm.plugin.model:PrefillRealtime")
        ModelRegistry.register_model(speech.ARCHITECTURE, "voxbatch.vllm.plugin.speech.model:SpeechModel")
        ModelRegistry.register_model(
            vllm_version.INSTRUCT_ARCHITECTURE, "voxbatch.vllm.plugin.instruct_model:PrefillInstruct"
        )
        register_backend(
            AttentionBackendEnum[ATTENTION_BACKEND], "voxbatch.vllm.plugin.decode_attention.DecodeAttentionBackend"
        )
