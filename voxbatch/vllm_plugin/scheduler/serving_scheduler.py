"""vLLM's own schedulers with a larger encoder cache, for `voxbatch serve`.

A server gets requests one by one and answers each at once, so that nothing of batch_scheduler fits: no bursts, and no
reserved blocks, which would let short requests wait for memory that long ones may never need.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from voxbatch.vllm_plugin.scheduler.encoder_cache import enlarge_encoder_cache


class _Serving:
    """Mixin for either of vLLM's schedulers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        enlarge_encoder_cache(self)


class ServingScheduler(_Serving, Scheduler):  # type: ignore[misc]
    """The scheduler of vLLM's CPU build."""


class AsyncServingScheduler(_Serving, AsyncScheduler):  # type: ignore[misc]
    """The scheduler that prepares a step while the GPU computes the step before."""
