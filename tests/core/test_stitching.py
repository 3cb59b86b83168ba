"""Tests for stitching: every word comes out once, at its time and in order, at any cuts."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_engine import WORD_SECONDS, count_words

from voxbatch.records import LOST_SPEECH, REPETITION, SAMPLING_RATE, Chunk, Flag, Hypothesis, Span, Waveform, Word
from voxbatch.text.chunking import cut_into_chunks
from voxbatch.text.stitching import Heard, segments, stitch, streamed

SECOND = SAMPLING_RATE


def hypothesis_of(index: int, span: Span) -> Hypothesis:
    """Return the words of the scripted engine: a numbered word every half second of the recording's time."""
    words = tuple(count_words(Chunk(0, index, np.zeros(0, np.float32), span)))
    return Hypothesis(0, index, "".join(word.text for word in words), words)


def expected(begin: int, end: int) -> list[tuple[str, float]]:
    """Return all words that lie whole between two samples."""
    step = round(WORD_SECONDS * SECOND)
    return [(f" w{n}", n * WORD_SECONDS) for n in range(-(-begin // step), (end - step) // step + 1)]


@st.composite
def cuts(draw: st.DrawFn) -> list[Span]:
    """Generate cuts in pauses (between two words) or forced ones (anywhere, with a second of overlap)."""
    at = begin = draw(st.integers(0, 100)) * SECOND
    edges = [(at, 0)]
    for _ in range(draw(st.integers(0, 5))):
        at += draw(st.integers(4 * SECOND, 30 * SECOND))
        forced = draw(st.booleans())
        edges.append((at, SECOND) if forced else (at := at // 8000 * 8000, 0))
    edges.append((at + draw(st.integers(4 * SECOND, 30 * SECOND)), 0))
    assert edges[0][0] == begin
    return [Span(a - reach, b + more, a, b) for (a, reach), (b, more) in pairwise(edges)]


@given(cuts())
def test_each_word_comes_out_once(spans: list[Span]) -> None:
    """The numbered words come out exactly once, in order, at their times in the recording."""
    transcript = stitch(spans, [hypothesis_of(i, span) for i, span in enumerate(spans)])
    wanted = expected(spans[0].start, spans[-1].end)
    assert [(word.text, word.start) for word in transcript.words] == wanted
    assert transcript.text == "".join(text for text, _ in wanted).strip()
    assert transcript.audio_duration == (spans[-1].core_end - spans[0].core_start) / SECOND
    assert transcript.warnings == ()


@given(cuts(), st.data())
def test_streamed_segments_are_those_of_the_transcript(spans: list[Span], data: st.DataObject) -> None:
    """Chunks that come in parts, and in any order, give the segments of the whole, each as early as it is certain."""
    hypotheses = [hypothesis_of(i, span) for i, span in enumerate(spans)]
    ended = [replace(h, words=tuple(replace(w, text=f"{w.text}.") for w in h.words)) for h in hypotheses]
    for versions, has_times in ((hypotheses, True), (ended, True), ([replace(h, words=()) for h in ended], False)):
        parts = [list[Heard]() for _ in spans]
        for at, (span, hypothesis) in enumerate(zip(spans, versions, strict=True)):
            cut = data.draw(st.integers(0, len(hypothesis.words)))
            words = hypothesis.words
            parts[at] = [
                Heard(at, span, replace(hypothesis, words=words[:cut]), is_last=False),
                Heard(at, span, replace(hypothesis, words=words[cut:]), is_last=True),
            ]
        order = data.draw(st.permutations([at for at in range(len(spans)) for _ in range(2)]))
        messages = [parts[at].pop(0) for at in order]
        assert tuple(streamed(messages, has_times)) == stitch(spans, versions).segments


def test_a_segment_is_streamed_before_the_next_chunk() -> None:
    """A sentence of a chunk that is in progress comes as soon as the next word has come."""
    words = heard(LEFT, ("One.", 1), ("Two.", 2), ("Three.", 3)).words
    rest = [Heard(0, LEFT, Hypothesis(0, 0, "", words), is_last=False)]
    stream = streamed(iter(rest), has_times=True)
    assert (next(stream).text, next(stream).text) == ("One.", "Two.")


@pytest.mark.parametrize(("confidences", "mean"), [((0.5, 1.0), 0.75), ((0.5, None), 0.5), ((None, None), None)])
def test_a_transcript_has_the_mean_confidence_of_its_words(
    confidences: tuple[float | None, ...], mean: float | None
) -> None:
    """Words without a confidence do not count. Without any confidence there is no mean."""
    words = tuple(Word(f" w{i}", i, i + 0.5, confidence) for i, confidence in enumerate(confidences))
    span = Span(0, 4 * SECOND, 0, 4 * SECOND)
    assert stitch([span], [Hypothesis(0, 0, " w0 w1", words)]).confidence == mean


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 120), st.integers(14, 40), st.integers(0, 1000))
def test_each_word_comes_out_once_at_forced_cuts(seconds: int, limit: int, start: int) -> None:
    """The same holds for sound without a pause, at the cuts that cut_into_chunks chooses."""
    samples = (0.1 * np.random.default_rng(seconds).standard_normal(seconds * SECOND)).astype(np.float32)
    samples *= 1 + 0.5 * np.sin(np.arange(len(samples), dtype=np.float32) / 640)
    spans = [span for _, span in cut_into_chunks([Waveform(samples, start)], limit * SECOND)]
    words = stitch(spans, [hypothesis_of(i, span) for i, span in enumerate(spans)]).words
    assert [(w.text, w.start) for w in words] == expected(start, start + len(samples))


CUT = 100.0
LEFT = Span(80 * SECOND, 101 * SECOND, 80 * SECOND, 100 * SECOND)
RIGHT = Span(99 * SECOND, 120 * SECOND, 100 * SECOND, 120 * SECOND)


def heard(span: Span, *words: tuple[str, float] | tuple[str, float, float]) -> Hypothesis:
    """Return words with their start (and end, or 0.3 s later) in the recording's time."""
    zero = span.start / SECOND
    made = tuple(Word(f" {w[0]}", w[1] - zero, (w[2] if len(w) > 2 else w[1] + 0.3) - zero) for w in words)
    return Hypothesis(0, 0, "".join(word.text for word in made), made)


def joined(left: Hypothesis, right: Hypothesis) -> str:
    """Return the stitched text of two chunks that overlap around CUT."""
    return stitch([LEFT, RIGHT], [left, right]).text


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_inexact_times_neither_double_nor_lose_words(data: st.DataObject) -> None:
    """With times up to 0.3 s off and misheard words on each side, no word is doubled or lost, and each ends before the
    next one begins."""
    shift = st.floats(-0.3, 0.3)
    starts = [97.0 + 0.4 * i for i in range(16)]
    names = [f"w{i}" for i in range(16)]
    left = [(n, at + data.draw(shift)) for n, at in zip(names, starts, strict=True) if at + 0.3 <= 101]
    right = [(n, at + data.draw(shift)) for n, at in zip(names, starts, strict=True) if at >= 99]
    zone = [i for i, at in enumerate(starts) if 99 <= at <= 100.7]
    wrong = data.draw(st.lists(st.sampled_from(zone), max_size=len(zone) - 1, unique=True))
    for i in wrong:
        side, other = (left, "left") if data.draw(st.booleans()) else (right, "right")
        at = next(k for k, (name, _) in enumerate(side) if name == names[i])
        side[at] = (f"x{i}{other}", side[at][1])
    words = stitch([LEFT, RIGHT], [heard(LEFT, *left), heard(RIGHT, *right)]).words
    numbers = [int("".join(c for c in word.text if c.isdigit())) for word in words]
    assert numbers == list(range(16))
    assert all(a.start <= a.end <= b.start for a, b in pairwise(words))


@pytest.mark.parametrize("drift", [-0.2, 0.0, 0.2])
def test_repeated_words_keep_their_number(drift: float) -> None:
    """Repeated words across a cut come out in the right number: a word missed at the edge of one chunk is matched
    correctly.
    """
    left = heard(LEFT, ("say", 98.6), ("no", 99.2), ("no", 99.6), ("no", 100.2), ("no", 100.6))
    right = heard(RIGHT, ("no", 99.6 + drift), ("no", 100.2 + drift), ("no", 100.6 + drift), ("please", 101.2))
    assert joined(left, right) == "say no no no no please"


def test_words_match_regardless_of_case_and_punctuation() -> None:
    """Words match regardless of case and punctuation; punctuation alone matches nothing."""
    left = heard(LEFT, ("your", 99.3), ("country.", 99.8), ("…", 100.3))
    right = heard(RIGHT, ("-", 99.4), ("Country", 99.9), ("can", 100.4))
    assert joined(left, right) == "your country. can"


def test_misheard_word_at_the_cut_comes_out_once() -> None:
    """A word that the two chunks spell differently, on either side of the cut, comes out once."""
    assert joined(heard(LEFT, ("cat", 99.8, 100.1)), heard(RIGHT, ("cap", 99.9, 100.2), ("sat", 101.2))) == "cat sat"
    assert joined(heard(LEFT, ("cat", 99.9, 100.2)), heard(RIGHT, ("cap", 99.8, 100.1))) == "cat"


def test_match_outside_the_overlap_aligns_misheard_words() -> None:
    """A matching word just outside the overlap in one chunk still helps to align the misheard words."""
    left = heard(LEFT, ("five", 98.65), ("sicks", 99.05), ("heaven", 99.45))
    right = heard(RIGHT, ("five", 99.2), ("six", 99.5), ("seven", 99.9), ("eight", 100.4))
    assert joined(left, right) == "five six seven eight"


def test_unmatched_words_go_to_the_chunk_of_their_core() -> None:
    """If the chunks share no word, each word goes to the chunk whose core contains its middle."""
    assert joined(heard(LEFT, ("one", 98.0), ("two", 99.0)), heard(RIGHT, ("three", 100.2), ("four", 101))) == (
        "one two three four"
    )
    assert joined(heard(LEFT, ("one", 98.0), ("late", 100.6)), heard(RIGHT, ("early", 99.1), ("two", 102))) == "one two"


@pytest.mark.parametrize("text", ["one two", ""])
def test_chunk_without_words_removes_none(text: str) -> None:
    """A chunk without words removes no words of the other chunk's core."""
    full = heard(LEFT, ("one", 98.0), ("two", 99.4)) if text else heard(LEFT)
    assert joined(full, heard(RIGHT)) == text
    assert joined(heard(LEFT), heard(RIGHT, ("a", 100.2), ("b", 110))) == "a b"


def test_times_are_ordered_within_the_chunk() -> None:
    """Times that run backwards or lie outside of the chunk are put in order within its audio."""
    words = stitch([LEFT], [heard(LEFT, ("a", 70, 71), ("b", 90, 95), ("c", 85, 84), ("d", 100, 150))]).words
    assert [(w.text.strip(), w.start, w.end) for w in words] == [
        ("a", 80, 80), ("b", 90, 90), ("c", 90, 90), ("d", 100, 101),
    ]  # fmt: skip


def test_chunks_without_word_times_become_segments() -> None:
    """An engine without word times gives one segment per chunk and no words; empty chunks give none."""
    spans = [Span(i * SECOND, (i + 1) * SECOND, i * SECOND, (i + 1) * SECOND) for i in range(3)]
    transcript = stitch(spans, [Hypothesis(0, i, text) for i, text in enumerate([" So it is. ", "", "Yes."])])
    assert transcript.text == "So it is. Yes."
    assert transcript.words == ()
    assert [(s.text, s.start, s.end) for s in transcript.segments] == [("So it is.", 0, 1), ("Yes.", 2, 3)]


def test_words_without_times_are_spread_evenly() -> None:
    """If one chunk has no word times but others do, its words are spread evenly and none is lost."""
    right = Span(100 * SECOND, 120 * SECOND, 100 * SECOND, 120 * SECOND)
    left = Span(80 * SECOND, 100 * SECOND, 80 * SECOND, 100 * SECOND)
    transcript = stitch([left, right], [heard(left, ("hello", 82)), Hypothesis(0, 1, "good old world now")])
    assert transcript.text == "hello good old world now"
    assert [word.start for word in transcript.words] == [82, 100, 105, 110, 115]
    assert transcript.warnings == ("100.00 s to 120.00 s: no word times: spread evenly",)


def test_no_speech_gives_an_empty_transcript() -> None:
    """No chunks, or chunks without speech, give an empty transcript."""
    assert stitch([], []).text == ""
    empty = stitch([LEFT], [Hypothesis(0, 0, "")])
    assert (empty.text, empty.words, empty.segments, empty.audio_duration) == ("", (), (), 20.0)


@given(st.lists(st.tuples(st.integers(1, 30), st.sampled_from([None, "de", "en", "fr"])), min_size=1))
def test_the_language_is_that_of_most_of_the_audio(chunks: list[tuple[int, str | None]]) -> None:
    """The language with the longest sum of cores is the recording's; of equal ones, the first; without any, None."""
    ends = list(accumulate(seconds for seconds, _ in chunks))
    spans = [Span(0, 99 * SECOND, (b - s) * SECOND, b * SECOND) for b, (s, _) in zip(ends, chunks, strict=True)]
    found = stitch(spans, [Hypothesis(0, i, "a", language=lang) for i, (_, lang) in enumerate(chunks)]).language
    sums = {lang: sum(s for s, each in chunks if each == lang) for _, lang in chunks if lang}
    longest = [lang for lang, seconds in sums.items() if seconds == max(sums.values())]
    assert found == (longest[0] if longest else None)


def test_segments_end_at_sentences_pauses_and_30_s() -> None:
    """Segments end at sentence ends, in pauses of a second, and before they exceed 30 s; together they contain all
    words.
    """
    words = [Word(" So", 0, 0.5), Word(" what?", 0.5, 1), Word(" Well", 1, 1.5), Word(" then", 2.5, 3)]
    assert [s.text for s in segments(words)] == ["So what?", "Well", "then"]
    assert [(s.start, s.end) for s in segments(words)] == [(0, 1), (1, 1.5), (2.5, 3)]
    assert list(segments([])) == []
    long = [Word(f" w{i}", i, i + 0.9) for i in range(100)]
    found = list(segments(long))
    assert all(s.end - s.start <= 30 for s in found)
    assert " ".join(s.text for s in found) == " ".join(f"w{i}" for i in range(100))
    assert len(found) == 4


@pytest.mark.slow
def test_loop_at_the_cut_is_matched() -> None:
    """An engine in a loop gives thousands of words in a second; they are matched without failing."""
    loop = [("you", 99.5 + i / 2000, 99.5 + (i + 1) / 2000) for i in range(300)]
    text = joined(heard(LEFT, ("see", 98), *loop), heard(RIGHT, *loop, ("then", 101.5)))
    assert text.startswith("see you")
    assert text.endswith("you then")
    assert text.count("you") == 300


def test_words_of_one_chunk_are_kept_around_the_cut() -> None:
    """If only one chunk has words around the cut, they are kept on either side of the cut."""
    assert joined(heard(LEFT, ("hello", 85.0)), heard(RIGHT, ("never", 99.1), ("more", 99.5))) == "hello never more"
    assert joined(heard(LEFT, ("never", 100.1), ("more", 100.5)), heard(RIGHT, ("again", 110.0))) == "never more again"


def test_flags_move_to_the_clock_of_the_recording() -> None:
    """A flag keeps its place on the recording's clock, ends with its chunk, and without a place covers the core."""
    spans = [Span(0, 10 * SECOND, 0, 9 * SECOND), Span(8 * SECOND, 20 * SECOND, 9 * SECOND, 20 * SECOND)]
    heard = [
        Hypothesis(0, 0, "a", flags=(Flag(REPETITION, "loop"),)),
        Hypothesis(0, 1, "b", flags=(Flag(LOST_SPEECH, "gap", 2.0, 13.5), Flag(LOST_SPEECH, "start", -1.0, 0.5))),
    ]
    assert stitch(spans, heard).flags == (
        Flag(REPETITION, "loop", 0.0, 9.0),
        Flag(LOST_SPEECH, "gap", 10.0, 20.0),
        Flag(LOST_SPEECH, "start", 8.0, 8.5),
    )
