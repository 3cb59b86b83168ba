"""The engine option `fp8`, which lets parts of the model compute in 8 bits: arguments for vLLM, and a warning.

The matrices of the decoder and of the encoder are quantised while they load, from weights of 16 bits. There is a scale
for each output channel, and one for each row of the input, which is computed at run time (vLLM's fp8_per_channel). The
embedding, which also gives the logits, stays in 16 bits, and so do the convolutions, the adapter and the norms. The K/V
cache is stored in e4m3. Its scales are 1, because nothing was calibrated; queries are rounded in the same way. No files
are needed besides those of the model.

The option is off by default: without the real weights nobody has measured its effect on the word error rate.
"""

from __future__ import annotations

from typing import Any

from voxbatch.engines import gpu
from voxbatch.vllm.engine.settings import DECODER, ENCODER, KV

METHOD = "fp8_per_channel"
NAMES = {DECODER: "re:.*language_model", ENCODER: "re:.*whisper_encoder"}
"""Patterns for the modules of the parts in vLLM's Voxtral models. vLLM's lists of modules that are not quantised take
such patterns."""
HAS_FP8, HOPPER = (8, 9), 9
"""The lowest compute capability that computes in 8 bits, and the major version of Hopper's."""
FLASH, TRITON = "FLASH_ATTN", "TRITON_ATTN"


def arguments(parts: frozenset[str]) -> dict[str, Any]:
    """Return the arguments of vLLM's `LLM` for the parts that compute in 8 bits."""
    vllm_arguments: dict[str, Any] = {"kv_cache_dtype": "fp8"} if KV in parts else {}
    if quantised := parts & {*NAMES}:
        vllm_arguments["quantization"] = METHOD
        if unquantised := [name for part, name in NAMES.items() if part not in quantised]:
            vllm_arguments["quantization_config"] = {"ignore": unquantised}
    return vllm_arguments


def attention_backend(parts: frozenset[str], gpu_info: gpu.GpuInfo) -> str:
    """Return the attention backend that the parts need on a GPU, or an empty string if vLLM chooses the right one.

    With the plugin its own attention reads K/V in 8 bits (see prefill.brings_attention), and this function is not
    asked. Without it FlashAttention reads them on Hopper, and vLLM's Triton kernels on other GPUs.
    """
    return TRITON if KV in parts and gpu_info.capability[0] != HOPPER else ""


def warning(parts: frozenset[str]) -> str:
    """Return the warning for the user that the effect of 8 bits was never measured."""
    return (
        f"fp8={parts_as_text(parts)}: the effect of 8 bits on the text was never measured; before you rely on it, "
        "compare the word error rate of some hours with and without"
    )


def parts_as_text(parts: frozenset[str]) -> str:
    """Return the parts as text, in the same order for every order of the option."""
    return ",".join(sorted(parts))
