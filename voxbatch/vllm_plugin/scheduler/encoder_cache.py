"""The size of vLLM's encoder cache, which limits how many requests run at a time."""

from __future__ import annotations

from typing import Any


def enlarge_encoder_cache(scheduler: Any) -> None:
    """Give the encoder cache of a scheduler as many slots as all running requests can need."""
    cache = scheduler.encoder_cache_manager
    slots = max(cache.cache_size, scheduler.max_num_running_reqs * scheduler.max_model_len)
    cache.cache_size = cache.num_free_slots = cache.num_freeable_slots = slots
