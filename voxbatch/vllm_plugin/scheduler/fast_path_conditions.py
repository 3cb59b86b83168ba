"""Check whether vLLM's scheduler, requests and outputs qualify for the scheduler fast path."""

from __future__ import annotations

from typing import Any

from vllm.sampling_params import RequestOutputKind

UNSUPPORTED_FEATURES = (
    "connector",
    "ec_connector",
    "aux_output_connector",
    "lora_config",
    "num_spec_tokens",
    "dynamic_sd_lookup",
    "use_pp",
    "is_encoder_decoder",
    "is_mm_encoder_only",
    "has_mamba_layers",
    "prefix_replay_tokens",
    "defer_block_free",
    "return_sampling_mask",
    "enable_kv_cache_events",
    "perf_metrics",
    "finished_req_ids_dict",
    "log_stats",
)
"""Attributes of a scheduler for features that voxbatch does not use."""
UNSUPPORTED_OUTPUTS = (
    "logprobs",
    "prompt_logprobs_dict",
    "prompt_token_id_logprobs_dict",
    "pooler_output",
    "num_nans_in_logits",
    "kv_connector_output",
    "ec_connector_output",
    "aux_output_connector_output",
    "sampling_masks",
)
"""Attributes of a model's output for results other than tokens."""


def scheduler_qualifies(scheduler: Any) -> bool:
    """Return whether a scheduler uses no feature that affects a step, and the K/V blocks of a request only grow."""
    manager = scheduler.kv_cache_manager
    groups = manager.coordinator.single_type_managers
    return (
        all(getattr(scheduler, name, None) in (None, False, 0) for name in UNSUPPORTED_FEATURES)
        and scheduler.num_sampled_tokens_per_step == 1
        and scheduler.dcp_world_size == scheduler.pcp_world_size == 1
        and not manager.enable_caching
        and len(groups) == 1
        and not slides(groups[0].kv_cache_spec, scheduler.max_model_len)
    )


def slides(spec: Any, max_model_len: int) -> bool:
    """Return whether K/V blocks are freed while a request runs, because of a sliding window."""
    window = getattr(spec, "sliding_window", None)
    return window is not None and window < max_model_len


def request_qualifies(request: Any, max_model_len: int) -> bool:
    """Return whether a request qualifies.

    It ends by a token or by its length only, within its audio and the context. Its text is needed only after its end.
    """
    params, end = request.sampling_params, request.num_prompt_tokens + request.max_tokens
    places = [feature.mm_position for feature in request.mm_features]
    return (
        params is not None
        and params.output_kind == RequestOutputKind.FINAL_ONLY
        and not params.stop
        and params.repetition_detection is None
        and params.logprobs is None
        and params.prompt_logprobs is None
        and params.prompt_logprob_token_ids is None
        and not request.use_structured_output
        and not request.resumable
        and request.lora_request is None
        and request.client_index == 0
        and end <= max_model_len
        and len(places) <= 1
        # vLLM frees audio in the step after its last position. That is the end of the request for audio of the whole
        # text (the last token needs none), and the end of the prompt, which vLLM handles, for audio within it.
        and all(
            place.offset + place.length >= end - 1 or place.offset + place.length < request.num_prompt_tokens
            for place in places
        )
    )


def end_tokens(request: Any) -> set[int]:
    """Return the ids of the tokens that end a request."""
    params = request.sampling_params
    return {*(params.stop_token_ids or ()), *([] if params.eos_token_id is None else [params.eos_token_id])}


def output_qualifies(output: Any) -> bool:
    """Return whether an output of the model holds tokens and nothing else."""
    return bool(output.sampled_token_ids) and not any(getattr(output, name, None) for name in UNSUPPORTED_OUTPUTS)
