"""Replace GPUModelRunner._bookkeeping_sync on a CPU: reset the random generators of requests within their prompt.

vLLM draws a token for such a request, drops it, and sets the offset of the request's generator back. Generators of a
CPU have no offset, and vLLM (0.26 to 0.32) dies of a prompt that takes several steps if the request has a seed. A
request within its prompt has no tokens of its own yet, so its generator starts again from its seed.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def patch(runner: Any) -> None:
    """Replace the method of a runner of a CPU. A runner of a GPU stays as it is.

    Args:
        runner: a runner of vLLM, with its model loaded.
    """
    if runner.device.type != "cpu" or not hasattr(runner, "_bookkeeping_sync"):
        return
    original = runner._bookkeeping_sync

    def bookkeeping_sync(scheduler_output: Any, sampler_output: Any, *rest: Any, **others: Any) -> Any:
        generators = runner.input_batch.generators
        num_requests = len(sampler_output.sampled_token_ids)
        within = [int(i) for i in np.flatnonzero(runner.discard_request_mask.np[:num_requests])]
        dropped = {i: generators.pop(i) for i in within if i in generators}
        try:
            return original(scheduler_output, sampler_output, *rest, **others)
        finally:
            for i, generator in dropped.items():
                generators[i] = generator.manual_seed(generator.initial_seed())

    runner._bookkeeping_sync = bookkeeping_sync
