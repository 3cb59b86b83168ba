"""Tests that each segment of the Python interface has its words."""

from __future__ import annotations

import pickle
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pytest
from conftest import ROOT, Recorder

import voxbatch as vb
from voxbatch.output.outcomes import read_transcript

pytestmark = pytest.mark.slow


def words_of(transcript: vb.Transcript) -> tuple[vb.Word, ...]:
    """Return the words of all segments."""
    return tuple(word for segment in transcript.segments for word in segment.words)


def test_the_words_of_the_segments_are_those_of_the_transcript() -> None:
    """With a real model, the segments share out the words of the transcript, also while they come and in a file."""
    path = ROOT / "examples" / "recordings" / "street-garden.ogg"
    with vb.Transcriber() as transcriber:
        with transcriber.stream(path, duration=60) as stream:
            segments = list(stream)
        transcript = transcriber.transcribe(path, duration=60)
    assert words_of(transcript) == transcript.words
    assert [segment.words for segment in segments] == [segment.words for segment in transcript.segments]
    for segment in transcript.segments:
        assert " ".join(word.text for word in segment.words) == segment.text
        assert (segment.words[0].start, segment.words[-1].end) == (segment.start, segment.end)


def test_speakers_who_talk_at_once_keep_their_words() -> None:
    """The words of a segment are those of its speaker, although another speaker talks meanwhile."""

    def timed(key: str, text: str, start: float, end: float, speaker: str) -> dict[str, Any]:
        return {key: text, "start": start, "end": end, "speaker": speaker}

    words = [timed("word", *word) for word in (("a", 0, 1, "x"), ("b", 0.5, 1.5, "y"), ("c", 1, 2, "x"))]
    segments = [timed("text", "a c", 0, 2, "x"), timed("text", "b", 0.5, 1.5, "y")]
    line = {
        "pred_text": "a b c",
        "words": words,
        "segments": segments,
        "audio_duration": 2,
        "warnings": [],
        "flags": [],
    }
    assert [[word.text for word in segment.words] for segment in read_transcript(line).segments] == [["a", "c"], ["b"]]


def test_records_go_into_tables_and_pickles(recording: Recorder) -> None:
    """`asdict`, pickle and PyArrow take a transcript with its segments and words as it is."""
    transcript = vb.transcribe(recording("a.wav", 4), engine="scripted")
    copy = pickle.loads(pickle.dumps(transcript))
    assert copy == transcript
    assert words_of(copy) == transcript.words
    values = asdict(transcript)
    assert values["segments"][0]["words"][0]["text"] == transcript.words[0].text
    assert pa.Table.from_pylist(values["segments"]).num_rows == len(transcript.segments)
    assert pa.Table.from_pylist(values["words"])["end"].to_pylist() == [word.end for word in transcript.words]
