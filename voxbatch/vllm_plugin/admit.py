"""Encoding of admitted requests from the samples on the host, before vLLM sends them to the GPU.

On the host the encoder can check the samples for silence without waiting for the GPU (see `silence`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Execute = Callable[..., list[torch.Tensor]]


def samples(feature: Any) -> torch.Tensor:
    """Return the samples of a request's audio, [samples], on the host."""
    found: torch.Tensor = feature.data["audio_arrays"].data
    return found


def from_the_host(encode: Execute) -> Execute:
    """Return the runner's `_execute_mm_encoder` for our model. For any other model it calls `encode`, vLLM's own
    method."""

    def execute(runner: Any, scheduler_output: Any) -> list[torch.Tensor]:
        model = runner.get_model()
        scheduled: dict[str, list[int]] = scheduler_output.scheduled_encoder_inputs
        features = [runner.requests[name].mm_features[i] for name, numbers in scheduled.items() for i in numbers]
        if not hasattr(model, "encoded") or any(feature.data is None for feature in features):
            return encode(runner, scheduler_output)
        rows = model.encoded([samples(feature) for feature in features]) if features else []
        for feature, each in zip(features, rows, strict=True):
            runner.encoder_cache[feature.identifier] = each
        return []  # vLLM reads this result only for models with an encoder and a decoder

    return execute
