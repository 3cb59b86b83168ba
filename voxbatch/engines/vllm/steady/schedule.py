"""The first half of a step on the scheduler fast path: every running request is scheduled for one more token."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vllm.v1.core.sched.output import CachedRequestData


def going_on(running: Iterable[Any]) -> list[Any] | None:
    """Return the requests that get one more token, or None if the state of any running request is not that simple.

    Asynchronous scheduling runs ahead of the model, so a request has placeholders for tokens that the model has not
    returned yet. A request whose last token is among these placeholders is left out.
    """
    found = []
    for request in running:
        computed, ahead = request.num_computed_tokens, request.num_output_placeholders
        if not ahead:
            return None
        if computed + 2 - ahead >= request.num_prompt_tokens + request.max_tokens:
            continue
        if len(request._all_token_ids) + ahead - computed != 1:
            return None
        found.append(request)
    return found


def blocks(manager: Any, requests: list[Any]) -> list[tuple[list[int], ...] | None] | None:
    """Allocate the K/V blocks that the requests need for one more token.

    Returns:
        For each request, the ids of its new blocks by group, or None if it needs no block. None in place of the list if
        there are not enough free blocks for all requests; then nothing is allocated.
    """
    [group] = manager.coordinator.single_type_managers
    held, size = group.req_to_blocks, group.block_size
    full = [
        place
        for place, request in enumerate(requests)
        if not request.num_computed_tokens % size
        and len(held[request.request_id]) * size <= request.num_computed_tokens
    ]
    if len(full) > manager.block_pool.get_num_free_blocks():
        return None
    found: list[tuple[list[int], ...] | None] = [None] * len(requests)
    for place in full:
        found[place] = manager.allocate_slots(requests[place], 1).get_block_ids(allow_none=True)
    return found


def enter(output: Any, requests: list[Any], new_blocks: list[Any]) -> list[str]:
    """Add the requests to the output of a step without requests, and update the counters of the requests.

    Args:
        output: the scheduler's output of an empty step.
        requests: the requests that get one more token.
        new_blocks: the result of `blocks` for these requests.

    Returns:
        The ids of the requests.
    """
    ids = [request.request_id for request in requests]
    output.num_scheduled_tokens = dict.fromkeys(ids, 1)
    output.total_num_scheduled_tokens = len(ids)
    output.scheduled_cached_reqs = CachedRequestData(
        req_ids=ids,
        resumed_req_ids=set(),
        new_token_ids=[],
        all_token_ids={},
        new_block_ids=new_blocks,
        num_computed_tokens=[request.num_computed_tokens for request in requests],
        num_output_tokens=[len(each._output_token_ids) + each.num_output_placeholders for each in requests],
    )
    for request in requests:
        request.num_computed_tokens += 1
        request.num_in_flight_tokens += 1
        request.num_output_placeholders += 1
    return ids
