"""Norms, activation and matrix products of an encoder layer: in PyTorch, by vLLM's kernels, and in 8 bits.

A norm and an activation return what `multiply` takes as its input: a tensor, or rows that are rounded to 8 bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class TorchOps:
    """Operations of a layer, but for its attention, in PyTorch, as stock vLLM runs them on a CPU.

    The operations of the derived classes may write into `residual` and `delta`.
    """

    def norm(self, module: Any, residual: torch.Tensor, delta: torch.Tensor | None) -> tuple[Any, torch.Tensor]:
        """Return the RMS norm of `residual + delta`, as an input of `multiply`, and the sum.

        Args:
            delta: what is added first, or None for nothing.
        """
        residual = residual if delta is None else residual + delta
        return module.forward_native(residual), residual

    def last_norm(self, module: Any, residual: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
        """Return the RMS norm of `residual + delta` as a tensor."""
        normed: torch.Tensor = self.norm(module, residual, delta)[0]
        return normed

    def gate(self, module: Any, x: torch.Tensor) -> Any:
        """Return SwiGLU's product, as an input of `multiply`: SiLU of the left half of x times its right half."""
        return module.forward_native(x)

    def multiply(self, module: Any, x: Any) -> torch.Tensor:
        """Return x, a tensor or a result of `norm` or `gate`, times the matrix of vLLM's module."""
        product: torch.Tensor = module(x)[0]
        return product


class FusedOps(TorchOps):
    """The operations by vLLM's own CUDA kernels. They write into `delta` and `residual`.

    In a compiled model vLLM leaves these operations to the compiler. This code is not compiled.
    """

    def __init__(self) -> None:
        from vllm import _custom_ops

        self._kernels: Any = _custom_ops

    def norm(self, module: Any, residual: torch.Tensor, delta: torch.Tensor | None) -> tuple[Any, torch.Tensor]:
        """Return the norm of the sum, and the sum; see `TorchOps`."""
        if delta is None:
            normed = torch.empty_like(residual)
            self._kernels.rms_norm(normed, residual, module.weight, module.variance_epsilon)
            return normed, residual
        self._kernels.fused_add_rms_norm(delta, residual, module.weight, module.variance_epsilon)
        return delta, residual

    def gate(self, module: Any, x: torch.Tensor) -> Any:
        """Return SwiGLU's product; see `TorchOps`."""
        return module.forward_cuda(x)


class EightBitOps(FusedOps):
    """The operations with products in 8 bits: the kernels that make a product's input round it, too.

    Create it only for layers that `fits` accepts. `residual` is written to.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        from voxbatch.vllm.plugin import quantise_kernel

        self._rounding: Any = quantise_kernel
        self._dtype = dtype

    @staticmethod
    def fits(layers: Iterable[Any]) -> bool:
        """Return whether all matrices of vLLM's WhisperCausalEncoderLayers are in 8 bits as `multiply` needs them.

        vLLM's CUTLASS kernel must have been chosen, with a scale for each output channel and without padding, on one
        GPU.
        """
        matrices = [
            matrix
            for layer in layers
            for matrix in (layer.self_attn.qkv_proj, layer.self_attn.out_proj, layer.mlp.gate_up_proj,
                           layer.mlp.down_proj)
        ]  # fmt: skip
        return all(_is_cutlass(matrix) for matrix in matrices)

    def norm(self, module: Any, residual: torch.Tensor, delta: torch.Tensor | None) -> tuple[Any, torch.Tensor]:
        """Return the norm of the sum in 8 bits, and the sum; see `TorchOps`."""
        rounded = self._rounding.norm_and_round(residual, delta, module.weight, module.variance_epsilon)
        return rounded, residual

    def last_norm(self, module: Any, residual: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
        """Return the norm of the sum in 16 bits; see `TorchOps`."""
        normed: torch.Tensor = super().norm(module, residual, delta)[0]
        return normed

    def gate(self, module: Any, x: torch.Tensor) -> Any:
        """Return SwiGLU's product in 8 bits; see `TorchOps`."""
        return self._rounding.gate_and_round(x)

    def multiply(self, module: Any, x: Any) -> torch.Tensor:
        """Return the product in 16 bits; see `TorchOps`."""
        values, scales = self._rounding.round_rows(x) if isinstance(x, torch.Tensor) else x
        product: torch.Tensor = self._kernels.cutlass_scaled_mm(
            values, module.weight, scale_a=scales, scale_b=module.weight_scale, out_dtype=self._dtype, bias=module.bias
        )
        return product


def _is_cutlass(matrix: Any) -> bool:
    """Return whether vLLM multiplies by this matrix with CUTLASS in 8 bits, see EightBitOps.fits."""
    # of vLLM's fp8_per_channel, and of a checkpoint in compressed-tensors' format
    holder = getattr(matrix, "scheme", matrix.quant_method)
    kernel = getattr(holder, "fp8_linear", None)
    if type(kernel).__name__ != "CutlassFP8ScaledMMLinearKernel" or matrix.tp_size != 1:
        return False
    is_padded = matrix.weight.shape != (matrix.input_size, matrix.output_size)
    return not is_padded and matrix.weight_scale.numel() == matrix.output_size
