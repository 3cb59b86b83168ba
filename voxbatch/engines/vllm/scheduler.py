"""A scheduler, inside vLLM's own process, that runs every request that fits into the memory.

vLLM's encoder cache holds `max_num_batched_tokens` slots, and a Voxtral Realtime request keeps one slot for each of its
positions until it ends. So 16,384 slots are enough for 38 requests, whatever max_num_seqs says. Here the cache is as
large as all running requests need. In return, a request is admitted only if K/V blocks are left for all its positions
(`admission`), because a request that is preempted for lack of blocks must be computed anew.

If the encoder runs once per chunk (voxbatch.vllm_plugin), requests are admitted in bursts. The chunks of a burst are
encoded together, and the many steps between two bursts only decode, which is one CUDA graph. An entry of the encoder
cache is removed as soon as its request has ended, not when vLLM needs its slots, because it occupies a place in the
encoder output pool. The shared prefix, with which all chunks begin, is decoded once for all of them (`beginning`).
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
    """Mixin for either of vLLM's schedulers."""

    _shares: ClassVar[bool] = True
    """False for comparisons only: the decoder then computes every chunk in full, without the shared prefix."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        scheduler: Any = self
        self._prefilled = vllm_plugin.asked()
        shares = self._prefilled and self._shares
        longest = Reservations(scheduler).longest
        self._beginning: Beginning | None = beginning(scheduler, longest) if shares else None
        self._reservations = Reservations(scheduler, self._beginning.blocks if self._beginning else 0)
        # vLLM 0.32 limits admission by one number and sizes its buffers by another
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
        """Number of lists that vLLM's _try_schedule_encoder_inputs returns after a list, the number of tokens and the
        budget. 0 before the first call, and always 0 without the plugin."""

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedule a step, with the number of requests limited to what `_admits` returns."""
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
        """Return how many requests may run after this step: the running ones, and a burst if it fits.

        The step's budget of positions also limits the audio that the step encodes. So it limits the host memory that
        holds the samples on their way to the GPU, and the time for which the other requests wait. For this reason a
        chunk counts with its whole prompt, although most of the prompt is not computed.
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
    """Remove all entries that no request refers to, in the same way as EncoderCacheManager.can_allocate."""
    sizes: dict[str, int] = getattr(cache, "num_embeds_by_hash", {})  # vLLM 0.31 and later
    while cache.freeable:
        name, slots = cache.freeable.popitem(last=False)
        del cache.cached[name]
        sizes.pop(name, None)
        cache.freed.append(name)
        cache.num_free_slots += slots


class Lifted(_Lifted, Scheduler):  # type: ignore[misc]
    """The synchronous scheduler of vLLM with these changes."""


class LiftedAsync(_Lifted, SteadyScheduler):
    """The asynchronous scheduler with these changes and the scheduler fast path."""
