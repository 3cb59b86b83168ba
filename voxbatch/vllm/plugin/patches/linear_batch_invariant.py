"""Replace vLLM's `linear_batch_invariant`, the product of a linear layer in a reproducible run: cuBLAS on Hopper.

In its batch-invariant mode vLLM gives cuBLAS so little workspace that no kernel splits a sum among multiprocessors. On
an H200 all kernels that are left add up a row in the same order, whatever the number of rows: cuBLAS and vLLM's Triton
kernel give the same bits (benchmarks/RESULTS.md). Still vLLM computes these layers by the Triton kernel, whose tiles of
128 rows and columns leave most of the GPU idle in a step of a hundred requests. `product_check` compares the bits at
each start.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
from torch.nn import functional

Linear = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Function of an input, [..., in], a weight, [out, in], and a bias, [out], or None."""
NAME = "linear_batch_invariant"
MODULES = ("vllm.model_executor.layers.linear", "vllm.model_executor.layers.vocab_parallel_embedding")
"""Modules that import the function by its name."""
HOPPER = 90
"""vLLM's number for compute capability 9.0, for which the bits were compared."""


def wrap(original: Linear) -> Linear:
    """Return a function that multiplies by cuBLAS in bfloat16, and by vLLM's function in other number formats.

    cuBLAS splits sums in float32 without any workspace, and float16 was not compared.
    """

    def linear_batch_invariant(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return functional.linear(x, weight, bias) if x.dtype == torch.bfloat16 else original(x, weight, bias)

    return linear_batch_invariant


def replace() -> None:
    """Replace the function in this process, if its GPU is a Hopper and this vLLM has the function."""
    from vllm.platforms import current_platform

    if current_platform.is_cuda() and current_platform.is_device_capability(HOPPER):
        for name in MODULES:
            module = importlib.import_module(name)
            if hasattr(module, NAME):
                setattr(module, NAME, wrap(getattr(module, NAME)))
