"""Tests for the pieces of a chunk: other pieces keep all audio, and their texts join into one text."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sounds import babble

from voxbatch.engines.pieces import SHIFT, Piece, joined, recut
from voxbatch.engines.suspect_text import PieceText
from voxbatch.records import SAMPLING_RATE, Word

SPEECH = babble(20.0, seed=3)
LATE = (Word(" late", 1.0, 1.5),)


def test_a_pause_across_both_halves_is_one_pause() -> None:
    """Two stretches of silence that meet at the cut count as one."""
    halves = [Piece(SPEECH[: 10 * SAMPLING_RATE]), Piece(SPEECH[10 * SAMPLING_RATE :])]
    met = joined(halves, [PieceText(" one", LATE, (4.0, 10.0)), PieceText(" two", LATE, (0.0, 6.0))])
    assert met.longest_pause == (4.0, 16.0)
    apart = joined(halves, [PieceText(" one", LATE, (4.0, 9.0)), PieceText(" two", LATE, (0.0, 6.0))])
    assert apart.longest_pause == (10.0, 16.0)


@given(st.lists(st.integers(1, 300_000), min_size=1, max_size=4), st.integers(0, SHIFT), st.randoms())
def test_joined_words_are_in_order_and_inside(sizes: list[int], lead: int, rng: random.Random) -> None:
    """Times never go back in joined pieces, and the text is that of the words."""
    pieces = [Piece(np.zeros(size, np.float32)) for size in sizes]
    pieces[0] = replace(pieces[0], samples=np.zeros(sizes[0] + lead, np.float32), lead=lead)
    answers = []
    for piece in pieces:
        duration = len(piece.samples) / SAMPLING_RATE
        times = sorted(rng.uniform(0, duration) for _ in range(2 * rng.randint(0, 5)))
        words = tuple(Word(f" w{i}", a, b) for i, (a, b) in enumerate(zip(times[::2], times[1::2], strict=True)))
        answers.append(PieceText("".join(word.text for word in words), words, (0.0, duration)))
    whole = joined(pieces, answers)
    times = [time for word in whole.words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert all(0 <= time <= sum(sizes) / SAMPLING_RATE + 1e-9 for time in times)
    assert whole.text.strip() == "".join(word.text for word in whole.words).strip()
    assert whole.longest_pause == pytest.approx((0.0, sum(sizes) / SAMPLING_RATE))


def test_joined_times_count_from_the_start_of_the_chunk() -> None:
    """The end in the second half is shifted by the first half's length."""
    halves = [Piece(SPEECH[: 10 * SAMPLING_RATE]), Piece(SPEECH[10 * SAMPLING_RATE :])]
    met = joined(halves, [PieceText("one", text_after_eos=((4.0, 1),)), PieceText("two", text_after_eos=((5.0, 2),))])
    assert met.text_after_eos == ((4.0, 1), (15.0, 2))


def test_texts_without_times_are_joined_by_a_space() -> None:
    """Texts without times are joined by a space, except in scripts without spaces, where times decide."""
    halves = [Piece(SPEECH), Piece(SPEECH)]
    assert joined(halves, [PieceText("one"), PieceText("two", truncated=True)]) == PieceText("one two", truncated=True)
    close = (PieceText("你", (Word("你", 1, 2),)), PieceText("好", (Word("好", 1, 2),)))
    assert joined(halves, list(close)).text == "你好"


@given(st.integers(0, 30 * SAMPLING_RATE), st.integers(0, 100))
def test_recut_keeps_all_audio(size: int, seed: int) -> None:
    """The pieces contain all of the chunk's audio, in order, each within the limit."""
    limit = 30 * SAMPLING_RATE
    samples = np.resize(SPEECH[seed * 1000 :], size)
    pieces = recut(Piece(samples, "en"), limit)
    assert np.array_equal(np.concatenate([piece.samples[piece.lead :] for piece in pieces]), samples)
    assert all(0 < len(piece.samples) <= limit and piece.lang == "en" for piece in pieces)
    assert len(pieces) == (2 if size >= 8 * SAMPLING_RATE else 1)
