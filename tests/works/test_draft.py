"""Tests for the words of a corrected text: what is the same keeps its times, what is new gets times of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxbatch.formats import WRITERS
from voxbatch.formats.document import Document, visible_text
from voxbatch.records import Segment, Transcript, Word
from voxbatch.text.stitching import segments as segments_of
from voxbatch.works.correct.draft import Draft, draft_of
from voxbatch.works.correct.passages import READERS, Passage, passages
from voxbatch.works.correct.times import set_times, stretches_of

Times = tuple[float, float]


def transcript(text: str, words: Sequence[str] | None = None, speakers: Sequence[str | None] = ()) -> Transcript:
    """Return a transcript whose words take half a second each; a speaker says two words."""
    texts = text.split() if words is None else words
    timed = [
        Word(word, i / 2, (i + 1) / 2, 0.9, speakers[i // 2 % len(speakers)] if speakers else None)
        for i, word in enumerate(texts)
    ]
    spaced = [Word(f" {word.text}" if words is None else word.text, *_rest(word)) for word in timed]
    return Transcript(text, tuple(timed), tuple(segments_of(spaced)), len(timed) / 2)


def _rest(word: Word) -> tuple[float, float, float | None, str | None]:
    return word.start, word.end, word.confidence, word.speaker


def corrected(before: Transcript, *lines: str) -> Draft:
    """Return the draft of a text with all its times."""
    draft = draft_of(before, [Passage((line,)) for line in lines])
    set_times(draft)
    return draft


def timed(draft: Draft) -> dict[str, Times]:
    return {word.text: (word.start, word.end) for word in draft.words()}


def test_new_words_take_the_time_of_those_that_they_replace() -> None:
    """A replaced word gives its time; an added one has the gap; the others keep times and confidences."""
    draft = corrected(transcript("the cat sat on"), "The big cat stood on.")
    assert timed(draft) == {
        "The": (0.0, 0.5), "big": (0.5, 0.5), "cat": (0.5, 1.0), "stood": (1.0, 1.5), "on.": (1.5, 2.0),
    }  # fmt: skip
    assert [word.confidence for word in draft.words()] == [0.9, None, 0.9, None, 0.9]


def test_a_word_that_is_left_out_takes_nothing_with_it() -> None:
    """The words around it stay as they are, and so does the pause."""
    draft = corrected(transcript("the the cat sat"), "the cat sat")
    assert list(timed(draft).values()) == [(0.0, 0.5), (1.0, 1.5), (1.5, 2.0)]


@pytest.mark.parametrize(
    ("words", "after", "expected"),
    [
        (["今天", "天气", "好"], ("今夜天", "气好"), {"今夜": (0.0, 0.5), "天气": (0.5, 1.0), "好": (1.0, 1.5)}),
        (["今天", "天气", "好"], ("今天", "天气好"), {"今天": (0.0, 0.5), "天气": (0.5, 1.0), "好": (1.0, 1.5)}),
        (["用", "Python", "写"], ("用 Python 3 写",), {"用": (0.0, 0.5), "Python": (0.5, 1.0), "3": (1.0, 1.0)}),
    ],
)
def test_scripts_without_spaces(words: list[str], after: tuple[str, ...], expected: dict[str, Times]) -> None:
    """Characters are compared, and a line break is no space."""
    draft = corrected(transcript("".join(words), words), *after)
    assert timed(draft).items() >= expected.items()
    assert draft.differs == ("".join(after) != "".join(words))


def test_a_broken_word_is_whole_and_a_divided_one_is_not() -> None:
    """A word that two lines divide is the same, and one with a space in it is new."""
    before = transcript("see https://example.org/verylong everyday")
    assert not corrected(before, "see https://example.org/", "verylong everyday").differs
    assert corrected(before, "see https://example.org/verylong every day").text.endswith("every day")


def test_punctuation_belongs_to_the_word_before() -> None:
    """A dash that is added is no word."""
    draft = corrected(transcript("yes it is"), "Yes — it is …")
    assert [word.text for word in draft.words()] == ["Yes —", "it", "is …"]
    assert timed(draft)["is …"] == (1.0, 1.5)


@pytest.mark.parametrize("mark", ["-", "–", "♪", ">>"])
def test_a_mark_that_begins_a_line_belongs_to_the_word_after(mark: str) -> None:
    """The dashes of two speakers and the notes of a song take the times of the words that they stand before."""
    words = tuple(Word(f"w{second}", second, second + 0.5) for second in (6, 7, 8))
    before = Transcript("w6 w7 w8", words, (Segment("w6 w7 w8", 6.0, 8.5),), 9.0)
    lines = f"{mark} w6", f"{mark} w7 w8"
    draft = corrected(before, *lines)
    assert timed(draft) == {f"{mark} w6": (6.0, 6.5), f"{mark} w7": (7.0, 7.5), "w8": (8.0, 8.5)}
    assert not corrected(replace(before, text=draft.text, words=(*draft.words(),)), *lines).differs


def test_segments_keep_their_texts_and_times() -> None:
    """A change is in the segment where it was made; the other ones are as before."""
    before = transcript("One two. Three four. Five six.")
    draft = corrected(before, "One two. Then three or four. Five six.")
    assert [(part.text, part.start, part.end) for part in draft.segments()] == [
        ("One two.", 0.0, 1.0),
        ("Then three or four.", 1.0, 2.0),
        ("Five six.", 2.0, 3.0),
    ]


def test_a_transcript_without_word_times_has_segments_alone() -> None:
    """The segments have the times of before, and there are no words."""
    parts = (Segment("One two.", 0.0, 4.0), Segment("Three four.", 4.0, 9.0))
    draft = corrected(Transcript("One two. Three four.", (), parts, 9.0), "One too. Three for four.")
    assert (draft.words(), draft.new_pieces) == ([], [])
    assert draft.segments() == [Segment("One too.", 0.0, 4.0), Segment("Three for four.", 4.0, 9.0)]


def test_words_that_do_not_spell_the_text_are_no_words() -> None:
    """Words of another text than that of the item cannot be kept."""
    before = Transcript("one two", (Word("eins", 0.0, 1.0),), (Segment("one two", 0.0, 2.0),), 2.0)
    draft = corrected(before, "one too")
    assert (draft.words(), draft.segments()) == ([], [Segment("one too", 0.0, 2.0)])


def test_everything_may_be_left_out_or_new() -> None:
    """An empty correction has no words and no segments; a text for an empty transcript has the whole audio."""
    draft = corrected(transcript("some words"), "")
    assert (draft.text, draft.words(), draft.segments(), draft.differs) == ("", [], [], True)
    draft = corrected(Transcript("", (), (), 4.0), "hello there")
    assert (draft.text, draft.segments()) == ("hello there", [Segment("hello there", 0.0, 4.0)])


def test_stretches_have_the_words_around_a_change() -> None:
    """A change is aligned with two words on each side; changes that are near each other are one stretch."""
    before = transcript(" ".join(f"w{i}" for i in range(40)))
    words = before.text.split()
    words[10:11], words[13], words[30] = ["ten", "and"], "thirteen", "thirty"
    draft = draft_of(before, [Passage((" ".join(words),))])
    line = {"audio_duration": 20.0, "offset": 0.0}
    assert [(stretch.start, stretch.end, len(stretch.pieces)) for stretch in stretches_of(line, draft)] == [
        (3.8, 7.7, 8),
        (13.3, 16.2, 5),
    ]


SPEAKERS = ["Ann", "Speaker 2"]


@pytest.mark.parametrize("form", sorted(READERS))
def test_speakers_are_those_of_the_labels(form: str) -> None:
    """A file that nobody has changed changes no speaker. A label that is changed names the speaker of what follows."""
    before = transcript("one two three four five six.", speakers=SPEAKERS)
    text = Document("x", before).written(form)
    assert not draft_of(before, passages(form, text, SPEAKERS, before.text)).differs
    draft = draft_of(before, passages(form, text.replace("Speaker 2", "Bob"), SPEAKERS, before.text))
    set_times(draft)
    assert draft.text == before.text
    assert [word.speaker for word in draft.words()] == ["Ann", "Ann", "Bob", "Bob", "Ann", "Ann"]
    assert [(part.text, part.speaker) for part in draft.segments()] == [
        ("one two", "Ann"), ("three four", "Bob"), ("five six.", "Ann"),
    ]  # fmt: skip


@pytest.mark.parametrize("form", sorted(READERS))
def test_what_nobody_was_told_to_say_stays_so(form: str) -> None:
    """A cue without a label after one with a label has words of no speaker, and a label of its own gives them one."""
    before = transcript("one two three four five six.", speakers=["Ann", None, "Bob"])
    text = Document("x", before).written(form)
    draft = draft_of(before, passages(form, text.replace("two", "too").replace("Ann", "Eve"), ["Ann", "Bob"]))
    assert [(piece.text, piece.speaker) for piece in draft.pieces] == [
        ("one", "Eve"), ("too", "Eve"), ("three", None), ("four", None), ("five", "Bob"), ("six.", "Bob"),
    ]  # fmt: skip


def test_a_colon_in_the_text_is_no_label() -> None:
    """Words of the recogniser before a colon are text, unless a speaker has that name."""
    before = transcript("Note: it works well now", speakers=SPEAKERS)
    text = Document("x", before).written("srt")
    assert not draft_of(before, passages("srt", text, SPEAKERS, before.text)).differs
    changed = passages("srt", text.replace("Note:", "My note:").replace("well", "fine"), SPEAKERS, "My note: it works")
    assert draft_of(before, changed).text == "My note: it works fine now"


def test_a_label_without_words_is_no_text() -> None:
    """If all words of a cue are left out, its label is no word."""
    before = transcript("one two three", speakers=SPEAKERS)
    text = Document("x", before).written("srt").replace("three", "")
    assert draft_of(before, passages("srt", text, SPEAKERS, before.text)).text == "one two"


WORDS = st.sampled_from(
    [
        "a",
        "b",
        "B",
        "c.",
        "deed,",
        "e—",
        "好",
        "天气",
        "…",
        "x<y",
        "{z}",
        "12:30.5",
        "&amp;",
        "\\N",
        "-->",
        "7",
        "ภาษาไทย",
        "x" * 60,
    ]
)
TEXTS = st.lists(WORDS, max_size=12)


@settings(max_examples=400)
@given(TEXTS, TEXTS)
def test_a_draft_has_the_text_and_times_in_order(before: list[str], after: list[str]) -> None:
    """The draft of any texts has the corrected one, its segments spell it, and its words are in order,
    within the recording, and not longer than the transcript's own."""
    present = transcript(" ".join(before))
    draft = corrected(present, " ".join(after))
    assert draft.text == " ".join(after)
    assert "".join(visible_text(part.text) for part in draft.segments()) == visible_text(draft.text)
    words = draft.words()
    if draft.has_words or not before:
        assert all(0 <= word.start <= word.end <= len(before) / 2 for word in words)
        assert all(one.end <= other.start for one, other in pairwise(words))
    if before == after:
        assert (tuple(words), draft.differs) == (present.words if draft.has_words else (), False)


@settings(max_examples=400)
@given(TEXTS, st.sampled_from(sorted(READERS)), st.lists(st.sampled_from([*SPEAKERS, None]), max_size=4))
def test_a_file_of_voxbatch_changes_nothing(texts: list[str], form: str, speakers: list[str | None]) -> None:
    """Each format that voxbatch writes is read back as the text and the speakers that it has, also if some words are
    nobody's."""
    present = transcript(" ".join(texts), speakers=speakers)
    written = Document("x", present).written(form)
    draft = draft_of(present, passages(form, written, [*filter(None, speakers)], present.text))
    assert (draft.text, draft.differs) == (present.text, False)
    assert form in WRITERS


SPACED = st.lists(st.tuples(st.sampled_from(["", " "]), WORDS), max_size=8)


@settings(max_examples=600)
@given(SPACED, SPACED)
def test_a_draft_has_the_spaces_of_the_corrected_text(
    before: list[tuple[str, str]], after: list[tuple[str, str]]
) -> None:
    """A corrected text of one line is taken to the letter, in scripts with and without spaces."""
    texts = ["".join(space + word for space, word in pairs).strip() for pairs in (before, after)]
    words = [word.strip() for word in re.findall(r"\s*\S+", texts[0])]
    assert draft_of(transcript(texts[0], words), [Passage((texts[1],))]).text == texts[1]


EDITS = [("Xyz", "new"), ("Xyz", "two words"), ("Xyz", "new Xyz"), ("Xyz", "Xyz new"), ("Xyz", "好")]
"""A word of a text, and what a person puts in its place."""


@settings(max_examples=400)
@given(
    TEXTS,
    TEXTS,
    st.sampled_from(EDITS),
    st.sampled_from(sorted(READERS)),
    st.lists(st.sampled_from(SPEAKERS), max_size=3),
)
def test_a_change_of_one_word_leaves_all_others(
    left: list[str], right: list[str], edit: tuple[str, str], form: str, speakers: list[str]
) -> None:
    """A word that is changed in a file changes nothing else in the text: no space, no line break, no label. Only a line
    break beside a new word of a script without spaces does not tell whether a space was there."""
    present = transcript(" ".join([*left, edit[0], *right]), speakers=speakers)
    written = Document("x", present).written(form).replace(*edit)
    draft = draft_of(present, passages(form, written, speakers, present.text))
    texts = draft.text, present.text.replace(*edit)
    if edit[1] == "好":
        texts = re.sub(r"\s*好\s*", "好", texts[0]), re.sub(r"\s*好\s*", "好", texts[1])
    assert texts[0] == texts[1]


@pytest.mark.slow
@pytest.mark.parametrize("form", sorted(READERS))
@pytest.mark.parametrize("speakers", [[], SPEAKERS])
def test_a_change_of_one_word_of_real_texts_leaves_all_others(corpus: Path, form: str, speakers: list[str]) -> None:
    """The same holds for the first word, one in the middle and the last one of real texts in six languages."""
    rows = [json.loads(line) for line in (corpus / "speech" / "manifest.jsonl").read_text().splitlines()]
    texts = [row["text"].split()[:300] for row in rows[::6] if row["text"]]
    for words, edit in product(texts, [*EDITS, ("Xyz", "")]):
        at = (0, len(words) // 2, len(words) - 1)[len(words) % 3]
        present = transcript(" ".join([*words[:at], "Xyz", *words[at + 1 :]]), speakers=speakers)
        written = Document("x", present).written(form).replace(*edit)
        draft = draft_of(present, passages(form, written, speakers, present.text))
        assert draft.text == " ".join(present.text.replace(*edit).split())
