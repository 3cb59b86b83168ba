"""Generate tokens for audio that is padded already or has an unusual beginning."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import generate
import numpy as np

from voxbatch.vllm.plugin import SWITCH

THROWS_OUT = 30
"""Step before which Watched preempts the last request that came."""


def together(model: Path, heard: dict[str, np.ndarray], limits: dict[str, int]) -> dict[str, Any]:
    """Run all requests at once, and the encoder once for each chunk.

    Args:
        limits: arguments of vLLM's LLM.

    Returns:
        "tokens" by name, and "preempted", the number of requests that were preempted.
    """
    llm = generate.engine(model, 512, scheduler_cls="together.Watched", **limits)
    tokens = generate.generated(llm, model, list(heard.values()))
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    return {"tokens": dict(zip(heard, tokens, strict=True)), "preempted": scheduler.preempted}


if SWITCH in os.environ:  # the engine of this process uses the plugin
    from voxbatch.vllm.plugin.scheduler.batch_scheduler import BatchScheduler

    class Watched(BatchScheduler):
        """The scheduler of vLLM's CPU build, which preempts one request once."""

        preempted = 0

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            scheduler: Any = self
            if scheduler.current_step == THROWS_OUT and len(scheduler.running) > 1:
                scheduler._preempt_request(scheduler.running.pop(), time.monotonic())
                self.preempted += 1
            return super().schedule(*args, **kwargs)
