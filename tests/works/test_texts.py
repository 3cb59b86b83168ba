"""Tests for the sources of texts to speak, and for the pieces of a text."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from epubs import epub
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.engines.results import find_wrong_value
from voxbatch.errors import ManifestError
from voxbatch.manifest import survey
from voxbatch.records import Speech, TextPiece
from voxbatch.speech.pieces import MAX_CHARACTERS, plain, split, unreadable
from voxbatch.speech.sound import trimmed
from voxbatch.storage import DEFAULT_STORES
from voxbatch.works.speak.texts import TextPolicy, open_texts

NEEDS_SENTENCEX = pytest.mark.skipif(
    importlib.util.find_spec("sentencex") is None, reason="the extra `speak` is not installed"
)


def rows(path: Path, content: str | bytes) -> list[dict[str, Any]]:
    """Return the rows of a source, which a survey accepts."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with open_texts(str(path), io.BytesIO(), DEFAULT_STORES) as source:
        found = [json.loads(line) for _, line in source.lines()]
        assert survey(source, TextPolicy()).items == len(found)
        return found


def ids_and_texts(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(row["id"], row["text"]) for row in found]


def test_json_lines(tmp_path: Path) -> None:
    """An id is the one given, or the name of the recording, or the number of the line. Other keys pass through, except
    those about a recording that exists."""
    lines = [
        {"text": "a", "id": 7, "speaker": "x"},
        {"text": "b", "audio_filepath": "../calls/b.wav", "offset": 3.0, "duration": 900},
        {"text": "", "voice": "emma", "lang": "en-GB"},
    ]
    found = rows(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines)))
    assert ids_and_texts(found) == [("7", "a"), ("calls/b", "b"), ("000003", "")]
    assert found[0]["speaker"] == "x"
    assert found[1].keys() == {"text", "id", "audio_filepath", "duration"}
    assert found[1]["duration"] < 1
    assert (found[2]["voice"], found[2]["lang"]) == ("emma", "en-GB")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", '[{"text": "Ja.", "id": "x"}, {"text": "No.", "id": "y"}]'),
        ("a.csv", 'id;text\nx;Ja.\ny;"No."\n'),
        ("a.tsv.gz", gzip.compress(b"id\ttext\nx\tJa.\ny\tNo.\n", mtime=0)),
    ],
)
def test_tables_and_arrays(tmp_path: Path, name: str, content: str | bytes) -> None:
    """A table has a column `text`."""
    assert ids_and_texts(rows(tmp_path / name, content)) == [("x", "Ja."), ("y", "No.")]


def test_cues_have_their_times(tmp_path: Path) -> None:
    """The cues of SubRip and WebVTT lose their markup; notes and styles are no cues."""
    srt = "1\n00:00:01,000 --> 00:00:02,500\n<i>One</i>\nline.\n\n2\n01:00:00,000 --> 01:00:01,000\nTwo &\n"
    vtt = "WEBVTT\n\nNOTE no\n\nSTYLE\n::cue {}\n\n00:01.000 --> 00:02.500 align:left\n<v Ann>One line.\n\n"
    vtt += "second\n01:00:00.000 --> 01:00:01.000\nTwo &amp;\n"
    printed = "[00:01.000 --> 00:02.500]  One line.\n[01:00:00.000 --> 01:00:01.000]  Two \u2060&\n"
    files = {"a.srt": srt, "b.srt": srt.replace("\n", "\r\n"), "c.vtt": vtt, "d.srt": printed}
    files["e.srt"] = srt.replace("One", "One\n").replace("\n\n2", "\n2")
    expected = [("000001", "One line.", 1.0, 2.5), ("000002", "Two &", 3600.0, 3601.0)]
    for name, content in files.items():
        found = rows(tmp_path / name, content)
        assert [(row["id"], row["text"], row["cue_start"], row["cue_end"]) for row in found] == expected


def test_a_markdown_file_has_chapters(tmp_path: Path) -> None:
    """Headings begin chapters. Marks, code and images are not spoken; a long chapter is several rows with one title."""
    text = "Before.\n\n# One *day*\n\nIt `rained`\non [us](http://x.y).\n\n```\ncode\n```\n\n"
    text += "Two\n---\n\n### Part\n\n- a\n- b\n"
    found = rows(tmp_path / "book.md", text)
    assert [(row["title"], row["text"]) for row in found] == [
        ("book", "Before."),
        ("One day", "One day\n\nIt rained on us."),
        ("Two", "Two\n\nPart\n\na\n\nb"),
    ]
    long = rows(tmp_path / "long.txt", "\n\n".join(["word " * 2000] * 5))
    assert [(row["id"], row.get("title")) for row in long] == [
        ("0001", "long"), ("0001-02", None), ("0001-03", None),
    ]  # fmt: skip


def test_an_epub_has_chapters(tmp_path: Path) -> None:
    """The chapters come in the order of the spine, without the table of contents, with entities resolved."""
    found = rows(tmp_path / "b.epub", epub({"One": "It &amp; <b>he</b>\n left.", "Two": "The&nbsp;end."}))
    assert [(row["title"], row["text"]) for row in found] == [
        ("One", "One\n\nIt & he left."),
        ("Two", "Two\n\nThe end."),
    ]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.jsonl", '{"text": 3}', "`text` is 3; it must be a string"),
        ("a.jsonl", '{"id": "x"}', "`text` is null"),
        ("a.jsonl", '{"text": "a", "voice": 1}', "`voice` is 1"),
        ("a.jsonl", '{"text": "a", "id": "x"}\n{"text": "b", "id": "x"}', "is also line 1's"),
        ("a.jsonl", '{"text": "a", "cue_start": 1}', "`cue_end` null"),
        ("a.jsonl", "Hello.", "is no JSON object; give a text as .txt"),
        ("a.csv", "name,words\na,b\n", "names no column `text`"),
        ("a.srt", "1\n00:00:02,000 --> 00:00:01,000\nHi.\n", "`cue_start` is 2.0, and `cue_end` 1.0; give seconds"),
        ("a.txt", b"\xff\xfe\xff", ""),
        ("a.txt", "", "has no text to speak"),
        ("a.epub", "no zip", "cannot be read as EPUB"),
        ("a.epub", epub({})[:200], "cannot be read as EPUB"),
    ],
)
def test_bad_sources_are_refused(tmp_path: Path, name: str, content: str | bytes, reason: str) -> None:
    """The reason says what is wrong, before a voice is loaded."""
    with pytest.raises(ManifestError) as refused:
        rows(tmp_path / name, content)
    assert reason in str(refused.value)


@NEEDS_SENTENCEX
def test_pieces_are_sentences_with_pauses() -> None:
    """Sentences stay whole and together as long as they fit; the pause tells what ended."""
    assert split("It rained. He stayed.\n\nThen he left.", "en") == [
        ("It rained. He stayed.", 0.7),
        ("Then he left.", 0.0),
    ]
    sentence = "He said that Mr. Smith would come at nine, and that nobody should wait for him any longer. "
    assert split(3 * sentence, "en") == [(f"{sentence}{sentence}".strip(), 0.35), (sentence.strip(), 0.0)]
    clauses = "one two three four five six seven, " * 10
    assert {pause for _, pause in split(clauses, "en")[:-1]} == {0.15}
    assert split(" — \n\n …", "en") == []


@NEEDS_SENTENCEX
@given(st.text("aB1 .,!?\n—é'", max_size=1000))
def test_pieces_keep_every_word(text: str) -> None:
    """No letter and no digit is lost or doubled, and only one long word is longer than a piece."""
    pieces = split(text, "en")
    assert [c for piece, _ in pieces for c in piece if c.isalnum()] == [c for c in text if c.isalnum()]
    assert all(len(piece) <= MAX_CHARACTERS or " " not in piece for piece, _ in pieces)


def test_what_a_voice_cannot_read() -> None:
    """A text needs a letter or a digit, and most letters must be of the voice's scripts."""
    assert unreadable("", ["Latin"]) == "the text is empty"
    assert unreadable("…!", ["Latin"]) == "the text has no letter and no digit"
    assert unreadable("12", ["Latin"]) is None
    assert unreadable("Ελλάδα, Greece and Ελλάς", ["Latin"]) is not None
    assert unreadable("The letter α", ["Latin"]) is None
    assert plain("say [hibari](/hˈɑɹi/) [x](y)") == "say hibari [x](y)"


def test_silence_at_the_ends_is_cut() -> None:
    """Speech keeps 40 ms of it at each end, and all pauses within. Speech without a sound is refused."""
    rate = 1000
    samples = np.zeros(1000, np.float32)
    samples[[300, 500]] = 0.5
    assert len(trimmed(samples, rate)) == 201 + 2 * 40
    assert trimmed(samples[:310], rate)[40] == 0.5
    piece = TextPiece("a", "heart", 0)
    assert find_wrong_value(Speech(0, 0, piece, samples)) is None
    for silent in (trimmed(samples[:300], rate), samples[:0]):
        assert find_wrong_value(Speech(0, 0, piece, silent)) == "the speech has no sound"
