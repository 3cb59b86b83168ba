"""Give the words of a recording their speakers: those of the turns in a mixdown, or a speaker for each channel."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from voxbatch.records import SAMPLING_RATE, Flag, Hypothesis, Segment, Span, Transcript, Turn, Word
from voxbatch.text.crosstalk import Crosstalk
from voxbatch.text.stitching import main_language, mean, segments, stitch, text_of, with_word_times

NEAREST_S = 0.5
"""Largest distance in seconds of a word from the turn whose speaker it gets."""


def with_speakers(transcript: Transcript, turns: Iterable[Turn]) -> Transcript:
    """Return a transcript whose words have the speaker whose turns overlap them most, else the one of the nearest turn.

    A word that is more than NEAREST_S from any turn has no speaker. The segments end where the speaker changes. The
    speakers are numbered in the order of their first words; those with a name have it instead of their number.

    Args:
        transcript: a transcript with word times.
        turns: the turns of all speakers, in the order of their starts.
    """
    turns = list(turns)
    names = {turn.speaker: turn.name for turn in turns if turn.name}
    words, near, coming, labels = list[Word](), list[Turn](), deque(turns), dict[int, str]()
    for word in transcript.words:
        while coming and coming[0].start <= word.end + NEAREST_S:
            near.append(coming.popleft())
        near = [turn for turn in near if turn.end >= word.start - NEAREST_S]
        speaker = _speaker(word, near)
        if speaker is not None:
            word = replace(word, speaker=labels.setdefault(speaker, names.get(speaker, label(len(labels)))))
        words.append(word)
    return replace(transcript, text=text_of(words), words=tuple(words), segments=tuple(segments(words)))


def _speaker(word: Word, turns: Sequence[Turn]) -> int | None:
    """Return the number of the speaker of a word."""
    overlaps = Counter[int]()
    for turn in turns:
        if (overlap := min(word.end, turn.end) - max(word.start, turn.start)) > 0:
            overlaps[turn.speaker] += overlap  # type: ignore[assignment]
    if overlaps:
        return max(overlaps, key=lambda speaker: overlaps[speaker])
    distances = [(max(turn.start - word.end, word.start - turn.end), turn.speaker) for turn in turns]
    distance, nearest = min(distances, default=(math.inf, 0))
    return nearest if distance <= NEAREST_S else None


def _own_words(words: Sequence[Word], channel: int, crosstalk: Crosstalk) -> list[Word]:
    """Return the words of a channel that are no crosstalk. A word without a length stays or goes with the word before
    it, in whose time it is said: Whisper gives the last words before a pause such times."""
    kept, is_crosstalk = list[Word](), False
    for word in words:
        if word.end > word.start:
            is_crosstalk = crosstalk.is_in(channel, word.start, word.end)
        if not is_crosstalk:
            kept.append(word)
    return kept


def label(speaker: int) -> str:
    """Return the label of a speaker without a name: 0 → "Speaker 1"."""
    return f"Speaker {speaker + 1}"


def stitch_channels(
    spans: Sequence[Span],
    hypotheses: Sequence[Hypothesis],
    levels: Sequence[bytes],
    names: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> Transcript:
    """Join the hypotheses of the channels of one recording.

    Args:
        spans: position of each chunk, with its channel. The chunks of a channel are in order.
        hypotheses: one per span, in the same order.
        levels: levels of the channels, see Decoded.
        names: names of the speakers, by channel. Without a name, the second channel is "Speaker 2".
        warnings: warnings of the decoder.

    Returns:
        The transcript. Its words are in the order of their starts, so that the words of two channels alternate while
        both sides speak. Without word times, the segments are in that order.
    """
    has_times = any(hypothesis.words for hypothesis in hypotheses)
    if has_times:
        hypotheses = [with_word_times(span, hypothesis) for span, hypothesis in zip(spans, hypotheses, strict=True)]
    start = spans[0].core_start / SAMPLING_RATE if spans else 0.0
    crosstalk = Crosstalk(levels, start)
    words, parts, flags, notes, duration = list[Word](), list[Segment](), list[Flag](), list(warnings), 0.0
    for channel in range(len(levels)):
        own = [at for at, span in enumerate(spans) if span.channel == channel]
        transcript = stitch([spans[at] for at in own], [hypotheses[at] for at in own])
        name = names[channel] if channel < len(names) else label(channel)
        kept = _own_words(transcript.words, channel, crosstalk)
        words += [replace(word, speaker=name) for word in kept]
        parts += [replace(segment, speaker=name) for segment in transcript.segments]
        flags += transcript.flags
        notes += [f"channel {channel}, {note}" for note in transcript.warnings]
        if num_dropped := len(transcript.words) - len(kept):
            notes.append(f"channel {channel}: left out {num_dropped} words that another channel holds much louder")
        duration = max(duration, transcript.audio_duration)
    words.sort(key=lambda word: word.start)
    parts = list(segments(words)) if has_times else sorted(parts, key=lambda segment: segment.start)
    text = text_of(words) if has_times else " ".join(part.text for part in parts)
    confidences = [timed.confidence for timed in (words if has_times else hypotheses) if timed.confidence is not None]
    flags.sort(key=lambda flag: flag.start or 0.0)
    language = main_language(spans, hypotheses)
    return Transcript(
        text, tuple(words), tuple(parts), duration, tuple(notes), language, tuple(flags), mean(confidences)
    )
