"""Write the text of an item again without its secrets.

    text      "It is 4401 5500, John."   →  "It is [CARD], [PERSON]."
    words     4401 [1.0, 1.6]  5500, [1.6, 2.4]   →  [CARD], [1.0, 2.4]

A secret that goes over the end of a segment has a label in each of them, so that the segments still spell the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby

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


def pieces_of(transcript: Transcript) -> list[SpokenWord]:
    """Return the words of a transcript: those with times if they spell the text, else the words of its segments."""
    text = transcript.text
    places = [at for at, character in enumerate(text) if visible_text(character)]
    segments = [*transcript.segments] if complete_sources(transcript.segments, text) else [_whole(transcript)]
    of_character = [number for number, segment in enumerate(segments) for _ in visible_text(segment.text)]
    sources = transcript.words if complete_sources(transcript.words, text) else (*_words_of(segments),)
    pieces, at = list[SpokenWord](), 0
    for word in sources:
        if not (length := len(visible_text(word.text))):
            continue
        begin, stop, number = places[at], places[at + length - 1] + 1, of_character[at]
        speaker = word.speaker or segments[number].speaker
        piece = SpokenWord(text[begin:stop], begin, stop, word.start, word.end, number, speaker, word.confidence)
        if pieces and _continues(pieces[-1], piece):
            piece = _joined(pieces.pop(), piece, text)
        pieces.append(piece)
        at += length
    return pieces


def _continues(before: SpokenWord, piece: SpokenWord) -> bool:
    """Return whether a recogniser has divided a word: "4401" "-550" "-1234". In scripts without spaces, which begin
    with Thai, nothing is joined."""
    is_near = (before.stop, before.segment, before.speaker) == (piece.begin, piece.segment, piece.speaker)
    return is_near and max(before.text[-1], piece.text[0]) < "\u0e00"


def _joined(before: SpokenWord, piece: SpokenWord, text: str) -> SpokenWord:
    known = [part.confidence for part in (before, piece) if part.confidence is not None]
    return replace(
        before,
        text=text[before.begin : piece.stop],
        stop=piece.stop,
        end=max(before.end, piece.end),
        confidence=min(known, default=None),
    )


def _whole(transcript: Transcript) -> Segment:
    """Return the text as one segment."""
    return Segment(transcript.text, 0.0, max([transcript.audio_duration, *(word.end for word in transcript.words)]))


def _words_of(segments: Iterable[Segment]) -> Iterator[Word]:
    for segment in segments:
        for text in segment.text.split():
            yield Word(text, segment.start, segment.end, None, segment.speaker)


def without_speaker_names(transcript: Transcript) -> Transcript:
    """Return a transcript whose speakers have numbers in the place of names: "Olga" → "Speaker 1"."""
    parts: list[Word | Segment] = [*transcript.words, *transcript.segments]
    speakers = dict.fromkeys(part.speaker for part in parts if part.speaker)
    free = (number for number in map("Speaker {}".format, count(1)) if number not in speakers)
    numbers: dict[str | None, str | None] = {
        speaker: speaker if _NUMBERED.fullmatch(speaker) else next(free) for speaker in speakers
    }
    return replace(
        transcript,
        words=tuple(replace(word, speaker=numbers.get(word.speaker)) for word in transcript.words),
        segments=tuple(replace(segment, speaker=numbers.get(segment.speaker)) for segment in transcript.segments),
    )


@dataclass(frozen=True, slots=True)
class Label:
    """The label that takes the place of some words of a segment."""

    secret: Secret
    first: int
    stop: int
    """Index of its first word, and of the one after its last."""
    text: str


def labels_of(secrets: Iterable[Secret], pieces: Sequence[SpokenWord]) -> list[Label]:
    """Return the labels of secrets, in the order of the words."""
    labels = []
    for secret in secrets:
        runs = groupby(enumerate(secret.pieces), lambda pair: (pair[1] - pair[0], pieces[pair[1]].segment))
        for _, run in runs:
            indexes = [at for _, at in run]
            mark = _END.search(pieces[indexes[-1]].text)
            text = f"[{secret.kind.upper()}]{mark[0] if mark else ''}"
            labels.append(Label(secret, indexes[0], indexes[-1] + 1, text))
    return sorted(labels, key=lambda label: label.first)


def redacted(
    transcript: Transcript, pieces: Sequence[SpokenWord], labels: Sequence[Label], offset: float
) -> Transcript:
    """Return a transcript without its secrets.

    Args:
        offset: seconds of the recording before the copy, which begins at 0.
    """
    text = transcript.text
    is_spelled = bool(complete_sources(transcript.segments, text))
    segments = []
    for number, group in groupby(pieces, lambda piece: piece.segment):
        inside = [*group]
        before = transcript.segments[number] if is_spelled else _whole(transcript)
        part = _replaced(text, inside[0].begin, inside[-1].stop, pieces, labels)
        segments.append(Segment(part, _at(before.start, offset), _at(before.end, offset), before.speaker))
    words = _words(pieces, labels, offset) if complete_sources(transcript.words, text) else ()
    return replace(
        transcript,
        text=_replaced(text, 0, len(text), pieces, labels),
        words=tuple(words),
        segments=tuple(segments) if is_spelled else (),
    )


def _at(seconds: float, offset: float) -> float:
    return round(max(0.0, seconds - offset), 3)


def _replaced(text: str, begin: int, stop: int, pieces: Sequence[SpokenWord], labels: Iterable[Label]) -> str:
    """Return a part of the text with its labels."""
    parts, at = [], begin
    for label in labels:
        first, last = pieces[label.first], pieces[label.stop - 1]
        if begin <= first.begin and last.stop <= stop:
            parts += [text[at : first.begin], label.text]
            at = last.stop
    return "".join([*parts, text[at:stop]])


def _words(pieces: Sequence[SpokenWord], labels: Sequence[Label], offset: float) -> Iterator[Word]:
    first_of, at = {label.first: label for label in labels}, 0
    while at < len(pieces):
        label = first_of.get(at)
        stop = label.stop if label else at + 1
        group = pieces[at:stop]
        known = [piece.confidence for piece in group if piece.confidence is not None]
        yield Word(
            label.text if label else group[0].text,
            _at(group[0].start, offset),
            _at(max(piece.end for piece in group), offset),
            round(sum(known) / len(known), 3) if known else None,
            group[0].speaker,
        )
        at = stop
