"""Runs inside vLLM's own process: a scheduler that lets every request that fits the memory run.

vLLM's encoder cache holds `max_num_batched_tokens` slots, and a Voxtral Realtime request keeps one for each of its
positions until it ends: 16,384 slots are 38 requests, whatever max_num_seqs says. Here the cache is as large as all
running requests need. In return, no more run than have K/V blocks to the end of their audio (`admission`): a request
that is thrown out for want of blocks must be computed anew.

Where the encoder runs once a chunk (voxbatch.vllm_plugin), requests are admitted in bursts: their chunks are encoded
together, and the many steps between two bursts only decode, which is one CUDA graph. And what a request's chunk left
in the encoder cache goes as soon as the request has ended, not when its room is wanted, for it has a place of its own.
What all chunks begin with is decoded once for all of them (`beginning`).
"""

from __future__ import annotations

from typing import Any, ClassVar

from vllm.v1.core.sched.scheduler import Scheduler

from voxbatch import vllm_plugin
from voxbatch.engines.vllm import bursts
from voxbatch.engines.vllm.admission import Reservations
from voxbatch.engines.vllm.beginning import Beginning, beginning
from voxbatch.engines.vllm.steady import shortcuts
from voxbatch.engines.vllm.steady.scheduler import SteadyScheduler


class _Lifted:
    """Mixed into either of vLLM's schedulers."""

    _shares: ClassVar[bool] = True
    """Off, every chunk goes the whole way through the decoder: for comparison."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        scheduler: Any = self
        self._prefilled = vllm_plugin.asked()
        shares = self._prefilled and self._shares
        longest = Reservations(scheduler).longest
        self._beginning: Beginning | None = beginning(scheduler, longest) if shares else None
        self._reservations = Reservations(scheduler, self._beginning.blocks if self._beginning else 0)
        # vLLM 0.32 admits by another count than it holds room for
        self._limit = "max_num_active_reqs" if hasattr(scheduler, "max_num_active_reqs") else "max_num_running_reqs"
        self._most: int = getattr(scheduler, self._limit)
        self._burst: int = bursts.size(min(self._most, self._reservations.fitting)) if self._prefilled else 1
        _lift(scheduler)
        manager = scheduler.kv_cache_manager
        if self._prefilled:
            scheduler.max_num_encoder_input_tokens = scheduler.encoder_cache_manager.cache_size
            manager.allocate_slots = shortcuts.slots(manager, scheduler.max_model_len)
            if self._beginning:
                manager.get_computed_blocks = self._beginning.computed
        manager.allocate_slots = self._reservations.checked(manager.allocate_slots)
        self._lists = 0
        """That _try_schedule_encoder_inputs returns behind a number of tokens and a budget; 0 until it was asked."""

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        scheduler: Any = super()
        if self._prefilled:
            _forget_ended(self.encoder_cache_manager)  # type: ignore[attr-defined]
        setattr(self, self._limit, self._admits())
        try:
            step = scheduler.schedule(*args, **kwargs)
        finally:
            setattr(self, self._limit, self._most)
        if self._beginning:
            self._beginning.enter(step, self.requests)  # type: ignore[attr-defined]
        return step

    def _admits(self) -> int:
        """Return how many requests may run after this step: those that do, and more where a burst has room.

        The step's budget of positions is also what bounds the audio that it encodes, and so the host memory that holds
        the samples on their way to the GPU, and how long the others wait. So a chunk counts with its whole prompt,
        though most of that is not computed.
        """
        own: Any = self
        running = len(own.running)
        self._reservations.keep_only(own.running)
        burst = self._burst
        if self._most - running < burst or self._reservations.room(own.waiting, burst) < burst:
            return running
        if not self._beginning or not self._beginning.prompt:
            return self._most
        room: int = own.max_num_scheduled_tokens - running
        return min(self._most, running + max(1, room // self._beginning.prompt))

    def _try_schedule_encoder_inputs(
        self, request: Any, num_computed_tokens: int, num_new_tokens: int, encoder_compute_budget: int, **others: Any
    ) -> tuple[Any, ...]:
        cache = self.encoder_cache_manager  # type: ignore[attr-defined]
        if self._lists and shortcuts.has_its_audio(cache, request, num_computed_tokens):
            return ([], num_new_tokens, encoder_compute_budget, *([] for _ in range(self._lists)))
        scheduler: Any = super()
        found: tuple[Any, ...] = scheduler._try_schedule_encoder_inputs(
            request, num_computed_tokens, num_new_tokens, encoder_compute_budget, **others
        )
        self._lists = len(found) - 3 if self._prefilled else 0
        return found


def _lift(scheduler: Any) -> None:
    cache = scheduler.encoder_cache_manager
    slots = max(cache.cache_size, scheduler.max_num_running_reqs * scheduler.max_model_len)
    cache.cache_size = cache.num_free_slots = cache.num_freeable_slots = slots


def _forget_ended(cache: Any) -> None:
    """Let go of what no request refers to, in the cache's own way (EncoderCacheManager.can_allocate)."""
    sizes: dict[str, int] = getattr(cache, "num_embeds_by_hash", {})  # vLLM 0.31 and later
    while cache.freeable:
        name, slots = cache.freeable.popitem(last=False)
        del cache.cached[name]
        sizes.pop(name, None)
        cache.freed.append(name)
        cache.num_free_slots += slots


class Lifted(_Lifted, Scheduler):  # type: ignore[misc]
    pass


class LiftedAsync(_Lifted, SteadyScheduler):
    pass
