"""The scheduler fast path: cheaper scheduling of the steps in which hundreds of requests only continue.

Nearly all steps are of this kind. A request of voxbatch writes one token per step until a known token or a known length
ends it. It keeps its audio until then, and only its whole text is needed. vLLM's scheduler also handles all other kinds
of requests, and takes about 17 µs per step for each request. For 512 requests that is 9 ms of the process that must
also keep the GPU busy, and the GPU needs about as long.

With the plugin all requests are of this kind: voxbatch makes them all, and none asks for more than tokens. vLLM's own
code handles the requests that begin, end or were preempted, and everything that is not done for each request. Only the
loop over the requests that continue is voxbatch's own. The tokens of a request are sent to the front end all at once
when the request has ended, because they are not needed before. So neither process handles hundreds of messages per
step.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import CachedRequestData
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.request import RequestStatus

from voxbatch.vllm.plugin import is_switched_on
from voxbatch.vllm.plugin.patches.allocate_slots import only_grow


class FastPathScheduler(AsyncScheduler):  # type: ignore[misc]
    """vLLM's asynchronous scheduler, with a fast path for steps in which all requests only continue."""

    _uses_fast_path: ClassVar[bool] = True
    """Switch of the fast path. False means that vLLM schedules every step, for comparison."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        is_enabled = self._uses_fast_path and is_switched_on()
        self._has_fast_path = is_enabled and only_grow(self.kv_cache_manager, self.max_model_len)
        self._end_tokens = set[int]()
        """Ids of the tokens that may end a request, of all requests until now."""

    def add_request(self, request: Any) -> None:
        """Add a request, and note the tokens that may end it."""
        params = request.sampling_params
        self._end_tokens.update(params.stop_token_ids or ())
        if params.eos_token_id is not None:
            self._end_tokens.add(params.eos_token_id)
        super().add_request(request)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """Return the output of the next step.

        The fast path schedules the step if no request can be admitted, and there are K/V blocks for all running ones.
        Otherwise vLLM schedules the step.
        """
        requests = None
        if self._only_continues() and not throttle_prefills:
            requests = continuing(self.running)
        if not requests:
            return super().schedule(throttle_prefills)
        # the runner's batch has the requests of the step before
        if not self.prev_step_scheduled_req_ids.issuperset(request.request_id for request in requests):
            return super().schedule(throttle_prefills)
        if (blocks := allocate(self.kv_cache_manager, requests)) is None:
            return super().schedule(throttle_prefills)
        step = self._empty_step()
        self.prev_step_scheduled_req_ids.update(enter(step, requests, blocks))
        return step

    def _only_continues(self) -> bool:
        """Return whether no request can be admitted in this step."""
        if not self._has_fast_path or self.pause_state is not PauseState.UNPAUSED:
            return False
        running, waiting = self.get_request_counts()
        full = running >= self.max_num_active_reqs
        return (full or not waiting) and running <= self.max_num_scheduled_tokens

    def _empty_step(self) -> Any:
        """Return vLLM's output of a step without requests.

        The output holds the other messages to the model runner, such as the requests that ended and what was freed.
        """
        self._pause_state = PauseState.PAUSED_ALL  # not by the property: its setter writes to the log
        try:
            return super().schedule()
        finally:
            self._pause_state = PauseState.UNPAUSED

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Update the requests with the model's output, and return the outputs for the front end.

        Requests that continue are updated on the fast path. vLLM updates all others.
        """
        if not self._has_fast_path:
            return super().update_from_output(scheduler_output, model_runner_output)
        if model_runner_output.sampled_token_ids:
            others = append_tokens(self.requests, scheduler_output, model_runner_output, self._end_tokens)
            scheduler_output = copy.copy(scheduler_output)
            scheduler_output.num_scheduled_tokens = others
        requests = {name: self.requests[name] for name in scheduler_output.num_scheduled_tokens.keys() & self.requests}
        return only_whole_texts(super().update_from_output(scheduler_output, model_runner_output), requests)


# ── schedule ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def continuing(running: Iterable[Any]) -> list[Any] | None:
    """Return the requests that get one more token, or None if the state of any running request is not that simple.

    Asynchronous scheduling runs ahead of the model, so a request has placeholders for tokens that the model has not
    returned yet. A request whose last token is among these placeholders is left out.
    """
    requests = []
    for request in running:
        computed, ahead = request.num_computed_tokens, request.num_output_placeholders
        if not ahead:
            return None
        if computed + 2 - ahead >= request.num_prompt_tokens + request.max_tokens:
            continue
        if len(request._all_token_ids) + ahead - computed != 1:
            return None
        requests.append(request)
    return requests


def allocate(manager: Any, requests: list[Any]) -> list[tuple[list[int], ...] | None] | None:
    """Allocate the K/V blocks that the requests need for one more token.

    Returns:
        For each request, the ids of its new blocks by group, or None if it needs no block. None in place of the list if
        there are not enough free blocks for all requests; then nothing is allocated.
    """
    [group] = manager.coordinator.single_type_managers
    blocks, size = group.req_to_blocks, group.block_size
    full = [
        index
        for index, request in enumerate(requests)
        if not request.num_computed_tokens % size
        and len(blocks[request.request_id]) * size <= request.num_computed_tokens
    ]
    if len(full) > manager.block_pool.get_num_free_blocks():
        return None
    new_blocks: list[tuple[list[int], ...] | None] = [None] * len(requests)
    for index in full:
        new_blocks[index] = manager.allocate_slots(requests[index], 1).get_block_ids(allow_none=True)
    return new_blocks


def enter(step: Any, requests: list[Any], new_blocks: list[Any]) -> list[str]:
    """Enter the requests into a step without requests, and update the counters of the requests.

    Returns:
        The ids of the requests.
    """
    ids = [request.request_id for request in requests]
    step.num_scheduled_tokens = dict.fromkeys(ids, 1)
    step.total_num_scheduled_tokens = len(ids)
    step.scheduled_cached_reqs = CachedRequestData(
        req_ids=ids,
        resumed_req_ids=set(),
        new_token_ids=[],
        all_token_ids={},
        new_block_ids=new_blocks,
        num_computed_tokens=[request.num_computed_tokens for request in requests],
        num_output_tokens=[len(request._output_token_ids) + request.num_output_placeholders for request in requests],
    )
    for request in requests:
        request.num_computed_tokens += 1
        request.num_in_flight_tokens += 1
        request.num_output_placeholders += 1
    return ids


# ── update_from_output ────────────────────────────────────────────────────────────────────────────────────────────────


def append_tokens(requests: Mapping[str, Any], step: Any, output: Any, end_tokens: set[int]) -> dict[str, int]:
    """Append the tokens of an output to the requests that continue after it.

    Args:
        end_tokens: ids of the tokens that may end a request.

    Returns:
        The other requests of the step, with their number of scheduled tokens. They begin or end in this step, have
        ended, or were preempted. vLLM's own code handles them.
    """
    sampled, rows, running = output.sampled_token_ids, output.req_id_to_index, RequestStatus.RUNNING
    remaining = {}
    for name, scheduled in step.num_scheduled_tokens.items():
        request = requests.get(name)
        if request is None or scheduled != 1 or request.status is not running or request.num_preemptions:
            remaining[name] = scheduled
            continue
        tokens, text = sampled[rows[name]], request._output_token_ids
        if len(tokens) != 1 or tokens[0] in end_tokens or len(text) + 1 >= request.max_tokens:
            remaining[name] = scheduled
            continue
        text.append(tokens[0])
        request._all_token_ids.append(tokens[0])
        request.num_in_flight_tokens -= 1
        request.num_output_placeholders -= 1
    return remaining


def only_whole_texts(outputs: dict[int, Any], requests: Mapping[str, Any]) -> dict[int, Any]:
    """Remove the requests that continue from the outputs for the front end, and give those that ended their whole text.

    The first client gets a message in any case, because with each message the front end accepts new work, and knows
    that the engine is alive.

    Args:
        outputs: vLLM's outputs by client. All requests belong to the first client.
        requests: the requests that ended in the step or may have, by id.

    Returns:
        `outputs`, changed in place.
    """
    message = outputs.setdefault(0, EngineCoreOutputs())
    message.outputs = [output for output in message.outputs if output.finished]
    for output in message.outputs:
        if output.request_id in requests:
            output.new_token_ids = list(requests[output.request_id].output_token_ids)
    return outputs
