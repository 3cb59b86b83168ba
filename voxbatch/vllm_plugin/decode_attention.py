"""Attention backend for the decoder: vLLM's FlashAttention, with our own kernel for steps that only decode.

A step that contains a prompt uses FlashAttention, on the same K/V cache. The engine selects this backend by its name
(attention backend CUSTOM), on CUDA and for a K/V cache in the model's own number format.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.config import get_current_vllm_config
from vllm.v1.attention.backend import AttentionType
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend, FlashAttentionImpl

from voxbatch.vllm_plugin.decode_kernel import attend, fits


class DecodeAttentionBackend(FlashAttentionBackend):  # type: ignore[misc]
    """vLLM's FlashAttention backend with DecodeAttentionImpl as its implementation."""

    @staticmethod
    def get_impl_cls() -> type[DecodeAttentionImpl]:
        """Return the implementation's class."""
        return DecodeAttentionImpl


class DecodeAttentionImpl(FlashAttentionImpl):  # type: ignore[misc]
    """FlashAttention that calls `decode_kernel.attend` in steps that only decode.

    The kernel is used only for decoder self-attention over the whole context: without a sliding window shorter than the
    context, ALiBi, a soft cap, sinks or context parallelism.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        config = get_current_vllm_config().model_config
        behind: int = self.sliding_window[0]
        sees_all = behind < 0 or behind + 1 >= config.max_model_len
        plain = self.alibi_slopes is None and not self.logits_soft_cap and self.sinks is None
        self._is_ours = (
            sees_all and plain and self.attn_type == AttentionType.DECODER and self.dcp_world_size <= 1
            and self.kv_cache_dtype in ("auto", "bfloat16", "float16")
            and fits(self.head_size, self.num_queries_per_kv, config.dtype)
        )  # fmt: skip

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
        if not self._is_ours or attn_metadata is None or attn_metadata.max_query_len > 1:
            found: torch.Tensor = super().forward(
                layer, query, key, value, kv_cache, attn_metadata, output, *others, **named
            )
            return found
        # one position for each request; requests that only pad the batch of a CUDA graph are included, with length 0
        count = attn_metadata.num_actual_tokens
        k, v = kv_cache.transpose(1, 2).split(self.head_size, dim=-1)
        lengths, blocks = attn_metadata.seq_lens, attn_metadata.block_table
        attend(query[:count], k, v, blocks, lengths, self.scale, output[:count])
        return output
