"""vLLM's schedulers for a model that speaks: a speech that was preempted finds no K/V blocks by their tokens.

All frames of a speech have one token, its slot (see voxbatch.vllm.plugin.speech). So the K/V blocks of two speeches of
one text in one slot have the same hash, and other keys and values. A new request shares the blocks of its prompt alone,
which are those of its voice. A preempted one would look for the blocks of its frames, too; it computes them again.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler


class _SpeechMixin:
    """Mixin for either of vLLM's schedulers."""

    def _preempt_request(self, request: Any, timestamp: float, drop_stale_output: bool = False) -> None:
        super()._preempt_request(request, timestamp, drop_stale_output)  # type: ignore[misc]
        request.skip_reading_prefix_cache = True


class SpeechScheduler(_SpeechMixin, Scheduler):  # type: ignore[misc]
    """The scheduler of vLLM's CPU build."""


class AsyncSpeechScheduler(_SpeechMixin, AsyncScheduler):  # type: ignore[misc]
    """The scheduler that prepares a step while the GPU computes the step before."""
