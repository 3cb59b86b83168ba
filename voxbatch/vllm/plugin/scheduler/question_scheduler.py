"""vLLM's schedulers for questions about recordings: each request keeps its K/V blocks until it ends.

A question about 30 minutes of audio has 22,500 positions. If it were preempted for lack of blocks, its audio would be
encoded once more. The encoder cache keeps vLLM's own size, the context of one request, because audio leaves the cache
as soon as its part of the prompt is computed.
"""

from __future__ import annotations

import sys
from typing import ClassVar

from voxbatch.vllm.plugin.scheduler.batch_scheduler import AsyncBatchScheduler, BatchScheduler


class _QuestionMixin:
    """Mixin for either of the schedulers for batch jobs."""

    _max_text: ClassVar[int] = sys.maxsize  # an answer has the length that was asked for
    _enlarges_encoder_cache: ClassVar[bool] = False


class QuestionScheduler(_QuestionMixin, BatchScheduler):
    """The scheduler of vLLM's CPU build."""


class AsyncQuestionScheduler(_QuestionMixin, AsyncBatchScheduler):
    """The scheduler that prepares a step while the GPU computes the step before."""
