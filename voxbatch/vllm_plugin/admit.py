"""What a step admits is encoded from the samples as they lie on the host, before vLLM has sent them to the GPU.

There the encoder can look at them without waiting for it (see `silence`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Execute = Callable[..., list[torch.Tensor]]


def samples(feature: Any) -> torch.Tensor:
    """[samples] of a request's audio, on the host."""
    found: torch.Tensor = feature.data["audio_arrays"].data
    return found


def from_the_host(encode: Execute) -> Execute:
    """The runner's `_execute_mm_encoder`, for our model; any other is left to vLLM's own."""

    def execute(runner: Any, scheduler_output: Any) -> list[torch.Tensor]:
        model = runner.get_model()
        scheduled: dict[str, list[int]] = scheduler_output.scheduled_encoder_inputs
        features = [runner.requests[name].mm_features[i] for name, numbers in scheduled.items() for i in numbers]
        if not hasattr(model, "encoded") or any(feature.data is None for feature in features):
            return encode(runner, scheduler_output)
        rows = model.encoded([samples(feature) for feature in features]) if features else []
        for feature, each in zip(features, rows, strict=True):
            runner.encoder_cache[feature.identifier] = each
        return []  # which nobody reads of a model that has a decoder alone

    return execute
