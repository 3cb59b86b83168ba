"""Replace KVCacheManager.get_computed_blocks: a request that begins with the shared prefix starts after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from voxbatch.vllm_plugin.scheduler.shared_prefix import SharedPrefix


def replacement(manager: Any, prefix: SharedPrefix) -> Callable[[Any], tuple[Any, int, int]]:
    """Return a replacement for the `get_computed_blocks` of a manager.

    It returns no blocks, and the number of positions that need not be computed. So the request gets blocks of its own
    for all its positions, and its first blocks stay unused, because vLLM shares blocks only if it finds them by their
    content.
    """

    def get_computed_blocks(request: Any) -> tuple[Any, int, int]:
        return manager.empty_kv_cache_blocks, prefix.computed_positions(request), 0

    return get_computed_blocks
