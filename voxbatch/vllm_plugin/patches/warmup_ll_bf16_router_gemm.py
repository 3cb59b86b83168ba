"""Replace _warmup_ll_bf16_router_gemm of vLLM's start by nothing.

On Hopper, vLLM 0.26 compiles 17 kernels at each start of any model, for the routers of four other models (Inkling and
DeepSeek), and keeps none of them. No model of voxbatch has a router. By 0.32 vLLM compiles those of its own model only.
"""

from __future__ import annotations


def skip() -> None:
    """Replace the function, if this vLLM has it. Call this in each process that holds a model, before it warms up."""
    from vllm.model_executor.warmup import kernel_warmup

    if hasattr(kernel_warmup, "_warmup_ll_bf16_router_gemm"):
        kernel_warmup._warmup_ll_bf16_router_gemm = lambda *_: None
