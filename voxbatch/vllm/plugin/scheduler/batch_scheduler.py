"""vLLM's schedulers for batch jobs: they run every request that fits into the memory.

vLLM's encoder cache holds `max_num_batched_tokens` slots, and a Voxtral Realtime request keeps one slot for each of its
positions until it ends. So 16,384 slots are enough for 38 requests, whatever max_num_seqs says. Here the cache is as
large as all running requests need. In return, a request is admitted only if K/V blocks are left for all its positions
(`admission`), because a request that is preempted for lack of blocks must be computed anew.

If the encoder runs once per chunk (voxbatch.vllm.plugin), requests are admitted in bursts. The chunks of a burst are
encoded together, and the many steps between two bursts only decode, which is one CUDA graph. An entry of the encoder
cache is removed as soon as its request has ended, not when vLLM needs its slots, because it occupies a slot in the
encoder output pool.
"""

from __future__ import annotations

from typing import Any, ClassVar

from vllm.v1.core.sched.scheduler import Scheduler

from voxbatch.vllm import plugin as vllm_plugin
from voxbatch.vllm.plugin.patches import allocate_slots
from voxbatch.vllm.plugin.scheduler.admission import EXPECTED_TEXT, Reservations, burst_size, enlarge_encoder_cache
from voxbatch.vllm.plugin.scheduler.fast_path import FastPathScheduler
from voxbatch.vllm.plugin.scheduler.score_table import ScoreTable
from voxbatch.vllm.plugin.token_scores import StepScores


class _BatchScheduling:
    """Mixin for either of vLLM's schedulers."""

    _enlarges_encoder_cache: ClassVar[bool] = True
    """False if audio leaves the encoder cache before its request ends; see question_scheduler."""

    _max_text: ClassVar[int] = EXPECTED_TEXT
    """See Reservations."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        scheduler: Any = self
        manager, cache = scheduler.kv_cache_manager, scheduler.encoder_cache_manager
        self._encodes_once = vllm_plugin.is_switched_on()
        self._reservations = Reservations(scheduler, self._max_text)
        # vLLM limits admission by this number and sizes its buffers by max_num_running_reqs
        self._max_requests: int = scheduler.max_num_active_reqs
        if self._enlarges_encoder_cache:
            enlarge_encoder_cache(scheduler)
        if self._encodes_once:
            scheduler.max_num_encoder_input_tokens = cache.cache_size
            manager.allocate_slots = allocate_slots.skip_if_block_has_slot(manager, scheduler.max_model_len)
        manager.allocate_slots = allocate_slots.reserve_all_blocks(manager.allocate_slots, self._reservations)
        self._burst = burst_size(min(self._max_requests, self._reservations.fitting)) if self._encodes_once else 1
        self._num_lists = 0
        """Number of lists that vLLM's _try_schedule_encoder_inputs returns after a list, the number of tokens and the
        budget. 0 before the first call, and always 0 without the plugin."""
        self._scores: ScoreTable | None = None
        """The scores of the requests' tokens. None until a step has scores."""

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedule a step, with the number of requests limited to what `_max_running` returns."""
        scheduler: Any = super()
        if self._encodes_once:
            _remove_unreferenced(self.encoder_cache_manager)  # type: ignore[attr-defined]
        self.max_num_active_reqs = self._max_running()
        try:
            return scheduler.schedule(*args, **kwargs)
        finally:
            self.max_num_active_reqs = self._max_requests

    def _max_running(self) -> int:
        """Return how many requests may run after this step: the running ones, and a burst if it fits."""
        scheduler: Any = self
        running = len(scheduler.running)
        self._reservations.keep_only(scheduler.running)
        if not self._enlarges_encoder_cache:
            return self._max_requests  # allocate_slots refuses a request that does not fit
        burst = self._burst
        if self._max_requests - running < burst or self._reservations.admissible(scheduler.waiting, burst) < burst:
            return running
        return self._max_requests

    def _try_schedule_encoder_inputs(
        self, request: Any, num_computed_tokens: int, num_new_tokens: int, encoder_compute_budget: int, **others: Any
    ) -> tuple[Any, ...]:
        """Return at once if the request has started, and its encoded audio is in the encoder cache.

        With hundreds of requests, vLLM takes milliseconds in each step to find this.
        """
        if self._num_lists and num_computed_tokens and len(request.mm_features) == 1:
            cached = self.encoder_cache_manager.cached  # type: ignore[attr-defined]
            if request.request_id in cached.get(request.mm_features[0].identifier, ()):
                return ([], num_new_tokens, encoder_compute_budget, *([] for _ in range(self._num_lists)))
        scheduler: Any = super()
        schedule: tuple[Any, ...] = scheduler._try_schedule_encoder_inputs(
            request, num_computed_tokens, num_new_tokens, encoder_compute_budget, **others
        )
        self._num_lists = len(schedule) - 3 if self._encodes_once else 0
        return schedule

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Update the requests with the model's output, and return the outputs for the front end.

        The scores of the step's tokens are kept here. A request that has finished gets all its scores, as bytes in its
        kv_transfer_params: vLLM passes this dict to the front end unchanged, and uses it for nothing else here.
        """
        scheduler: Any = self
        logprobs, scores = model_runner_output.logprobs, None
        if isinstance(logprobs, StepScores):
            model_runner_output.logprobs, scores = None, logprobs.scores.numpy()
            self._scores = self._scores or ScoreTable(scheduler.max_model_len)
        elif self._scores is not None and self._scores.is_empty:  # scores were switched off
            self._scores = None
        if self._scores is None:
            return super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        requests = [*map(scheduler.requests.get, model_runner_output.req_ids)]
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        self._scores.add(requests, scores, scheduler.requests)
        for message in outputs.values():
            for output in message.outputs:
                if output.finished and (request_scores := self._scores.pop(output.request_id)) is not None:
                    output.kv_transfer_params = {
                        **(output.kv_transfer_params or {}),
                        vllm_plugin.SCORES: request_scores.tobytes(),
                    }
        return outputs


def _remove_unreferenced(cache: Any) -> None:
    """Remove all entries that no request refers to, in the same way as EncoderCacheManager.can_allocate."""
    while cache.freeable:
        name, slots = cache.freeable.popitem(last=False)
        del cache.cached[name]
        cache.num_embeds_by_hash.pop(name, None)
        cache.freed.append(name)
        cache.num_free_slots += slots


class BatchScheduler(_BatchScheduling, Scheduler):  # type: ignore[misc]
    """The synchronous scheduler of vLLM with these changes."""


class AsyncBatchScheduler(_BatchScheduling, FastPathScheduler):
    """The asynchronous scheduler of vLLM with these changes and the scheduler fast path."""
