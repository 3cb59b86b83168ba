"""Attention backend for the decoder: vLLM's FlashAttention, with our own kernel for steps that only decode.

A step that contains a prompt uses FlashAttention, on the same K/V cache. Our kernel computes these steps too in two
cases. If the cache has 8 bits: FlashAttention reads 8 bits on Hopper only, and rounds the queries as well. If a run
must be reproducible: the kernels round differently, and a request must not notice that another one begins. The engine
selects this backend by its name (attention backend CUSTOM), on CUDA.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.config import get_current_vllm_config
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend, FlashAttentionImpl

from voxbatch.vllm.plugin import is_reproducible
from voxbatch.vllm.plugin.decode_kernel import EIGHT_BITS, attend, fits

IN_8_BITS = ("fp8", "fp8_e4m3")
"""vLLM's names of a K/V cache in e4m3."""
ADA = (8, 9)
"""Compute capability of the oldest GPUs that convert e4m3."""


class DecodeAttentionBackend(FlashAttentionBackend):  # type: ignore[misc]
    """vLLM's FlashAttention backend with DecodeAttentionImpl as its implementation."""

    @staticmethod
    def get_impl_cls() -> type[DecodeAttentionImpl]:
        """Return the implementation's class."""
        return DecodeAttentionImpl

    @classmethod
    def supports_kv_cache_dtype(cls, kv_cache_dtype: str | None) -> bool:
        """Return whether a K/V cache of this number format can be read."""
        if kv_cache_dtype in IN_8_BITS:
            return bool(current_platform.has_device_capability(ADA))
        return bool(super().supports_kv_cache_dtype(kv_cache_dtype))


class DecodeAttentionImpl(FlashAttentionImpl):  # type: ignore[misc]
    """FlashAttention that calls `decode_kernel.attend` in steps that only decode, and in all steps if the cache has 8
    bits or the run must be reproducible.

    The kernel is used only for decoder self-attention over the whole context: without a sliding window shorter than the
    context, ALiBi, a soft cap, sinks or context parallelism.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        config = get_current_vllm_config().model_config
        behind: int = self.sliding_window[0]
        sees_all = behind < 0 or behind + 1 >= config.max_model_len
        plain = self.alibi_slopes is None and not self.logits_soft_cap and self.sinks is None
        self._in_8_bits = self.kv_cache_dtype in IN_8_BITS
        self._takes_prompts = self._in_8_bits or is_reproducible()
        self._is_ours = (
            sees_all and plain and self.attn_type == AttentionType.DECODER and self.dcp_world_size <= 1
            and self.kv_cache_dtype in ("auto", "bfloat16", "float16", *IN_8_BITS)
            and fits(self.head_size, self.num_queries_per_kv, config.dtype)
        )  # fmt: skip
        if self._is_ours and self._in_8_bits:
            self.supports_quant_query_input = False  # else vLLM's layer would round the queries to 8 bits

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        *others: Any,
        **named: Any,
    ) -> torch.Tensor:
        """Write the attention of a step to `output`, and return it, as FlashAttentionImpl does.

        The new keys and values are in the cache already.

        Args:
            query, output: [positions, heads, head_dim].
            kv_cache: [blocks, kv_heads, block_size, 2 * head_dim], laid out in memory by block, position, head.
        """
        has_prompts = attn_metadata is not None and attn_metadata.max_query_len > 1
        if not self._is_ours or attn_metadata is None or (has_prompts and not self._takes_prompts):
            result: torch.Tensor = super().forward(
                layer, query, key, value, kv_cache, attn_metadata, output, *others, **named
            )
            return result
        count = attn_metadata.num_actual_tokens
        cache = kv_cache.view(EIGHT_BITS) if self._in_8_bits else kv_cache
        k, v = cache.transpose(1, 2).split(self.head_size, dim=-1)
        scales = (layer._k_scale_float, layer._v_scale_float) if self._in_8_bits else (1.0, 1.0)
        # In a step without prompts there is one position for each request. Requests that only pad the batch of a CUDA
        # graph are included, with length 0.
        starts = attn_metadata.query_start_loc if has_prompts else None
        attend(
            query[:count], k, v, attn_metadata.block_table, attn_metadata.seq_lens, self.scale, output[:count], starts,
            attn_metadata.max_query_len, *scales,
        )  # fmt: skip
        return output
