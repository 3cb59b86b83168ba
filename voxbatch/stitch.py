"""Ordered Hypotheses of one recording → one Transcript with words and segments on the recording's clock.

Chunks that were cut in a pause are simply joined. At a forced cut both chunks heard the audio around it: the words that
they agree on there are found, and the change from one to the other is made in the middle of those; where they agree on
nothing, each word goes to the chunk whose core holds its middle. Does not judge what was heard, except that text in
certain silence is dropped and the dropping recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import pairwise

from voxbatch.records import SAMPLING_RATE, Hypothesis, Segment, Span, Transcript, Word

PAUSE_SECONDS = 1.0
"""A segment ends where nobody speaks for this long …"""
SENTENCE_END = (".", "?", "!", "…", "。", "？", "！", "।", "؟")
"""… or after a word that ends a sentence."""
SEGMENT_SECONDS = 30.0
"""… or before it would last longer than this."""
QUOTED = 80
"""Characters of dropped text that a warning quotes: invented text loops, and can be long."""


def stitch(spans: Sequence[Span], hypotheses: Sequence[Hypothesis], warnings: Sequence[str] = ()) -> Transcript:
    """Join one recording's hypotheses.

    Args:
        spans: where each chunk lies, in order.
        hypotheses: one a span, in the same order.
        warnings: what decoding had to say; what the engine had to say about each chunk is added, with its place.

    Returns:
        The transcript. Word times are seconds on the recording's clock; without word times from the engine, `words` is
        empty and each chunk is a segment.
    """
    heard = [_kept(span, hypothesis) for span, hypothesis in zip(spans, hypotheses, strict=True)]
    notes = tuple(warnings) + tuple(
        f"{_clock(span.start)} to {_clock(span.end)}: {note}"
        for span, hypothesis in zip(spans, heard, strict=True)
        for note in hypothesis.warnings
    )
    duration = (spans[-1].core_end - spans[0].core_start) / SAMPLING_RATE if spans else 0.0
    if any(hypothesis.words for hypothesis in heard):
        words = tuple(_joined_words(spans, [_on_clock(s, h) for s, h in zip(spans, heard, strict=True)]))
        return Transcript(_text(words), words, tuple(segments(words)), duration, notes)
    pieces = [h.text.strip() for h in heard]
    parts = tuple(
        Segment(piece, span.core_start / SAMPLING_RATE, span.core_end / SAMPLING_RATE)
        for piece, span in zip(pieces, spans, strict=True)
        if piece
    )
    return Transcript(" ".join(part.text for part in parts), (), parts, duration, notes)


def segments(words: Sequence[Word]) -> Iterator[Segment]:
    """Words → sentences, or stretches between pauses where nothing ends a sentence."""
    begin = 0
    for i, (word, following) in enumerate(pairwise(words), 1):
        too_long = following.end - words[begin].start > SEGMENT_SECONDS
        if word.text.endswith(SENTENCE_END) or following.start - word.end >= PAUSE_SECONDS or too_long:
            yield _segment(words[begin:i])
            begin = i
    if words:
        yield _segment(words[begin:])


def _segment(words: Sequence[Word]) -> Segment:
    return Segment(_text(words), words[0].start, words[-1].end)


def _text(words: Sequence[Word]) -> str:
    return "".join(word.text for word in words).strip()


def _clock(samples: int) -> str:
    return f"{samples / SAMPLING_RATE:.2f} s"


def _kept(span: Span, hypothesis: Hypothesis) -> Hypothesis:
    if not span.silent or not hypothesis.text.strip():
        return hypothesis
    note = f"dropped {hypothesis.text.strip()[:QUOTED]!r}: certain silence or stationary noise"
    return replace(hypothesis, text="", words=(), warnings=(*hypothesis.warnings, note))


def _on_clock(span: Span, hypothesis: Hypothesis) -> list[Word]:
    """The chunk's words on the recording's clock, inside its audio, in order and never ending before they begin."""
    zero, end = span.start / SAMPLING_RATE, span.end / SAMPLING_RATE
    moved = []
    earliest = zero
    for word in hypothesis.words:
        start = min(max(zero + word.start, earliest), end)
        moved.append(replace(word, start=round(start, 3), end=round(min(max(zero + word.end, start), end), 3)))
        earliest = start
    return moved


def _joined_words(spans: Sequence[Span], chunks: list[list[Word]]) -> Iterator[Word]:
    """All words once. Chunk by chunk, each loses at its forced cuts what its neighbour keeps."""
    first_kept = 0
    for i, words in enumerate(chunks):
        last_kept, next_first = len(words), 0
        if i + 1 < len(chunks) and spans[i].end > spans[i + 1].start:
            last_kept, next_first = _switch(words, chunks[i + 1], spans[i], spans[i + 1])
        yield from words[first_kept:last_kept]
        first_kept = next_first


def _switch(left: list[Word], right: list[Word], a: Span, b: Span) -> tuple[int, int]:
    """(how many of the left chunk's words to keep, the first of the right chunk's to keep) around a forced cut."""
    begin, end, cut = b.start / SAMPLING_RATE, a.end / SAMPLING_RATE, a.core_end / SAMPLING_RATE
    ours = [i for i, word in enumerate(left) if word.end > begin]
    theirs = [i for i, word in enumerate(right) if word.start < end]
    match = SequenceMatcher(
        None, [_key(left[i]) for i in ours], [_key(right[i]) for i in theirs], autojunk=False
    ).find_longest_match()
    if match.size and abs(_middle(left[ours[match.a]]) - _middle(right[theirs[match.b]])) < end - begin:
        half = (match.size + 1) // 2
        return ours[match.a] + half, theirs[match.b] + half
    keep = next((i for i, word in enumerate(left) if _middle(word) >= cut), len(left))
    first = next((i for i, word in enumerate(right) if _middle(word) >= cut), len(right))
    return keep, first


def _middle(word: Word) -> float:
    return (word.start + word.end) / 2


def _key(word: Word) -> str:
    """What a word is compared by: without case and punctuation."""
    return "".join(c for c in word.text.casefold() if c.isalnum())
