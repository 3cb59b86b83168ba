"""Replace KVCacheManager.get_computed_blocks: a request that begins with the shared prefix starts after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from voxbatch.vllm_plugin.scheduler.shared_prefix import SharedPrefix


def replacement(manager: Any, prefix: SharedPrefix) -> Callable[..., tuple[Any, int, int]]:
    """Return a replacement for the `get_computed_blocks` of a manager.

    It returns no blocks, and the number of positions that need not be computed. So the request gets blocks of its own
    for all its positions, and its first blocks stay unused, because vLLM shares blocks only if it finds them by their
    content.
    """

    def get_computed_blocks(request: Any, max_cache_hit_length: int | None = None) -> tuple[Any, int, int]:
        """Return no blocks, and the positions of the shared prefix. vLLM 0.33 gives a limit only with an auxiliary
        output connector, and then there is no shared prefix (`fast_path_conditions`)."""
        return manager.empty_kv_cache_blocks, prefix.computed_positions(request), 0

    return get_computed_blocks
