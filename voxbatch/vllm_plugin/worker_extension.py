"""Extra methods of vLLM's worker class, which the engine calls in every process that holds a model.

The engine adds `WorkerExtension` by vLLM's own setting (worker_extension_cls), with the plugin or without it.
"""

from __future__ import annotations

from typing import Any

import torch

from voxbatch.vllm_plugin.memory_usage import MemoryUsage
from voxbatch.vllm_plugin.patches import reset_generators, sample_scores, sampler_call, warmup_ll_bf16_router_gemm
from voxbatch.vllm_plugin.token_scores import score

warmup_ll_bf16_router_gemm.skip()  # vLLM imports this module in each process that holds a model, before it warms up


class WorkerExtension(MemoryUsage):
    """Extra methods of vLLM's worker class."""

    model_runner: Any

    def voxbatch_reset_generators(self) -> None:
        """Let a request with a seed have its prompt computed in several steps on a CPU (see reset_generators)."""
        reset_generators.patch(self.model_runner)

    def voxbatch_score_tokens(self, switch_on: bool) -> str:
        """Score each sampled token from the next step on, or stop it (see `token_scores`).

        Returns:
            The reason why this worker cannot do so, as text for people. Then nothing is scored. Empty if it can.
        """
        runner = self.model_runner
        switch = sampler_call.switch if sampler_call.fits(runner) else sample_scores.switch
        if not switch(runner, switch_on):
            return f"{type(runner).__name__} of this vLLM is not the runner that voxbatch knows"
        try:
            if switch_on:  # compiles the kernel now, and not while requests wait
                config = runner.model_config
                logits = torch.zeros((2, config.get_vocab_size()), dtype=config.dtype, device=runner.device)
                score(logits, torch.zeros((2, 1), dtype=torch.int32, device=runner.device))
        except Exception as e:  # noqa: BLE001 a run without confidences is better than none
            switch(runner, False)
            return f"the kernel cannot be compiled: {type(e).__name__}: {e}"[:300]
        return ""
