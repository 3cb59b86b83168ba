"""Voxtral Mini 3B and Small 24B as vLLM runs them with the plugin: the windows of a burst are encoded in groups.

Stock vLLM already encodes a window of 30 s once, when its prompt is computed. So the model is the stock model. Two
things differ: `encode_chunks` takes the samples on the host and encodes one group of windows after another, so that a
burst takes no more working memory than a group; and the methods of vLLM's runner are replaced (see `patches`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.model_executor.models.voxtral import VoxtralForConditionalGeneration

from voxbatch.vllm.plugin import GROUP_FRAMES
from voxbatch.vllm.plugin.model import WholeChunkModel
from voxbatch.vllm.plugin.packing import to_device
from voxbatch.vllm.plugin.patches import patch_runner


class PrefillInstruct(WholeChunkModel, VoxtralForConditionalGeneration):  # type: ignore[misc]
    """A Voxtral of the instruct kind for batch jobs. It replaces vLLM's model of the same architecture."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        patch_runner()

    def encode_chunks(self, audio: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Encode recordings, and return the rows of each, [tokens, width].

        Args:
            audio: [samples] for each recording, which are whole windows.
        """
        tower: Any = self.whisper_encoder
        device, size = tower.whisper_encoder.conv1.weight.device, GROUP_FRAMES // tower.config.max_source_positions
        rows: list[torch.Tensor] = []
        for first in range(0, len(audio), size):
            group = [to_device(samples, device) for samples in audio[first : first + size]]
            rows += VoxtralForConditionalGeneration.embed_multimodal(self, audio_arrays=group)
        return rows
