"""Replace vLLM's `flash_attn_varlen_func`, the attention of a reproducible run: one kernel for all steps, no split sum.

In its batch-invariant mode vLLM forbids the attention of decoders to split the keys of a query among multiprocessors.
The attention of encoders (vllm.v1.attention.ops.vit_attn_wrappers) does not heed the mode: there FlashAttention chooses
the number of splits by the number of windows in a step.

For heads of 64 numbers, as Whisper has, FlashAttention 3 adds up other numbers of keys at a time if no query of a step
is longer than 64 positions (hopper/tile_size.h). So it is always told that one is.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

NAME = "flash_attn_varlen_func"
IMPORTER = "vllm.v1.attention.backends.flash_attn"
"""The module of decoders, which imports the function by its name."""
SMALL_HEAD, LONG_QUERY = 64, 65
"""Largest head whose tiles differ, and the shortest query with the tiles of long ones."""


def replace() -> None:
    """Replace the function in this process, if it has a GPU."""
    from vllm.platforms import current_platform

    if current_platform.is_cuda():
        from vllm.v1.attention.backends import fa_utils

        for module in filter(None, (fa_utils, sys.modules.get(IMPORTER))):
            setattr(module, NAME, wrap(getattr(module, NAME)))


def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with one kernel for all lengths of queries. It splits no sum unless its caller says so."""

    @functools.wraps(original)
    def flash_attn_varlen_func(q: Any, *args: Any, max_seqlen_q: int, num_splits: int = 1, **named: Any) -> Any:
        longest = max(max_seqlen_q, LONG_QUERY) if q.shape[-1] <= SMALL_HEAD else max_seqlen_q
        return original(q, *args, max_seqlen_q=longest, num_splits=num_splits, **named)

    return flash_attn_varlen_func
