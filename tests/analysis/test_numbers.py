"""Tests that numbers of English texts are compared as they are said."""

from __future__ import annotations

import json

import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.scoring.counts import count_errors
from voxbatch.scoring.normalize import Rules, normalizer

CASE = ROOT.parent / "shared" / "cases" / "2026-11-28" / "numbers" / "num.jsonl"
SAME = [
    ("twenty five thousand euros", "25 000 €", "25,000 euros", "€25,000", "25000€", "€25 000", "€ 25 000"),
    ("minus five", "-5", "−5", "negative five"),
    ("one percent", "1%", "1 %", "one per cent", "1 percent"),
    ("three point one", "3.1"),
    ("three point one four", "3.14"),
    ("one dollar", "$1", "1 dollar"),
    ("five pounds fifty", "£5.50", "five pounds and fifty pence"),
    ("five dollars and fifty cents", "$5.50", "five dollars fifty"),
    ("two point five billion euros", "€2.5bn", "€2.5 billion", "2.5 billion euros"),
    ("fifty cents", "$0.50", "50 cents", "50¢"),
    ("five oh five", "5:05"),
    ("ten thirty", "10:30"),
    ("five o'clock", "5:00", "5 o'clock"),
    ("five pm", "5:00 p.m.", "5pm", "5 PM", "5 p.m."),
    ("seventeen thirty", "17:30"),
    ("half past two", "half past 2"),
    ("nineteen eighty four", "1984"),
    ("twenty twenty six", "2026", "two thousand twenty six", "two thousand and twenty six"),
    ("a hundred people", "100 people", "one hundred people"),
    ("half a million", "500,000"),
    ("two and a half", "2.5", "2½", "2 1/2"),
    ("three quarters", "3/4", "¾"),
    ("double oh seven", "007"),
    ("one oh one", "101"),
    ("point five", ".5"),
    ("naught point five", "0.5"),
    ("ten to twelve people", "10-12 people", "10–12 people"),
    ("five five five one two one two", "555-1212", "555 1212"),
    ("four one five five five five one two one two", "415-555-1212", "(415) 555-1212"),
    ("twenty first", "21st", "twenty-first"),
    ("nineteen nineties", "1990s", "1990's"),
    ("the nineties", "the 90s", "the '90s"),
    ("one two three", "1 2 3", "1, 2, 3"),
    ("one of them", "1 of them"),
    ("nine eleven", "9/11"),
    ("twenty four seven", "24/7"),
    ("covid nineteen", "covid-19"),
    ("minus five dollars", "-$5"),
    ("two hundred thousand", "200,000", "200 000"),
    ("one hundred and twenty three thousand four hundred and fifty six", "123,456"),
    ("version two point zero", "version 2.0"),
    ("one million two hundred thousand", "1,200,000", "1 200 000"),
    ("minus ten to minus five", "-10 to -5"),
    ("zero point one percent", "0.1%"),
    ("five kilometers", "5 kilometers"),
    ("two times", "2 times"),
]
"""Spellings of one number."""
DIFFERENT = [
    ("one percent", "one"),
    ("one dollar", "one"),
    ("10 0 people", "10 000 people"),
    ("-5", "5"),
    ("$1", "1"),
    ("five percent", "five"),
    ("3.1", "3.2"),
    ("€25 000", "25 000"),
    ("ten to twelve", "ten twelve"),
    ("1 million", "1 billion"),
    ("two", "too"),
]


@pytest.mark.parametrize("spellings", SAME, ids=[row[0] for row in SAME])
def test_spellings_of_a_number_are_equal(spellings: tuple[str, ...]) -> None:
    """A number is the same in words and in digits, with its sign and its unit; the first one is what is said."""
    assert {normalizer("en")(f"it is {spelling} here") for spelling in spellings} == {
        normalizer("en")(f"it is {spellings[0]} here")
    }


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_numbers_differ(one: str, other: str) -> None:
    """A unit, a sign or a digit that is missing is an error."""
    assert count_errors(one, other, "en").errors > 0


def test_whisper_keeps_its_own_numbers() -> None:
    """--normalizer whisper is exactly Whisper's rules; --normalizer basic leaves numbers as they are written."""
    assert normalizer("en", Rules("whisper"))("$1, 1 2 3, -5") == "one one 2 3 5"
    assert normalizer("en", Rules("basic"))("minus five, -5") == "minus five 5"


@given(st.integers(0, 10**12))
def test_integers_survive(number: int) -> None:
    """Digits stay, with thousands separated by commas or spaces, too."""
    plain = normalizer("en")(f"about {number} people")
    assert plain == f"about {number} people"
    for separator in ", \u202f":
        assert normalizer("en")(f"about {number:,} people".replace(",", separator)) == plain


@given(st.text(st.sampled_from("0123456789 .,-/:$%€'ap m+half one two hundred"), max_size=40))
def test_any_mixture_is_normalised(text: str) -> None:
    """No text fails, and white space around it changes nothing."""
    assert normalizer("en")(f" {text} ") == normalizer("en")(text)


@pytest.mark.skipif(not CASE.is_file(), reason=f"no case in {CASE}")
def test_the_table_of_cases_is_right() -> None:
    """Texts with the same numbers have no errors; those that lack a unit have one."""
    rows = {row["id"]: row for row in map(json.loads, CASE.read_text().splitlines())}
    errors = {name: count_errors(row["text"], row["pred_text"], "en").errors for name, row in rows.items()}
    assert {name for name, count in errors.items() if count} == {"4", "6", "14"}  # "u s a" is no number
    assert (errors["4"], errors["6"]) == (1, 1)
