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
from functools import cached_property
from itertools import groupby

import numpy as np

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
from voxbatch.voice import FRAME, VOICE_PROBABILITY, VOICE_WINDOW, Voice, is_silent, loudness, voice_seconds

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

LOST_VOICE_S = 1.2
"""Seconds of voice in one gap of a text that are suspect. With tiny.en on 387 stretches of real recordings, the gaps of
right texts had at most 0.64 s, and the 8 gaps with more than 1.2 s had lost words."""
FAINT_GAP_S = 3.0
"""Length in seconds of a gap from which the voice detector gets the gap alone, too, to hear a quiet speaker."""
GAP_EDGE_S = 0.3
"""Seconds at both ends of such a gap in which the voice of a word beside it may still sound."""
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


@dataclass(frozen=True, slots=True)
class PieceText:
    """The text of a piece with its words, pauses and confidence."""

    text: str
    words: tuple[Word, ...] = ()
    """Words with times from the first sample of the piece. Empty if the model gives no word times."""
    longest_pause: tuple[float, float] | None = None
    """Start and end of the longest stretch without text, in seconds from the first sample of the piece. None for models
    that do not write text while they listen."""
    untranscribed: tuple[float, float] | None = None
    """Start and end of the audio after the point at which the model ended its text, in seconds from the first sample of
    the piece. None if the model listened to the end, or does not write text while it listens."""
    truncated: bool = False
    """True if the text ended because no more tokens were allowed."""
    text_after_eos: tuple[tuple[float, int], ...] = ()
    """Points at which the model wrote EOS and then more text: seconds from the first sample of the piece, and number of
    characters that follow. Each request gives at most one."""
    confidence: float | None = None
    """Mean probability of the text's tokens, for a model without word times. None if it is unknown, or if there is no
    text."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A reason to suspect a text."""

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
    speech = _ChunkSpeech(samples, voice, start)
    return [*_about_the_text(speech, text), *_about_gaps(speech, text), *_over_silence(speech, text)]


class _ChunkSpeech:
    """The speech of a chunk, by a voice detector or else by loudness."""

    def __init__(self, samples: Samples, voice: Voice | None, start: float):
        self._samples, self.voice = samples, voice
        self.start, self.end = start, start + len(samples) / SAMPLING_RATE

    @cached_property
    def seconds(self) -> float:
        """Seconds of the whole chunk that are likely speech. Most texts are judged without them."""
        return self.between(self.start, self.end)

    def between(self, start: float, end: float) -> float:
        """Return the seconds of a stretch that are likely speech.

        Without a voice detector, these are the frames that are loud for this chunk, and neither silence nor steady
        noise.
        """
        offsets = [max(0.0, at - self.start) for at in (start, end)]
        if self.voice is not None:
            first, last = (round(offset * SAMPLING_RATE / VOICE_WINDOW) for offset in offsets)
            return float((self.voice[first:last] > VOICE_PROBABILITY).sum()) * VOICE_WINDOW / SAMPLING_RATE
        first, last = (round(offset * SAMPLING_RATE) for offset in offsets)
        stretch = self._samples[first:last]
        if is_silent(stretch) or not len(levels := loudness(self._samples)):
            return 0.0
        threshold = max(float(np.percentile(levels, 95)) - SPEECH_BELOW_PEAK_DB, SPEECH_ABOVE_DB)
        return float((loudness(stretch) > threshold).sum()) * FRAME / SAMPLING_RATE

    def without_text(self, start: float, end: float) -> float:
        """Return the seconds of a stretch without text that are likely speech.

        After a loud speaker, the voice detector does not hear one who is 24 dB quieter, unless it gets the stretch
        alone.
        """
        seconds = self.between(start, end)
        if self.voice is None or seconds >= LOST_VOICE_S or end - start < FAINT_GAP_S:
            return seconds
        first, last = (round((at - self.start) * SAMPLING_RATE) for at in (start + GAP_EDGE_S, end - GAP_EDGE_S))
        return max(seconds, voice_seconds(self._samples[max(0, first) : last]))

    def probability(self, start: float, end: float) -> float:
        """Return the highest speech probability of a stretch."""
        assert self.voice is not None
        first, last = (max(0.0, at - self.start) * SAMPLING_RATE / VOICE_WINDOW for at in (start, end))
        return float(self.voice[int(first) : int(last) + 1].max(initial=0.0))


def _about_the_text(speech: _ChunkSpeech, text: PieceText) -> Iterator[Suspicion]:
    characters = len(text.text.strip())
    spoken = speech.end - speech.start if speech.voice is None else speech.seconds
    if characters > MOST_CHARACTERS_A_SECOND * (spoken + MARGIN_S):
        of_what = "audio" if speech.voice is None else "voice"
        yield _suspicion(
            SPEAKING_RATE, 4, f"{characters} characters in {spoken:.1f} s of {of_what}, more than anybody speaks"
        )
    if len(text.text) >= COMPRESSION_CHARACTERS:
        # One byte for each character: in UTF-8, every text in Devanagari would look repetitive.
        ranks = {character: i % 256 for i, character in enumerate(dict.fromkeys(text.text))}
        ratio = len(text.text) / len(zlib.compress(bytes(ranks[character] for character in text.text)))
        if ratio > COMPRESSION:
            yield _suspicion(REPETITION, 4, f"the text repeats itself (it compresses {ratio:.1f} times)")
    if text.truncated:
        yield _suspicion(CUT_OFF, 1, "the text was cut off at the maximum length")
    if not characters:
        missed = speech.without_text(speech.start, speech.end)
        if missed >= (EMPTY_S if speech.voice is None else LOST_VOICE_S):
            yield _suspicion(LOST_SPEECH, 3, f"no text over {missed:.1f} s of speech")
    is_short = 0 < characters < FEWEST_CHARACTERS_A_SECOND * (speech.end - speech.start)
    if is_short and speech.seconds >= SLOW_S and characters < FEWEST_CHARACTERS_A_SECOND * speech.seconds:
        yield _suspicion(SPEAKING_RATE, 2, f"only {characters} characters over {speech.seconds:.1f} s of speech")


def _about_gaps(speech: _ChunkSpeech, text: PieceText) -> Iterator[Suspicion]:
    """Yield the suspicions about stretches without text. A text without any text is judged as a whole."""
    if not text.text.strip():
        return
    least_s, least_speech_s = (PAUSE_S, PAUSE_SPEECH_S) if speech.voice is None else (0.0, LOST_VOICE_S)
    for start, end in [text.longest_pause] if text.longest_pause else _gaps(text.words, speech):
        if end - start >= least_s and (missed := speech.without_text(start, end)) >= least_speech_s:
            yield _suspicion(LOST_SPEECH, 2, f"no text over {missed:.1f} s of speech", start, end)
    if text.untranscribed:
        start, end = text.untranscribed
        if (missed := speech.between(start, end)) >= EMPTY_S:
            yield _suspicion(LOST_SPEECH, 2, f"the text ended before {missed:.1f} s of speech", start, end)


def _gaps(words: Sequence[Word], speech: _ChunkSpeech) -> Iterator[tuple[float, float]]:
    """Yield start and end of the gaps between words, and before and after them. Without words, there is none."""
    last_end = speech.start
    for word in words:
        if word.start > last_end:
            yield last_end, word.start
        last_end = max(last_end, word.end)
    if words and speech.end > last_end:
        yield last_end, speech.end


def _over_silence(speech: _ChunkSpeech, text: PieceText) -> Iterator[Suspicion]:
    """Yield the suspicions about words where the voice detector hears nobody."""
    if speech.voice is None:
        return

    def probability(word: Word) -> float:
        return speech.probability(word.start - NO_VOICE_MARGIN_S, word.end + NO_VOICE_MARGIN_S)

    for silent, group in groupby(text.words, key=lambda word: probability(word) < NO_VOICE_PROBABILITY):
        run = list(group)
        if silent and len(run) >= NO_VOICE_WORDS:
            start, end = run[0].start, run[-1].end
            run_text = "".join(word.text for word in run).strip()
            yield _suspicion(TEXT_OVER_SILENCE, 2, f"nobody speaks where the text is {run_text[:80]!r}", start, end)


def _suspicion(
    kind: str, weight: float, reason: str, start: float | None = None, end: float | None = None
) -> Suspicion:
    return Suspicion(Flag(kind, reason, start, end), weight)


def weight(text_suspicions: Sequence[Suspicion]) -> float:
    """Return the weight of a text with these suspicions: the largest weight of each kind, added up.

    Invented text weighs more than lost speech, however many gaps there are.
    """
    kinds = {suspicion.flag.kind for suspicion in text_suspicions}
    return sum(max(suspicion.weight for suspicion in text_suspicions if suspicion.flag.kind == kind) for kind in kinds)


def reasons(text_suspicions: Sequence[Suspicion]) -> str:
    """Return the reasons with their places as one text for people."""
    return "; ".join(
        suspicion.flag.reason
        if suspicion.flag.start is None
        else f"{suspicion.flag.reason} (from {suspicion.flag.start:.1f} to {suspicion.flag.end:.1f} s of this chunk)"
        for suspicion in text_suspicions
    )


def flags(text_suspicions: Sequence[Suspicion]) -> tuple[Flag, ...]:
    """Return the flags of a text that is kept with these suspicions."""
    return tuple(suspicion.flag for suspicion in text_suspicions)
