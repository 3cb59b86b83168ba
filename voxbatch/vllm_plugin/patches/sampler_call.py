"""Wrap Sampler.__call__ of vLLM's second model runner: score the sampled tokens (see `token_scores`).

This is `sample_scores` for the second runner. It was never run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch

from voxbatch.vllm_plugin.patches.sample_scores import SWITCH
from voxbatch.vllm_plugin.token_scores import StepScores, score

MODULE = "vllm.v1.worker.gpu.sample.sampler"
PARAMETERS = ["logits", "input_batch"]
"""Parameters of the sampler's method after the sampler."""


def fits(runner: Any) -> bool:
    """Return whether a runner of vLLM has the sampler of the second runner."""
    return type(getattr(runner, "sampler", None)).__module__ == MODULE


def switch(runner: Any, on: bool) -> bool:
    """Make a runner that `fits` score the tokens from the next step on, or stop it. Return False if it cannot.

    Args:
        runner: a runner of vLLM, with its model loaded.
        on: whether the runner scores the tokens.
    """
    sampler = runner.sampler
    kind = type(sampler)
    if [*signature(kind.__call__).parameters][1:] != PARAMETERS:
        return False
    if not hasattr(kind, SWITCH):
        setattr(kind, SWITCH, False)
        kind.__call__ = wrap(kind.__call__)
    setattr(sampler, SWITCH, on)
    return True


def wrap(original: Callable[[Any, torch.Tensor, Any], Any]) -> Callable[[Any, torch.Tensor, Any], Any]:
    """Return the sampler's `__call__`, which also scores the tokens if the sampler's SWITCH is on.

    Args:
        original: vLLM's own method, which changes a copy of the logits only. If a request asks for vLLM's own
            log-probabilities, its result is returned unchanged.
    """

    def call(sampler: Any, logits: torch.Tensor, input_batch: Any) -> Any:
        """Return the sampled tokens, with StepScores as their logprobs_tensors."""
        found = original(sampler, logits, input_batch)
        if getattr(sampler, SWITCH) and found.logprobs_tensors is None:
            found.logprobs_tensors = StepScores(score(logits, found.sampled_token_ids))
        return found

    return call
