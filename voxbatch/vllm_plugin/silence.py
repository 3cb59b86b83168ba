"""The silence that every chunk begins with. What the encoder makes of it is made once, and kept.

Voxtral Realtime's tokenizer puts the same tokens of silence before each recording, 32 of some 425 in a chunk of 30 s.
The encoder looks back only, so that its frames of them, and in each layer their keys and values, are the same in every
chunk, but for the last ones, which the recording reaches.

Nothing is taken on trust: each chunk's samples are looked at, on the host, where that takes microseconds and nobody
has to wait for a GPU. A chunk that begins otherwise, or whose samples are on a GPU already, goes the whole way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

MELS_PER_FRAME = 2


@dataclass(frozen=True, slots=True, eq=False)
class Silence:
    samples: int
    """That a chunk must begin with, all zero."""
    keys: list[torch.Tensor]
    """[2, frames, k] for each layer: the keys, turned by position, and the values."""
    rows: torch.Tensor
    """[tokens, width]: what the adapter makes of the frames."""

    @property
    def frames(self) -> int:
        found: int = self.keys[0].shape[1]
        return found

    def begins(self, audio: torch.Tensor) -> bool:
        """Whether these samples are known to begin with it. Never waits for a GPU."""
        return begins_silent(audio, self.samples)


def begins_silent(audio: torch.Tensor, samples: int) -> bool:
    """Whether the first so many samples are known to be zero. Never waits for a GPU."""
    if audio.device.type != "cpu" or len(audio) < samples:
        return False
    return not audio[:samples].any()


def extent(left_pad: int, config: Any) -> tuple[int, int]:
    """Samples of so many tokens of silence, and the frames that depend on them alone: see settled_frames.

    Args:
        config: the encoder's.
    """
    samples = left_pad * config.block_pool_size * config.hop_length * MELS_PER_FRAME
    return samples, settled_frames(samples, config.window_size, config.hop_length, config.block_pool_size)


def settled_frames(samples: int, window: int, hop: int, pool: int) -> int:
    """How many of a chunk's frames depend on its first `samples` samples alone, in whole tokens.

    Mel i is of samples i·hop ± window / 2. A frame is of two mels, its own and no later ones: the first convolution
    sees a mel and the two before it, the second, of stride 2, ends at an odd one.

    Args:
        window: samples, of the spectrogram.
        hop: samples from mel to mel.
        pool: frames in a token.
    """
    mels = max(0, (samples - window // 2) // hop + 1)
    return mels // MELS_PER_FRAME // pool * pool
