"""Replace GPUModelRunner._compute_prev_positions: look up the rows of all requests at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ComputePrevPositions = Callable[[Any, int], None]


def wrap(original: ComputePrevPositions) -> ComputePrevPositions:
    """Return the runner's `_compute_prev_positions`, which finds each request's row in the batch of the previous step.

    Args:
        original: vLLM's own method. It is called if there was no previous batch.
    """

    def compute_prev_positions(runner: Any, num_reqs: int) -> None:
        previous = runner.input_batch.prev_req_id_to_index
        if not previous:
            return original(runner, num_reqs)
        names = runner.input_batch.req_ids[:num_reqs]
        runner.prev_positions.np[:num_reqs] = [previous.get(name, -1) for name in names]
        return None

    return compute_prev_positions
