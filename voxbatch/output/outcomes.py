"""Read the outcome of an item back from its output line."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from voxbatch import frame_rate
from voxbatch.failure_kinds import FailureKind
from voxbatch.languages import primary_subtag
from voxbatch.manifest.json_line import AUDIO_KEY
from voxbatch.output.lines import recogniser_keys
from voxbatch.records import Failure, Flag, Outcome, Segment, Transcript, Word


def read_transcript(line: Mapping[str, Any], text_key: str = "pred_text") -> Transcript:
    """Return the Transcript of the line of an item that has not failed. It is empty if the kind of work writes no text.
    Its words have lost their leading spaces; its text keeps them.

    Args:
        text_key: Products.text_key of the run.
    """
    given_words, given_segments = line.get("words", ()), line.get("segments", ())
    words = tuple(Word(w["word"], w["start"], w["end"], w.get("confidence"), w.get("speaker")) for w in given_words)
    segments = tuple(_with_words(given_segments, words))
    language = primary_subtag(line.get("lang") or "") or None
    duration, warnings = line["audio_duration"], tuple(line["warnings"])
    text, confidence, audio = line.get(text_key) or "", line.get("confidence"), line.get(AUDIO_KEY) or ""
    timed = (recogniser_keys(line) or {}).get("subtitles", ())
    subtitles = tuple(
        Segment(cue["text"], cue["start"], cue["end"], cue.get("speaker"), markup=cue.get("markup") or "")
        for cue in timed
    )
    return Transcript(
        text, words, segments, duration, warnings, language, flags_of(line), confidence, None, subtitles, audio,
        frame_rate.of_line(line), frame_rate.aspect_of_line(line),
    )  # fmt: skip


def _with_words(segments: Iterable[Mapping[str, Any]], words: Iterable[Word]) -> Iterator[Segment]:
    """Yield the segments of a line with the words of their speaker that end in their time. Both are in order."""
    by_speaker = defaultdict[str | None, deque[Word]](deque)
    for word in words:
        by_speaker[word.speaker].append(word)
    for segment in segments:
        start, end, speaker = segment["start"], segment["end"], segment.get("speaker")
        waiting, own = by_speaker[speaker], list[Word]()
        while waiting and waiting[0].end <= end:
            own.append(waiting.popleft())
        yield Segment(segment["text"], start, end, speaker, tuple(own))


def flags_of(line: Mapping[str, Any]) -> tuple[Flag, ...]:
    """Return the flags of the line of a transcript, or of a text that was spoken."""
    return tuple(Flag(flag["kind"], flag["reason"], flag["start"], flag["end"]) for flag in line["flags"])


def read_failure(line: Mapping[str, Any]) -> Failure:
    """Return the Failure of a line that `failure_line` wrote."""
    return Failure(FailureKind.of_line(line), line["message"], line["retryable"])


def outcome_of(kind: str, line: Mapping[str, Any], text_key: str = "pred_text") -> Outcome:
    """Return the outcome of an entry. Its kind decides, because a manifest may have keys of both kinds of lines."""
    return read_transcript(line, text_key) if kind == "transcript" else read_failure(line)
