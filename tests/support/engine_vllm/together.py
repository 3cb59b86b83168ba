"""Generate tokens for audio that is padded already or has an unusual beginning."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import generate
import numpy as np

from voxbatch.vllm_plugin import SWITCH

THROWS_OUT = 30
"""Step before which Watched preempts the last request that came."""


def together(model: Path, heard: dict[str, np.ndarray], limits: dict[str, int]) -> dict[str, Any]:
    """Run all requests at once, and the encoder once for each chunk.

    Args:
        limits: arguments of vLLM's LLM.

    Returns:
        "tokens" and "told" by name, and "copies", the number of copied K/V blocks. "told" is what the scheduler tells
        the model runner: for each time that a request is admitted, the number of its positions that are computed
        already.
    """
    llm = generate.engine(model, 512, scheduler_cls="together.Watched", **limits)
    tokens = generate.generated(llm, model, list(heard.values()))
    watched = llm.llm_engine.engine_core.engine_core.scheduler
    # vLLM appends text to its request numbers
    told = {name: watched.told[str(number)] for number, name in enumerate(heard)}
    return {"tokens": dict(zip(heard, tokens, strict=True)), "told": told, "copies": watched.copies}


if SWITCH in os.environ:  # the engine of this process uses the plugin
    from voxbatch.vllm_plugin.scheduler.batch_scheduler import BatchScheduler

    class Watched(BatchScheduler):
        """The scheduler of vLLM's CPU build, which notes what it tells, and throws a request out once."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.told, self.copies = defaultdict[str, list[int]](list), 0

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            scheduler: Any = self
            if scheduler.current_step == THROWS_OUT and len(scheduler.running) > 1:
                scheduler._preempt_request(scheduler.running.pop(), time.monotonic())
            step = super().schedule(*args, **kwargs)
            for new in step.scheduled_new_reqs:
                self._tell(new.req_id, new.num_computed_tokens)
            again = step.scheduled_cached_reqs
            for name, computed in zip(again.req_ids, again.num_computed_tokens, strict=True):
                if name in again.resumed_req_ids:
                    self._tell(name, computed)
            self.copies += len(step.kv_cache_block_copies or ())
            return step

        def _tell(self, name: str, computed: int) -> None:
            self.told[name.partition("-")[0]].append(computed)
