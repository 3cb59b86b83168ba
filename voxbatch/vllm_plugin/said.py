"""Input tokens of a decode step: the tokens sampled in the previous step, copied on the GPU by one indexed copy.

With asynchronous scheduling these tokens do not reach the host in time. vLLM's runner looks up the row of each request
in the previous batch, one by one. In a step that only decodes, these rows are one array already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from voxbatch.vllm_plugin.packing import sent

Prepare = Callable[[Any, Any, int, int, np.ndarray], None]


def at_once(each: Prepare) -> Prepare:
    """Return the runner's `_prepare_input_ids`.

    Args:
        each: vLLM's own method. It is called if a request is new or takes another number of tokens than one.
    """

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
