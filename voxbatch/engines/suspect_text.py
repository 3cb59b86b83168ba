"""Find texts that are suspect, because text may be lost or invented.

Speech models fail in a few known ways. They write nothing over speech (Voxtral Realtime writes [STREAMING_PAD] for
minutes), stop early, repeat themselves, or write more than anybody can speak. Each failure leaves a trace that costs
almost nothing to check. The engines decode a suspect chunk a second time, cut differently, and keep the better text.
This module only judges a text.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from voxbatch.chunking import FRAME, is_silent, loudness
from voxbatch.engines.pieces import PieceText
from voxbatch.records import (
    CUT_OFF,
    LOST_SPEECH,
    REPETITION,
    SAMPLING_RATE,
    SPEAKING_RATE,
    TEXT_OVER_SILENCE,
    Flag,
    Samples,
    Word,
)

MOST_CHARACTERS_A_SECOND = 30.0
"""Number of characters per second above which a text is suspect: the fastest speakers say 10 syllables per second. Of
366 real recordings in five languages, none has more than 23.4 per second of audio, or 23.9 per second of voice."""
MARGIN_S = 0.5
"""Seconds that are added to the time in which a text was spoken, because its first and last sounds may be missed."""
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

VOICE_WINDOW = 512
"""Samples of one probability of the voice detector: 32 ms (Silero VAD)."""
VOICE_PROBABILITY = 0.5
"""Probability above which a window counts as voice (Silero VAD's own threshold)."""
LOST_VOICE_S = 1.2
"""Seconds of voice in one gap of a text that are suspect. With tiny.en on 387 stretches of real recordings, the gaps of
right texts had at most 0.64 s, and the 8 gaps with more than 1.2 s had lost words."""
NO_VOICE_PROBABILITY = 0.3
"""Probability that no window reaches where nobody speaks."""
NO_VOICE_WORDS = 3
"""Fewest words in a row, all where nobody speaks, that are suspect. The time of one or two words may be wrong. In the
same 387 stretches, 11 of 12 such runs were invented; the other one was at the end of a window."""
NO_VOICE_MARGIN_S = 0.2
"""Seconds around words in which nobody may speak, either. Engines place words about 0.1 s off."""

PAUSE_S = 10.0
"""Seconds without text from which a pause is checked for speech by its loudness. If nobody speaks for so long, the
level shows it."""
PAUSE_SPEECH_S = 4.0
"""Seconds of loud frames in a pause that make the pause suspect. Of 107 chunks of real speech, none has less than 4.4 s
of speech in its middle 10 s."""
EMPTY_S = 2.0
"""Seconds of loud frames without text that are suspect: speech of this length has at least one word."""
SPEECH_BELOW_PEAK_DB, SPEECH_ABOVE_DB = 25.0, -50.0
"""Levels from which a frame counts as loud: at most SPEECH_BELOW_PEAK_DB below the 95th percentile of the chunk's
frames, and above SPEECH_ABOVE_DB."""

Voice = NDArray[np.float32]
"""Speech probability of each VOICE_WINDOW of a chunk, by a voice detector."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """One reason why a text is suspect."""

    flag: Flag
    """The kind, the reason as text for people, and the place in seconds from the first sample of the chunk."""
    weight: float
    """The weight of the reason; see `weight`."""


def suspicions(samples: Samples, text: PieceText, voice: Voice | None = None, start: float = 0.0) -> list[Suspicion]:
    """Return the reasons why a text is suspect. The list is empty for most chunks.

    Args:
        samples: the audio of the text, of shape (num_samples,).
        text: the text and what is known about it.
        voice: the speech probabilities of the samples. None means that speech is recognised by its loudness, which is
            less certain.
        start: the time of the first sample, for audio that is a part of a chunk.
    """
    speech = _Speech(samples, voice, start)
    return [*_about_the_text(speech, text), *_about_gaps(speech, text), *_over_silence(speech, text)]


class _Speech:
    """The speech of a chunk, by a voice detector or else by loudness."""

    def __init__(self, samples: Samples, voice: Voice | None, start: float):
        self._samples, self.voice = samples, voice
        self.start, self.end = start, start + len(samples) / SAMPLING_RATE
        self.seconds = self.between(self.start, self.end)

    def between(self, start: float, end: float) -> float:
        """Return the seconds of a stretch that are likely speech."""
        if self.voice is None:
            return _loud_seconds(self._samples, start - self.start, end - self.start)
        first, last = (round(max(0.0, at - self.start) * SAMPLING_RATE / VOICE_WINDOW) for at in (start, end))
        return float((self.voice[first:last] > VOICE_PROBABILITY).sum()) * VOICE_WINDOW / SAMPLING_RATE

    def probability(self, start: float, end: float) -> float:
        """Return the highest speech probability of a stretch."""
        assert self.voice is not None
        first, last = (max(0.0, at - self.start) * SAMPLING_RATE / VOICE_WINDOW for at in (start, end))
        return float(self.voice[int(first) : int(last) + 1].max(initial=0.0))


def _about_the_text(speech: _Speech, text: PieceText) -> Iterator[Suspicion]:
    """Yield the suspicions about a text as a whole."""
    characters = len(text.text.strip())
    spoken = speech.end - speech.start if speech.voice is None else speech.seconds
    if characters > MOST_CHARACTERS_A_SECOND * (spoken + MARGIN_S):
        of_what = "audio" if speech.voice is None else "voice"
        yield _suspicion(
            SPEAKING_RATE, 4, f"{characters} characters in {spoken:.1f} s of {of_what}, more than anybody speaks"
        )
    if len(text.text) >= COMPRESSION_CHARACTERS and (ratio := _compression_ratio(text.text)) > COMPRESSION:
        yield _suspicion(REPETITION, 4, f"the text repeats itself (it compresses {ratio:.1f} times)")
    if text.truncated:
        yield _suspicion(CUT_OFF, 1, "the text was cut off at the maximum length")
    if not characters and speech.seconds >= (EMPTY_S if speech.voice is None else LOST_VOICE_S):
        yield _suspicion(LOST_SPEECH, 3, f"no text over {speech.seconds:.1f} s of speech")
    if speech.seconds >= SLOW_S and 0 < characters < FEWEST_CHARACTERS_A_SECOND * speech.seconds:
        yield _suspicion(SPEAKING_RATE, 2, f"only {characters} characters over {speech.seconds:.1f} s of speech")


def _about_gaps(speech: _Speech, text: PieceText) -> Iterator[Suspicion]:
    """Yield the suspicions about stretches without text. A text without any text is judged as a whole."""
    if not text.text.strip():
        return
    least_s, least_speech_s = (PAUSE_S, PAUSE_SPEECH_S) if speech.voice is None else (0.0, LOST_VOICE_S)
    for start, end in [text.longest_pause] if text.longest_pause else _gaps(text.words, speech):
        if end - start >= least_s and (missed := speech.between(start, end)) >= least_speech_s:
            yield _suspicion(LOST_SPEECH, 2, f"no text over {missed:.1f} s of speech", start, end)
    if text.untranscribed:
        start, end = text.untranscribed
        if (missed := speech.between(start, end)) >= EMPTY_S:
            yield _suspicion(LOST_SPEECH, 2, f"the text ended before {missed:.1f} s of speech", start, end)


def _gaps(words: Sequence[Word], speech: _Speech) -> Iterator[tuple[float, float]]:
    """Yield start and end of the gaps between words, and before and after them. Without words, there is none."""
    last_end = speech.start
    for word in words:
        if word.start > last_end:
            yield last_end, word.start
        last_end = max(last_end, word.end)
    if words and speech.end > last_end:
        yield last_end, speech.end


def _over_silence(speech: _Speech, text: PieceText) -> Iterator[Suspicion]:
    """Yield the suspicions about words where the voice detector hears nobody."""
    if speech.voice is None:
        return
    for silent, group in groupby(text.words, key=lambda word: _is_over_silence(speech, word)):
        run = list(group)
        if silent and len(run) >= NO_VOICE_WORDS:
            start, end = run[0].start, run[-1].end
            said = "".join(word.text for word in run).strip()
            yield _suspicion(TEXT_OVER_SILENCE, 2, f"nobody speaks where the text is {said[:80]!r}", start, end)


def _is_over_silence(speech: _Speech, word: Word) -> bool:
    return speech.probability(word.start - NO_VOICE_MARGIN_S, word.end + NO_VOICE_MARGIN_S) < NO_VOICE_PROBABILITY


def _suspicion(
    kind: str, weight: float, reason: str, start: float | None = None, end: float | None = None
) -> Suspicion:
    return Suspicion(Flag(kind, reason, start, end), weight)


def weight(found: Sequence[Suspicion]) -> float:
    """Return the weight of a text with these suspicions: the largest weight of each kind, added up.

    Invented text weighs more than lost speech, however many gaps there are.
    """
    kinds = {each.flag.kind for each in found}
    return sum(max(each.weight for each in found if each.flag.kind == kind) for kind in kinds)


def reasons(found: Sequence[Suspicion]) -> str:
    """Return the reasons with their places as one text for people."""
    return "; ".join(
        each.flag.reason
        if each.flag.start is None
        else f"{each.flag.reason} (from {each.flag.start:.1f} to {each.flag.end:.1f} s of this chunk)"
        for each in found
    )


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


def _loud_seconds(samples: Samples, start_s: float, end_s: float) -> float:
    """Return the seconds of a stretch that are likely speech.

    Such frames are loud for this chunk, and neither silence nor steady noise.

    Args:
        samples: the audio of the chunk.
        start_s: start of the stretch in seconds; a negative value means 0.
        end_s: end of the stretch in seconds; a negative value means 0.
    """
    start, end = (max(0, round(at * SAMPLING_RATE)) for at in (start_s, end_s))
    stretch = samples[start:end]
    if is_silent(stretch):
        return 0.0
    levels = loudness(samples)
    if not len(levels):
        return 0.0
    threshold = max(float(np.percentile(levels, 95)) - SPEECH_BELOW_PEAK_DB, SPEECH_ABOVE_DB)
    return float((loudness(stretch) > threshold).sum()) * FRAME / SAMPLING_RATE
