"""Greedy sampling for steps in which every request takes the likeliest token: argmax over the logits as they are.

vLLM's sampler first converts the logits to float32, 268 MB a step for 512 requests. The conversion does not change
which logit is the largest. Among equal logits the first one is taken, here as there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Sample = Callable[[Any, torch.Tensor | None, Any], Any]
CHANGING = ("biases", "min_toks")
"""Attributes of vLLM's own logits processors that can change which token is the likeliest. If such an attribute is
empty, the processor does nothing."""


def likeliest(sampled: Sample) -> Sample:
    """Return the runner's `_sample` for greedy steps.

    Args:
        sampled: vLLM's own method. It is called if a request asks for more than the likeliest token.
    """

    def sample(runner: Any, logits: torch.Tensor | None, drafts: Any) -> Any:
        """Return the argmax as the sampled tokens, [requests, 1], int32."""
        if logits is None or drafts is not None or not is_plain(runner.input_batch.sampling_metadata):
            return sampled(runner, logits, drafts)
        from vllm.v1.outputs import SamplerOutput

        found = logits.argmax(dim=-1, keepdim=True).to(torch.int32)
        return SamplerOutput(sampled_token_ids=found, logprobs_tensors=None)

    return sample


def is_plain(asked: Any) -> bool:
    """Return whether all requests ask for the likeliest token and nothing else.

    Args:
        asked: vLLM's SamplingMetadata.
    """
    wanted = (
        asked.max_num_logprobs is not None, asked.logprob_token_ids, asked.bad_words_token_ids,
        asked.allowed_token_ids_mask is not None, asked.thinking_budget_state_holder is not None,
    )  # fmt: skip
    return (
        asked.all_greedy and asked.no_penalties and not any(wanted)
        and all(map(_is_idle, asked.logitsprocs.non_argmax_invariant))
    )  # fmt: skip


def _is_idle(processor: Any) -> bool:
    """Return whether a logits processor does nothing in this step. A processor that is not vLLM's own is never idle."""
    tasks = [getattr(processor, name) for name in CHANGING if hasattr(processor, name)]
    return bool(tasks) and not any(tasks)
