"""Watches what a model made of a chunk, and says what is suspect: text lost, or text invented.

Speech models fail in a few known ways: they fall silent over speech (Voxtral Realtime says [STREAMING_PAD] for
minutes), stop early, repeat themselves, or say more than anybody could speak. Each leaves a trace that costs nothing to
look at. What is suspect is decoded once more, differently cut, and the better one kept; this module only judges.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from voxbatch.chunk import FRAME, is_silent, loudness
from voxbatch.engines.vllm.families import Heard
from voxbatch.records import SAMPLING_RATE, Samples

PAUSE_S = 10.0
"""Nobody who speaks is silent for so long without the level showing it."""
PAUSE_SPEECH_S = 4.0
"""So much speech in it makes a pause suspect: of 107 chunks of real speech, none has less than 4.4 s in its middle
10 s."""
EMPTY_S = 2.0
"""Speech of this length has at least one word."""
MOST_CHARACTERS_A_SECOND = 35.0
"""The fastest speakers say 10 syllables a second, some 30 characters."""
FEWEST_CHARACTERS_A_SECOND = 1.0
"""Over speech of SLOW_S or more. Chinese has about 4 a second, counted as characters."""
SLOW_S = 8.0
COMPRESSION = 2.4
"""Text that zlib makes smaller than this is repetition (openai/whisper, transcribe.py:
compression_ratio_threshold)."""
COMPRESSION_CHARACTERS = 60
"""Shorter texts compress badly whatever they say."""

SPEECH_BELOW_PEAK_DB, SPEECH_ABOVE_DB = 25.0, -50.0
"""A frame is taken for speech when it is at most so far below the chunk's loudest frames, and above this level."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    what: str
    """For a person, as in "no text over 12.4 s of speech"."""
    weight: float
    """To compare two decodings of one chunk."""


def suspicions(samples: Samples, heard: Heard) -> list[Suspicion]:
    """What is suspect about `heard`, from `samples` of shape (num_samples,); empty for most chunks."""
    speech = _speech_seconds(samples)
    characters = len(heard.text.strip())
    found = [_fast(characters, len(samples) / SAMPLING_RATE), _repetitive(heard.text), _truncated(heard)]
    if not characters:
        found.append(_empty(speech))
    else:
        found += [_slow(characters, speech), _paused(samples, heard), _stopped(samples, heard)]
    return [each for each in found if each is not None]


def _empty(speech: float) -> Suspicion | None:
    return Suspicion(f"no text over {speech:.1f} s of speech", 3) if speech >= EMPTY_S else None


def _fast(characters: int, duration: float) -> Suspicion | None:
    if characters <= MOST_CHARACTERS_A_SECOND * max(duration, 1.0):
        return None
    return Suspicion(f"{characters} characters in {duration:.1f} s, more than anybody speaks", 2)


def _slow(characters: int, speech: float) -> Suspicion | None:
    if speech < SLOW_S or characters >= FEWEST_CHARACTERS_A_SECOND * speech:
        return None
    return Suspicion(f"only {characters} characters over {speech:.1f} s of speech", 2)


def _repetitive(text: str) -> Suspicion | None:
    ranks = {character: i % 256 for i, character in enumerate(dict.fromkeys(text))}
    data = bytes(ranks[character] for character in text)  # UTF-8 would make all text in Devanagari look repetitive
    if len(text) < COMPRESSION_CHARACTERS or (ratio := len(data) / len(zlib.compress(data))) <= COMPRESSION:
        return None
    return Suspicion(f"the text repeats itself (it compresses {ratio:.1f} times)", 2)


def _truncated(heard: Heard) -> Suspicion | None:
    return Suspicion("the text was cut off at the longest that is allowed", 1) if heard.truncated else None


def _paused(samples: Samples, heard: Heard) -> Suspicion | None:
    if heard.quiet is None or heard.quiet[1] - heard.quiet[0] < PAUSE_S:
        return None
    start, end = (max(0, round(each * SAMPLING_RATE)) for each in heard.quiet)
    speech = _speech_seconds(samples, start, end)
    if speech < PAUSE_SPEECH_S:
        return None
    return Suspicion(
        f"nothing said from {heard.quiet[0]:.1f} to {heard.quiet[1]:.1f} s, over {speech:.1f} s of speech", 2
    )


def _stopped(samples: Samples, heard: Heard) -> Suspicion | None:
    if heard.unheard is None:
        return None
    start, end = (round(each * SAMPLING_RATE) for each in heard.unheard)
    if (speech := _speech_seconds(samples, start, end)) < EMPTY_S:
        return None
    return Suspicion(f"ended at {heard.unheard[0]:.1f} s, before {speech:.1f} s of speech", 2)


def _speech_seconds(samples: Samples, start: int = 0, end: int | None = None) -> float:
    """How much of [start, end) is likely speech: loud for this recording, and neither silence nor steady noise."""
    stretch = samples[start:end]
    if is_silent(stretch):
        return 0.0
    levels = loudness(samples)
    if not len(levels):
        return 0.0
    threshold = max(float(np.percentile(levels, 95)) - SPEECH_BELOW_PEAK_DB, SPEECH_ABOVE_DB)
    return float((loudness(stretch) > threshold).sum()) * FRAME / SAMPLING_RATE
