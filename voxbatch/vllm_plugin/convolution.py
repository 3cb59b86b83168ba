"""The encoder's causal convolutions, of frames whose channels lie together: by vLLM's modules, or as matrix products.

The modules want [chunks, channels, frames], and cuDNN turns all of these round, and back. As a product (`Causal`) a
window of frames is a row, and the weights are a matrix. Windows of neighbours share frames, which no matrix product
takes as they lie (its rows may not overlap): they are written out, 14 MB for a chunk of 30 s in 16 bits.

In 16 bits both round alike. Float32 is there for comparing, and is left to the modules: on a CPU products differ from
them by rounding, which silence can make much of; on a GPU cuDNN takes TF32 where products do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

Convolution = Callable[[torch.Tensor], torch.Tensor]
"""[chunks, frames, channels], of any number format and as many frames as the stride goes into, to [chunks,
frames / stride, out], in the weights' number format."""


class Turned:
    """vLLM's own module."""

    def __init__(self, module: Any):
        self._module = module

    def __call__(self, frames: torch.Tensor) -> torch.Tensor:
        """See Convolution."""
        found: torch.Tensor = self._module(frames.transpose(1, 2).to(self._module.weight.dtype))
        return found.transpose(1, 2)


class Causal:
    """As a product. It looks back only: each window ends with the `stride` frames that are new to it.

    Args:
        module: torch's Conv1d, whose weights are copied; `kernel - stride` zeros stand before the first frame.
    """

    def __init__(self, module: Any):
        (self._kernel,), (self._stride,) = module.kernel_size, module.stride
        self._weight = module.weight.detach().transpose(1, 2).flatten(1)  # [out, kernel * channels]
        self._bias = module.bias.detach()

    def __call__(self, frames: torch.Tensor) -> torch.Tensor:
        """See Convolution."""
        found: torch.Tensor = functional.linear(self._windows(frames).flatten(2), self._weight, self._bias)
        return found

    def _windows(self, frames: torch.Tensor) -> torch.Tensor:
        """[chunks, frames / stride, kernel, channels]. What is not new to a window stands in the one before it,
        `stride` places further on."""
        new = frames.unflatten(1, (-1, self._stride))
        chunks, count, _, channels = new.shape
        behind = self._kernel - self._stride
        windows = self._weight.new_empty(chunks, count, self._kernel, channels)
        windows[:, :, behind:] = new
        windows[:, 0, :behind].zero_()
        for place in reversed(range(behind)):
            windows[:, 1:, place] = windows[:, :-1, place + self._stride]
        return windows
