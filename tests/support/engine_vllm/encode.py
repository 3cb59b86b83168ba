"""Encode chunks, which are padded already, with the plugin's encoder into rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import generate
import numpy as np

from voxbatch.vllm.engine import fp8

_engines: list[Any] = []


def rows(model: Path, waveforms: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return rows [tokens, width] by "together", "alone" and "fused", and then by the chunk's name.

    "fused" uses the kernels that a GPU uses, except attention and our own kernel: vLLM's kernels have CPU versions of
    the same name. Unlike the other two, it encodes the silence at the beginning of each chunk every time. "known" is
    the number of frames that the others save.
    """
    import torch

    made, audio = _loaded(model), [torch.from_numpy(samples) for samples in waveforms.values()]
    with torch.inference_mode():
        ways = {
            "together": made.embed_multimodal(audio_arrays=audio),
            "alone": [made.embed_multimodal(audio_arrays=[samples])[0] for samples in audio],
            "fused": fused(made)(audio),
        }
    by_name = {way: dict(zip(waveforms, map(_array, encoded), strict=True)) for way, encoded in ways.items()}
    return {**by_name, "known": made._encoder._silence.frames}


def quantised(model: Path, samples: np.ndarray, parts: Sequence[str]) -> tuple[np.ndarray, dict[str, str]]:
    """Return the rows of a chunk by the model in bfloat16 with these parts in 8 bits, and vLLM's class that multiplies
    by the matrix of each module."""
    import torch

    made = _loaded(model, dtype="bfloat16", **fp8.arguments(frozenset(parts)))
    with torch.inference_mode():
        encoded = made.embed_multimodal(audio_arrays=[torch.from_numpy(samples)])
    return _array(encoded[0]), {
        name: type(module.quant_method).__name__
        for name, module in made.named_modules()
        if hasattr(module, "quant_method") and hasattr(module, "weight")
    }


def _loaded(model: Path, **options: Any) -> Any:
    """Return vLLM's model, whose engine lives as long as this process."""
    _engines.append(generate.engine(model, 512, **options))
    return _engines[-1].llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.get_model()


def _array(encoded: Any) -> np.ndarray:
    array: np.ndarray = encoded.float().numpy()
    return array


def fused(model: Any) -> Any:
    """Return an encoder with vLLM's fused kernels, in their CPU versions."""
    import torch

    from voxbatch.vllm.plugin.encoder import Encoder
    from voxbatch.vllm.plugin.encoder_ops import FusedOps

    encoder = Encoder(model.whisper_encoder, model.audio_language_adapter)
    encoder._ops = FusedOps()
    for layer in model.whisper_encoder.whisper_encoder.layers:
        layer.mlp.act_fn.op = torch.ops._C.silu_and_mul  # the CPU build has this kernel, but does not use it
    return encoder
