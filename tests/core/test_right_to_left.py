"""Tests that subtitles of scripts from right to left say so, without marks in their text."""

from __future__ import annotations

import unicodedata
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.formats.document import Document
from voxbatch.records import Transcript, Word

HEBREW, ARABIC, ENGLISH = "שלום, מה שלומך?", "مرحبا بكم، 12.", "Hello, my friend."
TTML = "{http://www.w3.org/ns/ttml}"
STYLING = "{http://www.w3.org/ns/ttml#styling}"


def written(form: str, *texts: str, speaker: str | None = None) -> str:
    """Return subtitles with a cue for each text."""
    words = tuple(Word(f" {text}", at * 9.0, at * 9.0 + 2, speaker=speaker) for at, text in enumerate(texts))
    return Document("x", Transcript(" ".join(texts), words, (), 9.0 * len(texts))).written(form)


@pytest.mark.parametrize("text", [HEBREW, ARABIC])
def test_right_to_left_is_said_by_the_format(text: str) -> None:
    """libass takes the direction of each line from its text if the style's encoding is -1; TTML names it."""
    (style,) = (line for line in written("ass", text).splitlines() if line.startswith("Style:"))
    assert style.endswith(",-1")
    (paragraph,) = ET.fromstring(written("ttml", text)).iter(f"{TTML}p")
    assert paragraph.get(f"{STYLING}direction") == "rtl"
    for form in ("ass", "ttml", "srt", "vtt"):
        marks = {char for char in written(form, text) if unicodedata.bidirectional(char) in MARKS}
        assert not marks


MARKS = frozenset(("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"))


def test_only_cues_from_right_to_left_name_a_direction() -> None:
    """In TTML each cue has its own; files without one are as they were."""
    paragraphs = ET.fromstring(written("ttml", HEBREW, ENGLISH)).iter(f"{TTML}p")
    assert [paragraph.get(f"{STYLING}direction") for paragraph in paragraphs] == ["rtl", None]
    assert ",1\n\n[Events]" in written("ass", ENGLISH)
    assert "direction" not in written("ttml", ENGLISH)


def test_a_label_in_other_letters_does_not_turn_a_cue() -> None:
    """The direction is that of most letters."""
    (paragraph,) = ET.fromstring(written("ttml", HEBREW, speaker="Speaker 1")).iter(f"{TTML}p")
    assert paragraph.get(f"{STYLING}direction") == "rtl"


@given(st.text(st.characters(codec="ascii", categories=["L", "N", "P", "Zs"]), min_size=1))
def test_files_from_left_to_right_have_no_direction(text: str) -> None:
    """ASCII has no letters from right to left."""
    assert "direction" not in written("ttml", text).replace(text, "")
