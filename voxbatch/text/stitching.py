"""Join the ordered Hypotheses of one recording into one Transcript, with words and segments on the recording's clock.

Chunks that were cut in a pause are simply concatenated. At a forced cut both chunks hold the audio around the cut:
`overlaps` finds the words that each of them keeps. The module does not judge the text.

Words become segments by generators that read no more than they need. So a recording that is still being transcribed
(`streamed`) has the segments of the one that is done (`stitch`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, pairwise

from voxbatch.records import SAMPLING_RATE, Flag, Hypothesis, Segment, Span, Transcript, Word
from voxbatch.rounding import rounded
from voxbatch.text.overlaps import is_behind_cut, may_be_at_cut, switch_point
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
        words = tuple(_words_of(zip(spans, on_clock, strict=True)))
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


def segments(words: Iterable[Word]) -> Iterator[Segment]:
    """Yield the segments: sentences, or the words between pauses if nothing ends a sentence. Each segment has one
    speaker."""
    part = list[Word]()
    for word in words:
        if part and (
            part[-1].text.endswith(SENTENCE_END)
            or word.start - part[-1].end >= PAUSE_SECONDS
            or word.end - part[0].start > SEGMENT_SECONDS
            or word.speaker != part[-1].speaker
        ):
            yield _segment(part)
            part = []
        part.append(word)
    if part:
        yield _segment(part)


def _segment(words: Sequence[Word]) -> Segment:
    return Segment(text_of(words), words[0].start, words[-1].end, words[0].speaker, tuple(words))


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


def _on_recording_clock(span: Span, hypothesis: Hypothesis, earliest: float = 0.0) -> list[Word]:
    """Return the chunk's words on the recording's clock: inside the chunk's audio, in order, never ending before they
    begin.

    Args:
        earliest: start of the last word of the chunk before these, if they are its further words.
    """
    zero, latest = span.start / SAMPLING_RATE, span.end / SAMPLING_RATE
    starts, ends = list[float](), list[float]()
    earliest = max(earliest, zero)
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


def without_overlaps(words: Iterable[Word]) -> Iterator[Word]:
    """Yield words in the order of their starts, each of which ends before the next one begins. An engine places the
    first words after a cut up to 0.2 s too early: Whisper tiny.en did so at 19 of 50 cuts."""
    last: Word | None = None
    for word in words:
        if last is not None:
            yield last if last.end <= word.start else replace(last, end=word.start)
        last = word
    if last is not None:
        yield last


def _flags_on_recording_clock(span: Span, hypothesis: Hypothesis) -> Iterator[Flag]:
    """Yield the chunk's flags on the recording's clock, inside the chunk's audio.

    A flag of the whole chunk gets the core of the chunk.
    """
    zero, end = span.start / SAMPLING_RATE, span.end / SAMPLING_RATE
    for flag in hypothesis.flags:
        first = span.core_start / SAMPLING_RATE if flag.start is None else min(max(zero + flag.start, zero), end)
        last = span.core_end / SAMPLING_RATE if flag.end is None else min(max(zero + flag.end, first), end)
        yield replace(flag, start=round(first, 3), end=round(last, 3))


def _words_of(chunks: Iterable[tuple[Span, Iterable[Word]]]) -> Iterator[Word]:
    """Yield the words of a recording: whole, each once, and in order. See `_joined_words`."""
    return without_overlaps(whole_words(_in_order(_joined_words(chunks))))


def _joined_words(chunks: Iterable[tuple[Span, Iterable[Word]]]) -> Iterator[Word]:
    """Yield every word once. At each forced cut, a chunk loses the words that its neighbour keeps.

    Args:
        chunks: the chunks in order, and their words, which may come while the chunk is being transcribed. Only the
            words near a forced cut wait for those of its other side.
    """
    before: Span | None = None
    at_cut = list[Word]()  # those of the chunk before that it may lose at its forced cut
    for span, chunk_words in chunks:
        words = iter(chunk_words)
        if before is not None and before.end > span.start:
            near = list[Word]()
            while not (near and is_behind_cut(near[-1], before)) and (word := next(words, None)) is not None:
                near.append(word)
            last_kept, first_kept = switch_point(at_cut, near, before, span)
            words = chain(at_cut[:last_kept], near[first_kept:], words)
        before, at_cut = span, []
        for word in words:
            if at_cut or may_be_at_cut(word, span):
                at_cut.append(word)
            else:
                yield word
    yield from at_cut


def _in_order(words: Iterable[Word]) -> Iterator[Word]:
    """Yield words none of which begins before the one before it."""
    earliest = 0.0
    for word in words:
        yield word if word.start >= earliest else replace(word, start=earliest, end=max(word.end, earliest))
        earliest = max(earliest, word.start)


@dataclass(frozen=True, slots=True)
class Heard:
    """Text that an engine has recognised in a chunk whose recording is still being transcribed."""

    chunk: int
    """0-based position within the recording."""
    span: Span
    text: Hypothesis
    """The words since the last message about the chunk. The last message has the text of the whole chunk."""
    is_last: bool


def streamed(messages: Iterable[Heard], has_times: bool) -> Iterator[Segment]:
    """Yield the segments of one recording as soon as no later word can change them: those of `stitch`, in order.

    Args:
        messages: of any chunks, in any order of the chunks.
        has_times: the engine gives word times.
    """
    chunks = groupby(_by_chunk(messages), key=lambda message: message.span)
    if has_times:
        timed = ((span, _words_as_they_come(span, group)) for span, group in chunks)
        yield from segments(_words_of(timed))
        return
    for span, group in chunks:
        if text := [message.text.text.strip() for message in group][-1]:
            yield Segment(text, span.core_start / SAMPLING_RATE, span.core_end / SAMPLING_RATE)


def _by_chunk(messages: Iterable[Heard]) -> Iterator[Heard]:
    """Yield the messages in the order of their chunks, each as soon as it can be."""
    waiting, current = defaultdict[int, list[Heard]](list), 0
    for message in messages:
        waiting[message.chunk].append(message)
        while ready := waiting.pop(current, None):
            yield from ready
            if not ready[-1].is_last:
                break
            current += 1


def _words_as_they_come(span: Span, messages: Iterable[Heard]) -> Iterator[Word]:
    """Yield the words of a chunk on the recording's clock."""
    earliest = -1.0
    for message in messages:
        has_only_text = message.is_last and earliest < 0
        text = with_word_times(span, message.text) if has_only_text else message.text
        for word in _on_recording_clock(span, text, earliest):
            yield word
            earliest = word.start
