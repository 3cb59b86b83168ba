"""Write the text of an item again without its secrets.

    text      "It is 4401 5500, John."   →  "It is [CARD], [PERSON]."
    words     4401 [1.0, 1.6]  5500, [1.6, 2.4]   →  [CARD], [1.0, 2.4]

A secret that goes over the end of a segment has a label in each of them, so that the segments still spell the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby
from typing import Any

from voxbatch.formats.document import complete_sources, visible_text
from voxbatch.records import Segment, Transcript, Word
from voxbatch.works.redact.tokens import Secret

_END = re.compile(r"[.,;:!?…]+$")
_NUMBERED = re.compile(r"Speaker \d+")


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A word of a transcript with its place in the text."""

    text: str
    begin: int
    stop: int
    """Position of its first character in the text, and of the one after its last."""
    start: float
    end: float
    """Seconds. A word without times of its own has those of its segment."""
    segment: int
    """Index of its segment."""
    speaker: str | None = None
    confidence: float | None = None
    secret: Secret | None = None
    """The secret in whose place a label stands. None for another word."""
    num_words: int = 1
    """Number of words in whose place it stands."""


def pieces_of(transcript: Transcript) -> list[SpokenWord]:
    """Return the words of a transcript: those with times if they spell the text, else the words of its segments.

    A word that the recogniser has divided is one: "4401" "-550" "-1234". In scripts without spaces, which begin with
    Thai, nothing is joined.
    """
    text = transcript.text
    places = [at for at, character in enumerate(text) if visible_text(character)]
    end = max([transcript.audio_duration, *(word.end for word in transcript.words)])
    segments: Sequence[Word | Segment] = complete_sources(transcript.segments, text) or (Segment(text, 0.0, end),)
    of_character = [number for number, segment in enumerate(segments) for _ in visible_text(segment.text)]
    words: Sequence[Word] = transcript.words
    if not complete_sources(words, text):
        words = [
            Word(part, segment.start, segment.end, None, segment.speaker)
            for segment in segments
            for part in segment.text.split()
        ]
    pieces, at = list[SpokenWord](), 0
    for word in words:
        if not (length := len(visible_text(word.text))):
            continue
        begin, stop, segment = places[at], places[at + length - 1] + 1, of_character[at]
        speaker = word.speaker or segments[segment].speaker
        piece = SpokenWord(text[begin:stop], begin, stop, word.start, word.end, segment, speaker, word.confidence)
        is_near = pieces and (pieces[-1].stop, pieces[-1].segment, pieces[-1].speaker) == (begin, segment, speaker)
        if is_near and max(text[begin - 1 : begin + 1]) < "\u0e00":
            before = pieces.pop()
            piece = _merged([before, piece], text[before.begin : stop], min)
        pieces.append(piece)
        at += length
    return pieces


def _merged(
    group: Sequence[SpokenWord], text: str, confidence: Callable[[list[float]], float], **changes: Any
) -> SpokenWord:
    """Return words that follow each other as one with another text.

    Args:
        confidence: makes its confidence of theirs, if there are any.
    """
    known = [piece.confidence for piece in group if piece.confidence is not None]
    return replace(
        group[0],
        text=text,
        stop=group[-1].stop,
        end=max(piece.end for piece in group),
        confidence=confidence(known) if known else None,
        **changes,
    )


def without_speaker_names(transcript: Transcript) -> Transcript:
    """Return a transcript whose speakers have numbers in the place of names: "Olga" → "Speaker 1"."""
    parts: list[Word | Segment] = [*transcript.words, *transcript.segments]
    speakers = dict.fromkeys(part.speaker for part in parts if part.speaker)
    free = (number for number in map("Speaker {}".format, count(1)) if number not in speakers)
    numbers = {speaker: speaker if _NUMBERED.fullmatch(speaker) else next(free) for speaker in speakers}
    return replace(
        transcript,
        words=tuple(replace(word, speaker=numbers.get(word.speaker or "")) for word in transcript.words),
        segments=tuple(replace(part, speaker=numbers.get(part.speaker or "")) for part in transcript.segments),
    )


def labelled(pieces: Sequence[SpokenWord], secrets: Iterable[Secret]) -> list[SpokenWord]:
    """Return the words with a label in the place of those of each secret that follow each other in a segment."""
    of_word = {at: secret for secret in secrets for at in secret.pieces}
    words = list[SpokenWord]()
    runs = groupby(enumerate(pieces), lambda pair: (of_word.get(pair[0]), pair[1].segment))
    for (secret, _), run in runs:
        group = [piece for _, piece in run]
        if secret:
            mark = _END.search(group[-1].text)
            label = f"[{secret.kind.upper()}]{mark[0] if mark else ''}"
            group = [_merged(group, label, _mean, secret=secret, num_words=len(group))]
        words += group
    return words


def _mean(confidences: list[float]) -> float:
    return round(sum(confidences) / len(confidences), 3)


def redacted(transcript: Transcript, words: Sequence[SpokenWord], offset: float) -> Transcript:
    """Return a transcript without its secrets.

    Args:
        words: its words, with labels in the place of secrets.
        offset: seconds of the recording before the copy, which begins at 0.
    """
    text, segments = transcript.text, list[Segment]()
    timed, divided = (words if complete_sources(part, text) else () for part in (transcript.words, transcript.segments))
    for number, group in groupby(divided, lambda word: word.segment):
        inside, before = [*group], transcript.segments[number]
        part = _spelled(text, inside, inside[0].begin)
        segments.append(Segment(part, at_copy(before.start, offset), at_copy(before.end, offset), before.speaker))
    copies = (
        Word(word.text, at_copy(word.start, offset), at_copy(word.end, offset), word.confidence, word.speaker)
        for word in timed
    )
    whole = _spelled(text, words, 0) + text[words[-1].stop if words else 0 :]
    return replace(transcript, text=whole, words=tuple(copies), segments=tuple(segments))


def at_copy(seconds: float, offset: float) -> float:
    """Return a time of the original as one of the copy."""
    return round(max(0.0, seconds - offset), 3)


def _spelled(text: str, words: Iterable[SpokenWord], at: int) -> str:
    """Return a part of the text with its labels, from a position to the end of the last word."""
    parts = list[str]()
    for word in words:
        parts += [text[at : word.begin], word.text]
        at = word.stop
    return "".join(parts)
