"""Replace GPUModelRunner._execute_mm_encoder: encode admitted requests from the samples on the host.

vLLM would send the samples to the GPU first. On the host the encoder can check the samples for silence without waiting
for the GPU (see `silence`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

ExecuteEncoder = Callable[..., list[torch.Tensor]]


def wrap(original: ExecuteEncoder) -> ExecuteEncoder:
    """Return the runner's `_execute_mm_encoder` for the plugin's model.

    Args:
        original: vLLM's own method. It is called for any other model, and if the samples of a request are missing.
    """

    def execute_mm_encoder(runner: Any, scheduler_output: Any) -> list[torch.Tensor]:
        model = runner.get_model()
        scheduled: dict[str, list[int]] = scheduler_output.scheduled_encoder_inputs
        features = [runner.requests[name].mm_features[i] for name, numbers in scheduled.items() for i in numbers]
        if not hasattr(model, "encode_chunks") or any(feature.data is None for feature in features):
            return original(runner, scheduler_output)
        rows = model.encode_chunks([feature.data["audio_arrays"].data for feature in features]) if features else []
        for feature, feature_rows in zip(features, rows, strict=True):
            runner.encoder_cache[feature.identifier] = feature_rows
        return []  # vLLM reads this result only for models with an encoder and a decoder

    return execute_mm_encoder
