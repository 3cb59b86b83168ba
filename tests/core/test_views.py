"""Tests for the views of a transcript: its formats, its file, its repr, and its page in a notebook."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from conftest import ROOT

import voxbatch as vb
from voxbatch.formats import WRITERS
from voxbatch.formats.document import Document
from voxbatch.formats.notebook import MAX_AUDIO_BYTES, MAX_WORDS, notebook_html
from voxbatch.records import LOW_CONFIDENCE, Flag, Segment, Transcript, Word

WORDS = (
    Word(" The", 0.0, 0.2, 0.99), Word(" <b>", 0.2, 0.5, 0.4, "A&B"), Word(" sat", 0.5, 0.9, 0.8), Word(".", 0.9, 0.9),
)  # fmt: skip
TRANSCRIPT = Transcript(
    "The <b> sat.", WORDS, (Segment("The <b> sat.", 0.0, 0.9, "A&B"),), 2.0, ("<i>odd</i>",), "en",
    (Flag(LOW_CONFIDENCE, "3 unsure words", 0.0, 0.9),), audio="/x/cat.wav",
)  # fmt: skip


class Tags(HTMLParser):
    """Collects the tags and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.text = list[str](), ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("form", WRITERS)
def test_each_format_is_the_one_of_a_run(form: str, tmp_path: Path) -> None:
    """A transcript has the text of a run's file, and saves it by the extension or the name of the format."""
    text, path = TRANSCRIPT.to(form), tmp_path / f"cat.{WRITERS[form].extension}"
    assert text == Document("cat.wav", TRANSCRIPT).written(form)
    TRANSCRIPT.save(path, form)
    assert path.read_text() == text
    TRANSCRIPT.save(str(path))
    first = next(name for name, writer in WRITERS.items() if writer.extension == WRITERS[form].extension)
    assert path.read_text() == TRANSCRIPT.to(first)


def test_usual_formats_have_methods() -> None:
    """The four usual formats need no name of a format."""
    transcript = TRANSCRIPT
    texts = transcript.to_srt(), transcript.to_vtt(), transcript.to_txt(), transcript.to_json()
    assert texts == tuple(map(transcript.to, ("srt", "vtt", "txt", "json")))


def test_a_wrong_format_is_refused(tmp_path: Path) -> None:
    """A format or an extension that does not exist is an error with those that do, and nothing is written."""
    with pytest.raises(vb.ConfigError, match="there is no format 'docx'; give one of srt, vtt, vtt-words"):
        TRANSCRIPT.to("docx")
    with pytest.raises(vb.ConfigError, match=r"cat\.docx: no format has the extension 'docx'; take one of \..*\.srt"):
        TRANSCRIPT.save(tmp_path / "cat.docx")
    with pytest.raises(vb.ConfigError, match="no format has the extension ''"):
        TRANSCRIPT.save(tmp_path / "cat")
    assert list(tmp_path.iterdir()) == []


def test_a_repr_is_one_short_line() -> None:
    """However long a transcript is, its repr is a line with the begin of its text and its size."""
    assert repr(TRANSCRIPT) == "Transcript('The <b> sat.', 4 words, 2.0 s, language 'en', 1 flag)"
    long = Transcript("so it\ngoes " * 10_000, WORDS * 2500, audio_duration=3600.5)
    assert len(repr(long)) < 120
    assert repr(long).endswith(", 10,000 words, 3600.5 s)")
    assert repr(Transcript("")) == "Transcript('', 0 words, 0.0 s)"


def test_the_page_shows_words_times_and_doubts() -> None:
    """The page has each word with its times, marks the unsure one, escapes all, and shows flags and warnings."""
    page = notebook_html(TRANSCRIPT)
    tags = Tags(page)
    assert set(tags.tags) == {"div", "small", "b", "span", "mark"}
    assert tags.text == "0:00 A&B The <b> sat.⚠ 3 unsure words at 0:00 to 0:00<i>odd</i>"
    assert re.findall(r"<mark [^>]*>([^<]*)</mark>", page) == ["&lt;b&gt;"]
    assert '<span data-start="0.50" title="0.50 to 0.90 s, confidence 0.80">sat</span>' in page
    assert TRANSCRIPT._repr_html_() == page


def test_the_page_spells_the_text_of_any_script() -> None:
    """Words that have lost their leading spaces, as those read from OUT, are joined as the text has them."""
    words = tuple(Word(word, at, at + 1.0) for at, word in enumerate(["今日", "は", "U", ".S", "."]))
    transcript = Transcript("今日は U.S.", words, (Segment("今日は U.S.", 0.0, 5.0),))
    assert Tags(notebook_html(transcript)).text == "0:00 今日は U.S."
    timeless = Transcript("No times.", (), (Segment("No times.", 3661.0, 3665.0),))
    assert Tags(notebook_html(timeless)).text == "1:01:01 No times."


def test_the_page_is_small(tmp_path: Path) -> None:
    """A short recording is in the page; a long one, one that is gone and one that is no audio are not. Of a long text
    the page has the begin."""
    weather = ROOT / "examples" / "recordings" / "weather.flac"
    page = notebook_html(Transcript("Hi.", audio=str(weather)))
    assert re.search(r'<audio controls preload="none" src="data:audio/(x-)?flac;base64,', page)
    long = tmp_path / "long.wav"
    with long.open("wb") as file:
        file.truncate(MAX_AUDIO_BYTES + 1)
    for audio in ("", str(long), str(tmp_path / "gone.wav"), __file__, "https://example.org/a.mp3"):
        assert "<audio" not in notebook_html(Transcript("Hi.", audio=audio))
    words = tuple(Word(f" word{at}.", at, at + 0.5) for at in range(MAX_WORDS + 1000))
    segments = tuple(Segment(word.text.strip(), word.start, word.end) for word in words)
    page = notebook_html(Transcript("".join(word.text for word in words).strip(), words, segments))
    assert Tags(page).text.endswith("… and 1,000 more words")
    assert len(page) < 600_000


@pytest.mark.slow
def test_a_transcript_knows_its_recording() -> None:
    """The transcript of a file has the place of the file, for the player; bytes have none."""
    path = ROOT / "examples" / "recordings" / "weather.flac"
    with vb.Transcriber(engine="scripted") as transcriber:
        assert transcriber.transcribe(path).audio == str(path)
        assert transcriber.transcribe(path.read_bytes()).audio == ""
