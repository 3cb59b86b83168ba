"""Calculate the limits of a Voxtral Realtime request: audio that a context holds, and tokens of text to request.

One token stands for 80 ms of audio (1,280 samples), both in the prompt and in the text: at each position the model
hears one token of audio and writes one token of text. mistral-common pads the audio of a request
(tokens/tokenizers/audio.py: AudioEncoder.pad) with `LEFT_PAD` tokens of silence in front, up to a whole token at the
end, and with delay + 1 + `WORD_BUFFER` further tokens behind. So the audio covers

    positions = ceil(samples / 1280) + LEFT_PAD + delay + 1 + WORD_BUFFER

The prompt is [BOS], and one [STREAMING_PAD] for each left pad and each token of the delay. In a context of 512
positions, a delay of 480 ms (6 tokens) gives a prompt of 39 tokens and at most 37.04 s of audio. A delay of 2,400 ms
(30 tokens) gives 63 tokens and 35.12 s.

vLLM silently truncates longer audio. It dies with all its other requests when a text is longer than its audio. So both
limits are enforced before a request reaches vLLM.
"""

from __future__ import annotations

from voxbatch.records import SAMPLING_RATE

TOKEN_MS = 80
SAMPLES_PER_TOKEN = SAMPLING_RATE * TOKEN_MS // 1000
LEFT_PAD = 32
"""Number of tokens of silence in front of the audio: tekken.json, audio.streaming_n_left_pad_tokens."""
WORD_BUFFER = 10
"""Number of tokens behind the audio for the longest word: OFFLINE_STREAMING_BUFFER_TOKENS of mistral-common."""


def delay_tokens(delay_ms: float) -> int:
    """Return a delay in tokens: 480 ms → 6."""
    return round(delay_ms / TOKEN_MS)


def positions(num_samples: int, delay: int, left_pad: int = LEFT_PAD) -> int:
    """Return the number of context positions that a request takes, for prompt and text together.

    Args:
        num_samples: samples of audio, without pads.
        delay: the transcription delay in tokens.
        left_pad: tokens of silence in front of the audio.
    """
    return -(-num_samples // SAMPLES_PER_TOKEN) + left_pad + delay + 1 + WORD_BUFFER


def prompt_tokens(delay: int, left_pad: int = LEFT_PAD) -> int:
    """Return the number of tokens in a prompt, at a delay in tokens."""
    return 1 + left_pad + delay


def longest_chunk(max_model_len: int, delay: int, left_pad: int = LEFT_PAD) -> int:
    """Return the largest number of samples whose positions fit into a context of `max_model_len` positions.

    The number is zero or negative if the context holds no more than the pads.
    """
    return (max_model_len - positions(0, delay, left_pad)) * SAMPLES_PER_TOKEN


def max_tokens(num_samples: int, delay: int, left_pad: int = LEFT_PAD) -> int:
    """Return the number of tokens of text to request: one for each position after the prompt, less one.

    vLLM's own tests use the same number. One token more than the positions hold kills the engine while other requests
    run.
    """
    return positions(num_samples, delay, left_pad) - prompt_tokens(delay, left_pad) - 1
