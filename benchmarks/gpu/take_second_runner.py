"""Let the plugin run in vLLM's second model runner, for bench_plugin.py --tokens and --profile.

The engine must run in this process, as there. With vLLM 0.26 the plugin does not take that runner by itself: there the
state of a model has another method, which `take` renames.
"""

from __future__ import annotations

import os


def take() -> None:
    """Take the second model runner in this process. Call this before an engine is made."""
    from voxbatch.engines.vllm import compat
    from voxbatch.vllm_plugin import vllm_names

    os.environ[compat.RUNNER] = "1"
    compat.SECOND_RUNNER_FITS = (0, 26)
    if vllm_names.minor(vllm_names._version()) != "0.26":
        return
    vllm_names.mismatches = lambda *_, **__: []
    from vllm.v1.worker.gpu.model_states.default import DefaultModelState

    DefaultModelState.prepare_inputs_embeds = DefaultModelState.get_mm_embeddings
    from voxbatch.vllm_plugin.model_state import WholeChunkState

    WholeChunkState.get_mm_embeddings = WholeChunkState.prepare_inputs_embeds
