"""Bookkeeping of vLLM's runner in every step, for all requests at once if they only continue.

vLLM's runner goes through the requests one by one, with about ten lines of Python for each. With 512 requests this
takes 4 ms a step, and the GPU waits after its own part. Here the columns of the runner's tables are written as columns.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

YET_UNKNOWN = -1
"""Placeholder for a token that the GPU has sampled and the host has not seen yet."""


def updated(each: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the runner's `_update_states`, which applies the scheduler's output to the requests before a step.

    Args:
        each: vLLM's own method. It handles the requests that come and leave, and all requests in steps that are not so
            simple.
    """

    def update(runner: Any, step: Any) -> Any:
        if runner.speculative_config is None and runner.parallel_config.pipeline_parallel_size == 1:
            step = _without_those_that_go_on(runner, step)
        return each(runner, step)

    return update


def _without_those_that_go_on(runner: Any, step: Any) -> Any:
    """Update the running requests, and return the step without them.

    Return the step unchanged, and update nothing, if a request was resumed, is not in the batch, or has lost tokens.
    """
    told, batch = step.scheduled_cached_reqs, runner.input_batch
    places = [batch.req_id_to_index.get(name) for name in told.req_ids]
    if not places or told.resumed_req_ids or None in places:
        return step
    states = [runner.requests[name] for name in told.req_ids]
    if any(len(state.output_token_ids) > said for state, said in zip(states, told.num_output_tokens, strict=True)):
        return step
    for state, computed in zip(states, told.num_computed_tokens, strict=True):
        state.num_computed_tokens = computed
    batch.num_computed_tokens_cpu[places] = told.num_computed_tokens
    for index, blocks in enumerate(told.new_block_ids):
        if blocks is not None:
            batch.block_table.append_row(blocks, places[index])
            for held, new in zip(states[index].block_ids, blocks, strict=True):
                held.extend(new)
    step = copy.copy(step)
    step.scheduled_cached_reqs = type(told).make_empty()
    return step


def noted(each: Callable[..., Any]) -> Callable[..., Any]:
    """Return the runner's `_bookkeeping_sync`, which records after a step that each request has one token more.

    Args:
        each: vLLM's own method. If the tokens are recorded here, it gets no tokens to record.
    """

    def note(runner: Any, step: Any, sampled: Any, *rest: Any) -> Any:
        """Record the step here if scheduling is asynchronous and each request has one token and is below its limit."""
        batch, said = runner.input_batch, sampled.sampled_token_ids
        # the discarded rows are of requests that are still within their prompt
        rows = np.flatnonzero(~runner.discard_request_mask.np[: len(said)])
        ends = batch.num_tokens_no_spec[rows]
        if not runner.use_async_scheduling or said.shape[1] != 1 or (ends >= runner.max_model_len).any():
            return each(runner, step, sampled, *rest)
        is_first = batch.prev_sampled_token_ids is None
        found = each(runner, step, dataclasses.replace(sampled, sampled_token_ids=said[:0]), *rest)
        if is_first:
            batch.prev_sampled_token_ids = said
        _one_more(runner, rows, ends)
        return found

    return note


def _one_more(runner: Any, rows: np.ndarray, ends: np.ndarray) -> None:
    """Append an unknown token to the requests in these rows. `ends` holds their numbers of tokens before the step."""
    batch, requests = runner.input_batch, runner.requests
    batch.token_ids_cpu[rows, ends] = YET_UNKNOWN
    batch.is_token_ids[rows, ends] = True
    batch.num_tokens_no_spec[rows] = ends + 1
    for row in rows.tolist():
        requests[batch.req_ids[row]].output_token_ids.append(YET_UNKNOWN)


def placed(each: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    """Return the runner's `_compute_prev_positions`, which finds each request's row in the batch of the previous step.

    Args:
        each: vLLM's own method. It is called if there was no previous batch.
    """

    def place(runner: Any, count: int) -> None:
        before = runner.input_batch.prev_req_id_to_index
        if not before:
            return each(runner, count)
        runner.prev_positions.np[:count] = [before.get(name, -1) for name in runner.input_batch.req_ids[:count]]
        return None

    return place
