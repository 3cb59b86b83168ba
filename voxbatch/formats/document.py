"""The content of an item's file, which the writers of the formats turn into text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name

from voxbatch.formats import DEFAULT_LIMITS, WRITERS, CueLimits
from voxbatch.records import Segment, Transcript, Word


@dataclass(frozen=True, slots=True)
class Document:
    """The content of an item's file."""

    item_id: str
    transcript: Transcript
    name: str = ""
    """Name of the recording for programs that compare files: the id, without the recording's extension where that is
    unique. Empty means the id."""
    limits: CueLimits = DEFAULT_LIMITS

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, or one with the whole text if there are none that spell the text."""
        transcript = self.transcript
        full_text = Segment(transcript.text, 0.0, transcript.audio_duration) if transcript.text.strip() else None
        return (*complete_sources(transcript.segments, transcript.text),) or ((full_text,) if full_text else ())

    def written(self, form: str) -> str:
        """Return the text of the file in one of WRITERS."""
        text: str = resolve_name(f"voxbatch.formats.{WRITERS[form].function}")(self)
        return text

    def words_by_segment(self) -> Iterator[tuple[Segment, tuple[Word, ...]]]:
        """Yield each of `segments` with its words. Each word is in one segment.

        A segment takes the words that spell its text. If the words and the segments spell different texts, it takes
        the words whose middle is before the start of the next segment.
        """
        words, segments = self.transcript.words, self.segments
        spell = bool(complete_sources(words, "".join(segment.text for segment in segments)))
        at = 0
        for i, segment in enumerate(segments):
            begin, missing = at, len(visible_text(segment.text))
            following = segments[i + 1].start if i + 1 < len(segments) else float("inf")
            while at < len(words):
                word = words[at]
                if spell and missing <= 0 and visible_text(word.text):
                    break
                if not spell and (word.start + word.end) / 2 >= following:
                    break
                missing -= len(visible_text(word.text))
                at += 1
            yield segment, words[begin:at]


def complete_sources(sources: Sequence[Word] | Sequence[Segment], text: str) -> Sequence[Word] | Sequence[Segment]:
    """Return the sources if they, joined, are the text; else nothing, because a subtitle must not leave out speech."""
    return sources if "".join(visible_text(source.text) for source in sources) == visible_text(text) else ()


def without_control_characters(text: str) -> str:
    """Replace control characters by spaces."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", text)


def visible_text(text: str) -> str:
    """Return the text without white space and control characters."""
    return "".join(without_control_characters(text).split())
