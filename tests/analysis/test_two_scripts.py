"""Tests that texts of one language in two scripts are compared by their words, where the scripts allow it."""

from __future__ import annotations

import pytest
from conftest import ROOT

from voxbatch.analysis.score import score_place
from voxbatch.scoring.counts import count_errors
from voxbatch.scoring.normalize import Rules, normalizer

CASE = ROOT.parent / "shared" / "cases" / "2026-11-28" / "chinese_scripts" / "zh.jsonl"

JOINED = {
    "Serbian": ("sr", "Љубав, Њујорк и џеп", "Ljubav, Njujork i džep"),
    "Bosnian": ("bs", "Ђорђе Чћ", "Đorđe Čć"),
    "Azerbaijani": ("az", "Азәрбајҹан, ИЫ гыз ҝөзәл", "Azərbaycan, İI qız gözəl"),
    "Chinese": ("zh", "經濟發展,頭髮,看著他在裡面,乾杯", "经济发展,头发,看着他在里面,干杯"),
    "Cantonese": ("yue", "衞生間嘅枱面喺裏面", "卫生间嘅台面喺里面"),
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
def test_two_scripts_with_the_same_words_are_equal(language: str, rules: Rules) -> None:
    """A text has no errors in the other script, also with capitals; without its first letter it has one."""
    lang, one, other = JOINED[language]
    assert count_errors(other, one, lang, rules).errors == 0
    assert count_errors(other, one[1:], lang, rules).errors == 1


def test_simplified_chinese_stays_as_it_is() -> None:
    """Words of regions differ, and simplified text is its own form."""
    assert count_errors("软件", "軟體", "zh").errors == 1
    for text in ("著名看着干杯后面头发发展里面", "乾隆皇帝", "东京タワー"):
        assert normalizer("zh")(text) == text


@pytest.mark.skipif(not CASE.is_file(), reason=f"no case in {CASE}")
def test_the_case_of_traditional_characters_has_no_errors() -> None:
    """Whisper writes traditional characters for simplified references."""
    assert score_place(str(CASE), None, "zh").corpus.by_language["zh"].rate == 0


@pytest.mark.parametrize("language", NOT_JOINED)
def test_other_scripts_and_spellings_differ(language: str) -> None:
    """Scripts that leave vowels out, alphabets without one spelling, and other words are errors."""
    lang, one, other = NOT_JOINED[language]
    assert count_errors(one, other, lang).errors > 0
