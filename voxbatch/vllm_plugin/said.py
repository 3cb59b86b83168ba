"""The tokens that the model said in its last step, given to the next one on the GPU by one indexed copy.

With asynchronous scheduling they never reach the host in time. vLLM's runner asks of each request where in the batch it
was; in a step that only decodes, that is one array already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from voxbatch.vllm_plugin.packing import sent

Prepare = Callable[[Any, Any, int, int, np.ndarray], None]


def at_once(each: Prepare) -> Prepare:
    """The runner's `_prepare_input_ids`; `each` is the original, which is asked where a request is new, or says other
    than one token."""

    def prepare(runner: Any, step: Any, requests: int, tokens: int, ends: np.ndarray) -> None:
        said, places = runner.input_batch.prev_sampled_token_ids, runner.prev_positions.np[:requests]
        is_plain = said is not None and tokens == requests and places.min() >= 0
        if not is_plain or runner.enable_prompt_embeds or step.scheduled_spec_decode_tokens:
            return each(runner, step, requests, tokens, ends)
        stayed = bool((places == np.arange(requests)).all())
        found = said[:requests, 0] if stayed else said[:, 0].index_select(0, sent(places.astype(np.int64), said.device))
        runner.input_ids.gpu[:requests].copy_(found, non_blocking=True)
        return None

    return prepare
