"""Runs inside vLLM's own process: a scheduler that lets every request that fits the memory run.

vLLM's encoder cache holds `max_num_batched_tokens` slots, and a Voxtral Realtime request keeps one for each of its
positions until it ends: 16,384 slots are 38 requests, whatever max_num_seqs says. Here the cache is as large as all
running requests need. In return, no more run than have K/V blocks to the end of their audio: a request that is
thrown out for want of blocks must be computed anew.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

IN_FLIGHT = 2
"""Tokens that asynchronous scheduling may be ahead by."""


class _Lifted:
    """Mixed into either of vLLM's schedulers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        scheduler: Any = self
        admitted = _admitted(scheduler)
        scheduler.max_num_running_reqs = min(scheduler.max_num_running_reqs, admitted)
        if hasattr(scheduler, "max_num_active_reqs"):  # vLLM 0.32 counts these apart
            scheduler.max_num_active_reqs = min(scheduler.max_num_active_reqs, admitted)
        _lift(scheduler)


def _admitted(scheduler: Any) -> int:
    """Requests of full length whose K/V blocks are there at the same time."""
    cache = scheduler.kv_cache_config
    each = sum(_blocks(group.kv_cache_spec, scheduler.max_model_len) for group in cache.kv_cache_groups)
    return max(1, int(cache.num_blocks) // max(1, each))


def _lift(scheduler: Any) -> None:
    cache = scheduler.encoder_cache_manager
    slots = max(cache.cache_size, scheduler.max_num_running_reqs * scheduler.max_model_len)
    cache.cache_size = cache.num_free_slots = cache.num_freeable_slots = slots


def _blocks(spec: Any, max_model_len: int) -> int:
    window = getattr(spec, "sliding_window", None) or max_model_len
    slides = window + IN_FLIGHT < max_model_len
    held = window + IN_FLIGHT if slides else max_model_len
    return int(-(-held // spec.block_size)) + slides  # a window that slides seldom begins where a block does


class Lifted(_Lifted, Scheduler):  # type: ignore[misc]
    pass


class LiftedAsync(_Lifted, AsyncScheduler):  # type: ignore[misc]
    pass
