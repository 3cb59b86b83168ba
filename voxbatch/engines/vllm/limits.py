"""The arithmetic of a Voxtral Realtime request: how much audio a context holds, and how much text may be asked for.

One token stands for 80 ms of audio (1,280 samples), in the prompt and in the text alike: the model hears one token of
audio and says one token of text at each position. A request's audio is padded by mistral-common
(tokens/tokenizers/audio.py: AudioEncoder.pad) with `LEFT_PAD` tokens of silence in front, up to a whole token, and
delay + 1 + `WORD_BUFFER` tokens behind, so it covers

    positions = ceil(samples / 1280) + LEFT_PAD + delay + 1 + WORD_BUFFER

Its prompt is [BOS] and one [STREAMING_PAD] for each left pad and each token of the delay. With a delay of 480 ms (6
tokens) and a context of 512 positions that is a prompt of 39 tokens and at most 37.04 s of audio; at 2,400 ms (30
tokens), 63 tokens and 35.12 s. vLLM cuts what is longer without a word, and dies with all its other requests when a
text goes on beyond the audio: so both limits are kept here, before anything reaches it.
"""

from __future__ import annotations

from voxbatch.records import SAMPLING_RATE

TOKEN_MS = 80
SAMPLES_PER_TOKEN = SAMPLING_RATE * TOKEN_MS // 1000
LEFT_PAD = 32
"""Tokens of silence in front: tekken.json, audio.streaming_n_left_pad_tokens."""
WORD_BUFFER = 10
"""Tokens behind the audio for the longest word: mistral-common's OFFLINE_STREAMING_BUFFER_TOKENS."""


def delay_tokens(delay_ms: float) -> int:
    """480 ms → 6."""
    return round(delay_ms / TOKEN_MS)


def positions(num_samples: int, delay: int, left_pad: int = LEFT_PAD) -> int:
    """Context positions that `num_samples` of audio take, prompt and text together, at a delay in tokens."""
    return -(-num_samples // SAMPLES_PER_TOKEN) + left_pad + delay + 1 + WORD_BUFFER


def prompt_tokens(delay: int, left_pad: int = LEFT_PAD) -> int:
    return 1 + left_pad + delay


def longest_chunk(max_model_len: int, delay: int, left_pad: int = LEFT_PAD) -> int:
    """The most samples whose positions fit into a context of `max_model_len`; not positive when not even pads do."""
    return (max_model_len - positions(0, delay, left_pad)) * SAMPLES_PER_TOKEN


def max_tokens(num_samples: int, delay: int, left_pad: int = LEFT_PAD) -> int:
    """Tokens of text to ask for: one for each position after the prompt, less one, as in vLLM's own tests. One more
    than the positions hold kills the engine while other requests run."""
    return positions(num_samples, delay, left_pad) - prompt_tokens(delay, left_pad) - 1
