"""Tests for the output lines: the manifest's row with a place that any reader finds, and the same keys in each line."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from voxbatch.failure_kinds import FailureKind
from voxbatch.output.lines import failure_line, line_bytes, transcript_line
from voxbatch.output.outcomes import read_transcript
from voxbatch.output.stored_json import json_bytes
from voxbatch.records import Failure, Flag, Item, Segment, Transcript, Word


def item(path: str, audio: str, **row: Any) -> Item:
    content = {"audio_filepath": path, **row}
    return Item(0, 1, "x", audio, text=row.get("text"), row=json.dumps(content).encode())


def transcribed(row: Item, folder: str | None = "/day", lang: str | None = None) -> dict[str, Any]:
    return transcript_line(row, Transcript("Hi.", audio_duration=1.0), "scripted", "count", lang, folder)


@pytest.mark.parametrize(
    ("path", "folder", "expected"),
    [
        ("a.wav", "/day", "/day/a.wav"),
        ("./x/../a b.wav", "/day", "/day/a b.wav"),
        ("../a.wav", "/day/jobs", "/day/a.wav"),
        ("/else/a.wav", "/day", "/else/a.wav"),
        ("x/a.wav", "gs://calls/day/", "gs://calls/day/x/a.wav"),
        ("gs://calls/a.wav", "/day", "gs://calls/a.wav"),
        ("https://host/a.wav?b=1", "/day", "https://host/a.wav?b=1"),
        ("a.wav", None, "/mnt/day/a.wav"),
    ],
)
def test_relative_paths_become_absolute(path: str, folder: str | None, expected: str) -> None:
    """A relative path is resolved against the folder of the run's first start, wherever the folder is mounted now. An
    absolute path or an address stays as it is.
    """
    given = item(path, f"/mnt/day/{path}")
    assert transcribed(given, folder)["audio_filepath"] == expected
    assert failure_line(given, Failure(FailureKind.NOT_FOUND, "gone"), None, folder)["audio_filepath"] == expected


def test_each_line_has_the_same_keys() -> None:
    """A line without a reference or a language has the same keys as one with both, so that tables can be loaded."""
    with_all, without = transcribed(item("a", "/a", text="hi"), lang="en"), transcribed(item("b", "/b"))
    assert [key for key in with_all if key != "text"] == list(without)
    assert (without["lang"], without["wer"], without["reference_length"]) == (None, None, None)
    assert (with_all["lang"], with_all["wer"], with_all["reference_length"]) == ("en", 0.0, 1)


_TEXT = st.text(st.characters(), max_size=9) | st.sampled_from([" w", ' "q"\\', "\x00\x1f\x7f\u2028", "\ud83d"])
_TIME = st.floats(-1e6, 1e6) | st.sampled_from([0.0, -0.0, 1e-9, 0.0005, 1e15])


@given(
    st.lists(st.builds(Word, _TEXT, _TIME, _TIME, st.none() | _TIME, st.none() | _TEXT), max_size=4),
    st.lists(st.builds(Segment, _TEXT, _TIME, _TIME, st.none() | _TEXT), max_size=2),
    _TEXT,
    st.dictionaries(_TEXT, st.floats() | st.integers() | _TEXT, max_size=3),
)
@example([Word("a", 0.0, 1.0)], [], "\ud83d", {})
@example([], [], "", {"small": 1e-7, "large": 1e22, "nan": math.nan, "long": 10**40, "nested": {"words": []}})
def test_the_bytes_of_a_line_are_those_of_json(
    words: list[Word], segments: list[Segment], text: str, row: dict[str, Any]
) -> None:
    """The fast way to a line gives the bytes of `json`, for any words, texts and rows."""
    transcript = Transcript(text, tuple(words), tuple(segments), 1.0)
    line = row | transcript_line(item("a", "/a"), transcript, "scripted", "count", None, None)
    assert line_bytes(line) == json_bytes(line)


def test_confidence_and_flags_survive_the_line() -> None:
    """The line has the mean confidence, the flags of the chunks and those of the whole text; reading it gives the flags
    back.
    """
    words = (Word(" Hi", 0.0, 0.4, 0.5), Word(" you.", 0.4, 1.0, 0.7255))
    lost = Flag("lost_speech", "no text over 4.0 s of speech", 1.0, 5.0)
    heard = Transcript("Hi you.", words, audio_duration=5.0, flags=(lost,), confidence=0.61275)
    line = json.loads(json.dumps(transcript_line(item("a", "/a"), heard, "scripted", "count", "en", "/day")))
    unsure = "unsure words (mean confidence 0.61)"
    assert line["confidence"] == 0.613
    assert line["flags"] == [
        {"kind": "lost_speech", "reason": "no text over 4.0 s of speech", "start": 1.0, "end": 5.0},
        {"kind": "low_confidence", "reason": unsure, "start": None, "end": None},
    ]
    assert read_transcript(line).flags == (lost, Flag("low_confidence", unsure))


def test_a_line_without_confidence_and_flags_has_their_keys() -> None:
    """Words without confidence give null, and a text without doubts an empty list."""
    line = transcribed(item("a", "/a"))
    assert (line["confidence"], line["flags"]) == (None, [])


def test_the_results_of_an_earlier_run_do_not_pass_through() -> None:
    """An output as the manifest of another run: its confidence and flags are not taken for those of the new text. They
    pass through only from a manifest that is no output.
    """
    earlier = {**transcribed(item("a.wav", "/a.wav")), "confidence": 0.1, "flags": [{"kind": "cut_off"}]}
    again = item("a.wav", "/a.wav", **{key: value for key, value in earlier.items() if key != "audio_filepath"})
    gone = Failure(FailureKind.NOT_FOUND, "gone")
    assert failure_line(again, gone, None, "/day").keys().isdisjoint({"confidence", "flags"})
    own = item("a.wav", "/a.wav", flags=["mine"])
    assert failure_line(own, gone, None, "/day")["flags"] == ["mine"]
