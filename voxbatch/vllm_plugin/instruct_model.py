"""Voxtral Mini 3B and Small 24B as vLLM runs them with the plugin: the windows of a burst are encoded in groups.

Stock vLLM already encodes a window of 30 s once, when its prompt is computed. So the weights, `forward` and the logits
are those of the stock model. Three things differ:

1. `encode_chunks` takes the samples on the host, computes the spectrograms of a group of windows together, and encodes
one group after another. So a burst takes no more working memory than a group.
2. The layers of the encoder add, clamp and norm in one pass on a GPU (`layer_norm_kernel`).
3. The methods of vLLM's runner are replaced (see `patches`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional
from vllm.config import VllmConfig
from vllm.model_executor.models.voxtral import VoxtralForConditionalGeneration

from voxbatch.vllm_plugin import GROUP_FRAMES
from voxbatch.vllm_plugin.model import WholeChunkModel
from voxbatch.vllm_plugin.packing import to_device
from voxbatch.vllm_plugin.patches import patch_runner
from voxbatch.vllm_plugin.spectrogram import LOUDEST_TO_FAINTEST

BELOW_MAX = 1_000
"""Numbers after a layer are at most this much below the largest one of their format (vLLM's cast_overflow_tensors)."""
AddAndNorm = Callable[[torch.Tensor, torch.Tensor, Any, float], torch.Tensor]
"""See `add_and_norm`."""


class PrefillInstruct(WholeChunkModel, VoxtralForConditionalGeneration):  # type: ignore[misc]
    """A Voxtral of the instruct kind for batch jobs. It replaces vLLM's model of the same architecture."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self._windows: WindowEncoder | None = None
        patch_runner()

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
        self._add_and_norm: AddAndNorm = add_and_norm
        if self._device.type == "cuda":
            from voxbatch.vllm_plugin import layer_norm_kernel

            self._add_and_norm = layer_norm_kernel.add_and_norm

    def __call__(self, audio: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the rows of each recording, [tokens, width], in the order of `audio`.

        Raises:
            ValueError: a recording is empty or not a whole number of windows.
        """
        by_length = defaultdict[int, list[int]](list)
        for index, samples in enumerate(audio):
            by_length[len(samples)].append(index)
        rows: dict[int, torch.Tensor] = {}
        for length, members in by_length.items():
            windows, rest = divmod(length, self._mels_per_window * self._hop)
            if rest or not windows:
                raise ValueError(f"{length} samples of audio; a request's audio is padded to whole windows")
            step = max(1, self._group // windows)
            for group in (members[i : i + step] for i in range(0, len(members), step)):
                samples = torch.stack([to_device(audio[i], self._device) for i in group])
                rows |= zip(group, self._encode(samples), strict=True)
        return [rows[i] for i in range(len(audio))]

    def _encode(self, samples: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the rows of recordings of the same length, [tokens, width] each, of [recordings, samples]."""
        mels = self._log_mels(samples.float()).to(samples.dtype).to(self._dtype)
        windows = mels.unflatten(2, (-1, self._mels_per_window)).transpose(1, 2).flatten(0, 1)
        hidden = self._run_layers(windows)
        rows: torch.Tensor = self._adapter(hidden.reshape(len(samples), -1, self._row_width))
        return tuple(rows)

    def _run_layers(self, mels: torch.Tensor) -> torch.Tensor:
        """Return what vLLM's WhisperEncoder makes of spectrograms, [windows, frames, dim].

        Args:
            mels: [windows, mels, frames of the spectrogram].
        """
        encoder = self._encoder
        hidden = functional.gelu(encoder.conv2(functional.gelu(encoder.conv1(mels)))).transpose(1, 2)
        x = (hidden + encoder.embed_positions.weight[: hidden.shape[1]]).to(hidden.dtype).contiguous()
        limit = torch.finfo(x.dtype).max - BELOW_MAX
        norms = [*(layer.self_attn_layer_norm for layer in encoder.layers[1:]), encoder.layer_norm]
        normed: torch.Tensor = encoder.layers[0].self_attn_layer_norm(x)
        for layer, next_norm in zip(encoder.layers, norms, strict=True):
            normed = self._add_and_norm(x, layer.self_attn(normed), layer.final_layer_norm, math.inf)
            normed = self._add_and_norm(x, layer.mlp(normed), next_norm, limit)
        return normed

    def _log_mels(self, samples: torch.Tensor) -> torch.Tensor:
        """Return the log-mel spectrograms, [recordings, mels, frames], as VoxtralEncoderModel makes them one by one."""
        bins = torch.stft(samples, self._window_size, self._hop, window=self._hann, return_complex=True)[..., :-1]
        power = bins.imag.square().addcmul_(bins.real, bins.real)
        logs = (self._filters.T @ power).clamp_(min=1e-10).log10_()
        faintest = logs.amax(dim=(1, 2), keepdim=True) - LOUDEST_TO_FAINTEST
        return logs.maximum(faintest).add_(4.0).div_(4.0)


def add_and_norm(x: torch.Tensor, delta: torch.Tensor, norm: Any, limit: float) -> torch.Tensor:
    """Write `x + delta`, clamped to ±limit, to x, and return the layer norm of x.

    `layer_norm_kernel` computes the same in one kernel.
    """
    x.add_(delta).clamp_(-limit, limit)
    normed: torch.Tensor = norm(x)
    return normed
