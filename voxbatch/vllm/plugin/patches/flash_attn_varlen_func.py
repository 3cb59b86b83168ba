"""Replace vLLM's `flash_attn_varlen_func`, the attention of encoders in a reproducible run: no sum is split.

In its batch-invariant mode vLLM forbids the attention of decoders to split the keys of a query among multiprocessors.
The attention of encoders (vllm.v1.attention.ops.vit_attn_wrappers) does not heed the mode: there FlashAttention chooses
the number of splits by the number of windows in a step.
"""

from __future__ import annotations

import functools
from typing import Any

NAME = "flash_attn_varlen_func"


def replace() -> None:
    """Replace the function in this process, if it has a GPU. Callers that name a number of splits get that number."""
    from vllm.platforms import current_platform

    if current_platform.is_cuda():
        from vllm.v1.attention.backends import fa_utils

        unsplit(fa_utils)


def unsplit(module: Any) -> None:
    """Let the function of a module split no sum unless its caller says so."""
    setattr(module, NAME, functools.partial(getattr(module, NAME), num_splits=1))
