"""What the model says next, where every request takes the likeliest token: found among the logits as they are.

vLLM's sampler first makes float32 of them, 268 MB a step for 512 requests, of which the largest is the largest in
bfloat16 too, and the first of several equal ones the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Sample = Callable[[Any, torch.Tensor | None, Any], Any]
CHANGING = ("biases", "min_toks")
"""What vLLM's own processors of logits, of those that may change which is the largest, have to do; empty: nothing."""


def likeliest(sampled: Sample) -> Sample:
    """The runner's `_sample`; `sampled` is the original, which is asked where a request wants anything else."""

    def sample(runner: Any, logits: torch.Tensor | None, drafts: Any) -> Any:
        if logits is None or drafts is not None or not is_plain(runner.input_batch.sampling_metadata):
            return sampled(runner, logits, drafts)
        from vllm.v1.outputs import SamplerOutput

        found = logits.argmax(dim=-1, keepdim=True).to(torch.int32)
        return SamplerOutput(sampled_token_ids=found, logprobs_tensors=None)

    return sample


def is_plain(asked: Any) -> bool:
    """Whether nobody asks for more than the likeliest token."""
    wanted = (
        asked.max_num_logprobs is not None, asked.logprob_token_ids, asked.bad_words_token_ids,
        asked.allowed_token_ids_mask is not None, asked.thinking_budget_state_holder is not None,
    )  # fmt: skip
    return (
        asked.all_greedy and asked.no_penalties and not any(wanted)
        and all(map(_is_idle, asked.logitsprocs.non_argmax_invariant))
    )  # fmt: skip


def _is_idle(processor: Any) -> bool:
    """One that is not vLLM's own never is."""
    tasks = [getattr(processor, name) for name in CHANGING if hasattr(processor, name)]
    return bool(tasks) and not any(tasks)
