"""Wrap GPUModelRunner._sample: score the sampled tokens (see `token_scores`).

This wrapper is independent of the model: `worker_extension` adds it in every process that holds a model, with the
plugin's model or with vLLM's own. It never changes which tokens are sampled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from inspect import signature
from typing import Any

import torch

from voxbatch.vllm.plugin.token_scores import StepScores, score

Sample = Callable[[Any, torch.Tensor | None, Any], Any]
SWITCH = "voxbatch_scores_tokens"
"""Attribute of a runner: whether it scores tokens."""
PARAMETERS = ["logits", "spec_decode_metadata"]
"""Parameters of the runner's method after the runner."""


def switch(runner: Any, on: bool) -> bool:
    """Make a runner score the tokens from the next step on, or stop it. Return False for a runner that is not known.

    Args:
        runner: a runner of vLLM, with its model loaded.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    method = getattr(GPUModelRunner, "_sample", None)
    if not isinstance(runner, GPUModelRunner) or method is None or [*signature(method).parameters][1:] != PARAMETERS:
        return False
    if not hasattr(GPUModelRunner, SWITCH):
        setattr(GPUModelRunner, SWITCH, False)
        GPUModelRunner._sample = wrap(GPUModelRunner._sample)
    setattr(runner, SWITCH, on)
    return True


def wrap(original: Sample) -> Sample:
    """Return the runner's `_sample`, which also scores the tokens if the runner's SWITCH is on.

    Args:
        original: the method that samples. If a request asks for vLLM's own log-probabilities, its result is returned
            unchanged.
    """

    def sample(runner: Any, logits: torch.Tensor | None, spec_decode_metadata: Any) -> Any:
        """Return the sampled tokens, with StepScores as their logprobs_tensors."""
        if logits is None or spec_decode_metadata is not None or not getattr(runner, SWITCH, False):
            return original(runner, logits, spec_decode_metadata)
        # vLLM's sampler works on a copy in float32, but changes logits that are in float32 already
        models_own = logits.clone() if logits.dtype == torch.float32 else logits
        output = original(runner, logits, spec_decode_metadata)
        if output.logprobs_tensors is not None:
            return output
        return dataclasses.replace(output, logprobs_tensors=StepScores(score(models_own, output.sampled_token_ids)))

    return sample
