"""Tests for speakers in the output formats: labels where a reader sees them, and names where a program reads them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from praatio import textgrid

from voxbatch.formats import CueLimits
from voxbatch.formats.cues import split_into_cues
from voxbatch.formats.document import Document
from voxbatch.records import Segment, Transcript, Word
from voxbatch.text.stitching import segments

WORDS = (
    Word(" Hello", 0.5, 0.9, speaker="Speaker 1"),
    Word(" there.", 0.9, 1.4, speaker="Speaker 1"),
    Word(" Hi,", 1.5, 1.8, speaker="A & <B>"),
    Word(" yes.", 1.8, 2.1, speaker="A & <B>"),
)
TALK = Transcript("Hello there. Hi, yes.", WORDS, tuple(segments(WORDS)), 3.0, language="en")


def written(form: str, transcript: Transcript = TALK) -> str:
    """Return the text of an item's file."""
    return Document("talk", transcript).written(form)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("txt", "Speaker 1: Hello there.\nA & <B>: Hi, yes.\n"),
        (
            "srt",
            ("1\n00:00:00,500 --> 00:00:01,417\nSpeaker 1: Hello there.\n\n"
            "2\n00:00:01,500 --> 00:00:02,500\nA & <\u2060B>: Hi, yes.\n\n"),
        ),
        (
            "vtt",
            ("WEBVTT\n\n1\n00:00:00.500 --> 00:00:01.417\n<v Speaker 1>Hello there.\n\n"
            "2\n00:00:01.500 --> 00:00:02.500\n<v A &amp; &lt;B&gt;>Hi, yes.\n\n"),
        ),
        (
            "vtt-words",
            ("WEBVTT\n\n1\n00:00:00.500 --> 00:00:01.417\n<v Speaker 1><c>Hello</c> <00:00:00.900><c>there.</c>\n\n"
            "2\n00:00:01.500 --> 00:00:02.500\n<v A &amp; &lt;B&gt;><c>Hi,</c> <00:00:01.800><c>yes.</c>\n\n"),
        ),
        ("tsv", "start\tend\ttext\tspeaker\n500\t1400\tHello there.\tSpeaker 1\n1500\t2100\tHi, yes.\tA & <B>\n"),
        (
            "rttm",
            ("SPEAKER talk 1 0.500 0.900 <NA> <NA> Speaker_1 <NA> <NA>\n"
            "SPEAKER talk 1 1.500 0.600 <NA> <NA> A_&_<B> <NA> <NA>\n"),
        ),
    ],
)  # fmt: skip
def test_speakers_match_hand_written_files(form: str, text: str) -> None:
    """A text for readers has the label where the speaker changes; a file for programs has it where they expect it."""
    assert written(form) == text


def test_ass_has_speakers_as_names_and_as_labels() -> None:
    """A name has no comma, which would begin the next field."""
    renamed = tuple(replace(word, speaker="B, C" if word.speaker != "Speaker 1" else word.speaker) for word in WORDS)
    lines = written("ass", replace(TALK, words=renamed, segments=tuple(segments(renamed)))).splitlines()
    assert lines[-2:] == [
        "Dialogue: 0,0:00:00.50,0:00:01.41,Default,Speaker 1,0,0,0,,Speaker 1: Hello there.",
        "Dialogue: 0,0:00:01.50,0:00:02.50,Default,B; C,0,0,0,,B, C: Hi, yes.",
    ]


def test_meeteval_reads_the_rttm(tmp_path: Path) -> None:
    """meeteval reads the file, the times and the names of the speakers."""
    meeteval = pytest.importorskip("meeteval", reason="meeteval is not installed")
    (tmp_path / "talk.rttm").write_text(written("rttm"))
    lines = meeteval.io.RTTM.load(str(tmp_path / "talk.rttm"))
    found = [(line.filename, float(line.begin_time), float(line.duration), line.speaker_id) for line in lines]
    assert found == [("talk", 0.5, 0.9, "Speaker_1"), ("talk", 1.5, 0.6, "A_&_<B>")]


def test_praatio_reads_two_tiers_a_speaker(tmp_path: Path) -> None:
    """The tiers are named as the Montreal Forced Aligner names them, and words without a speaker keep their own."""
    words = (*WORDS, Word(" Well.", 2.5, 2.9))
    transcript = Transcript("Hello there. Hi, yes. Well.", words, tuple(segments(words)), 3.0)
    (tmp_path / "talk.TextGrid").write_text(written("textgrid", transcript))
    grid = textgrid.openTextgrid(str(tmp_path / "talk.TextGrid"), False, reportingMode="error")
    labels = {name: [entry.label for entry in grid.getTier(name).entries] for name in grid.tierNames}
    assert labels == {
        "Speaker 1 - words": ["Hello", "there."], "Speaker 1": ["Hello there."],
        "A & <B> - words": ["Hi,", "yes."], "A & <B>": ["Hi, yes."],
        "words": ["Well."], "segments": ["Well."],
    }  # fmt: skip


def test_ttml_names_its_agents() -> None:
    """Each paragraph names an agent of the metadata, and its text begins with the label."""
    root = ET.fromstring(written("ttml"))
    prefix = "{http://www.w3.org/ns/ttml#metadata}"
    agents = {agent.get("{http://www.w3.org/XML/1998/namespace}id"): agent for agent in root.iter(f"{prefix}agent")}
    paragraphs = list(root.iter("{http://www.w3.org/ns/ttml}p"))
    names = [agents[paragraph.get(f"{prefix}agent")].findtext(f"{prefix}name") for paragraph in paragraphs]
    assert names == ["Speaker 1", "A & <B>"]
    assert ["".join(paragraph.itertext()) for paragraph in paragraphs] == [
        "Speaker 1: Hello there.", "A & <B>: Hi, yes.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("form", "key"), [("json", "words"), ("whisperx-json", "word_segments"), ("openai-json", "words")]
)
def test_json_names_the_speaker_of_segments_and_words(form: str, key: str) -> None:
    """Segments and words have the key `speaker`, as WhisperX writes it. Without speakers there is no such key."""
    document = json.loads(written(form))
    assert [segment["speaker"] for segment in document["segments"]] == ["Speaker 1", "A & <B>"]
    assert [word["speaker"] for word in document[key]] == [word.speaker for word in WORDS]
    plain = Transcript("Hi.", (Word(" Hi.", 0.0, 1.0),), (Segment("Hi.", 0.0, 1.0),), 1.0)
    assert "speaker" not in written(form, plain)


@given(
    st.lists(st.sampled_from(["Speaker 1", "Speaker 2", None]), min_size=1, max_size=30),
    st.integers(10, 42),
    st.booleans(),
)
def test_cues_never_mix_speakers(speakers: list[str | None], max_line: int, has_labels: bool) -> None:
    """The pieces of a cue have one speaker, no line is too long, and each word is in the cues once, in order."""
    words = tuple(Word(f" word{at}", at * 0.2, at * 0.2 + 0.2, speaker=name) for at, name in enumerate(speakers))
    transcript = Transcript("".join(word.text for word in words).strip(), words, tuple(segments(words)), 9.0)
    cues = split_into_cues(transcript, CueLimits(max_line=max_line), has_labels)
    assert all({piece.speaker for line in cue.pieces for piece in line} == {cue.speaker} for cue in cues)
    assert all(len(line) <= max_line for cue in cues for line in cue.lines)
    shown = [(token, cue.speaker) for cue in cues for line in cue.lines for token in line.split()]
    assert [(token, name) for token, name in shown if token.startswith("word")] == [
        (word.text.strip(), word.speaker) for word in words
    ]


@example(["Frau Dr. Maria Schmidt"], [25], 24)
@given(
    st.lists(st.sampled_from(["Müller: Käufer", "Frau Dr. Maria Schmidt", "Bo"]), min_size=1, max_size=9),
    st.lists(st.integers(1, 30), min_size=1, max_size=9),
    st.integers(24, 42),
)
def test_labels_are_never_divided(names: list[str], lengths: list[int], max_line: int) -> None:
    """A label that fits a line is in one, and never a cue without a word of its speaker."""
    words = tuple(
        Word(f" {'x' * length}", at * 0.5, at * 0.5 + 0.4, speaker=name)
        for at, (name, length) in enumerate((name, length) for name in names for length in lengths)
    )
    transcript = Transcript("".join(word.text for word in words).strip(), words, tuple(segments(words)), 99.0)
    before = None
    for cue in split_into_cues(transcript, CueLimits(max_line=max_line), has_labels=True):
        if cue.speaker != before:
            assert cue.lines[0].startswith(f"{cue.speaker}:")
            assert "x" in "".join(cue.lines)
        before = cue.speaker
