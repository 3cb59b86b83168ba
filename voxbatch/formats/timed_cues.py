"""Take the cues of a Transcript as a person has timed them, else as cues.py cuts them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from voxbatch.formats import DEFAULT_LIMITS, CueLimits
from voxbatch.formats.cues import Cue, LinePiece, pieces_of, split_into_cues
from voxbatch.formats.document import complete_sources, visible_text, without_control_characters
from voxbatch.records import Transcript


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
        if has_labels and subtitle.speaker not in (None, speaker):
            lines[0] = f"{subtitle.speaker}: {lines[0]}"
        speaker = subtitle.speaker
        times = round(subtitle.start * 1000), round(subtitle.end * 1000)
        yield Cue(*times, tuple(lines), tuple(tuple(line) for line in words if line), speaker)
