"""Tests for the flags of a whole transcript, by hand-worked cases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from voxbatch.records import Flag, Transcript, Word
from voxbatch.text.item_flags import LOW_MEAN, item_flags
from voxbatch.text.stitching import mean, segments

FRENCH = "Nous avons parlé avec les habitants du quartier, et ils nous ont dit que la rue est dangereuse pour eux."
ENGLISH = "I think that we have to look at the whole problem again, and then they will see what can be done about it."


def transcript(*confidences: float | None, text: str = "", language: str | None = None) -> Transcript:
    """Return a transcript of one word a second; each fifth word ends a sentence."""
    words = tuple(
        Word(" so." if i % 5 == 4 else " so", i, i + 1.0, confidence) for i, confidence in enumerate(confidences)
    )
    sure = mean([confidence for confidence in confidences if confidence is not None])
    return Transcript(text, words, tuple(segments(words)), len(words), language=language, confidence=sure)


def test_a_text_of_unsure_words_is_flagged_once() -> None:
    """The flag is about the whole recording if the mean of all words is low."""
    (flag,) = item_flags(transcript(0.5, 0.6, 0.9, 0.5, 0.5, 0.7, 0.7), "en")
    assert flag == Flag("low_confidence", "unsure words (mean confidence 0.63)")


def test_unsure_words_of_another_language_have_one_flag() -> None:
    """If the engine says that the language is another one, the words need no flag of their own."""
    foreign = Flag("other_language", "unsure words: the model knows English only", 0.0, 7.0)
    unsure = replace(transcript(0.5, 0.6, 0.4, 0.5, 0.5, 0.7, 0.7), flags=(foreign,))
    assert item_flags(unsure, None) == ()


def test_an_unsure_sentence_of_a_sure_text_is_flagged_with_its_place() -> None:
    """A long recording with one bad sentence has a high mean; the sentence is flagged by itself."""
    (flag,) = item_flags(transcript(*[0.99] * 10, *[0.5] * 5, *[0.99] * 10), None)
    assert flag == Flag("low_confidence", "5 unsure words (mean confidence 0.50)", 10.0, 15.0)


@pytest.mark.parametrize(
    "confidences", [(), (None,) * 6, (LOW_MEAN,) * 6, (0.99,) * 20 + (0.2,) * 4, (0.2, None)], ids=str
)
def test_few_words_and_words_without_confidence_are_not_judged(confidences: tuple[float | None, ...]) -> None:
    """Engines without confidence, a mean at the limit, and the last words of a text give no flag of a sentence."""
    found = [flag.start for flag in item_flags(transcript(*confidences), "en") if flag.start is not None]
    assert not found


def test_a_single_word_is_not_judged_by_its_confidence() -> None:
    """Nearly every single word has a low confidence, whether it is right or wrong."""
    assert item_flags(transcript(0.1), None) == ()
    assert [flag.kind for flag in item_flags(transcript(0.1, 0.1), None)] == ["low_confidence"]


@pytest.mark.parametrize(
    ("asked", "text", "found"),
    [
        ("en", "Guten Tag, wie geht es Ihnen?", ""),  # letters cannot tell it
        ("en", "Добрый день, как ваши дела?", "21 of 21 letters are Cyrillic; en was asked for"),
        ("ru", "Добрый день, как ваши дела?", ""),
        ("sr", "Dobar dan, kako ste?", ""),
        ("ru", "good morning to you", "16 of 16 letters are Latin; ru was asked for"),
        ("ja", "カーテンを開けてください。", ""),
        ("pt-BR", "これは日本語の文章です。", "11 of 11 letters are Hiragana; pt was asked for"),
        ("hi", "नमस्ते, आप कैसे हैं?", ""),
        ("en", "Привет", ""),  # too short
        ("tlh", "Добрый день, как ваши дела?", ""),  # not in the table
        (None, "Добрый день, как ваши дела?", ""),
        ("zh", "我们使用 Python 和 CTranslate2 进行转录工作。", ""),
    ],
)
def test_a_text_in_a_script_of_other_languages_is_flagged(asked: str | None, text: str, found: str) -> None:
    """The letters show that a text is not in the language asked for, if that language is not written in them."""
    assert [flag.reason for flag in item_flags(transcript(text=text), asked)] == ([found] if found else [])


def test_a_detected_language_that_was_not_asked_for_is_flagged() -> None:
    """An engine that names the language although one was given is believed."""
    (flag,) = item_flags(transcript(text="Guten Tag", language="de"), "en-GB")
    assert flag == Flag("other_language", "the model detected de; en was asked for")
    assert not item_flags(transcript(text="Guten Tag", language="de"), None)
    assert not item_flags(transcript(text="Good day", language="en"), "en-GB")


def spoken(*parts: str) -> Transcript:
    """Return a transcript of parts, one word every half second."""
    texts = " ".join(parts).split()
    words = tuple(Word(f" {text}", i / 2, i / 2 + 0.5, 0.99) for i, text in enumerate(texts))
    return Transcript(" ".join(texts), words, tuple(segments(words)), len(words) / 2)


def test_a_drift_into_another_language_is_flagged_with_its_place() -> None:
    """The flag names the language, and has the times of the drift."""
    (flag,) = item_flags(spoken(FRENCH, ENGLISH, FRENCH), "fr-CA")
    first, last = len(FRENCH.split()), len(f"{FRENCH} {ENGLISH}".split())
    reason = f"{last - first} words are probably English; fr was asked for"
    assert flag == Flag("other_language", reason, first / 2, last / 2)


def test_the_script_counts_before_the_words() -> None:
    """A text that is wholly in another script has one flag."""
    (flag,) = item_flags(spoken("Я не знаю, что это такое, но мы были там, и она тоже была с нами весь день."), "fr")
    assert flag.reason.endswith("letters are Cyrillic; fr was asked for")
