"""Replace GPUModelRunner._sample: take the argmax of the logits as they are if every request is greedy.

vLLM's sampler first converts the logits to float32, 268 MB a step for 512 requests. The conversion does not change
which logit is the largest. Among equal logits the first one is taken, here as there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Sample = Callable[[Any, torch.Tensor | None, Any], Any]
ARGMAX_CHANGING = ("biases", "min_toks")
"""Attributes of vLLM's own logits processors that can change which token is the likeliest. If such an attribute is
empty, the processor does nothing."""


def wrap(original: Sample) -> Sample:
    """Return the runner's `_sample` for greedy steps.

    Args:
        original: vLLM's own method. It is called if a request asks for more than the likeliest token.
    """

    def sample(runner: Any, logits: torch.Tensor | None, spec_decode_metadata: Any) -> Any:
        """Return the argmax as the sampled tokens, [requests, 1], int32."""
        has_drafts = spec_decode_metadata is not None
        if logits is None or has_drafts or not only_argmax(runner.input_batch.sampling_metadata):
            return original(runner, logits, spec_decode_metadata)
        from vllm.v1.outputs import SamplerOutput

        tokens = logits.argmax(dim=-1, keepdim=True).to(torch.int32)
        return SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=None)

    return sample


def only_argmax(metadata: Any) -> bool:
    """Return whether all requests ask for the likeliest token and nothing else.

    Args:
        metadata: vLLM's SamplingMetadata.
    """
    further = (
        metadata.max_num_logprobs is not None, metadata.logprob_token_ids, metadata.bad_words_token_ids,
        metadata.allowed_token_ids_mask is not None, metadata.thinking_budget_state_holder is not None,
    )  # fmt: skip
    return (
        metadata.all_greedy and metadata.no_penalties and not any(further)
        and all(map(_is_idle, metadata.logitsprocs.non_argmax_invariant))
    )  # fmt: skip


def _is_idle(processor: Any) -> bool:
    """Return whether a logits processor does nothing in this step. A processor that is not vLLM's own is never idle."""
    settings = [getattr(processor, name) for name in ARGMAX_CHANGING if hasattr(processor, name)]
    return bool(settings) and not any(settings)
