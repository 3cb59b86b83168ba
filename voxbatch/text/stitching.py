"""Join the ordered Hypotheses of one recording into one Transcript, with words and segments on the recording's clock.

Chunks that were cut in a pause are simply concatenated. At a forced cut both chunks hold the audio around the cut:
`overlaps` finds the words that each of them keeps. The module does not judge the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise

from voxbatch.records import SAMPLING_RATE, Flag, Hypothesis, Segment, Span, Transcript, Word
from voxbatch.rounding import rounded
from voxbatch.text.word_boundaries import whole_words, with_space

PAUSE_SECONDS = 1.0
"""A segment ends at a pause of this length …"""
SENTENCE_END = (".", "?", "!", "…", "。", "？", "！", "।", "؟")
"""… or after a word that ends a sentence …"""
SEGMENT_SECONDS = 30.0
"""… or before it would exceed this length."""


def stitch(spans: Sequence[Span], hypotheses: Sequence[Hypothesis], warnings: Sequence[str] = ()) -> Transcript:
    """Join the hypotheses of one recording.

    Args:
        spans: position of each chunk, in order.
        hypotheses: one per span, in the same order.
        warnings: warnings of the decoder. The engine's warnings about each chunk are added, with the chunk's position.

    Returns:
        The transcript. Word times are seconds on the recording's clock. If the engine gives no word times, `words` is
        empty and each chunk is a segment.
    """
    timed = hypotheses
    has_times = any(hypothesis.words for hypothesis in timed)
    if has_times:
        timed = [with_word_times(span, hypothesis) for span, hypothesis in zip(spans, timed, strict=True)]
    notes = tuple(warnings) + tuple(
        f"{_format_seconds(span.start)} to {_format_seconds(span.end)}: {note}"
        for span, hypothesis in zip(spans, timed, strict=True)
        for note in hypothesis.warnings
    )
    language = main_language(spans, hypotheses)
    flags = tuple(chain.from_iterable(map(_flags_on_recording_clock, spans, hypotheses)))
    duration = (spans[-1].core_end - spans[0].core_start) / SAMPLING_RATE if spans else 0.0
    if has_times:
        on_clock = [_on_recording_clock(span, hypothesis) for span, hypothesis in zip(spans, timed, strict=True)]
        words = without_overlaps(whole_words([*_joined_words(spans, on_clock)]))
        parts, sure = tuple(segments(words)), [word.confidence for word in words if word.confidence is not None]
        return Transcript(text_of(words), words, parts, duration, notes, language, flags, mean(sure))
    pieces = [h.text.strip() for h in timed]
    parts = tuple(
        Segment(piece, span.core_start / SAMPLING_RATE, span.core_end / SAMPLING_RATE)
        for piece, span in zip(pieces, spans, strict=True)
        if piece
    )
    sure = [h.confidence for h in timed if h.confidence is not None]
    return Transcript(" ".join(part.text for part in parts), (), parts, duration, notes, language, flags, mean(sure))


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; None of no values."""
    return sum(values) / len(values) if values else None


def main_language(spans: Sequence[Span], hypotheses: Sequence[Hypothesis]) -> str | None:
    """Return the language of most samples of the cores. Of two with equally many, the one that comes first counts."""
    samples: dict[str, int] = {}
    for span, hypothesis in zip(spans, hypotheses, strict=True):
        if hypothesis.language:
            samples[hypothesis.language] = samples.get(hypothesis.language, 0) + span.core_end - span.core_start
    return max(samples, key=lambda language: samples[language], default=None)


def segments(words: Sequence[Word]) -> Iterator[Segment]:
    """Yield the segments: sentences, or the words between pauses if nothing ends a sentence. Each segment has one
    speaker."""
    begin = 0
    for i, (word, following) in enumerate(pairwise(words), 1):
        if (
            word.text.endswith(SENTENCE_END)
            or following.start - word.end >= PAUSE_SECONDS
            or following.end - words[begin].start > SEGMENT_SECONDS
            or following.speaker != word.speaker
        ):
            yield _segment(words[begin:i])
            begin = i
    if words:
        yield _segment(words[begin:])


def _segment(words: Sequence[Word]) -> Segment:
    return Segment(text_of(words), words[0].start, words[-1].end, words[0].speaker)


def text_of(words: Sequence[Word]) -> str:
    """Return the text of words. A space precedes the first word of a speaker."""
    texts = [
        word.text if word.speaker == before.speaker else f" {word.text.lstrip()}"
        for before, word in pairwise(chain(words[:1], words))
    ]
    return "".join(texts).strip()


def _format_seconds(samples: int) -> str:
    return f"{samples / SAMPLING_RATE:.2f} s"


def with_word_times(span: Span, hypothesis: Hypothesis) -> Hypothesis:
    """Spread the words evenly over the chunk, if the engine gave word times for other chunks but not for this one."""
    tokens = hypothesis.text.split()
    if hypothesis.words or not tokens:
        return hypothesis
    step = (span.end - span.start) / SAMPLING_RATE / len(tokens)
    words = tuple(
        Word(f" {token}" if i else with_space(token), i * step, (i + 1) * step) for i, token in enumerate(tokens)
    )
    return replace(hypothesis, words=words, warnings=(*hypothesis.warnings, "no word times: spread evenly"))


def _on_recording_clock(span: Span, hypothesis: Hypothesis) -> list[Word]:
    """Return the chunk's words on the recording's clock: inside the chunk's audio, in order, never ending before they
    begin."""
    zero, latest = span.start / SAMPLING_RATE, span.end / SAMPLING_RATE
    starts, ends = list[float](), list[float]()
    earliest = zero
    for word in hypothesis.words:  # 40,000 a second, so that calls of min and max would count
        start, end = zero + word.start, zero + word.end
        if start < earliest:
            start = earliest
        if start > latest:
            start = latest
        if end < start:
            end = start
        if end > latest:
            end = latest
        starts.append(start)
        ends.append(end)
        earliest = start
    times, num_words = rounded([*starts, *ends]), len(starts)
    return [
        Word(word.text, start, end, word.confidence, word.speaker)
        for word, start, end in zip(hypothesis.words, times[:num_words], times[num_words:], strict=True)
    ]


def without_overlaps(words: Sequence[Word]) -> tuple[Word, ...]:
    """Return words in the order of their starts, each of which ends before the next one begins. An engine places the
    first words after a cut up to 0.2 s too early: Whisper tiny.en did so at 19 of 50 cuts."""
    ended = [
        word if word.end <= following.start else replace(word, end=following.start)
        for word, following in pairwise(words)
    ]
    return (*ended, *words[-1:])


def _flags_on_recording_clock(span: Span, hypothesis: Hypothesis) -> Iterator[Flag]:
    """Yield the chunk's flags on the recording's clock, inside the chunk's audio.

    A flag of the whole chunk gets the core of the chunk.
    """
    zero, end = span.start / SAMPLING_RATE, span.end / SAMPLING_RATE
    for flag in hypothesis.flags:
        first = span.core_start / SAMPLING_RATE if flag.start is None else min(max(zero + flag.start, zero), end)
        last = span.core_end / SAMPLING_RATE if flag.end is None else min(max(zero + flag.end, first), end)
        yield replace(flag, start=round(first, 3), end=round(last, 3))


def _joined_words(spans: Sequence[Span], chunks: list[list[Word]]) -> Iterator[Word]:
    """Yield every word once. At each forced cut, a chunk loses the words that its neighbour keeps."""
    first_kept, earliest = 0, 0.0
    for i, words in enumerate(chunks):
        last_kept, next_first = len(words), 0
        if i + 1 < len(chunks) and spans[i].end > spans[i + 1].start:
            from voxbatch.text.overlaps import switch_point  # most recordings are cut in pauses

            last_kept, next_first = switch_point(words, chunks[i + 1], spans[i], spans[i + 1])
        for word in words[first_kept:last_kept]:
            if word.start < earliest:
                word = replace(word, start=earliest, end=max(word.end, earliest))
            yield word
            earliest = word.start
        first_kept = next_first
