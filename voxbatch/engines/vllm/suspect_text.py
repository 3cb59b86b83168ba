"""Find texts that are suspect, because text may be lost or invented.

Speech models fail in a few known ways. They write nothing over speech (Voxtral Realtime writes [STREAMING_PAD] for
minutes), stop early, repeat themselves, or write more than anybody can speak. Each failure leaves a trace that costs
almost nothing to check. `request_loop` decodes a suspect chunk a second time, cut differently, and keeps the better
text. This module only judges a text.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from voxbatch.chunking import FRAME, is_silent, loudness
from voxbatch.engines.vllm.families import PieceText
from voxbatch.records import SAMPLING_RATE, Samples

PAUSE_S = 10.0
"""Seconds without text from which a pause is checked for speech. If nobody speaks for so long, the level shows it."""
PAUSE_SPEECH_S = 4.0
"""Seconds of speech in a pause that make the pause suspect. Of 107 chunks of real speech, none has less than 4.4 s of
speech in its middle 10 s."""
EMPTY_S = 2.0
"""Seconds of speech without text that are suspect: speech of this length has at least one word."""
MOST_CHARACTERS_A_SECOND = 35.0
"""Number of characters per second of audio above which a text is suspect. The fastest speakers say 10 syllables per
second, about 30 characters."""
FEWEST_CHARACTERS_A_SECOND = 1.0
"""Number of characters per second of speech below which a text is suspect. Chinese has about 4 characters per
second."""
SLOW_S = 8.0
"""Seconds of speech from which FEWEST_CHARACTERS_A_SECOND applies."""
COMPRESSION = 2.4
"""Compression ratio by zlib above which a text is repetitive (openai/whisper, transcribe.py:
compression_ratio_threshold)."""
COMPRESSION_CHARACTERS = 60
"""Number of characters from which COMPRESSION applies. Shorter texts compress badly, whether they repeat or not."""

SPEECH_BELOW_PEAK_DB, SPEECH_ABOVE_DB = 25.0, -50.0
"""Levels from which a frame counts as speech: at most SPEECH_BELOW_PEAK_DB below the 95th percentile of the chunk's
frames, and above SPEECH_ABOVE_DB."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """One reason why a text is suspect."""

    what: str
    """The reason as text for people, e.g. "no text over 12.4 s of speech"."""
    weight: float
    """The weight of the reason. The text with the smaller sum of weights is the better one of two."""


def suspicions(samples: Samples, heard: PieceText) -> list[Suspicion]:
    """Return the reasons why a text is suspect. The list is empty for most chunks.

    Args:
        samples: the audio of the chunk, of shape (num_samples,).
        heard: the text and what is known about it.
    """
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
    data = bytes(ranks[character] for character in text)  # in UTF-8 every text in Devanagari would look repetitive
    if len(text) < COMPRESSION_CHARACTERS or (ratio := len(data) / len(zlib.compress(data))) <= COMPRESSION:
        return None
    return Suspicion(f"the text repeats itself (it compresses {ratio:.1f} times)", 2)


def _truncated(heard: PieceText) -> Suspicion | None:
    return Suspicion("the text was cut off at the longest that is allowed", 1) if heard.truncated else None


def _paused(samples: Samples, heard: PieceText) -> Suspicion | None:
    if heard.quiet is None or heard.quiet[1] - heard.quiet[0] < PAUSE_S:
        return None
    start, end = (max(0, round(each * SAMPLING_RATE)) for each in heard.quiet)
    speech = _speech_seconds(samples, start, end)
    if speech < PAUSE_SPEECH_S:
        return None
    return Suspicion(
        f"nothing said from {heard.quiet[0]:.1f} to {heard.quiet[1]:.1f} s, over {speech:.1f} s of speech", 2
    )


def _stopped(samples: Samples, heard: PieceText) -> Suspicion | None:
    if heard.unheard is None:
        return None
    start, end = (round(each * SAMPLING_RATE) for each in heard.unheard)
    if (speech := _speech_seconds(samples, start, end)) < EMPTY_S:
        return None
    return Suspicion(f"ended at {heard.unheard[0]:.1f} s, before {speech:.1f} s of speech", 2)


def _speech_seconds(samples: Samples, start: int = 0, end: int | None = None) -> float:
    """Return the seconds of [start, end) that are likely speech.

    Such frames are loud for this chunk, and neither silence nor steady noise.

    Args:
        samples: the audio of the chunk.
        start: first sample.
        end: sample after the last one; None means the end of the chunk.
    """
    stretch = samples[start:end]
    if is_silent(stretch):
        return 0.0
    levels = loudness(samples)
    if not len(levels):
        return 0.0
    threshold = max(float(np.percentile(levels, 95)) - SPEECH_BELOW_PEAK_DB, SPEECH_ABOVE_DB)
    return float((loudness(stretch) > threshold).sum()) * FRAME / SAMPLING_RATE
