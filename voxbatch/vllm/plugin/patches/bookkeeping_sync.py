"""Replace GPUModelRunner._bookkeeping_sync: record one new token for all requests at once, column by column.

vLLM's runner records the tokens request by request; see `update_states`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

UNKNOWN_TOKEN = -1
"""Placeholder for a token that the GPU has sampled and the host has not seen yet."""


def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the runner's `_bookkeeping_sync`, which records after a step that each request has one token more.

    Args:
        original: vLLM's own method. If the tokens are recorded here, it gets no tokens to record.
    """

    def bookkeeping_sync(runner: Any, scheduler_output: Any, sampler_output: Any, *rest: Any) -> Any:
        """Record the step here if scheduling is asynchronous. Each request has one token."""
        batch, sampled = runner.input_batch, sampler_output.sampled_token_ids
        # the discarded rows are of requests that are still within their prompt
        rows = np.flatnonzero(~runner.discard_request_mask.np[: len(sampled)])
        ends = batch.num_tokens_no_spec[rows]
        if not runner.use_async_scheduling:
            return original(runner, scheduler_output, sampler_output, *rest)
        is_first = batch.prev_sampled_token_ids is None
        no_tokens = dataclasses.replace(sampler_output, sampled_token_ids=sampled[:0])
        result = original(runner, scheduler_output, no_tokens, *rest)
        if is_first:
            batch.prev_sampled_token_ids = sampled
        batch.token_ids_cpu[rows, ends] = UNKNOWN_TOKEN
        batch.is_token_ids[rows, ends] = True
        batch.num_tokens_no_spec[rows] = ends + 1
        for row in rows.tolist():
            runner.requests[batch.req_ids[row]].output_token_ids.append(UNKNOWN_TOKEN)
        return result

    return bookkeeping_sync
