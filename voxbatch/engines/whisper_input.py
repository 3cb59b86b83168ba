"""Make the input of Whisper: samples of 16 bits, padded spectrograms, and the tokens of texts that stand before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxbatch.records import SAMPLING_RATE, Samples

FRAMES_PER_SECOND = 100
"""Frames of Whisper's spectrogram (openai/whisper, audio.py: FRAMES_PER_SECOND)."""
WINDOW_FRAMES = 30 * FRAMES_PER_SECOND
"""Length of the longest window, to which openai/whisper pads all others (openai/whisper, audio.py: CHUNK_LENGTH)."""
PADDING_FRAMES = 5 * FRAMES_PER_SECOND
"""Length by which a shorter window is padded. With 2 s, tiny.en repeated the text of 21 of 293 short recordings."""
EDGE_FRAMES = 2
"""Frames at the edge of a block whose spectrum the block's end distorts: a frame's spectrum is of 400 samples around
its start, which is 200 samples, or 1.25 frames, beyond the edge."""
HOTWORD_TOKENS = 111
"""Largest number of tokens of the hotwords: half of the text before."""


def in_16_bits(samples: Samples) -> Samples:
    """Return samples as 16 bits hold them. Whisper was trained on such samples only: its own loader decodes to s16le
    (openai/whisper, audio.py)."""
    rounded: Samples = (np.rint(samples.clip(-1, 32_767 / 32_768) * 32_768) / 32_768).astype(np.float32)
    return rounded


def spectrogram(model: Any, samples: Samples) -> NDArray[np.float32]:
    """Return the log-mel spectrogram that the model takes, of shape (mels, frames + 1).

    It equals the result of the model's own feature extractor, which gets one block of 30 s after the other, because it
    takes many times the memory of its result. The extractor raises all values to a floor: 2 below the maximum. The
    floor of a block is never above that of the whole.
    """
    extractor, hop = model.feature_extractor, SAMPLING_RATE // FRAMES_PER_SECOND
    num_frames = len(samples) // hop
    blocks = []
    for start in range(0, max(num_frames, 1), WINDOW_FRAMES):
        begin, end = max(0, start - EDGE_FRAMES), start + WINDOW_FRAMES
        if end < num_frames:
            block = extractor(samples[begin * hop : (end + EDGE_FRAMES) * hop], padding=0)
            blocks.append(block[:, start - begin : end - begin])
        else:
            blocks.append(extractor(samples[begin * hop :])[:, start - begin :])
    features = np.concatenate(blocks, axis=1)
    floored: NDArray[np.float32] = np.maximum(features, features.max() - 2)
    return floored


def encoded_window(model: Any, features: NDArray[np.float32]) -> Any:
    """Return the encoder's output for a window, padded as PADDING_FRAMES says on a CPU, and to 30 s elsewhere.

    Args:
        features: the log-mel spectrogram, of shape (mels, frames).
    """
    from faster_whisper.audio import pad_or_trim

    size = features.shape[1] + PADDING_FRAMES if model.model.device == "cpu" else WINDOW_FRAMES
    return model.encode(pad_or_trim(features, min(size, WINDOW_FRAMES)))


def encoded_text(model: Any, text: str) -> tuple[int, ...]:
    """Return the tokens of a text that stands before others."""
    return tuple(model.hf_tokenizer.encode(f" {text.strip()}", add_special_tokens=False).ids)


def fitting_hotwords(
    encode: Callable[[str], Sequence[int]], hotwords: str, room: int = HOTWORD_TOKENS
) -> tuple[str, str | None]:
    """Return the first hotwords that have `room` tokens together, and a warning if there are more.

    Args:
        encode: returns the tokens of a text; see `encoded_text`.
        hotwords: see Hints.
        room: largest number of tokens.
    """
    words = hotwords.split(",")
    kept = list(words)
    while kept and len(encode(",".join(kept))) > room:
        kept.pop()
    left_out = len(words) - len(kept)
    return ",".join(kept), f"the last {left_out} of {len(words)} hotwords have no room" if left_out else None
