"""Silence that every chunk begins with. It is encoded once, and its encoding is kept.

Voxtral Realtime's tokenizer puts the same tokens of silence before each recording: 32 of about 425 tokens in a chunk of
30 s. The encoder only looks back. So the frames of this silence, and their keys and values in each layer, are the same
in every chunk. The last frames are the exception, because their windows reach into the recording.

The code assumes nothing: it checks the samples of each chunk on the host. The check takes microseconds there and waits
for no GPU. A chunk that begins otherwise, or whose samples are on a GPU already, is encoded in full.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

MELS_PER_FRAME = 2
"""Mels per encoder frame: the second convolution has stride 2."""


@dataclass(frozen=True, slots=True, eq=False)
class Silence:
    """Encoding of the silence that chunks begin with."""

    samples: int
    """Number of samples at a chunk's beginning that must be zero."""
    keys: list[torch.Tensor]
    """[2, frames, k] for each layer: the keys, rotated by position, and the values."""
    rows: torch.Tensor
    """[tokens, width]: the adapter's output for the frames."""

    @property
    def frames(self) -> int:
        """Number of frames of the silence."""
        count: int = self.keys[0].shape[1]
        return count

    def begins(self, audio: torch.Tensor) -> bool:
        """Return whether these samples are known to begin with this silence. Never waits for a GPU."""
        if audio.device.type != "cpu" or len(audio) < self.samples:
            return False
        return not audio[: self.samples].any()


def extent(left_pad: int, config: Any) -> tuple[int, int]:
    """Return the number of samples in `left_pad` tokens of silence, and of frames that depend on them alone.

    `settled_frames` counts these frames.
    """
    samples = left_pad * config.block_pool_size * config.hop_length * MELS_PER_FRAME
    return samples, settled_frames(samples, config.window_size, config.hop_length, config.block_pool_size)


def settled_frames(samples: int, window: int, hop: int, pool: int) -> int:
    """Return the number of a chunk's frames that depend on its first `samples` samples alone, in whole tokens.

    Mel i is computed from samples i·hop ± window / 2. A frame depends on its own two mels and on no later ones: the
    first convolution reads a mel and the two before it, and the second, of stride 2, ends at an odd mel.

    Args:
        window: samples in the window of the spectrogram.
        hop: samples from mel to mel.
        pool: frames in a token.
    """
    mels = max(0, (samples - window // 2) // hop + 1)
    return mels // MELS_PER_FRAME // pool * pool
