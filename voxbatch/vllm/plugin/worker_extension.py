"""Extra methods of vLLM's worker class, which the engine calls in every process that holds a model.

The engine and `voxbatch serve` add `WorkerExtension` by vLLM's own setting (worker_extension_cls), with the plugin or
without it.
"""

from __future__ import annotations

from typing import Any

import torch

from voxbatch.vllm.plugin.patches import group_and_batch_mm_kwargs, sample_scores
from voxbatch.vllm.plugin.product_check import first_dependent_product
from voxbatch.vllm.plugin.token_scores import score


class WorkerExtension:
    """Extra methods of vLLM's worker class."""

    model_runner: Any

    def voxbatch_memory(self) -> tuple[int, int] | None:
        """Return the memory of this worker's GPU that CUDA reports as taken now, and that of vLLM's plan, in bytes.

        The first number includes other processes, but not the memory that the driver keeps for itself. The second one
        is 0 if this vLLM does not report it. Without a GPU there is no answer.
        """
        if not torch.cuda.is_available():
            return None
        free, total = torch.cuda.mem_get_info()
        return total - free, int(getattr(self, "requested_memory", 0))

    def voxbatch_sounds(self, requests: list[tuple[int, int]]) -> list[bytes]:
        """Return the samples of finished requests of a model that speaks (see speech.model.SpeechModel.sounds)."""
        sounds: list[bytes] = self.model_runner.get_model().sounds(requests)
        return sounds

    def voxbatch_encode_alone(self) -> None:
        """Encode recordings alone whose result depends on those beside them (see `group_and_batch_mm_kwargs`)."""
        group_and_batch_mm_kwargs.replace(self.model_runner.get_model())

    def voxbatch_dependent_product(self) -> str:
        """Return a product whose rows depend on the number of rows (see `product_check`), or an empty string.

        Without a GPU the answer is empty: vLLM's CPU build has no batch-invariant mode.
        """
        if not torch.cuda.is_available():
            return ""
        with torch.inference_mode():
            return first_dependent_product(self.model_runner.get_model())

    def voxbatch_score_tokens(self) -> str:
        """Score each sampled token from the next step on (see `token_scores`).

        Returns:
            The reason why this worker cannot do so, as text for people. Then nothing is scored. Empty if it can.
        """
        runner = self.model_runner
        if not sample_scores.switch(runner, True):
            return f"{type(runner).__name__} of this vLLM is not the runner that voxbatch knows"
        try:  # compiles the kernel now, and not while requests wait
            config = runner.model_config
            logits = torch.zeros((2, config.get_vocab_size()), dtype=config.dtype, device=runner.device)
            score(logits, torch.zeros((2, 1), dtype=torch.int32, device=runner.device))
        except Exception as e:  # noqa: BLE001 a run without confidences is better than none
            sample_scores.switch(runner, False)
            return f"the kernel cannot be compiled: {type(e).__name__}: {e}"[:300]
        return ""
