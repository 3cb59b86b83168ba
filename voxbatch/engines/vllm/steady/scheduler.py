"""Steady steps in vLLM's asynchronous scheduler."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState

from voxbatch import vllm_plugin
from voxbatch.engines.vllm.steady import plain, schedule, update


class SteadyScheduler(AsyncScheduler):  # type: ignore[misc]
    _shortens: ClassVar[bool] = True
    """Off, everything goes vLLM's way: for comparison."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._steadies = self._shortens and vllm_plugin.asked() and plain.scheduler_is_plain(self)
        self._odd = set[str]()
        """Requests that are not plain. While there is one, all go vLLM's way."""
        self._stops = set[int]()
        """Tokens that may end a request, of all plain ones so far."""

    def add_request(self, request: Any) -> None:
        if self._steadies and request.request_id not in self.requests:
            if plain.request_is_plain(request, self.max_model_len):
                self._stops |= plain.stops(request)
            else:
                self._odd.add(request.request_id)
        super().add_request(request)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        requests = schedule.going_on(self.running) if self._nobody_comes() and not throttle_prefills else None
        # whoever was not in the step before is unknown to the runner's batch
        if not requests or not self.prev_step_scheduled_req_ids.issuperset(each.request_id for each in requests):
            return super().schedule(throttle_prefills)
        if (blocks := schedule.blocks(self.kv_cache_manager, requests)) is None:
            return super().schedule(throttle_prefills)
        output = self._of_nobody()
        self.prev_step_scheduled_req_ids.update(schedule.enter(output, requests, blocks))
        return output

    def _nobody_comes(self) -> bool:
        if self._odd:
            self._odd &= self.requests.keys()
        if not self._steadies or self._odd or self.pause_state is not PauseState.UNPAUSED:
            return False
        running, waiting = self.get_request_counts()
        full = running >= getattr(self, "max_num_active_reqs", self.max_num_running_reqs)
        return (full or not waiting) and running <= self.max_num_scheduled_tokens

    def _of_nobody(self) -> Any:
        """vLLM's output of a step in which nobody runs, with all that is to be said beside: what ended, what was
        freed."""
        self._pause_state = PauseState.PAUSED_ALL  # 0.32's setter writes to the log
        try:
            return super().schedule()
        finally:
            self._pause_state = PauseState.UNPAUSED

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        if not self._steadies:
            return super().update_from_output(scheduler_output, model_runner_output)
        if not self._odd and plain.output_is_plain(model_runner_output):
            left = update.go_on(self.requests, scheduler_output, model_runner_output, self._stops)
            scheduler_output = copy.copy(scheduler_output)
            scheduler_output.num_scheduled_tokens = left
        scheduled = scheduler_output.num_scheduled_tokens.keys() - self._odd
        requests = {name: self.requests[name] for name in scheduled & self.requests.keys()}
        return update.whole_texts(super().update_from_output(scheduler_output, model_runner_output), requests)
