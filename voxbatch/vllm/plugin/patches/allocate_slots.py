"""Replace KVCacheManager.allocate_slots: reserve all blocks of a new request; allocate nothing where nothing is needed.

With hundreds of requests, vLLM takes milliseconds in each step that it schedules itself to find that the last K/V block
of each request has a free slot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from voxbatch.vllm.plugin.scheduler.admission import Reservations

AllocateSlots = Callable[..., Any]


def only_grow(manager: Any, max_model_len: int) -> bool:
    """Return whether the K/V blocks of a request only grow while it runs: none is shared or freed.

    Args:
        manager: vLLM's KVCacheManager.
        max_model_len: maximum context of a request, in tokens.
    """
    groups = manager.coordinator.single_type_managers
    if manager.enable_caching or len(groups) != 1:
        return False
    window = getattr(groups[0].kv_cache_spec, "sliding_window", None)
    return window is None or window >= max_model_len


def skip_if_block_has_slot(manager: Any, max_model_len: int) -> AllocateSlots:
    """Return a replacement that allocates nothing if the last block of a request has a slot for its one new token.

    If blocks are shared, or freed while the request runs, the result is vLLM's own method. The arguments are those of
    `only_grow`.
    """
    original: AllocateSlots = manager.allocate_slots
    if not only_grow(manager, max_model_len):
        return original
    groups = manager.coordinator.single_type_managers
    blocks, block_size, no_blocks = groups[0].req_to_blocks, groups[0].block_size, manager.empty_kv_cache_blocks

    def allocate_slots(request: Any, num_new_tokens: int, **others: Any) -> Any:
        computed: int = request.num_computed_tokens
        if num_new_tokens == 1 and 0 < computed < len(blocks.get(request.request_id, ())) * block_size:
            return no_blocks
        return original(request, num_new_tokens, **others)

    return allocate_slots


def reserve_all_blocks(original: AllocateSlots, reservations: Reservations) -> AllocateSlots:
    """Return a replacement that refuses a new request whose blocks are not all free, and else reserves them.

    A request is never refused if no other request has blocks.
    """

    def allocate_slots(request: Any, *args: Any, **others: Any) -> Any:
        if request.request_id in reservations.blocks:
            return original(request, *args, **others)
        if not reservations.fits(request):
            return None
        blocks = original(request, *args, **others)
        if blocks is not None:
            reservations.add(request)
        return blocks

    return allocate_slots
