"""Tests that texts of one language in two scripts are compared by their words, where the scripts allow it."""

from __future__ import annotations

import pytest

from voxbatch.scoring.counts import count_errors
from voxbatch.scoring.normalize import Rules

JOINED = {
    "Serbian": ("sr", "Љубав, Њујорк и џеп", "Ljubav, Njujork i džep"),
    "Bosnian": ("bs", "Ђорђе Чћ", "Đorđe Čć"),
    "Azerbaijani": ("az", "Азәрбајҹан, ИЫ гыз ҝөзәл", "Azərbaycan, İI qız gözəl"),
    "Uzbek": ("uz", "Ўзбекистон, ер, поезд, лекция, маъно", "Oʻzbekiston, yer, poyezd, leksiya, maʼno"),
}
NOT_JOINED = {
    "Kazakh": ("kk", "қазақ", "qazaq"),
    "Norwegian": ("no", "jeg ikke", "eg ikkje"),
    "Punjabi": ("pa", "ਪੰਜਾਬ", "پنجاب"),
    "Russian": ("ru", "да", "da"),
}


@pytest.mark.parametrize("rules", [Rules(), Rules(case=True)], ids=["auto", "case"])
@pytest.mark.parametrize("language", JOINED)
def test_two_alphabets_of_the_same_letters_are_equal(language: str, rules: Rules) -> None:
    """Cyrillic has no errors against Latin, also with capitals; another letter has."""
    lang, cyrillic, latin = JOINED[language]
    assert count_errors(latin, cyrillic, lang, rules).errors == 0
    assert count_errors(latin, cyrillic[1:], lang, rules).errors == 1


@pytest.mark.parametrize("language", NOT_JOINED)
def test_other_scripts_and_spellings_differ(language: str) -> None:
    """Scripts that leave vowels out, alphabets without one spelling, and other words are errors."""
    lang, one, other = NOT_JOINED[language]
    assert count_errors(one, other, lang).errors > 0
