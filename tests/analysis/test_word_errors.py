"""Tests for the truth about single words, by hand-worked cases and by the counts of the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.scoring.counts import count_errors
from voxbatch.scoring.word_errors import word_errors

YES, NO, NONE = True, False, None


@pytest.mark.parametrize(
    ("reference", "words", "right"),
    [
        ("I am twenty five", ["I'm", "twenty", "five."], (YES, YES, YES)),  # i am 25
        ("I am twenty five", ["I'm", "twenty", "six."], (YES, NO, NO)),  # both words are the token 26
        ("it cost five million dollars", ["It", "cost", "$5", "million", "um,"], (YES, YES, YES, YES, NONE)),
        ("mister grey went", ["Mr.", "Gray", "[noise", "here]", "went"], (YES, YES, NONE, NONE, YES)),
        ("one two three", ["One,", "two,", "three."], (YES, YES, YES)),  # 123
        ("first 20 of them", ["first", "twenty", "of", "them"], (YES, YES, YES, YES)),
        ("we will not go", ["We", "won't", "–", "go."], (YES, YES, NONE, YES)),
        ("we will go", ["We", "won't", "go."], (YES, NO, YES)),  # will is right, not is not
        ("a b c", ["x"], (NO,)),
        ("", ["so", "what"], (NO, NO)),
        ("gone", [], ()),
    ],
)
def test_words_are_right_by_hand(reference: str, words: list[str], right: tuple[bool | None, ...]) -> None:
    """Contractions, numbers, titles, fillers and brackets, by the English rules."""
    assert word_errors(reference, words, "en").right == right


def test_words_of_a_language_without_spaces() -> None:
    """Characters are the tokens: a word is right if all of its characters are."""
    assert word_errors("我想去北京", ["我", "想", "去", "南京"], "zh").right == (True, True, True, False)


VOCABULARY = ("one", "two", "twenty", "five", "it's", "won't", "Mr.", "um", "the", "color", "colour", "[x]", "–", "a")
WORDS = st.lists(st.sampled_from(VOCABULARY), max_size=12)


@given(WORDS, WORDS)
def test_the_counts_are_those_of_the_whole_text(reference: list[str], words: list[str]) -> None:
    """The errors are those that the score counts, and a text without substitutions and insertions has no wrong word."""
    found = word_errors(" ".join(reference), words, "en")
    assert found.counts == count_errors(" ".join(reference), " ".join(words), "en")
    assert len(found.right) == len(words)
    if not found.counts.substitutions + found.counts.insertions:
        assert False not in found.right
