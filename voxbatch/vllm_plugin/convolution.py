"""Causal convolutions of the encoder, for frames whose channels are contiguous: by vLLM's modules, or as matrix
products.

vLLM's modules want [chunks, channels, frames], and cuDNN transposes these tensors before its work and after it. As a
product (`Causal`), a window of frames is a row, and the weights are a matrix. The windows of neighbours share frames,
and the rows of a matrix product may not overlap. So the windows are written out: 14 MB for a chunk of 30 s in 16 bits.

In 16 bits both ways round alike. Float32 is there for comparisons and uses the modules. There products differ from the
modules: on a CPU by rounding, which silence can amplify much; on a GPU because cuDNN uses TF32 and products do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

Convolution = Callable[[torch.Tensor], torch.Tensor]
"""Function from [chunks, frames, channels] to [chunks, frames / stride, out], in the weights' number format. The input
may have any number format. Its number of frames is a multiple of the stride."""


class Turned:
    """vLLM's own module, with its input and output transposed."""

    def __init__(self, module: Any):
        self._module = module

    def __call__(self, frames: torch.Tensor) -> torch.Tensor:
        """Convolve the frames (see Convolution)."""
        found: torch.Tensor = self._module(frames.transpose(1, 2).to(self._module.weight.dtype))
        return found.transpose(1, 2)


class Causal:
    """Causal convolution as a matrix product. Each window ends with the `stride` frames that are new to it.

    Args:
        module: torch's Conv1d, whose weights are copied. `kernel - stride` zeros stand before the first frame.
    """

    def __init__(self, module: Any):
        (self._kernel,), (self._stride,) = module.kernel_size, module.stride
        self._weight = module.weight.detach().transpose(1, 2).flatten(1)  # [out, kernel * channels]
        self._bias = module.bias.detach()

    def __call__(self, frames: torch.Tensor) -> torch.Tensor:
        """Convolve the frames (see Convolution)."""
        found: torch.Tensor = functional.linear(self._windows(frames).flatten(2), self._weight, self._bias)
        return found

    def _windows(self, frames: torch.Tensor) -> torch.Tensor:
        """Return the windows, [chunks, frames / stride, kernel, channels].

        A frame that is not new to a window is also in the window before it, `stride` places further on. It is copied
        from there.
        """
        new = frames.unflatten(1, (-1, self._stride))
        chunks, count, _, channels = new.shape
        behind = self._kernel - self._stride
        windows = self._weight.new_empty(chunks, count, self._kernel, channels)
        windows[:, :, behind:] = new
        windows[:, 0, :behind].zero_()
        for place in reversed(range(behind)):
            windows[:, 1:, place] = windows[:, :-1, place + self._stride]
        return windows
