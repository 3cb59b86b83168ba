"""Find texts that are suspect, because text may be lost or invented.

Speech models fail in a few known ways. They write nothing over speech (Voxtral Realtime writes [STREAMING_PAD] for
minutes), stop early, repeat themselves, or write more than anybody can speak. Each failure leaves a trace that costs
almost nothing to check. The engines decode a suspect chunk a second time, cut differently, and keep the better text.
This module only judges a text.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from voxbatch.chunking import FRAME, is_silent, loudness
from voxbatch.engines.pieces import PieceText
from voxbatch.records import CUT_OFF, LOST_SPEECH, REPETITION, SAMPLING_RATE, SPEAKING_RATE, Flag, Samples

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

    flag: Flag
    """The kind, the reason as text for people, and the place in seconds from the first sample of the chunk."""
    weight: float
    """The weight of the reason. The text with the smaller sum of weights is the better one of two."""


def suspicions(samples: Samples, text: PieceText) -> list[Suspicion]:
    """Return the reasons why a text is suspect. The list is empty for most chunks.

    Args:
        samples: the audio of the chunk, of shape (num_samples,).
        text: the text and what is known about it.
    """
    found: list[Suspicion] = []
    duration, speech = len(samples) / SAMPLING_RATE, _speech_seconds(samples)
    characters = len(text.text.strip())

    def add(kind: str, weight: float, reason: str, start: float | None = None, end: float | None = None) -> None:
        found.append(Suspicion(Flag(kind, reason, start, end), weight))

    if characters > MOST_CHARACTERS_A_SECOND * max(duration, 1.0):
        add(SPEAKING_RATE, 2, f"{characters} characters in {duration:.1f} s, more than anybody speaks")
    if len(text.text) >= COMPRESSION_CHARACTERS and (ratio := _compression_ratio(text.text)) > COMPRESSION:
        add(REPETITION, 2, f"the text repeats itself (it compresses {ratio:.1f} times)")
    if text.truncated:
        add(CUT_OFF, 1, "the text was cut off at the maximum length")
    if not characters:
        if speech >= EMPTY_S:
            add(LOST_SPEECH, 3, f"no text over {speech:.1f} s of speech")
        return found
    if speech >= SLOW_S and characters < FEWEST_CHARACTERS_A_SECOND * speech:
        add(SPEAKING_RATE, 2, f"only {characters} characters over {speech:.1f} s of speech")
    start, end = text.longest_pause or (0.0, 0.0)
    if end - start >= PAUSE_S and (missed := _speech_seconds(samples, start, end)) >= PAUSE_SPEECH_S:
        add(LOST_SPEECH, 2, f"nothing said from {start:.1f} to {end:.1f} s, over {missed:.1f} s of speech", start, end)
    start, end = text.untranscribed or (0.0, 0.0)
    if text.untranscribed and (missed := _speech_seconds(samples, start, end)) >= EMPTY_S:
        add(LOST_SPEECH, 2, f"ended at {start:.1f} s, before {missed:.1f} s of speech", start, end)
    return found


def weight(found: Sequence[Suspicion]) -> float:
    """Return the sum of the weights."""
    return sum(each.weight for each in found)


def reasons(found: Sequence[Suspicion]) -> str:
    """Return the reasons as one text for people."""
    return "; ".join(each.flag.reason for each in found)


def flags(found: Sequence[Suspicion]) -> tuple[Flag, ...]:
    """Return the flags of a text that is kept with these suspicions."""
    return tuple(each.flag for each in found)


def _compression_ratio(text: str) -> float:
    """Return the compression ratio of a text by zlib, with one byte for each character.

    In UTF-8, every text in Devanagari would look repetitive.
    """
    ranks = {character: i % 256 for i, character in enumerate(dict.fromkeys(text))}
    data = bytes(ranks[character] for character in text)
    return len(data) / len(zlib.compress(data))


def _speech_seconds(samples: Samples, start_s: float = 0.0, end_s: float | None = None) -> float:
    """Return the seconds of a stretch that are likely speech.

    Such frames are loud for this chunk, and neither silence nor steady noise.

    Args:
        samples: the audio of the chunk.
        start_s: start of the stretch in seconds; a negative value means 0.
        end_s: end of the stretch in seconds; None means the end of the chunk.
    """
    start = max(0, round(start_s * SAMPLING_RATE))
    stretch = samples[start : None if end_s is None else max(0, round(end_s * SAMPLING_RATE))]
    if is_silent(stretch):
        return 0.0
    levels = loudness(samples)
    if not len(levels):
        return 0.0
    threshold = max(float(np.percentile(levels, 95)) - SPEECH_BELOW_PEAK_DB, SPEECH_ABOVE_DB)
    return float((loudness(stretch) > threshold).sum()) * FRAME / SAMPLING_RATE
