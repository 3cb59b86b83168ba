"""Voxtral Mini 3B and Small 24B as vLLM runs them with the plugin: the windows of a burst are encoded in groups.

Stock vLLM already encodes a window of 30 s once, when its prompt is computed. So the weights, the layers of the
encoder, `forward` and the logits are those of the stock model. Two things differ:

1. `encode_chunks` takes the samples on the host, computes the spectrograms of a group of windows together, and encodes
one group after another. So a burst takes no more working memory than a group.
2. The methods of vLLM's runner are replaced (see `patches`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.model_executor.models.voxtral import VoxtralForConditionalGeneration

from voxbatch.vllm_plugin import GROUP_FRAMES
from voxbatch.vllm_plugin.packing import to_device
from voxbatch.vllm_plugin.patches import patch_runner
from voxbatch.vllm_plugin.spectrogram import LOUDEST_TO_FAINTEST


class PrefillInstruct(VoxtralForConditionalGeneration):  # type: ignore[misc]
    """A Voxtral of the instruct kind for batch jobs. It replaces vLLM's model of the same architecture."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self._windows: WindowEncoder | None = None
        patch_runner()

    def embed_multimodal(self, **kwargs: object) -> Sequence[torch.Tensor]:
        """Encode audio from vLLM, and return the rows of each recording, [tokens, width].

        vLLM calls this when it measures memory. The audio of requests comes through `encode_chunks`.
        """
        audio = self._parse_and_validate_audio_arrays(**kwargs)
        return self.encode_chunks(audio) if audio else []

    def encode_chunks(self, audio: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Encode recordings, and return the rows of each, [tokens, width].

        Args:
            audio: [samples] for each recording, which are whole windows.
        """
        if self._windows is None:  # vLLM calls this for the first time after it has loaded the weights
            self._windows = WindowEncoder(self.whisper_encoder, self.audio_language_adapter)
        return self._windows(audio)


class WindowEncoder:
    """Encoder and adapter over groups of windows. Create it after the weights are loaded.

    Args:
        tower: vLLM's VoxtralEncoderModel.
        adapter: vLLM's AudioLanguageAdapter, which turns some frames into a row.
    """

    def __init__(self, tower: Any, adapter: Any):
        config = tower.config
        self._encoder, self._adapter, self._dtype = tower.whisper_encoder, adapter, tower.dtype
        self._device: torch.device = self._encoder.conv1.weight.device
        self._mels_per_window: int = tower.chunk_size
        self._window_size, self._hop = config.window_size, config.hop_length
        self._group = max(1, GROUP_FRAMES // config.max_source_positions)
        self._row_width: int = adapter.w_in.in_features
        self._filters = tower.mel_filters.to(self._device)
        self._hann = torch.hann_window(config.window_size, device=self._device)

    def __call__(self, audio: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the rows of each recording, [tokens, width], in the order of `audio`.

        Raises:
            ValueError: a recording is empty or not a whole number of windows.
        """
        by_length = defaultdict[int, list[int]](list)
        for index, samples in enumerate(audio):
            by_length[len(samples)].append(index)
        found: dict[int, torch.Tensor] = {}
        for length, members in by_length.items():
            windows, rest = divmod(length, self._mels_per_window * self._hop)
            if rest or not windows:
                raise ValueError(f"{length} samples of audio; a request's audio is padded to whole windows")
            step = max(1, self._group // windows)
            for group in (members[i : i + step] for i in range(0, len(members), step)):
                samples = torch.stack([to_device(audio[i], self._device) for i in group])
                found |= zip(group, self._encode(samples), strict=True)
        return [found[i] for i in range(len(audio))]

    def _encode(self, samples: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the rows of recordings of the same length, [tokens, width] each, of [recordings, samples]."""
        mels = self._log_mels(samples.float()).to(samples.dtype).to(self._dtype)
        windows = mels.unflatten(2, (-1, self._mels_per_window)).transpose(1, 2).flatten(0, 1)
        hidden = self._encoder([windows])  # [windows, frames, dim]
        rows: torch.Tensor = self._adapter(hidden.reshape(len(samples), -1, self._row_width))
        return tuple(rows)

    def _log_mels(self, samples: torch.Tensor) -> torch.Tensor:
        """Return the log-mel spectrograms, [recordings, mels, frames], as VoxtralEncoderModel makes them one by one."""
        bins = torch.stft(samples, self._window_size, self._hop, window=self._hann, return_complex=True)[..., :-1]
        power = bins.imag.square().addcmul_(bins.real, bins.real)
        logs = (self._filters.T @ power).clamp_(min=1e-10).log10_()
        faintest = logs.amax(dim=(1, 2), keepdim=True) - LOUDEST_TO_FAINTEST
        return logs.maximum(faintest).add_(4.0).div_(4.0)
