"""Tests for the output formats: readable subtitles, files that programs can parse, and safe names."""

from __future__ import annotations

import html
import json
import math
import re
import time
import unicodedata
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import pysubs2
import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st

from voxbatch.formats import DEFAULT_LIMITS, EXTENSIONS, CueLimits
from voxbatch.formats.cues import MAX_CUE_MS, MIN_CUE_MS, Cue, split_into_cues
from voxbatch.formats.document import Document
from voxbatch.formats.function_words import LEANING_WORDS
from voxbatch.formats.json_formats import transcript_dict
from voxbatch.formats.names import MAX_PATH_BYTES, output_name
from voxbatch.records import Segment, Transcript, Word

STORY = (
    "The ferry leaves at nine, not at ten. Bring the map, the rope and something warm to drink; it is colder on the "
    "water than you would believe. Nobody waits for latecomers! When we were young we missed it twice, and both times "
    "we walked around the whole lake, which took us until the evening."
)
CHINESE = "今天天气很好，我们决定去公园走一走。路上遇到了很多朋友，大家一起聊天，讨论明年的计划。"
MARKUP = ["<i>", "</b>", "{\\an8}", "{\\p1}m", "\\N", "\\h", "C:\\new", "&", "&amp;", "&#60;", "-->", "AT&T", "a<b"]
TIMINGS = ["00:00:01,000", "00:01.500", "1984", "WEBVTT", "NOTE"]
NASTY = [*MARKUP, *TIMINGS, "…", "x" * 100, "好" * 50, "เก็บ", "{", "}", "\u200d", "-" * 60]


def spoken(text: str, *, seconds: float = 0.3, gap: float = 0.0, start: float = 0.0) -> Transcript:
    """Return `text` spoken at an even pace, with one Word for each word, or for each character in a text without
    spaces.
    """
    tokens = re.findall(r"\s*\S+", text) if " " in text else list(text)
    step = seconds + gap
    words = tuple(Word(t, start + i * step, start + i * step + seconds) for i, t in enumerate(tokens))
    return Transcript(text, words, audio_duration=start + len(tokens) * step)


def written(form: str, item_id: str, transcript: Transcript, **settings: Any) -> str:
    """Return the text of an item's file."""
    return Document(item_id, transcript, **settings).written(form)


def visible_text(text: str) -> str:
    """Return the text without white space."""
    return "".join(text.split())


def joined_lines(result: list[Cue]) -> str:
    """Return the joined lines of all cues."""
    return "".join(line for cue in result for line in cue.lines)


TOKENS = st.one_of(st.sampled_from(STORY.split()), st.sampled_from(NASTY), st.text(min_size=1, max_size=12))
TIMES = st.floats(-1, 40, allow_nan=False)


@st.composite
def transcripts(draw: st.DrawFn) -> Transcript:
    """Generate words with or without spaces, at times that mostly increase and are sometimes invalid."""
    space = draw(st.sampled_from([" ", ""]))
    words, now = [], 0.0
    for token in draw(st.lists(TOKENS, max_size=40)):
        now += draw(st.sampled_from([0.0, 0.0, 0.2, 0.7, 9.0]))
        start = draw(st.one_of(st.just(now), st.just(now), TIMES))
        now = max(now, start + draw(st.sampled_from([0.0, 0.05, 0.3, 12.0])))
        words.append(Word(space + token, start, draw(st.one_of(st.just(now), st.just(now), TIMES))))
    return Transcript("".join(word.text for word in words), tuple(words), audio_duration=now)


# --- cues


LIMITS = st.just(DEFAULT_LIMITS) | st.builds(
    CueLimits, st.integers(20, 90), st.integers(1, 4), st.floats(5, 40), st.floats(10, 60), st.integers(0, 5)
)


@pytest.mark.slow
@given(transcripts(), LIMITS)
def test_cues_keep_within_the_limits(transcript: Transcript, limits: CueLimits) -> None:
    """A cue has at most the chosen number and width of lines, lasts at most 7 s, begins and ends with a frame, and the
    gap to the next cue is the least one or at least half a second. A cue that could last longer can be read at the
    chosen speed.
    """
    cues = split_into_cues(transcript, limits)
    rate = limits.frames_per_second(transcript.frame_rate)
    frames = [tuple(round(ms * rate / 1000) for ms in (cue.start_ms, cue.end_ms)) for cue in cues]
    open_gap = max(limits.min_gap, round(rate / 2))
    for cue, (start, end), (following, _) in zip(cues, frames, [*frames, (math.inf, math.inf)][1:], strict=True):
        assert following - end == limits.min_gap or following - end >= open_gap
        assert (cue.start_ms, cue.end_ms) == (
            round(start * 1000 / rate),
            round(end * 1000 / rate),
        )
        assert 1 <= len(cue.lines) <= limits.max_lines
        assert all(line == line.strip() and 1 <= len(line) <= limits.max_line for line in cue.lines)
        assert isinstance(cue.start_ms, int)
        assert isinstance(cue.end_ms, int)
        assert 0 <= cue.start_ms < cue.end_ms <= cue.start_ms + MAX_CUE_MS + 1
        is_limited = cue.end_ms - cue.start_ms >= MAX_CUE_MS - 1000 / rate or following - end <= open_gap
        seconds = (cue.end_ms - cue.start_ms) / 1000
        assert is_limited or len("".join(cue.lines)) / limits.max_cps <= seconds + 0.002


@pytest.mark.slow
@given(transcripts(), LIMITS)
def test_cues_contain_exactly_the_text(transcript: Transcript, limits: CueLimits) -> None:
    """The joined lines of all cues are the text, apart from white space and control characters."""
    cues = split_into_cues(transcript, limits)
    assert visible_text(joined_lines(cues)) == visible_text(re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", transcript.text))


@given(transcripts())
def test_short_cues_are_limited_by_the_next_cue(transcript: Transcript) -> None:
    """A cue lasts at least a second, unless the next one starts two frames later."""
    result = split_into_cues(transcript)
    assert all(cue.end_ms - cue.start_ms >= MIN_CUE_MS - 1 for cue in result[-1:])
    for cue, following in pairwise(result):
        assert cue.end_ms - cue.start_ms >= MIN_CUE_MS - 1 or following.start_ms - cue.end_ms <= 84


def test_two_sentences_make_two_cues() -> None:
    """Two sentences a second apart become two cues, each shown from its first word; the short one lasts a second."""
    words = [("Stop.", 1.0, 1.4), ("Look", 2.5, 2.8), ("both", 2.8, 3.1), ("ways.", 3.1, 3.6)]
    text = "Stop. Look both ways."
    assert split_into_cues(Transcript(text, tuple(Word(f" {w}", a, b) for w, a, b in words))) == [
        Cue(1000, 2000, ("Stop.",)),
        Cue(2500, 3625, ("Look both ways.",)),
    ]


def test_cues_end_at_sentences_and_clauses() -> None:
    """In plain prose every cue ends with punctuation, although most of its sentences do not fit into one cue."""
    assert all(cue.lines[-1][-1] in ".,;!" for cue in split_into_cues(spoken(STORY)))


WITHOUT_SPACES = {
    "Thai": "วันนี้อากาศดีมากเราจึงไปเดินเล่นที่สวนสาธารณะและได้เห็นดอกไม้มากมายๆ",
    "Lao": "ມື້ນີ້ອາກາດດີຫຼາຍພວກເຮົາຈຶ່ງໄປຍ່າງຫຼິ້ນຢູ່ສວນສາທາລະນະ",
    "Khmer": "ថ្ងៃនេះអាកាសធាតុល្អណាស់ដូច្នេះយើងទៅដើរលេងនៅសួនសាធារណៈ",
    "Burmese": "ယနေ့ရာသီဥတုသာယာသောကြောင့်ကျွန်ုပ်တို့ပန်းခြံသို့လမ်းလျှောက်အင်္ဂလိပ်",
    "Hindi in one word": "आजमौसमबहुतअच्छाहैइसलिएहमपार्कमेंघूमनेगएक्षत्रियविद्यार्थी",
    "Tibetan": "དེ་རིང་གནམ་གཤིས་ཡག་པོ་འདུག།ང་ཚོ་གླིང་གར་འགྲོ་གི་ཡིན།",
    "Korean in NFD": unicodedata.normalize("NFD", "오늘은날씨가아주좋아서우리는공원에산책하러갔다"),
    "emoji": "👨‍👩‍👧‍👦🇩🇪❤️👍🏽" * 6,
}


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize("text", WITHOUT_SPACES.values(), ids=WITHOUT_SPACES)
def test_no_line_begins_within_a_character(text: str, size: int) -> None:
    """No line begins with a sign that needs the letter before it, or ends with one that needs the letter after it,
    although Whisper's words end anywhere within a character."""
    parts = [text[i : i + size] for i in range(0, len(text), size)]
    words = tuple(Word(part, i * 0.2, i * 0.2 + 0.2) for i, part in enumerate(parts))
    cues = split_into_cues(Transcript(text, words, audio_duration=len(parts) * 0.2), CueLimits(max_line=24))
    assert joined_lines(cues) == text
    for line in (line for cue in cues for line in cue.lines):
        assert unicodedata.category(line[0])[0] != "M"
        assert line[0] not in "ะาำๅๆฯະາຳຽໆ་།\u200d"
        assert line[-1] not in "เแโใไເແໂໃໄ\u200d\u1039\u17d2"
        assert not regex.match(r"[\u1000-\u1021]\u1037?\u103a", line)


@pytest.mark.parametrize(
    ("language", "words"),
    [("Thai", "สวนสาธารณะ อากาศ ดอกไม้"), ("Lao", "ສວນ ອາກາດ"), ("Khmer", "អាកាសធាតុ"), ("Burmese", "ရာသီဥတု")],
)
def test_lines_break_between_words_that_icu_knows(language: str, words: str) -> None:
    """With ICU's dictionaries, no word of a script without spaces is divided."""
    pytest.importorskip("icu4py")
    text = WITHOUT_SPACES[language]
    words_of_one = tuple(Word(char, i * 0.2, i * 0.2 + 0.2) for i, char in enumerate(text))
    cues = split_into_cues(Transcript(text, words_of_one, audio_duration=30), CueLimits(max_line=14))
    lines = [line for cue in cues for line in cue.lines]
    assert len(lines) > 3
    assert all(any(word in line for line in lines) for word in words.split())


def test_cues_end_at_pauses() -> None:
    """In a text without punctuation, a pause of a second separates cues at any position."""
    for pause_after in range(2, 11):
        words = [Word(" word", i * 0.3 + (i >= pause_after), i * 0.3 + 0.3 + (i >= pause_after)) for i in range(12)]
        first, second = split_into_cues(Transcript(" word" * 12, tuple(words)))
        assert visible_text(joined_lines([first])) == "word" * pause_after
        assert second.start_ms == pytest.approx(pause_after * 300 + 1000, abs=42)


def test_last_word_is_not_left_alone() -> None:
    """A sentence slightly too long for a cue is divided into two long parts, not into a full cue and one word."""
    text = "we have been walking along the river since early in the morning and now we are rather tired indeed"
    assert all(len(" ".join(cue.lines)) > 20 for cue in split_into_cues(spoken(text)))


def test_titles_do_not_end_sentences() -> None:
    """The point in "Mr.", or in another abbreviation or initial of its language, ends no cue if there is another place
    to divide; that of a sentence does."""
    text = "Long ago there lived beside the mill, which turned day and night, a certain Mr. Marchbanks of Fenwick."
    assert not [cue for cue in split_into_cues(spoken(text)) if cue.lines[-1].endswith("Mr.")]
    for language, word in (("en", "U.S."), ("en", "Gen."), ("de", "Hr."), ("de", "z.B."), ("fr", "M."), (None, "J.R.")):
        transcript = replace(spoken(text.replace("Mr.", word)), language=language)
        assert not [cue for cue in split_into_cues(transcript) if cue.lines[-1].endswith(word)], word
    ended = replace(spoken(text.replace("Mr.", "no.")), language="en")
    assert [cue for cue in split_into_cues(ended) if cue.lines[-1].endswith("no.")]


def test_two_lines_are_balanced_and_break_at_spaces() -> None:
    """A text of 43 to 84 characters takes two lines of similar length, and no word is divided."""
    (cue,) = split_into_cues(spoken("we have been walking along the river since early morning"))
    assert cue.lines == ("we have been walking along", "the river since early morning")


def test_hyphenated_words_stay_together() -> None:
    """A word that the engine returned in pieces ("ice", "-cream") is not divided."""
    pieces = [" we", " would", " like", " just", " one", " pound", " of", " ice", "-cream", " right", " now", " please"]
    words = tuple(Word(piece, i * 0.3, i * 0.3 + 0.3) for i, piece in enumerate(pieces))
    (cue,) = split_into_cues(Transcript("".join(pieces).strip(), words))
    assert cue.lines == ("we would like just one pound", "of ice-cream right now please")


def test_lines_break_at_punctuation_before_balance() -> None:
    """A line ends with its clause, if the two lines then differ only slightly more in length."""
    (cue,) = split_into_cues(spoken("at noon he rested, then he walked on to the next town"))
    assert cue.lines == ("at noon he rested,", "then he walked on to the next town")
    (cue,) = split_into_cues(spoken("we walked on, until after many hours we saw the lights"))
    assert cue.lines == ("we walked on, until after many", "hours we saw the lights")


@pytest.mark.parametrize(
    ("language", "text", "last"),
    [
        ("en", "the committee had asked the government to publish all of the letters from that difficult year", set()),
        ("de", "die Vertreter der Länder haben sich auf eine gemeinsame Erklärung über den Schutz der Wälder", set()),
        ("fr", "les représentants des pays ont adopté une déclaration commune sur la protection de la forêt", set()),
        ("es", "los representantes de los países han aprobado una declaración sobre la protección de los ríos", set()),
        (
            "en",
            "yesterday evening in the town hall the mayor welcomed Anna Maria Lindgren and her colleagues",
            {"Anna"},
        ),
    ],
)
def test_no_line_ends_in_a_word_that_leans_on_the_next(language: str, text: str, last: set[str]) -> None:
    """No line or cue ends in an article, a preposition, an auxiliary or the first part of a name, except at the end."""
    transcript = replace(spoken(text), language=language)
    lines = [line for cue in split_into_cues(transcript) for line in cue.lines]
    ends = {line.split()[-1] for line in lines[:-1]}
    assert len(lines) > 2
    assert not ends & (LEANING_WORDS[language] | last), lines


def test_a_new_sentence_does_not_begin_with_one_word_at_the_end_of_a_cue() -> None:
    """A cue ends with a sentence, although one more word would fit."""
    text = "This is very unfair to our country. The visa lottery was made in another time, and nobody checks the names."
    assert not [cue for cue in split_into_cues(spoken(text)) if cue.lines[-1].endswith("The")]


def test_a_cue_stays_until_two_frames_before_the_next_one_unless_half_a_second_is_free() -> None:
    """A blank of 0.4 s would flicker, so the cue is held; one of 0.6 s stays."""
    for pause, gap_ms in ((0.0, 83), (0.4, 83), (0.6, 583)):
        begin = 2.5 + pause
        words = [(" Nobody", 1.0, 1.5), (" listened.", 1.5, 2.5), (" Everybody", begin, begin + 0.5)]
        words.append((" laughed.", begin + 0.5, begin + 1.5))
        transcript = Transcript("Nobody listened. Everybody laughed.", tuple(Word(*word) for word in words))
        first, second = split_into_cues(transcript, CueLimits(max_line=20, max_lines=1))
        assert second.start_ms - first.end_ms == pytest.approx(gap_ms, abs=42)


def test_ass_is_read_by_pysubs2() -> None:
    """pysubs2 reads the cues of the srt file from the ass file, with braces and backslashes."""
    transcript = spoken(STORY + " {\\b1} C:\\N.")
    events = [
        [(event.start // 10, event.end // 10, event.plaintext.replace("\u2060", "")) for event in events]
        for form in ("ass", "srt")
        for events in [pysubs2.SSAFile.from_string(written(form, "x", transcript))]
    ]
    assert [event[:2] for event in events[0]] == [event[:2] for event in events[1]]
    assert [event[2] for event in events[0]][:-1] == [event[2] for event in events[1]][:-1]


def test_words_at_one_moment_share_a_cue() -> None:
    """Words with the same time share a cue, so that cues of a faulty engine do not flash by."""
    text = "Yes. No. Well. Fine. We shall see."
    words = tuple(Word(f" {word}", 3.0, 3.0) for word in text.split())
    assert split_into_cues(Transcript(text, words)) == [Cue(3000, 4708, (text,))]


def test_scripts_without_spaces_fill_lines_by_width() -> None:
    """Chinese text is divided between characters, with at most 21 per line, and no line starts with a comma or full
    stop.
    """
    for transcript in (spoken(CHINESE, seconds=0.25), Transcript(CHINESE, (), (Segment(CHINESE, 0.0, 11.0),))):
        lines = [line for cue in split_into_cues(transcript) for line in cue.lines]
        assert "".join(lines) == CHINESE
        assert max(map(len, lines)) <= DEFAULT_LIMITS.max_line // 2
        assert not [line for line in lines if line[0] in "，。"]


def test_a_word_longer_than_a_line_is_split() -> None:
    """A word of 100 letters is shown completely, on as few lines as possible."""
    word = "".join(chr(97 + i % 26) for i in range(100))
    result = split_into_cues(Transcript(word, (Word(f" {word}", 0.0, 6.0),)))
    assert joined_lines(result) == word
    assert len([line for cue in result for line in cue.lines]) == 3


def test_a_word_that_seems_to_last_for_a_minute_is_shown_for_seven_seconds() -> None:
    """A word of a minute is shown for seven seconds, because engines stretch a word over the following silence."""
    assert split_into_cues(Transcript("So", (Word(" So", 5.0, 65.0),))) == [Cue(5000, 12000, ("So",))]


def test_segments_give_times_without_words() -> None:
    """The text of a segment without words is spread over its time by length, within the segment's limits."""
    half = len(STORY) // 2
    first, second = STORY[: STORY.index(" ", half)], STORY[STORY.index(" ", half) + 1 :]
    result = split_into_cues(Transcript(STORY, (), (Segment(first, 3.0, 13.0), Segment(second, 20.0, 30.0))))
    assert " ".join(line for cue in result for line in cue.lines) == STORY
    assert result[0].start_ms == 3000
    assert 20_000 in {cue.start_ms for cue in result}
    assert result[-1].end_ms <= 30_000


def test_text_without_times_is_spread_over_the_audio() -> None:
    """If the words do not spell the text, the text is spread over the whole duration, so that nothing is lost."""
    transcript = Transcript(STORY, (Word(" ferry", 1.0, 2.0),), (), audio_duration=20.0)
    result = split_into_cues(transcript)
    assert " ".join(line for cue in result for line in cue.lines) == STORY
    assert (result[0].start_ms, result[-1].end_ms <= 20_000 + MIN_CUE_MS) == (0, True)


def test_spaces_follow_the_text() -> None:
    """The cues have the spaces of the text, whether or not the engine's words have leading spaces."""
    bare = Transcript("It is 5 km.", tuple(Word(w, i, i + 1.0) for i, w in enumerate(["It", "is", "5", "km", "."])))
    assert split_into_cues(bare)[0].lines == ("It is 5 km.",)


def test_no_speech_gives_no_cues() -> None:
    """Silence gives empty files that are still valid."""
    assert split_into_cues(Transcript(" ")) == []
    assert written("srt", "x", Transcript("")) == ""
    assert written("vtt", "x", Transcript("")).strip() == "WEBVTT"
    assert written("ctm", "x", Transcript("")) == ""


# --- srt and vtt


def srt_blocks(text: str) -> list[tuple[str, str]]:
    """Return (timing line, text) of every cue, parsed by the rule of the format: blocks between blank lines."""
    blocks = [block.split("\n") for block in text.strip("\n").split("\n\n")]
    assert [block[0] for block in blocks] == [str(i) for i in range(1, len(blocks) + 1)]
    return [(block[1], "\n".join(block[2:])) for block in blocks]


def test_srt_matches_hand_written_file() -> None:
    """An srt cue has a number, times with a comma, its lines and a blank line."""
    transcript = Transcript("Hi. Bye.", (Word(" Hi.", 0.5, 0.9), Word(" Bye.", 3661.25, 3662.5)))
    assert written("srt", "x", transcript) == (
        "1\n00:00:00,500 --> 00:00:01,500\nHi.\n\n2\n01:01:01,250 --> 01:01:02,500\nBye.\n\n"
    )


def test_vtt_matches_hand_written_file() -> None:
    """A vtt file has a header, times with a point, and the three escapes of the specification."""
    transcript = Transcript("R&D <b> -->", (Word(" R&D", 0.5, 1.0), Word(" <b>", 1.0, 1.5), Word(" -->", 1.5, 2.0)))
    assert written("vtt", "x", transcript) == (
        "WEBVTT\n\n1\n00:00:00.500 --> 00:00:02.000\nR&amp;D &lt;b&gt; --&gt;\n\n"
    )


@given(transcripts())
@example(spoken("x" * 40 + " 1984"))
@example(spoken("{\\p1} is a drawing and <i> is a tag --> 00:00:01,000 --> 00:00:02,000"))
def test_subtitles_read_back(transcript: Transcript) -> None:
    """Another parser of srt and vtt reads the same cues, times and text, whatever the text contains."""
    expected = [(cue.start_ms, cue.end_ms, "\n".join(cue.lines)) for cue in split_into_cues(transcript)]
    for name in ("srt", "vtt"):
        events = pysubs2.SSAFile.from_string(written(name, "x", transcript), format_=name)
        found = [(event.start, event.end, event.text.replace("\\N", "\n")) for event in events]
        if name == "vtt":
            found = [(start, end, html.unescape(text)) for start, end, text in found]
        assert [(start, end, _unjoined(text)) for start, end, text in found] == [
            (start, end, _unjoined(text)) for start, end, text in expected
        ]


def _unjoined(text: str) -> str:
    return text.replace("\u2060", "").strip()


@pytest.mark.parametrize("token", MARKUP)
def test_srt_holds_no_markup(token: str) -> None:
    """SubRip has no escapes: text that a player would interpret is split by an invisible character, and other text is
    unchanged.
    """
    ((_, text),) = srt_blocks(written("srt", "x", spoken(f"so {token} then", seconds=1.0)))
    assert text.replace("\u2060", "") == f"so {token} then"
    assert not re.search(r"<[/a-z]|\{\\|\\[A-Za-z]|-->|&#|&\w+;", text)


def test_plain_text_is_left_alone() -> None:
    """Ampersands, numbers, times of day and dashes in ordinary text get no invisible characters."""
    text = "At 9:30 AT&T paid 3.5% -- or 10 > 9 -- of R & D (1984)."
    ((_, srt_text),) = srt_blocks(written("srt", "x", spoken(text, seconds=0.2)))
    assert srt_text.replace("\n", " ") == text


# --- txt, ctm, json


def test_txt_is_one_line_a_segment() -> None:
    """Each segment is a line; without segments that spell the text, the text is one line."""
    segments = (Segment(" One two.", 0.0, 1.0), Segment("Three\nfour.", 2.0, 3.0))
    assert written("txt", "x", Transcript("One two. Three four.", (), segments)) == "One two.\nThree four.\n"
    assert written("txt", "x", Transcript("One two. Three four.", (), segments[:1])) == "One two. Three four.\n"
    assert written("txt", "x", Transcript("")) == "\n"


def test_ctm_matches_hand_written_file() -> None:
    """A ctm line has the recording's name, channel, start, duration, word, and a confidence if there is one."""
    words = (Word(" Hello,", 0.5, 0.75, 0.9), Word(" New York!", 1.0, 1.25), Word(" –", 2.0, 3.0))
    assert written("ctm", "a/b c.wav", Transcript("Hello, New York! –", words), name="a/b c") == (
        "a/b%20c 1 0.500 0.250 Hello 0.900\na/b%20c 1 1.000 0.250 New_York\n"
    )


@pytest.mark.parametrize(
    ("spelled", "word"),
    [
        ("(Hello,", "Hello"), ("don’t", "don't"), ("ice-cream.", "ice-cream"), ("3.5%", "3.5%"), ("$5", "$5"),
        ("AT&T", "AT&T"), ("«Où?»", "Où"), ("word(s)", "words"), ("10,000", "10,000"), ("你好。", "你好"),
    ],
)  # fmt: skip
def test_ctm_words_have_no_punctuation(spelled: str, word: str) -> None:
    """Marks around a word, which sclite would count as a part of it, are left out; marks inside it stay."""
    assert written("ctm", "a", Transcript(spelled, (Word(spelled, 0.0, 1.0),))) == f"a 1 0.000 1.000 {word}\n"


@given(transcripts(), st.text(st.characters(), min_size=1))
@example(spoken("one two"), ";; a comment")
@example(spoken("one two"), "caf\udce9 %20\u3000\n")
def test_ctm_lines_have_five_fields(transcript: Transcript, item_id: str) -> None:
    """Every line has the five fields, can be encoded as UTF-8, and decodes to the id in its first field."""
    for line in written("ctm", item_id, transcript).encode().decode().split("\n")[:-1]:
        name, channel, start, duration, _ = line.split()
        assert unquote(name, errors="surrogatepass") == item_id
        assert not line.startswith(";;")
        assert (channel, float(duration) >= 0, float(start) >= -1) == ("1", True, True)


def test_transcript_dict_matches_hand_written_value() -> None:
    """Words are stripped, times rounded to milliseconds, and a confidence is included only if there is one."""
    words = (Word(" Hi", 0.12345, 0.5, 0.98765), Word(" you.", 0.5, 1.0))
    transcript = Transcript("Hi you.", words, (Segment(" Hi you.", 0.12345, 1.0),), 2.00049, ("low volume",))
    assert transcript_dict(transcript) == {
        "text": "Hi you.",
        "words": [
            {"word": "Hi", "start": 0.123, "end": 0.5, "confidence": 0.988},
            {"word": "you.", "start": 0.5, "end": 1.0},
        ],
        "segments": [{"text": "Hi you.", "start": 0.123, "end": 1.0}],
        "audio_duration": 2.0,
        "warnings": ["low volume"],
    }


@given(transcripts(), st.text(st.characters()))
@example(Transcript("é"), "caf\udce9.wav")
def test_json_reads_back(transcript: Transcript, item_id: str) -> None:
    """The file is one line of UTF-8 JSON with the version, the id, the language and the values of the transcript, and
    each word is in one segment.
    """
    text = written("json", item_id, replace(transcript, language="en")).encode().decode()
    assert text.index("\n") == len(text) - 1
    found, expected = json.loads(text), transcript_dict(transcript)
    segments = found.pop("segments")
    del expected["segments"]
    assert found == {"version": 1, "id": item_id, "language": "en", **expected}
    assert [segment["id"] for segment in segments] == list(range(len(segments)))
    assert [word for segment in segments for word in segment["words"]] == (expected["words"] if segments else [])


JSON_WORDS = (Word(" Hi", 0.5, 0.75, 0.9), Word(" you.", 0.75, 1.0), Word(" Bye.", 2.0, 2.5))
TWO = Transcript("Hi you. Bye.", JSON_WORDS, (Segment("Hi you.", 0.5, 1.0), Segment("Bye.", 2.0, 2.5)), 3.0, (), "en")


def test_whisperx_json_matches_hand_written_value() -> None:
    """The object has the keys that WhisperX writes: segments with words, word_segments, language."""
    words = [
        {"word": "Hi", "start": 0.5, "end": 0.75, "score": 0.9},
        {"word": "you.", "start": 0.75, "end": 1.0},
        {"word": "Bye.", "start": 2.0, "end": 2.5},
    ]
    assert json.loads(written("whisperx-json", "x", TWO)) == {
        "segments": [
            {"start": 0.5, "end": 1.0, "text": "Hi you.", "words": words[:2]},
            {"start": 2.0, "end": 2.5, "text": "Bye.", "words": words[2:]},
        ],
        "word_segments": words,
        "language": "en",
    }


def test_openai_json_matches_hand_written_value() -> None:
    """The object has the keys of OpenAI's verbose_json that voxbatch knows."""
    assert json.loads(written("openai-json", "x", TWO)) == {
        "task": "transcribe", "language": "en", "duration": 3.0, "text": "Hi you. Bye.",
        "words": [
            {"word": "Hi", "start": 0.5, "end": 0.75}, {"word": "you.", "start": 0.75, "end": 1.0},
            {"word": "Bye.", "start": 2.0, "end": 2.5},
        ],
        "segments": [
            {"id": 0, "start": 0.5, "end": 1.0, "text": "Hi you."}, {"id": 1, "start": 2.0, "end": 2.5, "text": "Bye."},
        ],
    }  # fmt: skip


def test_words_that_do_not_spell_their_segments_are_divided_by_time() -> None:
    """If the engine's words are not the text, a segment gets the words before the start of the next one."""
    changed = replace(TWO, words=(Word("Hi", 0.5, 0.75), Word("Hello", 0.75, 1.1), Word("Ciao", 2.1, 2.5)))
    groups = [[word.text for word in words] for _, words in Document("x", changed).words_by_segment()]
    assert groups == [["Hi", "Hello"], ["Ciao"]]


def test_tsv_matches_hand_written_file() -> None:
    """The table has Whisper's header, whole milliseconds, and no tab in a text."""
    changed = replace(TWO, segments=(Segment("Hi\tyou.", 0.5, 1.0006), TWO.segments[1]))
    assert written("tsv", "x", changed) == "start\tend\ttext\n500\t1001\tHi you.\n2000\t2500\tBye.\n"


def test_vtt_words_match_a_hand_written_file() -> None:
    """Each word has its time, apart from the first of a cue, and is escaped."""
    words = (Word(" R&D", 0.5, 1.0), Word(" is", 1.0, 1.25), Word(" ice", 1.25, 1.5), Word("-cream.", 1.5, 2.0))
    assert written("vtt-words", "x", Transcript("R&D is ice-cream.", words)) == (
        "WEBVTT\n\n1\n00:00:00.500 --> 00:00:02.000\n<c>R&amp;D</c> <00:00:01.000><c>is</c> "
        "<00:00:01.250><c>ice</c><00:00:01.500><c>-cream.</c>\n\n"
    )


@pytest.mark.parametrize(
    ("start", "end", "second", "third"),
    [
        (0, 3, "1", "2"),  # as it was heard
        (2, 5, "3", "4"),  # later
        (0.3, 3.3, "1", "2"),  # most words are still in it
        (7, 10, "8", "9"),  # where nothing was said
    ],
)
def test_words_move_with_a_cue_that_a_person_has_moved(start: float, end: float, second: str, third: str) -> None:
    """The times of the words of a cue that was shifted are shifted with it, so that they keep their rhythm."""
    words = (Word("We", 0, 0.9), Word(" all", 1, 1.9), Word(" sing", 2, 3))
    cue = Segment("We all sing", start, end)
    text = written("vtt-words", "x", Transcript("We all sing", words, subtitles=(cue,)))
    times = re.findall(r"<00:00:0([\d.]+)>", text)
    assert [f"{float(time):g}" for time in times] == [second, third]


@pytest.mark.parametrize(("start", "end"), [(9, 14), (10.5, 13.5), (10.5, 12.4), (10.8, 13.2)])
def test_words_stay_in_a_cue_that_was_only_made_longer_or_shorter(start: float, end: float) -> None:
    words = (Word("We", 10.6, 10.9), Word(" all", 11, 11.9), Word(" sing", 12, 13.2))
    text = written("vtt-words", "x", Transcript("We all sing", words, subtitles=(Segment("We all sing", start, end),)))
    assert re.findall(r"<00:00:([\d.]+)>", text) == ["11.000", "12.000"]


def test_words_move_to_an_earlier_cue() -> None:
    words = (Word("We", 10.6, 10.9), Word(" all", 11, 11.9), Word(" sing", 12, 13.2))
    text = written("vtt-words", "x", Transcript("We all sing", words, subtitles=(Segment("We all sing", 8.6, 11.2),)))
    assert re.findall(r"<00:00:([\d.]+)>", text) == ["09.000", "10.000"]


@pytest.mark.slow
@given(transcripts())
def test_vtt_words_have_the_text_of_vtt(transcript: Transcript) -> None:
    """The file without its tags is the plain one, and the times inside a cue increase and stay inside it."""
    text = written("vtt-words", "x", transcript)
    for block in text.split("\n\n")[1:-1]:
        _, times, *lines = block.split("\n")
        begin, end = times.split(" --> ")
        inner = re.findall(r"<([\d:.]+)>", "\n".join(lines))
        assert [begin, *inner, end] == sorted({begin, *inner, end})
    plain = re.sub(r"</?c>|<\d[\d:.]+>", "", text)
    assert visible_text(plain.replace("\u2060", "")) == visible_text(
        written("vtt", "x", transcript).replace("\u2060", "")
    )


@given(transcripts())
def test_ttml_is_xml_with_the_cues(transcript: Transcript) -> None:
    """The file is well-formed XML whose paragraphs are the cues."""
    root = ET.fromstring(written("ttml", "x", transcript).encode())
    found = list(root.iter("{http://www.w3.org/ns/ttml}p"))
    cues = split_into_cues(transcript)
    assert len(found) == len(cues)
    for paragraph, cue in zip(found, cues, strict=True):
        lines = list(paragraph.itertext())
        replaced = [re.sub("[\ufffe\uffff]", "\ufffd", line) for line in cue.lines]
        assert visible_text("".join(lines)) == visible_text("".join(replaced))
        assert paragraph.get("begin", "").endswith(f".{cue.start_ms % 1000:03}")


@given(transcripts())
def test_textgrid_intervals_partition_the_recording(transcript: Transcript) -> None:
    """Every interval has a length, and each tier covers the whole time without gaps, with every word in it."""
    text = written("textgrid", "x", transcript)
    total = float(re.findall(r"^xmax = (.*)", text, re.MULTILINE)[0])
    for tier in text.split("    item [")[2:]:
        found = re.findall(r"xmin = (\S+)\n            xmax = (\S+)\n            text = \"(.*)\"", tier)
        edges = [(float(start), float(end)) for start, end, _ in found]
        assert all(start < end for start, end in edges)
        assert [start for start, _ in edges] + [total] == [0.0] + [end for _, end in edges]
        if '"words"' in tier:
            words = visible_text("".join(re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", w.text) for w in transcript.words))
            assert visible_text("".join(label for *_, label in found)).replace('""', '"') == words


def test_cues_break_before_conjunctions() -> None:
    """A sentence without punctuation that does not fit a cue is divided before a conjunction."""
    text = "we went down to the harbour early in the morning because the boats come back at that time of the day"
    second = split_into_cues(spoken(text))[1]
    assert second.lines[0].startswith("because the boats")


# --- names

PARTS = st.sampled_from(["a", "A", "b.wav", ".", "..", "", "a.srt", "x.json", "%", "%2F", "%~", "\0", "é", "\udce9"])
LONG = st.builds(lambda char, n: char * n, st.sampled_from(["a", "é", "好", "%", "\udce9", "."]), st.integers(70, 300))
IDS = st.one_of(
    st.text(st.characters(), max_size=20),
    st.lists(st.one_of(PARTS, LONG), max_size=8).map("/".join),
    st.text("a./%~\\\n", max_size=12),
)


@pytest.mark.parametrize(
    ("item_id", "path"),
    [
        ("a/b.wav", "a/b.wav.srt"),
        ("日本/é ü.flac", "日本/é ü.flac.srt"),
        ("../../etc/passwd", "%2E%2E/%2E%2E/etc/passwd.srt"),
        ("/etc/passwd", "%2Fetc/passwd.srt"),
        ("gs://bucket/a.wav", "gs:/%2Fbucket/a.wav.srt"),
        ("a/", "a%2F.srt"),
        ("50%", "50%25.srt"),
        ("a\nb\0c\\d", "a%0Ab%00c%5Cd.srt"),
        ("a.srt/b", "a%2Esrt/b.srt"),
        ("a.vtt", "a.vtt.srt"),
        ("caf\udce9", "caf%ED%B3%A9.srt"),
        ("n" * 244, "n" * 244 + ".srt"),
    ],
)
def test_output_names_match_hand_written_ones(item_id: str, path: str) -> None:
    """A plain id stays unchanged with its extension; only unsafe characters are percent-encoded."""
    assert output_name(item_id, "srt") == path


@given(IDS, st.sampled_from(EXTENSIONS))
def test_names_are_safe(item_id: str, extension: str) -> None:
    """A name is a relative path in normal form, without "." and ".." parts or control characters, within file system
    limits.
    """
    path = output_name(item_id, extension)
    parts = path.split("/")
    assert path.endswith(f".{extension}")
    assert str(PurePosixPath(path)) == path
    assert not {"", ".", ".."} & set(parts)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\\]", path)
    assert max(len(part.encode()) for part in parts) <= 255
    assert len(path.encode()) <= MAX_PATH_BYTES


@given(st.lists(IDS, min_size=2, max_size=8, unique=True))
@example(["a", "a.srt/b", "a%2Esrt/b", "a.json/b"])
@example(["\ud83d\ude00", "\U0001f600"])
@example(["\udced\udca0\udc80", "\ud800"])
@example(["a" * 300, "a" * 301, "a" * 299 + "/b"])
@example(["d/" * 400 + "x", "d/" * 400 + "y", "d%2F" * 400 + "x"])
def test_no_two_ids_share_a_path(ids: list[str]) -> None:
    """Different ids have different files in every format, and no file is the folder of another."""
    files = [output_name(item_id, extension) for item_id in ids for extension in EXTENSIONS]
    folders = {str(parent) for file in files for parent in PurePosixPath(file).parents}
    assert len(set(files)) == len(files)
    assert not folders & set(files)


@given(IDS)
def test_uncut_names_decode_to_the_id(item_id: str) -> None:
    """Percent-decoding a name that was not shortened gives the id."""
    path = output_name(item_id, "srt").removesuffix(".srt")
    assert "%~" in path or unquote(path, errors="surrogatepass") == item_id


def test_cut_names_keep_their_beginning() -> None:
    """A name too long for the file system keeps its start in whole characters, and has the same
    stem in every format.
    """
    item_id = "talks/" + "é" * 200
    stems = {output_name(item_id, extension).removesuffix(f".{extension}") for extension in EXTENSIONS}
    (stem,) = stems
    assert re.fullmatch("talks/é{106}%~[0-9a-f]{32}", stem)
    for n in range(3):
        assert re.fullmatch("x*(%25)+%~[0-9a-f]{32}[.]srt", output_name("x" * n + "%" * 200, "srt"))
    deep = output_name("d/" * 500 + "x", "srt")
    assert re.fullmatch("(d%2F)+d?%~[0-9a-f]{32}[.]srt", deep)


@pytest.mark.parametrize(
    "word",
    ["x" * 640_000, "क्षि" * 40_000, "é" * 100_000, "x" * 100_000 + "好"],
    ids=["latin", "devanagari", "accents", "one Chinese character"],
)
def test_a_word_of_no_language_takes_no_minutes(word: str) -> None:
    """A token as long as a book, such as a key in hexadecimal digits, is cut where lines are full, in seconds."""
    transcript = Transcript(word, (Word(f" {word}", 0.0, 9.0),), (), 10.0, (), None, ())
    started_at = time.process_time()
    cues = split_into_cues(transcript)
    assert time.process_time() - started_at < 10, "it took 29 s and more"
    assert "".join(line for cue in cues for line in cue.lines) == word
    assert max(len(line) for cue in cues for line in cue.lines) <= DEFAULT_LIMITS.max_line
    assert not [line for cue in cues for line in cue.lines if unicodedata.category(line[0]).startswith("M")]
