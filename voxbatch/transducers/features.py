"""Packed samples → log-mel features, on the GPU.

The numbers are those of transformers' ParakeetFeatureExtractor, which follows NeMo: preemphasis, a Hann window, powers,
Slaney's mel filters, a logarithm, and mean and variance of each clip set to 0 and 1 over its own frames. It is written
again because the original takes no packed clips, needs librosa for the filters, and gives NaN below 320 samples.
"""

from __future__ import annotations

import torch

from voxbatch.records import SAMPLING_RATE
from voxbatch.transducers.model import FeatureSettings
from voxbatch.transducers.packing import MAX_CLIPS

ZERO_GUARD = 2.0**-24
"""Added to a power before its logarithm (NeMo: log_zero_guard_value)."""
EPSILON = 1e-5
"""Added to a standard deviation before the division (NeMo: CONSTANT)."""


class LogMel:
    """The features of clips, as a function of their samples."""

    def __init__(self, settings: FeatureSettings, device: torch.device):
        from transformers.audio_utils import mel_filter_bank

        self._settings = settings
        filters = mel_filter_bank(
            num_frequency_bins=settings.n_fft // 2 + 1,
            num_mel_filters=settings.feature_size,
            min_frequency=0.0,
            max_frequency=SAMPLING_RATE / 2,
            sampling_rate=SAMPLING_RATE,
            norm="slaney",
            mel_scale="slaney",
        )
        self._filters = torch.tensor(filters, dtype=torch.float32, device=device).T.contiguous()
        self._window = torch.hann_window(settings.win_length, periodic=False, device=device)
        self._numbers = torch.arange(MAX_CLIPS, dtype=torch.int8, device=device)[:, None]

    def __call__(self, samples: torch.Tensor, ends: torch.Tensor, clips: torch.Tensor) -> torch.Tensor:
        """Return the features of rows.

        Args:
            samples: float32 of shape (num_rows, (num_features + 1) * hop_length), full scale ±1, 0 between clips.
            ends: index of the sample after each clip in `samples`, flattened.
            clips: int8, number of the clip of each feature in its row, -1 between clips: shape (num_rows,
                num_features). A clip has one feature for each whole `hop_length`, and at least two.

        Returns:
            float32 of shape (num_rows, num_features, feature_size), 0 between clips.
        """
        settings = self._settings
        emphasised = torch.cat([samples[:, :1], samples[:, 1:] - settings.preemphasis * samples[:, :-1]], dim=1)
        emphasised.view(-1)[ends] = 0.0
        spectrum = torch.stft(
            emphasised,
            settings.n_fft,
            hop_length=settings.hop_length,
            win_length=settings.win_length,
            window=self._window,
            return_complex=True,
            pad_mode="constant",
        )
        powers = torch.view_as_real(spectrum[..., : clips.shape[1]]).square().sum(-1)
        features = (self._filters @ powers + ZERO_GUARD).log()
        is_clip = (clips >= 0).unsqueeze(1)
        if not settings.normalizes:
            return features.masked_fill(~is_clip, 0.0).transpose(1, 2)
        # Sums over clips as products of matrices: they are the same in each run, unlike sums by atomic additions.
        of_clip = (clips.unsqueeze(1) == self._numbers).float()
        counts = of_clip.sum(-1)
        means = features @ of_clip.transpose(1, 2) / counts.clamp(min=1).unsqueeze(1)
        deviations = (features - means @ of_clip) * is_clip
        variances = deviations.square() @ of_clip.transpose(1, 2) / (counts - 1).clamp(min=1).unsqueeze(1)
        return (deviations / (variances.sqrt() @ of_clip + EPSILON)).transpose(1, 2)
