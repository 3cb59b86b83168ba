"""Scheduler that refuses vLLM's first model runner, so that no test of the second one passes without it."""

from __future__ import annotations

from typing import Any

from voxbatch.vllm_plugin.scheduler.batch_scheduler import BatchScheduler


class SecondRunnerScheduler(BatchScheduler):
    """Our scheduler for vLLM's second model runner."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert self.use_v2_model_runner, "this is vLLM's first model runner"
