"""Read the outcome of an item back from its output line."""

from __future__ import annotations

from typing import Any

from voxbatch.failure_kinds import FailureKind
from voxbatch.languages import primary_subtag
from voxbatch.records import Failure, Flag, Outcome, Segment, Transcript, Word


def read_transcript(line: dict[str, Any]) -> Transcript:
    """Return the Transcript of a line that `transcript_line` wrote. Its words have
    lost their leading spaces; its text keeps them."""
    words = tuple(Word(w["word"], w["start"], w["end"], w.get("confidence"), w.get("speaker")) for w in line["words"])
    segments = tuple(Segment(s["text"], s["start"], s["end"], s.get("speaker")) for s in line["segments"])
    language = primary_subtag(line.get("lang") or "") or None
    flags = tuple(Flag(flag["kind"], flag["reason"], flag["start"], flag["end"]) for flag in line["flags"])
    duration, warnings = line["audio_duration"], tuple(line["warnings"])
    return Transcript(line["pred_text"], words, segments, duration, warnings, language, flags, line.get("confidence"))


def read_failure(line: dict[str, Any]) -> Failure:
    """Return the Failure of a line that `failure_line` wrote."""
    return Failure(FailureKind.of_line(line), line["message"], line["retryable"])


def outcome_of(kind: str, line: dict[str, Any]) -> Outcome:
    """Return the outcome of an entry. Its kind decides, because a manifest may have keys of both kinds of lines."""
    return read_transcript(line) if kind == "transcript" else read_failure(line)
