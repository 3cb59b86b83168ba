"""What vLLM's runner writes down of every request in every step, for all of them at once where they only go on.

It goes through the requests one by one, some ten lines of Python each: with 512 of them that is 4 ms a step, in which
a GPU that has done its own part waits. Here the columns of its tables are written as columns.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

YET_UNKNOWN = -1
"""Stands for a token that the GPU has said and the host has not seen yet."""


def updated(each: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The runner's `_update_states`: before a step, what the scheduler has to say of the requests. `each` is the
    original, which sees to those that come and leave, and to all where one's turn is not that simple."""

    def update(runner: Any, step: Any) -> Any:
        if runner.speculative_config is None and runner.parallel_config.pipeline_parallel_size == 1:
            step = _without_those_that_go_on(runner, step)
        return each(runner, step)

    return update


def _without_those_that_go_on(runner: Any, step: Any) -> Any:
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
    """The runner's `_bookkeeping_sync`: after a step, that each request has one token more. `each` is the original,
    which is given no tokens to write down where they are written here."""

    def note(runner: Any, step: Any, sampled: Any, *rest: Any) -> Any:
        batch, said = runner.input_batch, sampled.sampled_token_ids
        rows = np.flatnonzero(~runner.discard_request_mask.np[: len(said)])  # others are still within their prompt
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
    batch, requests = runner.input_batch, runner.requests
    batch.token_ids_cpu[rows, ends] = YET_UNKNOWN
    batch.is_token_ids[rows, ends] = True
    batch.num_tokens_no_spec[rows] = ends + 1
    for row in rows.tolist():
        requests[batch.req_ids[row]].output_token_ids.append(YET_UNKNOWN)


def placed(each: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    """The runner's `_compute_prev_positions`: where in the batch before each request was."""

    def place(runner: Any, count: int) -> None:
        before = runner.input_batch.prev_req_id_to_index
        if not before:
            return each(runner, count)
        runner.prev_positions.np[:count] = [before.get(name, -1) for name in runner.input_batch.req_ids[:count]]
        return None

    return place
