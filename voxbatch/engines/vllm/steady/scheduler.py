"""vLLM's asynchronous scheduler with the scheduler fast path."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState

from voxbatch import vllm_plugin
from voxbatch.engines.vllm.steady import plain, schedule, update


class SteadyScheduler(AsyncScheduler):  # type: ignore[misc]
    """vLLM's asynchronous scheduler, with a fast path for steps in which all requests only continue."""

    _shortens: ClassVar[bool] = True
    """Switch of the fast path. False means that vLLM schedules every step, for comparison."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._steadies = self._shortens and vllm_plugin.asked() and plain.scheduler_is_plain(self)
        self._odd = set[str]()
        """Ids of the requests that are not plain. While there is such a request, vLLM schedules every step."""
        self._stops = set[int]()
        """Ids of the tokens that may end a request, of all plain requests until now."""

    def add_request(self, request: Any) -> None:
        """Add a request, and note whether it is plain."""
        if self._steadies and request.request_id not in self.requests:
            if plain.request_is_plain(request, self.max_model_len):
                self._stops |= plain.stops(request)
            else:
                self._odd.add(request.request_id)
        super().add_request(request)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """Return the output of the next step.

        The fast path schedules the step if no request can be admitted, all running requests are plain, and there are
        K/V blocks for all of them. Otherwise vLLM schedules the step.
        """
        requests = schedule.going_on(self.running) if self._nobody_comes() and not throttle_prefills else None
        # the model runner's batch does not know requests that were not in the step before
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
        """Return vLLM's output of a step without requests.

        The output holds the other messages to the model runner, such as the requests that ended and what was freed.
        """
        self._pause_state = PauseState.PAUSED_ALL  # not by the property: its setter in 0.32 writes to the log
        try:
            return super().schedule()
        finally:
            self._pause_state = PauseState.UNPAUSED

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Update the requests with the model's output, and return the outputs for the front end.

        Plain requests that continue are updated on the fast path. vLLM updates all others.
        """
        if not self._steadies:
            return super().update_from_output(scheduler_output, model_runner_output)
        if not self._odd and plain.output_is_plain(model_runner_output):
            left = update.go_on(self.requests, scheduler_output, model_runner_output, self._stops)
            scheduler_output = copy.copy(scheduler_output)
            scheduler_output.num_scheduled_tokens = left
        scheduled = scheduler_output.num_scheduled_tokens.keys() - self._odd
        requests = {name: self.requests[name] for name in scheduled & self.requests.keys()}
        return update.whole_texts(super().update_from_output(scheduler_output, model_runner_output), requests)
