"""Replace GPUModelRunner._update_states: update all requests that only continue at once, column by column.

vLLM's runner goes through the requests one by one, with about ten lines of Python for each. Together with
`bookkeeping_sync` this takes 4 ms a step for 512 requests, and the GPU waits after its own part.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

UpdateStates = Callable[[Any, Any], Any]


def wrap(original: UpdateStates) -> UpdateStates:
    """Return the runner's `_update_states`, which applies the scheduler's output to the requests before a step.

    Args:
        original: vLLM's own method. It handles the requests that come and leave, and all requests in steps that are
            not so simple.
    """

    def update_states(runner: Any, scheduler_output: Any) -> Any:
        return original(runner, _update_running(runner, scheduler_output))

    return update_states


def _update_running(runner: Any, scheduler_output: Any) -> Any:
    """Update the running requests, and return the scheduler's output without them.

    Return the output unchanged, and update nothing, if a request was resumed, is not in the batch, or has lost tokens.
    """
    cached, batch = scheduler_output.scheduled_cached_reqs, runner.input_batch
    rows = [batch.req_id_to_index.get(name) for name in cached.req_ids]
    if not rows or cached.resumed_req_ids or None in rows:
        return scheduler_output
    states = [runner.requests[name] for name in cached.req_ids]
    if any(len(state.output_token_ids) > count for state, count in zip(states, cached.num_output_tokens, strict=True)):
        return scheduler_output
    for state, computed in zip(states, cached.num_computed_tokens, strict=True):
        state.num_computed_tokens = computed
    batch.num_computed_tokens_cpu[rows] = cached.num_computed_tokens
    for index, new_blocks in enumerate(cached.new_block_ids):
        if new_blocks is not None:
            batch.block_table.append_row(new_blocks, rows[index])
            for block_ids, new in zip(states[index].block_ids, new_blocks, strict=True):
                block_ids.extend(new)
    scheduler_output = copy.copy(scheduler_output)
    scheduler_output.scheduled_cached_reqs = type(cached).make_empty()
    return scheduler_output
