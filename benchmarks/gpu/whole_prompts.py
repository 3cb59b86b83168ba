"""voxbatch's scheduler without the shared prefix: the decoder computes each whole prompt. For bench_plugin.py."""

from __future__ import annotations

import torch

from voxbatch.vllm_plugin.scheduler.batch_scheduler import AsyncBatchScheduler, BatchScheduler


class WholePrompts(AsyncBatchScheduler if torch.cuda.is_available() else BatchScheduler):  # type: ignore[misc]
    """The scheduler with the shared prefix switched off."""

    _shares_prefix = False
