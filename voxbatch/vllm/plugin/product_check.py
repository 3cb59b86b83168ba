"""Check of a loaded model, at the start of a reproducible run: no row of a product depends on the number of rows.

Which kernel multiplies so many rows is a decision of libraries, by tables for each kind of GPU and each version. So
nobody can know it beforehand, and the engine looks: some fifty numbers of rows for each shape of a weight.
"""

from __future__ import annotations

from typing import Any

import torch

ROWS = (1, 2, 4, *range(8, 256, 8), *range(256, 1_024, 64), 2_048)
"""Numbers of rows that are compared."""
MAX_NUMBERS = 1 << 26
"""Maximum size of a compared product: 128 MiB in 16 bits. vLLM has filled most of the memory by then."""


def first_dependent_product(model: torch.nn.Module) -> str:
    """Return the shape and the number of rows of a product that depends on it, as text for people, or an empty string.

    Args:
        model: any model of vLLM, also with weights in 8 bits.
    """
    layers = {
        (*layer.weight.shape, layer.weight.dtype, getattr(layer, "bias", None) is None): layer
        for layer in model.modules()
        if isinstance(layer, torch.nn.Linear) or _is_vllms(layer)
    }
    for layer in layers.values():
        weight = layer.weight.t() if layer.weight.itemsize == 1 else layer.weight  # vLLM transposes weights in 8 bits
        outputs, inputs = weight.shape
        counts = [count for count in ROWS if count * max(outputs, inputs) <= MAX_NUMBERS]
        dtype = layer.orig_dtype if weight.itemsize == 1 else weight.dtype
        x = torch.randn(counts[-1], inputs, dtype=dtype, device=weight.device)
        whole = _product(layer, x)
        for count in counts:
            if not torch.equal(_product(layer, x[:count]), whole[:count]):
                return f"{count} of {counts[-1]} rows times a matrix of {inputs} x {outputs}"
    return ""


def _is_vllms(layer: Any) -> bool:
    """Return whether this is a linear layer or an embedding of vLLM."""
    has_product = hasattr(getattr(layer, "quant_method", None), "apply")
    return has_product and getattr(layer, "weight", None) is not None and layer.weight.dim() == 2


def _product(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """Return x times the layer's weight, with its bias if it has one."""
    if isinstance(layer, torch.nn.Linear):
        product: torch.Tensor = layer(x)
    else:
        product = layer.quant_method.apply(layer, x, getattr(layer, "bias", None))
    return product
