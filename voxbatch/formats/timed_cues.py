"""Take the cues of a Transcript as a person has timed them, else as cues.py cuts them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from voxbatch.formats import DEFAULT_LIMITS, CueLimits
from voxbatch.formats.cues import Cue, LinePiece, pieces_of, split_into_cues
from voxbatch.formats.document import complete_sources, visible_text, without_control_characters
from voxbatch.formats.styles import styles_of
from voxbatch.records import Segment, Transcript


def cues_of(transcript: Transcript, limits: CueLimits = DEFAULT_LIMITS, has_labels: bool = False) -> list[Cue]:
    """Return the subtitles of a transcript with the times and lines that a person gave them, if they spell the text;
    else see `split_into_cues`."""
    if complete_sources(transcript.subtitles, transcript.text):
        return list(_timed_by_a_person(transcript, has_labels))
    return split_into_cues(transcript, limits, has_labels)


def _timed_by_a_person(transcript: Transcript, has_labels: bool) -> Iterator[Cue]:
    pieces, speaker, missing = pieces_of(transcript, sys.maxsize), None, 0
    for subtitle in transcript.subtitles:
        lines, words = [without_control_characters(line) for line in subtitle.text.split("\n")], list[list[LinePiece]]()
        for line in lines:
            missing += len(visible_text(line))
            words.append([])
            while missing > 0:  # a piece of two lines is in the first one
                words[-1].append(next(pieces))
                missing -= len(visible_text(words[-1][-1].text))
        styles = styles_of(subtitle.markup, subtitle.text)
        if has_labels and subtitle.speaker not in (None, speaker):
            lines[0] = f"{subtitle.speaker}: {lines[0]}"
            styles = [""] * len(visible_text(f"{subtitle.speaker}:")) + styles if styles else []
        speaker = subtitle.speaker
        times = round(subtitle.start * 1000), round(subtitle.end * 1000)
        shift = _shift(subtitle, [piece for line in words for piece in line])
        moved = (
            tuple(replace(piece, start=piece.start + shift, end=piece.end + shift) for piece in line)
            for line in words
            if line
        )
        yield Cue(*times, tuple(lines), tuple(moved), speaker, tuple(styles))


def _shift(subtitle: Segment, pieces: Sequence[LinePiece]) -> float:
    """Return the seconds by which words follow a subtitle that a person has moved away from most of them, so that the
    first begins with it. 0 for a subtitle that was only made longer or shorter."""
    is_inside = [subtitle.start <= (piece.start + piece.end) / 2 < subtitle.end for piece in pieces]
    return subtitle.start - pieces[0].start if sum(is_inside) * 2 < len(pieces) else 0.0
