"""Methods of vLLM that are replaced: one module for each, named after the method.

| module | replaces | on |
|---|---|---|
| `update_states` | `_update_states` | the class GPUModelRunner |
| `execute_mm_encoder` | `_execute_mm_encoder` | the class GPUModelRunner |
| `gather_mm_embeddings` | `_gather_mm_embeddings` | the class GPUModelRunner |
| `prepare_input_ids` | `_prepare_input_ids` | the class GPUModelRunner |
| `sample_scores` | `_sample` | the class GPUModelRunner, if words shall have a confidence |
| `bookkeeping_sync` | `_bookkeeping_sync` | the class GPUModelRunner |
| `allocate_slots` | `allocate_slots` | the scheduler's KVCacheManager |
| `skip_decoder_start_token` | this attribute | the class WhisperMultiModalProcessor, where requests are made |
| `linear_batch_invariant` | this function | the modules of vLLM's layers, in a reproducible run |
| `flash_attn_varlen_func` | this function | the modules of attention that import it, in a reproducible run |
| `group_and_batch_mm_kwargs` | this function | the modules of vLLM's runners, if the class of the model needs it |
| `supported_mm_limits` | `get_supported_mm_limits` | the class VoxtralProcessingInfo, where requests are made |

vLLM's setting worker_cls cannot replace the patches of the runner: a worker creates the runner by a name that its
init_device imports, so a derived worker would have to patch the same class, and each platform has its
own worker class. `model` calls `patch_runner` in exactly those processes that hold a model.
GPUModelRunner is vLLM's first model runner, which the engine chooses (`voxbatch.vllm.engine.compat`). `sample_scores`
and `group_and_batch_mm_kwargs` are added by the engine (`worker_extension`), with any model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from voxbatch.vllm.plugin.patches import (
    bookkeeping_sync,
    execute_mm_encoder,
    gather_mm_embeddings,
    prepare_input_ids,
    update_states,
)

RUNNER_METHODS: dict[str, Callable[[Any], Any]] = {
    "_update_states": update_states.wrap,
    "_execute_mm_encoder": execute_mm_encoder.wrap,
    "_gather_mm_embeddings": gather_mm_embeddings.wrap,
    "_prepare_input_ids": prepare_input_ids.wrap,
    "_bookkeeping_sync": bookkeeping_sync.wrap,
}
"""Methods of vLLM's runner, in the order of a step, and the functions that wrap them."""


def patch_runner() -> None:
    """Wrap the methods of vLLM's runner, once in a process."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    for name, wrap in RUNNER_METHODS.items():
        original = getattr(GPUModelRunner, name)
        if not hasattr(original, "original"):
            method: Any = wrap(original)
            method.original = original
            setattr(GPUModelRunner, name, method)
