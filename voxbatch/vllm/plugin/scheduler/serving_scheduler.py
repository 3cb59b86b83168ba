"""vLLM's own schedulers with a larger encoder cache and texts that end with their audio, for `voxbatch serve`.

A server gets requests one by one and answers each at once, so that nothing of batch_scheduler fits: no bursts, and no
reserved blocks, which would let short requests wait for memory that long ones may never need.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from voxbatch.vllm.plugin.scheduler.admission import enlarge_encoder_cache


class _Serving:
    """Mixin for either of vLLM's schedulers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        enlarge_encoder_cache(self)

    def add_request(self, request: Any) -> None:
        end_with_audio(request)
        super().add_request(request)  # type: ignore[misc]


def end_with_audio(request: Any) -> None:
    """Limit the text of a request to its audio, if the model hears the audio token by token while it writes.

    Voxtral Realtime writes one token for each token of audio and should then write its end. If it does not, and other
    requests run, vLLM dies of the missing audio with all of them. So a request gets as many tokens as in
    a batch job (realtime_limits.max_tokens). A stream gets one token for each part of its audio and needs no limit. The
    audio of an instruct model lies within its prompt.
    """
    heard = max((feature.mm_position.offset + feature.mm_position.length for feature in request.mm_features), default=0)
    if heard > request.num_prompt_tokens and not request.resumable:
        request.max_tokens = max(1, min(request.max_tokens, heard - request.num_prompt_tokens - 1))


class ServingScheduler(_Serving, Scheduler):  # type: ignore[misc]
    """The scheduler of vLLM's CPU build."""


class AsyncServingScheduler(_Serving, AsyncScheduler):  # type: ignore[misc]
    """The scheduler that prepares a step while the GPU computes the step before."""
