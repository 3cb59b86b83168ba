"""Shortcuts in the steps that vLLM schedules itself, for those of the requests that only go on.

Hundreds of requests take it some 3 ms to find, each time, that the audio is there and that the last K/V block has room.
What is not that plain goes vLLM's own way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from voxbatch.engines.vllm.steady.plain import slides


def slots(manager: Any, longest: int) -> Callable[..., Any]:
    """In the place of KVCacheManager.allocate_slots: nothing to do where the one new token has room in a request's last
    block. The same where blocks are shared or thrown away on the way, which is left alone.

    Args:
        longest: context of a request, in tokens.
    """
    allocate: Callable[..., Any] = manager.allocate_slots
    groups = manager.coordinator.single_type_managers
    if manager.enable_caching or len(groups) != 1 or slides(groups[0].kv_cache_spec, longest):
        return allocate
    blocks, size, nothing = groups[0].req_to_blocks, groups[0].block_size, manager.empty_kv_cache_blocks

    def allocate_slots(request: Any, num_new_tokens: int, **others: Any) -> Any:
        done: int = request.num_computed_tokens
        if num_new_tokens == 1 and 0 < done < len(blocks.get(request.request_id, ())) * size:
            return nothing
        return allocate(request, num_new_tokens, **others)

    return allocate_slots


def has_its_audio(cache: Any, request: Any, num_computed_tokens: int) -> bool:
    """A request under way, whose encoder's output is kept for it."""
    if not num_computed_tokens or len(request.mm_features) != 1:
        return False
    return request.request_id in cache.cached.get(request.mm_features[0].identifier, ())
