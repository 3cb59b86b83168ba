"""Tests for amounts in words, which engines would read as other amounts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxbatch.engines.spoken_english import spoken
from voxbatch.works.speak.listening import errors_heard

pytest.importorskip("icu4py")
EXAMPLES = {
    "The ticket costs $2.5 today.": "The ticket costs two dollars and fifty cents today.",
    "The fund has €2.5bn in cash.": "The fund has two point five billion euros in cash.",
    "We counted 10 000 people.": "We counted ten thousand people.",
    "The factor is 1,5 here.": "The factor is one point five here.",
    "$1, $0.99, £1.01, $0.": "one dollar, ninety-nine cents, one pound and one penny, zero dollars.",
    "US$3m and EUR 25 000, 25 €": "three million dollars and twenty-five thousand euros, twenty-five euros",
    "$1,234.50": "one thousand two hundred thirty-four dollars and fifty cents",
    "2.5 billion € ¥1.5 -$5": "two point five billion euros one point five yen minus five dollars",
    "10,234 or 1.010.234": "ten thousand two hundred thirty-four or one million ten thousand two hundred thirty-four",
    "3.14 and 0.05": "three point one four and zero point zero five",
    "-5 degrees, −2.5": "minus 5 degrees, minus two point five",
    "5% of 2.5 kg at 90 km/h": "five percent of two point five kilograms at ninety kilometres per hour",
    "1 km": "one kilometre",
    "21 °C": "twenty-one degrees Celsius",
    "at 9:05 or 14:30 or 12:00": "at nine oh five or fourteen thirty or twelve o'clock",
    "on 2026-03-05.": "on March fifth, twenty twenty-six.",
    "the 21st of May, 3rd": "the twenty-first of May, third",
}  # fmt: skip
UNCHANGED = [
    "In 1999 and 2026, 42 people.", "version 1.2.3 on 10.0.0.1", "B2, MP3 and 007", "3/4/2026", "pages 3-5",
    "555 123 4567", "Call 0800 123", "1990s", "No amounts.", "10 0 people", "m and $ and %", "a:30",
    "say [$2.5](/tu/) now",
]  # fmt: skip


@pytest.mark.parametrize("text", EXAMPLES)
def test_amounts(text: str) -> None:
    """Money, decimals, thousands, signs, units, times, dates and ordinals are put into words."""
    assert spoken(text) == EXAMPLES[text]
    assert spoken(EXAMPLES[text]) == EXAMPLES[text]


@pytest.mark.parametrize("text", UNCHANGED)
def test_others_stay(text: str) -> None:
    """Years, small numbers, versions, telephone numbers and what may be read in two ways stay."""
    assert spoken(text) == text


@given(st.text("0123456789 .,:-$€%mkbn", max_size=30))
def test_any_text(text: str) -> None:
    """Any text has a spoken form, which stays as it is."""
    assert spoken(spoken(text)) == spoken(spoken(spoken(text)))


@given(st.integers(10_000, 10**9))
def test_spellings_of_one_number(number: int) -> None:
    """The spellings of one number are one amount."""
    forms = {f"{number}", f"{number:,}", f"{number:,}".replace(",", " "), f"{number:,}".replace(",", "\u202f")}
    assert len({spoken(form) for form in forms}) == 1


@pytest.mark.parametrize(
    ("text", "heard", "errors"),
    [
        ("We counted 10 000 people.", "We counted 10,000 people.", 0),
        ("We counted 10 000 people.", "We counted ten zero people.", 2),
        ("We counted 10 000 people.", "We counted 10 0 people.", 1),
        ("The factor is 1,5 here.", "The factor is 1.5 here.", 0),
        ("The factor is 1,5 here.", "The factor is 15 here.", 1),
        ("It costs $2.5 today.", "It costs $2.50 today.", 0),
        ("It costs $2.5 today.", "It costs $2.05 today.", 1),
        ("We met at 9:05 in 1999.", "We met at 9:05 in 1999.", 0),
    ],
)
def test_errors_of_amounts(text: str, heard: str, errors: int) -> None:
    """An amount that was heard as another one is an error; another spelling of it is none."""
    counts = errors_heard(text, heard, "en")
    assert (counts.errors > 0) == (errors > 0), counts
